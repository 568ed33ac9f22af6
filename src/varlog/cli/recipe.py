"""`varlog recipe`: skip a position that stops a state machine."""

from __future__ import annotations

from typing import Annotated

import typer

from varlog.cli.output import fail, print_json, run_async
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, JsonOption, Target, target

recipe = typer.Typer(no_args_is_help=True, help="Locks, queues, maps and other recipes on a topic.")


@recipe.callback()
def _recipe() -> None:
    """Locks, queues, maps and other recipes on a topic."""


@recipe.command("skip")
def skip(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    position: Annotated[int, typer.Argument(min=1, help="Position that the error names.")],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Skip even a command that this version can read; its effect is removed from the machine.",
        ),
    ] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Make every replica of a state machine skip the entry at POSITION.

    The decision is itself an entry of the topic, so that all replicas agree. A replica that has already applied the position stops,
    and is rebuilt without it when it is opened again."""
    machine, by = run_async(_skip(target(cluster, data), topic, position, force))
    if json_:
        print_json({"topic": topic, "machine": machine, "position": position, "by": by})
    else:
        print(
            f"position {position} is skipped by every replica of machine {machine!r} (entry {by}): open the machine again"
        )


async def _skip(where: Target, topic: str, position: int, force: bool) -> tuple[str, int]:
    from varlog.recipes.core.envelope import Skip, command_machine, encode_skip, newer_command

    async with where.log(topic, create=False) as log:
        entry = await log.read(position)
        newer, machine = newer_command(entry.data), command_machine(entry.data)
        if newer is not None:
            machine = newer[0]
        elif machine is None:
            fail(
                f"the entry at {position} of {topic} is not a command of a recipe: every replica skips it anyway"
            )
        elif not force:
            fail(
                f"the entry at {position} of {topic} is a command of machine {machine!r} that this version can read: use --force "
                f"if the machine stops there"
            )
        appended = await log.append(encode_skip(Skip(machine, position)))
        return machine, appended.glsn
