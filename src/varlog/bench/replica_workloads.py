"""Workloads on one replica or log unit: open a large one, fill an empty one."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from varlog.bench.context import BenchContext
from varlog.bench.machine import usage_of
from varlog.bench.workload import Measured
from varlog.localcluster.process import ServerProcess
from varlog.localcluster.wait import wait_until
from varlog.model.batch import pack, place_batch
from varlog.model.cluster import Ordering
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed
from varlog.model.ids import ClusterID, LogStreamID, NodeID, ProducerID, TopicID
from varlog.model.limits import KIB, MIB, SEGMENT_BYTES
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN
from varlog.model.status import ReplicaStatus, SyncState
from varlog.rpc.messages import (
    AddLogStream,
    GetNodeStatus,
    GetNodeStatusReply,
    Message,
    ReplicaAddress,
    SealReplica,
    SyncReplica,
    SyncReply,
    SyncUnit,
)
from varlog.rpc.tcp import TcpTransport
from varlog.rpc.transport import Connection
from varlog.runtime.disk import OsDisk
from varlog.storage.committed.log_store import LogStore
from varlog.storage.sequenced.page_store import PageStore
from varlog.storage.volume import NodeVolumes

SYNC_BYTES = 512 * MIB
QUICK_SYNC_BYTES = 64 * MIB
SYNC_BATCH_ENTRIES = 100
START_S = 30.0
CALL_S = 60.0
LOOK_S = 0.01

CLUSTER, TOPIC, STREAM = ClusterID(1), TopicID(1), LogStreamID(1)
SOURCE, DESTINATION = NodeID(1), NodeID(2)
# The replica is built in epoch 1.
_SEALED_EPOCH = Epoch(2)


async def sync_replica(context: BenchContext) -> Measured:
    """Build the source's replica, drop it from the page cache, start both nodes, and time the sync."""
    size = QUICK_SYNC_BYTES if context.settings.quick else SYNC_BYTES
    path = placed(context.directory)
    await asyncio.to_thread(build_replica, path, size, context, batch_entries=SYNC_BATCH_ENTRIES)
    async with (
        started_node(context.directory, SOURCE) as source,
        started_node(context.directory, DESTINATION) as destination,
    ):
        end = (await _status(source)).committed_end
        await destination.ask(AddLogStream(TOPIC, STREAM))
        for node in (source, destination):
            await node.ask(SealReplica(STREAM, _SEALED_EPOCH, end))
        drop_from_cache(path)
        measured = await _timed_replica(source, destination, end, context)
    for node_directory in (volume_of(context.directory, SOURCE), volume_of(context.directory, DESTINATION)):
        OsDisk().remove_tree(node_directory)
    return measured


async def _timed_replica(source: Node, destination: Node, end: LLSN, context: BenchContext) -> Measured:
    begin = time.perf_counter()
    await destination.ask(SyncReplica(STREAM, _SEALED_EPOCH, ReplicaAddress(SOURCE, source.address)))
    while True:
        sync = (await _status(destination)).sync
        if sync is None or sync.state is SyncState.ERROR:
            raise PreconditionFailed(f"the sync failed: {sync.why if sync is not None else 'it is gone'}")
        if sync.state is SyncState.COMPLETE:
            break
        context.display.advance(sync.copied_end / end, "copying")
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


# Sync of a log unit (R-SEQ-14): an empty one on one storage node is filled from one on another, each node a process of its own.

_UNIT_EPOCH = Epoch(1)


async def sync_unit(context: BenchContext) -> Measured:
    """Build the source's unit, drop it from the page cache, start both nodes, and time the sync."""
    size = QUICK_SYNC_BYTES if context.settings.quick else SYNC_BYTES
    path = placed(context.directory)
    entries = await asyncio.to_thread(build_unit, path, size, context)
    async with (
        started_node(context.directory, SOURCE) as source,
        started_node(context.directory, DESTINATION) as destination,
    ):
        await destination.ask(AddLogStream(TOPIC, STREAM, ordering=Ordering.SEQUENCED))
        drop_from_cache(path)
        measured = await _timed_unit(source, destination, context)
    for node in (SOURCE, DESTINATION):
        OsDisk().remove_tree(volume_of(context.directory, node))
    return measured | {"entries_per_s": entries / measured["seconds"]}


def build_unit(path: Path, size: int, context: BenchContext) -> int:
    """A log unit of about `size` bytes; returns how many entries it has."""
    store = PageStore.create(OsDisk(synced=False), path, topic=TOPIC, log_stream=STREAM)
    store.set_epoch(_UNIT_EPOCH)
    entries = [os.urandom(ENTRY_BYTES) for _ in range(SYNC_BATCH_ENTRIES)]
    packed = pack(entries, producer=ProducerID(1), sequence=1, time_us=1)
    llsn = int(FIRST_LLSN)
    while store.bytes < size:
        batches = [bytearray(packed) for _ in range(BATCHES_PER_WRITE)]
        for batch in batches:
            place_batch(batch, _UNIT_EPOCH, LLSN(llsn))
            llsn += SYNC_BATCH_ENTRIES
        store.publish(store.append(batches))
        context.display.advance(store.bytes / size, "building")
    store.close()
    return llsn - FIRST_LLSN


async def _timed_unit(source: Node, destination: Node, context: BenchContext) -> Measured:
    request = SyncUnit(STREAM, ReplicaAddress(SOURCE, source.address))
    begin = time.perf_counter()
    while True:
        answer = await destination.ask(request)
        if not isinstance(answer, SyncReply) or answer.sync.state is SyncState.ERROR:
            raise PreconditionFailed(
                f"the sync failed: {answer.sync.why if isinstance(answer, SyncReply) else answer}"
            )
        sync = answer.sync
        if sync.state is SyncState.COMPLETE:
            break
        context.display.advance(sync.copied_end / max(1, sync.target_end), "copying")
        await asyncio.sleep(LOOK_S)
    elapsed = time.perf_counter() - begin
    return {"bytes_per_s": sync.copied_bytes / elapsed, "seconds": elapsed}


# Open workload: time and memory of opening a large replica, in a fresh process that runs this module.

REPLICA_BYTES = 2048 * MIB
QUICK_REPLICA_BYTES = 256 * MIB
# Small batches make a large index; rows that do not merge (as with a second stream in the topic) a large commits.log.
BATCH_ENTRIES = 4
ENTRY_BYTES = 1 * KIB
BATCHES_PER_WRITE = 64
_EPOCH = Epoch(1)


async def open_replica(context: BenchContext) -> Measured:
    """Build it (not synced, for speed), put it on disk, drop it from the page cache, open it cold and then warm."""
    size = QUICK_REPLICA_BYTES if context.settings.quick else REPLICA_BYTES
    size += (
        SEGMENT_BYTES * 3 // 4
    )  # opening reads the last segment: it must not happen to be a nearly empty one
    path = context.directory / "replica"
    replica_bytes = build_replica(path, size, context)
    drop_from_cache(path)
    cold = await _opened_elsewhere(path)
    warm = await _opened_elsewhere(path)
    OsDisk().remove_tree(path)
    return {
        "replica_bytes": float(replica_bytes),
        "open_s": cold["open_s"],
        "open_warm_s": warm["open_s"],
        "before_bytes": cold["before_bytes"],
        "peak_bytes": max(cold["peak_bytes"], warm["peak_bytes"]),
    }


def build_replica(path: Path, size: int, context: BenchContext, *, batch_entries: int = BATCH_ENTRIES) -> int:
    """A replica of about `size` bytes; returns how many its files have."""
    store = LogStore.create(OsDisk(synced=False), path, topic=TopicID(1), log_stream=LogStreamID(1))
    store.cut(_EPOCH, FIRST_LLSN)
    entries = [os.urandom(ENTRY_BYTES) for _ in range(batch_entries)]
    packed = pack(entries, producer=ProducerID(1), sequence=1, time_us=1)
    llsn, glsn, version = int(FIRST_LLSN), 1, 0
    count = batch_entries * BATCHES_PER_WRITE
    while llsn // batch_entries * len(packed) < size:
        batches = [bytearray(packed) for _ in range(BATCHES_PER_WRITE)]
        for number, batch in enumerate(batches):
            place_batch(batch, _EPOCH, LLSN(llsn + number * batch_entries))
        store.append(batches)
        version += 1
        store.commit(
            CommitRow(version, GLSN(glsn + count), GLSN(glsn - 1), GLSN(glsn), LLSN(llsn), count, _EPOCH)
        )
        llsn += count
        glsn += count + 1  # the position between two rows went to another stream
        if version % 256 == 0:
            store.sync_rows()
            context.display.advance(llsn // batch_entries * len(packed) / size, "building")
    store.sync_rows()
    store.close()
    return sum(file.stat().st_size for file in path.iterdir())


def drop_from_cache(path: Path) -> None:
    """Write the files out and ask the kernel to forget them, so that opening has to read from the disk."""
    for file in path.iterdir():
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


async def _opened_elsewhere(path: Path) -> Measured:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "varlog.bench.replica_workloads", str(path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise OSError(f"the process that was to open {path} ended with exit code {process.returncode}")
    measured: Measured = json.loads(output)
    return measured


def opened_here(path: Path) -> Measured:
    """Open it in this process and look at what it took."""
    before = usage_of(os.getpid())
    started = time.perf_counter()
    store = LogStore.open(OsDisk(), path)
    elapsed = time.perf_counter() - started
    after = usage_of(os.getpid())
    store.close()
    return {
        "open_s": elapsed,
        "before_bytes": float(before.resident_bytes),
        "peak_bytes": float(after.peak_bytes),
    }


if __name__ == "__main__":
    print(json.dumps(opened_here(Path(sys.argv[1]))))
