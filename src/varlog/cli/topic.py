"""`varlog topic`: create, list, describe and delete topics, and adopt an order."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import FAILED, WRONG_USAGE, fail, make_table, print_json, run_async, short_bytes
from varlog.cli.status import (
    print_parts,
    projection_lines,
    streams_named,
    thin_lines,
    topics_table,
    units_table,
)
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, JsonOption, Target, target
from varlog.client.cluster_status import replica_statuses, unit_statuses
from varlog.model.cluster import Grouping, Ordering
from varlog.model.lsn import FIRST_GLSN
from varlog.model.projection import STRIPE_SIZE

if TYPE_CHECKING:
    from rich.table import Table

    from varlog.model.cluster import LogStream, Topic
    from varlog.model.commit import OrderAdoption
    from varlog.model.status import ClusterStatus

topic = typer.Typer(no_args_is_help=True, help="Topics: create, list, describe, delete, adopt-order.")

ROWS_SHOWN = 20

_Name = Annotated[str, typer.Argument(help="The topic's name.")]


@topic.command("create")
def create(
    name: _Name,
    streams: Annotated[
        int, typer.Option(min=0, help="Number of log streams [0: the manager's default].")
    ] = 0,
    replicas: Annotated[
        int, typer.Option(min=0, help="Replicas per log stream [0: the manager's default].")
    ] = 0,
    first: Annotated[
        int, typer.Option(min=1, help="Position of the first entry, for a copy of another topic.")
    ] = FIRST_GLSN,
    ordering: Annotated[
        Ordering,
        typer.Option(
            help="How positions are assigned: by the metadata repository (committed) or by a sequencer (sequenced)."
        ),
    ] = Ordering.COMMITTED,
    stripe_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Sequenced topics with several log streams: consecutive positions per log stream, which is also the "
            f"largest batch, in entries [{STRIPE_SIZE}].",
        ),
    ] = None,
    grouping: Annotated[
        Grouping | None,
        typer.Option(
            help="Sequenced topics: choose nodes for each log stream (stream), or the same nodes for all, with rotated "
            "chains (node). Default: stream."
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic already exists.")
    ] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Create a topic and wait until its log streams run."""
    if ordering is not Ordering.SEQUENCED and (stripe_size is not None or grouping is not None):
        option = "--stripe-size" if stripe_size is not None else "--grouping"
        fail(f"{option} is for sequenced topics: add --ordering sequenced, or leave it out", WRONG_USAGE)
    shape = _Shape(streams, replicas, first, ordering, stripe_size or 0, grouping or Grouping.STREAM)
    made = run_async(_create(target(cluster, data), name, shape, if_not_exists))
    if json_:
        print_json(made)
    else:
        print(f"topic {made.name} is ready")


@dataclass(frozen=True)
class _Shape:
    """The options of a new topic; 0 is the default."""

    streams: int
    replicas: int
    first: int
    ordering: Ordering
    stripe_size: int
    grouping: Grouping


async def _create(where: Target, name: str, shape: _Shape, if_not_exists: bool) -> Topic:
    async with where.admin(make=True) as admin:
        if not if_not_exists and (await admin.view()).topic_named(name) is not None:
            fail(f"topic {name!r} already exists: use it, or pass --if-not-exists", FAILED)
        return await admin.create_topic(name, **asdict(shape))


@topic.command("list")
def list_topics(
    cluster: ClusterOption = DEFAULT_CLUSTER, data: DataOption = None, json_: JsonOption = False
) -> None:
    """List the topics with their oldest and newest positions."""
    seen = run_async(_status(target(cluster, data)))
    if json_:
        print_json([_topic_json(seen, found) for found in seen.view.topics])
    else:
        print_parts([topics_table(seen)])


@topic.command("describe")
def describe(
    name: _Name, cluster: ClusterOption = DEFAULT_CLUSTER, data: DataOption = None, json_: JsonOption = False
) -> None:
    """Show a topic, its log streams and replicas; for a sequenced topic its projection, chains and units."""
    seen = run_async(_status(target(cluster, data)))
    streams = streams_named(seen, name)
    topic = next(found for found in seen.view.topics if found.name == name)
    summary = _topic_json(seen, topic)
    if json_:
        statuses = unit_statuses if topic.sequenced else replica_statuses
        kept = {found.log_stream: statuses(seen, found) for found in streams}
        print_json(summary | {"log_streams": streams, "units" if topic.sequenced else "replicas": kept})
        return
    print(f"topic {name}: {summary['ordering']} ordering, {_positions_text(seen, name)}")
    if topic.stopped:
        print(f"STOPPED: {topic.stopped}; run `varlog topic adopt-order {name}`")
    if topic.sequenced:
        thin = thin_lines(seen, topic.topic)
        print_parts([*projection_lines(seen, topic), *thin, "", units_table(seen, streams)])
    else:
        print_parts(["", _replicas_table(seen, streams)])


def _replicas_table(seen: ClusterStatus, streams: Sequence[LogStream]) -> Table:
    rows = []
    for found in streams:
        for number, status in replica_statuses(seen, found).items():
            role = "primary" if number == found.primary else "backup"
            state = status.state if status else "silent"
            ends = (status.committed_end - 1, status.durable_end - 1) if status else ("?", "?")
            size = short_bytes(status.bytes) if status else "?"
            rows.append((found.log_stream, found.state, number, role, state, *ends, size))
    columns = ("stream", "state", "node", "role", "replica", "#ordered", "#durable", "#bytes")
    return make_table("", columns, rows)


@topic.command("delete")
def delete(
    name: _Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Delete the topic even if it is STOPPED; the order known only to its nodes is lost. See adopt-order.",
        ),
    ] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
) -> None:
    """Delete a topic and all its entries, irreversibly."""
    if not yes:
        if not sys.stdin.isatty():
            fail("deleting a topic cannot be undone: pass --yes", WRONG_USAGE)
        typer.confirm(f"Delete topic {name} and all its entries, irreversibly?", abort=True)
    run_async(_delete(target(cluster, data), name, force))
    print(f"topic {name} is deleted")


async def _delete(where: Target, name: str, force: bool) -> None:
    async with where.admin() as admin:
        await admin.delete_topic(name, forced=force)


@topic.command("adopt-order")
def adopt_order(
    name: _Name,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Apply the change. Without it, only show what would be done.")
    ] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Adopt the order of a STOPPED topic from its storage nodes.

    A topic is STOPPED when a node knows more of its order than the metadata repository, which lost its newest records or was
    restored from an older copy. The nodes' commit rows must be gap-free and consistent up to the newest position that any node
    knows. Otherwise the missing positions are listed and nothing is changed. Exit code 1: it is not possible.

    The order of a sequenced topic is its projection. The newest one is taken from the copies of the view that the nodes store; it
    must be the newest projection that any node has seen.

    A topic is also STOPPED while no node with a replica of one of its log streams has been reached since the repository started.
    It continues automatically once such a node is reached. With --yes it continues without them, and what only those nodes know is
    lost."""
    adoption = run_async(_adopt(target(cluster, data), name, yes))
    if json_:
        print_json(adoption)
    else:
        print("\n".join(_adoption_lines(name, adoption)))
    if not adoption.adopted and (yes or adoption.missing or adoption.conflicts):
        raise typer.Exit(FAILED)


async def _adopt(where: Target, name: str, yes: bool) -> OrderAdoption:
    async with where.admin() as admin:
        return await admin.adopt_order(name, dry_run=not yes)


def _adoption_lines(name: str, adoption: OrderAdoption) -> list[str]:
    """Which positions come from which node, or what prevents it."""
    if not adoption.stopped and adoption.end <= adoption.begin and not adoption.projection:
        return [f"topic {name} is not stopped: there is nothing to do"]
    lines = [
        f"topic {name} is STOPPED: {adoption.stopped}" if adoption.stopped else f"topic {name} is not stopped"
    ]
    count = adoption.end - adoption.begin
    if count > 0:
        lines.append(
            f"the nodes know {count} positions that the repository does not: {_range(adoption.begin, adoption.end)}"
        )
    for node, log_stream, begin, end, llsn in adoption.taken[:ROWS_SHOWN]:
        lines.append(
            f"  from node {node}: positions {_range(begin, end)}, log stream {log_stream} from LLSN {llsn} on"
        )
    if len(adoption.taken) > ROWS_SHOWN:
        lines.append(f"  … and {len(adoption.taken) - ROWS_SHOWN} more runs")
    lines += [
        f"MISSING: no node knows positions {_range(begin, end)}"
        for begin, end in adoption.missing[:ROWS_SHOWN]
    ]
    lines += [f"CONFLICT: {conflict}" for conflict in adoption.conflicts]
    if adoption.projection:
        lines.append(
            f"node {adoption.source} keeps projection {adoption.projection}, the repository has projection {adoption.lost}: "
            f"projection {adoption.projection} is adopted"
        )
    if adoption.trimmed:
        lines.append(f"positions up to {adoption.trimmed} are trimmed")
    if adoption.needed:
        needed = ", ".join(map(str, adoption.needed))
        lines.append(
            f"NOT PROVEN: that there is no newer projection, without node {needed}: start it first if you can"
        )
    if adoption.silent:
        silent = ", ".join(map(str, adoption.silent))
        lines.append(
            f"not reached: node {silent}; what only it knows would be lost: start it first if you can"
        )
    if adoption.raised:
        lines.append(
            f"log streams {', '.join(map(str, adoption.raised))} are sealed and unsealed by the manager"
        )
    if adoption.adopted:
        lines.append(f"done: the order was adopted from the nodes, and topic {name} continues")
    elif adoption.missing or adoption.conflicts:
        lines.append(
            "not possible: start the nodes that have what is missing, or restore a newer copy of the metadata repository"
        )
    else:
        lines.append(f"nothing was changed; to apply it: varlog topic adopt-order {name} --yes")
    return lines


def _range(begin: int, end: int) -> str:
    return str(begin) if end - begin == 1 else f"{begin} to {end - 1}"


async def _status(where: Target) -> ClusterStatus:
    async with where.admin() as admin:
        return await admin.status()


def _topic_json(seen: ClusterStatus, found: Topic) -> dict[str, object]:
    mark = next((one for one in seen.tails if one.topic == found.topic), None)
    return {
        "name": found.name,
        "topic": found.topic,
        "ordering": str(found.ordering),
        "streams": len(seen.view.streams_of(found.topic)),
        "oldest": mark.trimmed + 1 if mark else None,
        "newest": mark.high_watermark if mark else None,
        "first": found.first,
        "stopped": found.stopped,
    } | (_projection_json(seen, found) if found.sequenced else {})


def _projection_json(seen: ClusterStatus, found: Topic) -> dict[str, object]:
    projection = seen.view.projection(found.topic)
    return {"stripe_size": found.stripe_size, "grouping": str(found.grouping), "projection": projection}


def _positions_text(seen: ClusterStatus, name: str) -> str:
    found = next(found for found in seen.view.topics if found.name == name)
    mark = next((one for one in seen.tails if one.topic == found.topic), None)
    begun = "" if found.first == FIRST_GLSN else f", the first was {found.first}"
    if mark is None or mark.high_watermark < found.first:
        return "no entries yet" + begun.replace("was", "will be")
    return f"positions {mark.trimmed + 1} to {mark.high_watermark}{begun}"
