"""`varlog node` and `varlog stream`: list and change nodes and log streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import print_json, run_async, show_progress
from varlog.cli.status import nodes_table, print_parts, stream_json, stream_tables, streams_named
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, JsonOption, Target, target

if TYPE_CHECKING:
    from varlog.model.cluster import LogStream
    from varlog.model.status import ClusterStatus, SyncStatus

node = typer.Typer(no_args_is_help=True, help="Storage nodes: list, add, remove.")
stream = typer.Typer(no_args_is_help=True, help="Log streams: list, add, seal, unseal, sync, replace.")

# Between two polls of a sync in progress.
SYNC_POLL_S = 0.5

_Stream = Annotated[int, typer.Argument(help="Number of the log stream, as in `varlog stream list`.")]


async def _status(where: Target) -> ClusterStatus:
    async with where.admin() as admin:
        return await admin.status()


# --- nodes ----------------------------------------------------------------------------------------------------


@node.command("list")
def list_nodes(
    cluster: ClusterOption = DEFAULT_CLUSTER, data: DataOption = None, json_: JsonOption = False
) -> None:
    """List the registered storage nodes."""
    seen = run_async(_status(target(cluster, data)))
    if json_:
        print_json(seen.nodes)
    else:
        print_parts([nodes_table(seen)])


@node.command("add")
def add_node(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Address of the storage node.")],
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
) -> None:
    """Register a running storage node; log streams may then be placed on it."""
    run_async(_add_node(target(cluster, data), address))
    print(f"the storage node at {address} is registered")


async def _add_node(where: Target, address: str) -> None:
    async with where.admin() as admin:
        await admin.add_node(address)


@node.command("remove")
def remove_node(
    number: Annotated[
        int, typer.Argument(metavar="NODE", help="Number of the node, as in `varlog node list`.")
    ],
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
) -> None:
    """Unregister a storage node that has no replicas; move them away first with `varlog stream replace`.

    A manager that was started with the node's address registers it again."""
    run_async(_remove_node(target(cluster, data), number))
    print(f"storage node {number} is no longer registered; its data is kept")


async def _remove_node(where: Target, number: int) -> None:
    async with where.admin() as admin:
        await admin.remove_node(number)


# --- log streams ----------------------------------------------------------------------------------------------


@stream.command("list")
def list_streams(
    topic: Annotated[str | None, typer.Option(help="Show only this topic.")] = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """List log streams and the states of their replicas."""
    seen = run_async(_status(target(cluster, data)))
    streams = seen.view.streams
    if topic is not None:
        streams = streams_named(seen, topic)
    if json_:
        print_json([stream_json(seen, found) for found in streams])
    else:
        print_parts(stream_tables(seen, streams))


@stream.command("add")
def add_stream(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    replicas: Annotated[int, typer.Option(min=0, help="Number of replicas [0: the manager's default].")] = 0,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Add a log stream to a topic."""
    _print_stream(run_async(_add_stream(target(cluster, data), topic, replicas)), json_)


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
    """Stop appends to a log stream until it is unsealed with `varlog stream unseal`. Reads continue."""
    _print_stream(run_async(_seal_stream(target(cluster, data), log_stream)), json_)


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
    """Accept appends again in a log stream that was sealed with `varlog stream seal`."""
    _print_stream(run_async(_unseal_stream(target(cluster, data), log_stream)), json_)


async def _unseal_stream(where: Target, log_stream: int) -> LogStream:
    async with where.admin() as admin:
        return await admin.unseal_stream(log_stream)


@stream.command("sync")
def sync_stream(
    log_stream: _Stream,
    number: Annotated[int, typer.Option("--node", metavar="NODE", help="Node whose replica is filled.")],
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Copy missing entries to a replica of a sealed log stream, or to a log unit that is out of sync, and wait until it
    is complete.

    The manager does this automatically."""
    found = run_async(_sync_stream(target(cluster, data), log_stream, number))
    if json_:
        print_json(found)
    else:
        print(
            f"the replica on node {number} has all {found.copied_end - 1} entries of log stream {log_stream}"
        )


async def _sync_stream(where: Target, log_stream: int, number: int) -> SyncStatus:
    from varlog.model.errors import Unavailable
    from varlog.model.status import SyncState

    async with where.admin() as admin:
        while (found := await admin.sync_replica(log_stream, number)).state is SyncState.IN_PROGRESS:
            show_progress(f"{found.copied_end - 1} of {found.target_end - 1} entries")
            await asyncio.sleep(SYNC_POLL_S)
        if found.state is SyncState.ERROR:
            raise Unavailable(f"the sync from node {found.source} failed: {found.why}")
        return found


@stream.command("replace")
def replace_replica(
    log_stream: _Stream,
    old: Annotated[int, typer.Option(metavar="NODE", help="Node to move the replica from.")],
    new: Annotated[
        int, typer.Option(metavar="NODE", help="Node to move the replica to [0: the one with the most room].")
    ] = 0,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Move a replica to another node.

    A committed log stream accepts no appends until the new replica is complete; a sequenced one continues. Follow it with `varlog
    status --watch`."""
    _print_stream(run_async(_replace_replica(target(cluster, data), log_stream, old, new)), json_)


async def _replace_replica(where: Target, log_stream: int, old: int, new: int) -> LogStream:
    async with where.admin() as admin:
        return await admin.replace_replica(log_stream, old, new)


def _print_stream(found: LogStream, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        replicas = ", ".join(str(number) for number in found.replicas)
        print(f"log stream {found.log_stream} is {found.state}, epoch {found.epoch}, on nodes {replicas}")
