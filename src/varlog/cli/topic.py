"""`varlog topic`: create, list, describe and delete topics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import FAILED, WRONG_USAGE, fail, print_json, print_table, run, short_bytes
from varlog.cli.status_tables import print_parts, replica_statuses, streams_named, topics_table
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, JsonOption, Target, target
from varlog.model.lsn import FIRST_GLSN

if TYPE_CHECKING:
    from varlog.model.cluster import Topic
    from varlog.rpc.messages import ClusterStatusIs

topic = typer.Typer(no_args_is_help=True, help="Topics: create, list, describe, delete.")

_Name = Annotated[str, typer.Argument(help="The topic's name.")]


@topic.command("create")
def create(
    name: _Name,
    streams: Annotated[int, typer.Option(min=0, help="Log streams [0: the manager's default].")] = 0,
    replicas: Annotated[int, typer.Option(min=0, help="Copies of each [0: the manager's default].")] = 0,
    first: Annotated[
        int, typer.Option(min=1, help="The position that its first entry gets: for a copy of another topic.")
    ] = FIRST_GLSN,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is fine.")
    ] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Make a topic, and wait until its log streams run."""
    made = run(_create(target(cluster, data), name, streams, replicas, first, if_not_exists))
    if json_:
        print_json(made)
    else:
        print(f"topic {made.name} is ready")


async def _create(
    where: Target, name: str, streams: int, replicas: int, first: int, if_not_exists: bool
) -> Topic:
    async with where.admin(make=True) as admin:
        if not if_not_exists and (await admin.view()).topic_named(name) is not None:
            fail(f"topic {name!r} is there already: use it, or pass --if-not-exists", FAILED)
        return await admin.create_topic(name, streams=streams, replicas=replicas, first=first)


@topic.command("list")
def list_topics(
    cluster: ClusterOption = DEFAULT_CLUSTER, data: DataOption = None, json_: JsonOption = False
) -> None:
    """List the topics with their oldest and newest positions."""
    seen = run(_status(target(cluster, data)))
    if json_:
        print_json([_told(seen, found) for found in seen.view.topics])
    else:
        print_parts([topics_table(seen)])


@topic.command("describe")
def describe(
    name: _Name, cluster: ClusterOption = DEFAULT_CLUSTER, data: DataOption = None, json_: JsonOption = False
) -> None:
    """Show a topic, its log streams and their replicas."""
    seen = run(_status(target(cluster, data)))
    streams = streams_named(seen, name)
    told = next(_told(seen, found) for found in seen.view.topics if found.name == name)
    replicas = {found.log_stream: replica_statuses(seen, found) for found in streams}
    if json_:
        print_json(told | {"log_streams": streams, "replicas": replicas})
        return
    print(f"topic {name}: {told['ordering']} ordering, {_positions_told(seen, name)}\n")
    rows = []
    for found in streams:
        for number, status in replicas[found.log_stream].items():
            role = "primary" if number == found.primary else "backup"
            state = status.state if status else "silent"
            ends = (status.committed_end - 1, status.durable_end - 1) if status else ("?", "?")
            size = short_bytes(status.bytes) if status else "?"
            rows.append((found.log_stream, found.state, number, role, state, *ends, size))
    print_table("", ("stream", "state", "node", "role", "replica", "#ordered", "#durable", "#bytes"), rows)


@topic.command("delete")
def delete(
    name: _Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
) -> None:
    """Delete a topic and its entries, for ever."""
    if not yes:
        if not sys.stdin.isatty():
            fail("deleting a topic cannot be undone: pass --yes", WRONG_USAGE)
        typer.confirm(f"Delete topic {name} and all its entries for ever?", abort=True)
    run(_delete(target(cluster, data), name))
    print(f"topic {name} is deleted")


async def _delete(where: Target, name: str) -> None:
    async with where.admin() as admin:
        await admin.delete_topic(name)


async def _status(where: Target) -> ClusterStatusIs:
    async with where.admin() as admin:
        return await admin.status()


def _told(seen: ClusterStatusIs, found: Topic) -> dict[str, object]:
    mark = next((one for one in seen.tails if one.topic == found.topic), None)
    return {
        "name": found.name,
        "topic": found.topic,
        "ordering": str(found.ordering),
        "streams": len(seen.view.streams_of(found.topic)),
        "oldest": mark.trimmed + 1 if mark else None,
        "newest": mark.high_watermark if mark else None,
        "first": found.first,
    }


def _positions_told(seen: ClusterStatusIs, name: str) -> str:
    found = next(found for found in seen.view.topics if found.name == name)
    mark = next((one for one in seen.tails if one.topic == found.topic), None)
    begun = "" if found.first == FIRST_GLSN else f", the first was {found.first}"
    if mark is None or mark.high_watermark < found.first:
        return "no entries yet" + begun.replace("was", "will be")
    return f"positions {mark.trimmed + 1} to {mark.high_watermark}{begun}"
