"""`varlog status`, `varlog node` and `varlog stream`: what the cluster is made of, and how it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import print_json, print_table, run, short_bytes
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, JsonOption, Target, target

if TYPE_CHECKING:
    from varlog.model.cluster import LogStream, ReplicaStatus
    from varlog.rpc.messages import ClusterStatusIs

node = typer.Typer(no_args_is_help=True, help="Storage nodes: list, add, remove.")
stream = typer.Typer(no_args_is_help=True, help="Log streams: list, add, seal, unseal.")

_Stream = Annotated[int, typer.Argument(help="The log stream's number, as in `varlog stream list`.")]


def status(
    cluster: ClusterOption = DEFAULT_CLUSTER, data: DataOption = None, json_: JsonOption = False
) -> None:
    """Show nodes, topics, log streams and how their replicas are."""
    seen = run(_status(target(cluster, data)))
    if json_:
        print_json(seen)
        return
    print(f"cluster {seen.view.cluster}, manager at {seen.view.manager_address or '(none)'}\n")
    _print_nodes(seen)
    print()
    _print_topics(seen)
    print()
    _print_streams(seen, seen.view.streams)


async def _status(where: Target) -> ClusterStatusIs:
    async with where.admin() as admin:
        return await admin.status()


# --- nodes ----------------------------------------------------------------------------------------------------


@node.command("list")
def list_nodes(
    cluster: ClusterOption = DEFAULT_CLUSTER, data: DataOption = None, json_: JsonOption = False
) -> None:
    """List the registered storage nodes."""
    seen = run(_status(target(cluster, data)))
    if json_:
        print_json(seen.nodes)
    else:
        _print_nodes(seen)


@node.command("add")
def add_node(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the storage node listens.")],
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
) -> None:
    """Register a storage node that runs already; new log streams may then be placed on it."""
    run(_add_node(target(cluster, data), address))
    print(f"the storage node at {address} is registered")


async def _add_node(where: Target, address: str) -> None:
    async with where.admin() as admin:
        await admin.add_node(address)


@node.command("remove")
def remove_node(
    number: Annotated[int, typer.Argument(metavar="NODE", help="Its number, as in `varlog node list`.")],
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
) -> None:
    """Unregister a storage node that holds no replica. A manager that was started with its address registers
    it again."""
    run(_remove_node(target(cluster, data), number))
    print(f"storage node {number} is no longer registered; its data is kept")


async def _remove_node(where: Target, number: int) -> None:
    async with where.admin() as admin:
        await admin.remove_node(number)


# --- log streams ----------------------------------------------------------------------------------------------


@stream.command("list")
def list_streams(
    topic: Annotated[str | None, typer.Option(help="Only those of this topic.")] = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """List log streams and how their replicas are."""
    seen = run(_status(target(cluster, data)))
    streams = seen.view.streams
    if topic is not None:
        streams = streams_named(seen, topic)
    if json_:
        print_json([_stream_told(seen, found) for found in streams])
    else:
        _print_streams(seen, streams)


@stream.command("add")
def add_stream(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    replicas: Annotated[int, typer.Option(min=0, help="Copies [0: the manager's default].")] = 0,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Give a topic one more log stream."""
    _tell_stream(run(_add_stream(target(cluster, data), topic, replicas)), json_)


async def _add_stream(where: Target, topic: str, replicas: int) -> LogStream:
    async with where.admin() as admin:
        return await admin.add_stream(topic, replicas=replicas)


@stream.command("seal")
def seal_stream(
    log_stream: _Stream,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Stop appends to a log stream until it is unsealed. A manager that restarts unseals it."""
    _tell_stream(run(_seal_stream(target(cluster, data), log_stream)), json_)


async def _seal_stream(where: Target, log_stream: int) -> LogStream:
    async with where.admin() as admin:
        return await admin.seal_stream(log_stream)


@stream.command("unseal")
def unseal_stream(
    log_stream: _Stream,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Let a log stream that was sealed by hand take appends again."""
    _tell_stream(run(_unseal_stream(target(cluster, data), log_stream)), json_)


async def _unseal_stream(where: Target, log_stream: int) -> LogStream:
    async with where.admin() as admin:
        return await admin.unseal_stream(log_stream)


def _tell_stream(found: LogStream, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        replicas = ", ".join(str(number) for number in found.replicas)
        print(f"log stream {found.log_stream} is {found.state}, epoch {found.epoch}, on nodes {replicas}")


# --- tables ---------------------------------------------------------------------------------------------------


def streams_named(seen: ClusterStatusIs, topic: str) -> tuple[LogStream, ...]:
    """The streams of the topic with this name; an unknown one ends the command."""
    from varlog.cli.output import fail
    from varlog.model.errors import UnknownTopic

    found = seen.view.topic_named(topic)
    if found is None:
        fail(UnknownTopic(topic))
    return seen.view.streams_of(found.topic)


def _print_nodes(seen: ClusterStatusIs) -> None:
    health = {found.node: found for found in seen.nodes}
    rows = []
    for known in seen.view.nodes:
        said = health[known.node].status if known.node in health else None
        alive = known.node in health and health[known.node].alive
        size = short_bytes(sum(replica.bytes for replica in said.replicas)) if said else "?"
        count = len(said.replicas) if said else "?"
        volumes = ", ".join(str(Path(volume)) for volume in known.volumes)
        rows.append((known.node, "alive" if alive else "silent", known.address, count, size, volumes))
    print_table("", ("node", "state", "address", "#replicas", "#bytes", "volumes"), rows)


def _print_topics(seen: ClusterStatusIs) -> None:
    marks = {mark.topic: mark for mark in seen.tails}
    rows = []
    for topic in seen.view.topics:
        mark = marks.get(topic.topic)
        streams = len(seen.view.streams_of(topic.topic))
        oldest = mark.trimmed + 1 if mark else "?"
        rows.append((topic.name, topic.ordering, streams, oldest, mark.high_watermark if mark else "?"))
    print_table("", ("topic", "ordering", "#streams", "#oldest", "#newest"), rows)


def _print_streams(seen: ClusterStatusIs, streams: tuple[LogStream, ...]) -> None:
    rows = []
    for found in streams:
        topic = seen.view.topic(found.topic)
        statuses = replica_statuses(seen, found)
        ends = [status.committed_end for status in statuses.values() if status is not None]
        replicas = "  ".join(_replica_told(number, status) for number, status in statuses.items())
        entries = max(ends) - 1 if ends else "?"
        name = topic.name if topic else str(found.topic)
        rows.append((found.log_stream, name, found.state, found.epoch, entries, replicas))
    columns = ("stream", "topic", "state", "#epoch", "#entries", "replicas (node:state, primary first)")
    print_table("", columns, rows)


def replica_statuses(seen: ClusterStatusIs, found: LogStream) -> dict[int, ReplicaStatus | None]:
    """What each replica's node said of it; None where it did not."""
    said = {health.node: health.status for health in seen.nodes if health.alive}
    statuses: dict[int, ReplicaStatus | None] = {}
    for number in found.replicas:
        node_status = said.get(number)
        replicas = node_status.replicas if node_status else ()
        statuses[number] = next((one for one in replicas if one.log_stream == found.log_stream), None)
    return statuses


def _replica_told(number: int, status: ReplicaStatus | None) -> str:
    if status is None:
        return f"{number}:silent"
    return f"{number}:{status.state}" + (f" ({status.trouble})" if status.trouble else "")


def _stream_told(seen: ClusterStatusIs, found: LogStream) -> dict[str, object]:
    told = {name: getattr(found, name) for name in found.__struct_fields__}
    return told | {"statuses": replica_statuses(seen, found)}
