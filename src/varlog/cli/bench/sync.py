"""Sync workload: an empty replica on one storage node is filled from a sealed one on another, each node a process of its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from varlog.cli.bench.bench_context import BenchContext
from varlog.cli.bench.replica_open import build_replica, drop_from_cache
from varlog.cli.bench.workload import Measured
from varlog.cli.output import wait_until
from varlog.cli.process import ServerProcess
from varlog.model.cluster import ReplicaStatus, SyncState
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.limits import MIB
from varlog.model.lsn import LLSN
from varlog.rpc.messages import (
    AddLogStream,
    GetNodeStatus,
    GetNodeStatusReply,
    Message,
    ReplicaAddress,
    SealReplica,
    SyncReplica,
)
from varlog.rpc.tcp import TcpTransport
from varlog.rpc.transport import Connection
from varlog.runtime.disk import OsDisk
from varlog.storage.volume import NodeVolumes

REPLICA_BYTES = 512 * MIB
QUICK_REPLICA_BYTES = 64 * MIB
BATCH_ENTRIES = 100
START_S = 30.0
CALL_S = 60.0
LOOK_S = 0.01

CLUSTER, TOPIC, STREAM = ClusterID(1), TopicID(1), LogStreamID(1)
SOURCE, DESTINATION = NodeID(1), NodeID(2)
# The replica is built in epoch 1.
_EPOCH = Epoch(2)


async def sync_replica(stage: BenchContext) -> Measured:
    """Build the source's replica, drop it from the page cache, start both nodes, and time the sync."""
    size = QUICK_REPLICA_BYTES if stage.settings.quick else REPLICA_BYTES
    path = placed(stage.directory)
    await asyncio.to_thread(build_replica, path, size, stage, batch_entries=BATCH_ENTRIES)
    async with (
        started_node(stage.directory, SOURCE) as source,
        started_node(stage.directory, DESTINATION) as destination,
    ):
        end = (await _status(source)).committed_end
        await destination.ask(AddLogStream(TOPIC, STREAM))
        for node in (source, destination):
            await node.ask(SealReplica(STREAM, _EPOCH, end))
        drop_from_cache(path)
        measured = await _timed(source, destination, end, stage)
    for node_directory in (volume_of(stage.directory, SOURCE), volume_of(stage.directory, DESTINATION)):
        OsDisk().remove_tree(node_directory)
    return measured


async def _timed(source: Node, destination: Node, end: LLSN, stage: BenchContext) -> Measured:
    begin = time.perf_counter()
    await destination.ask(SyncReplica(STREAM, _EPOCH, ReplicaAddress(SOURCE, source.address)))
    while True:
        sync = (await _status(destination)).sync
        if sync is None or sync.state is SyncState.ERROR:
            raise PreconditionFailed(f"the sync failed: {sync.why if sync is not None else 'it is gone'}")
        if sync.state is SyncState.COMPLETE:
            break
        stage.display.advance(sync.copied_end / end, "copying")
        await asyncio.sleep(LOOK_S)
    elapsed = time.perf_counter() - begin
    return {
        "bytes_per_s": sync.copied_bytes / elapsed,
        "entries_per_s": (end - 1) / elapsed,
        "seconds": elapsed,
    }


@dataclass(frozen=True, slots=True)
class Node:
    """A running storage node."""

    address: str
    connection: Connection

    async def ask(self, request: Message) -> Message:
        answer, _ = await self.connection.call(request, timeout_s=CALL_S)
        return answer


async def _status(node: Node) -> ReplicaStatus:
    answer = await node.ask(GetNodeStatus())
    if not isinstance(answer, GetNodeStatusReply) or not answer.status.replicas:
        raise PreconditionFailed(f"{node.address} does not answer like a storage node with a replica")
    return answer.status.replicas[0]


def volume_of(directory: Path, node: NodeID) -> Path:
    return directory / f"vsn-{node}"


def placed(directory: Path) -> Path:
    """Where the source's replica belongs, on a volume that knows whose it is."""
    volume = volume_of(directory, SOURCE)
    volume.mkdir()
    volumes = NodeVolumes.open(OsDisk(), random.Random(1), cluster=CLUSTER, node=SOURCE, volumes=(volume,))
    try:
        return volumes.place(STREAM)
    finally:
        volumes.release()


@asynccontextmanager
async def started_node(directory: Path, node: NodeID) -> AsyncIterator[Node]:
    """A storage node as a process, until the end of the block."""
    volume = volume_of(directory, node)
    volume.mkdir(exist_ok=True)
    options = (f"--cluster-id={CLUSTER}", f"--storage-node-id={node}", "--listen=127.0.0.1:0")
    process = ServerProcess(
        f"vsn-{node}", ("vsn", "start", *options, f"--volumes={volume}"), directory / f"vsn-{node}.log"
    )
    process.start()
    try:
        async with asyncio.timeout(START_S):
            await wait_until(lambda: bool(process.address()) or process.ended() is not None)
        if not process.address():
            raise PreconditionFailed(f"storage node {node} did not start: {process.last_words()}")
        connection = await TcpTransport(CLUSTER).connect(process.address(), timeout_s=CALL_S)
        try:
            yield Node(process.address(), connection)
        finally:
            connection.close()
    finally:
        process.close()
