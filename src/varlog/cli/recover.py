"""`vmr recover` and `varlog backup`: rebuild and copy the metadata."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from varlog.metarepo.recovery.recover import Recovery
    from varlog.metarepo.state import RepositoryState


def recover(
    store: Annotated[Path, typer.Option(metavar="FILE", help="New store to create; it must not exist.")],
    nodes: Annotated[
        list[str],
        typer.Option(
            metavar="HOST:PORT,…", help="All storage nodes; repeat the option or separate them by commas."
        ),
    ],
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Topic to leave out, by name or id; its data stay on the nodes."),
    ] = None,
    lost_node: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", help="Storage node that is lost forever; repeat the option for several."),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Write the store. Without it, only show what would be written."),
    ] = False,
) -> None:
    """Rebuild a lost metadata repository from the storage nodes, which must run. Nothing is written without --yes.

    Exit code 1: something cannot be proven, or a node does not answer; the output says what, and what to do."""
    from varlog.model.errors import VarlogError

    addresses = [address for given in nodes for address in given.split(",") if address]
    try:
        asyncio.run(_recover(store.absolute(), addresses, leave_out or [], lost_node or [], yes))
    except (VarlogError, OSError) as error:
        print(f"vmr: error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


async def _recover(
    path: Path, addresses: list[str], leave_out: list[str], lost: list[int], yes: bool
) -> None:
    from varlog.metarepo.recovery.recover import find_recovery, write_store
    from varlog.metarepo.store.sqlite import SqliteStore
    from varlog.model.errors import PreconditionFailed
    from varlog.model.ids import ANY_CLUSTER, NodeID
    from varlog.rpc.tcp import TcpTransport
    from varlog.runtime.environment import system_environment

    _check_new(path)
    found = await find_recovery(
        TcpTransport(ANY_CLUSTER), addresses, leave_out=leave_out, lost=[NodeID(node) for node in lost]
    )
    _print_recovery(found)
    if found.rebuilt.stops:
        raise PreconditionFailed("not everything is proven, so nothing was written: see above")
    view = found.rebuilt.members.view
    if not yes:
        print(f"dry run: nothing was written; run it again with --yes to write {path}")
        return
    await write_store(found.rebuilt, SqliteStore(path, system_environment()))
    print(f"written and read back: {path}")
    print(
        f"start it with `vmr start --cluster-id {view.cluster} --store {path}`; the manager then unseals the log streams"
    )


def backup(
    source: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT|FILE",
            help="A running metadata repository, or the store of a stopped one.",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="File for the copy; it must not exist.")],
) -> None:
    """Copy the metadata of a repository, consistently, even while it runs. The copy is verified, and can be used as a store."""
    from varlog.model.errors import VarlogError

    try:
        running = not Path(source).exists()
        asyncio.run(_backup(source if running else Path(source).absolute(), target.absolute()))
    except (VarlogError, OSError) as error:
        print(f"varlog: error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


async def _backup(source: str | Path, target: Path) -> None:
    from varlog.metarepo.recovery.backup import fetch_backup, read_store, write_backup
    from varlog.metarepo.store.sqlite import SqliteStore
    from varlog.model.ids import ANY_CLUSTER
    from varlog.rpc.tcp import TcpTransport
    from varlog.runtime.environment import system_environment

    _check_new(target)
    if isinstance(source, Path):
        items = await read_store(SqliteStore(source, system_environment()))
    else:
        items = await fetch_backup(TcpTransport(ANY_CLUSTER), source)
    made = await write_backup(items, SqliteStore(target, system_environment()))
    view = made.state.view
    print(
        f"{target}: cluster {view.cluster} ({view.uuid}), revision {view.revision}, term {made.term}; read back"
    )
    for line in _topics(made.state):
        print(line)


def _topics(state: RepositoryState) -> list[str]:
    lines = []
    for topic in state.view.topics:
        streams = len(state.view.streams_of(topic.topic))
        if topic.sequenced:
            projection = state.view.projection(topic.topic)
            where = f"projection of epoch {projection.epoch}" if projection is not None else "not begun"
        else:
            where = f"high watermark {state.order.high_watermark(topic.topic)}"
        lines.append(
            f"  {topic.name}: {topic.ordering}, {_count(streams, 'log stream')}, {where}, trimmed up to {topic.trimmed}"
        )
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _check_new(path: Path) -> None:
    from varlog.metarepo.store.journal import journal_path
    from varlog.model.errors import StartupError

    for found in (path, journal_path(path)):
        if found.exists():
            raise StartupError(f"{found} exists: choose another file, or move this one away")
    if not path.parent.is_dir():
        raise StartupError(f"{path.parent} is not a directory: create it first")


def _print_recovery(found: Recovery) -> None:
    rebuilt = found.rebuilt
    view = rebuilt.members.view
    print(f"cluster {view.cluster} ({view.uuid or 'UUID not known'}), newest term seen {rebuilt.term}")
    for one in found.nodes:
        copy = (
            f"copy of the view of revision {one.copy.view.revision}"
            if one.copy is not None
            else "no copy of the view"
        )
        held = f"{_count(len(one.status.replicas), 'replica')}, {_count(len(one.status.units), 'log unit')}"
        print(f"  node {one.node} at {one.address}: {held}, {copy}")
    for address, why in found.silent:
        print(f"  {address} does not answer: {why}")
    for topic in rebuilt.topics:
        name = f"{topic.topic.name} (id {topic.topic.topic})"
        if topic.left_out:
            print(f"  topic {name}: left out; its data stay on the nodes")
            continue
        ends = f"positions {topic.topic.trimmed + 1} to {topic.high_watermark}"
        print(f"  topic {name}: {topic.topic.ordering}, {_count(len(topic.streams), 'log stream')}, {ends}")
        for note in topic.notes:
            print(f"    note: {note}")
        for problem in topic.problems:
            print(f"    NOT PROVEN: {problem}")
    for note in rebuilt.notes:
        print(f"  note: {note}")
    for problem in rebuilt.problems:
        print(f"  NOT PROVEN: {problem}")
