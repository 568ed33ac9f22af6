"""`varlog status`: the state of the cluster, once or with --watch until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import FAILED, make_console, print_json, run
from varlog.cli.status_tables import parts, print_parts, status_json, stopped_lines
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, JsonOption, Target, target
from varlog.runtime.logging import escaped

if TYPE_CHECKING:
    from rich.console import RenderableType

    from varlog.model.status import ClusterStatus

WATCH_S = 1.0
INTERRUPTED = 130


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second, until Ctrl-C.")] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Show nodes, topics, log streams, replica states, reader lag and recent manager activity.

    Exit code 1: a topic is STOPPED, because a storage node knows more of its order than the metadata repository."""
    where = target(cluster, data)
    if watch:
        _run_until_interrupted(where, json_)
        return
    seen = run(_status(where))
    if json_:
        print_json(status_json(seen))
    else:
        print_parts(parts(seen))
    if stopped_lines(seen):
        raise typer.Exit(FAILED)


async def _status(where: Target) -> ClusterStatus:
    async with where.admin() as admin:
        return await admin.status()


def _run_until_interrupted(where: Target, as_json: bool) -> None:
    try:
        run(_watch(where, as_json))
    except typer.Exit as ended:
        if ended.exit_code != INTERRUPTED:  # Ctrl-C is how a watch ends
            raise


async def _watch(where: Target, as_json: bool) -> None:
    console = make_console()
    if as_json or not console.is_terminal:
        async for seen in _poll(where):
            if as_json:
                print_json({"error": seen} if isinstance(seen, str) else status_json(seen), flush=True)
            else:
                print_parts([*_shown(seen), ""])
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=console, auto_refresh=False, screen=True) as live:
        async for seen in _poll(where):
            live.update(Group(*_shown(seen)), refresh=True)


async def _poll(where: Target) -> AsyncIterator[ClusterStatus | str]:
    """One status per second, or an error message. The first one must succeed."""
    from varlog.model.errors import VarlogError

    async with where.admin() as admin:
        yield await admin.status()
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                yield await admin.status()
            except VarlogError as error:
                yield str(error)


def _shown(seen: ClusterStatus | str) -> list[RenderableType]:
    from rich.text import Text

    shown: list[RenderableType] = [f"no answer: {seen}"] if isinstance(seen, str) else parts(seen)
    return [Text(escaped(part)) if isinstance(part, str) else part for part in shown]
