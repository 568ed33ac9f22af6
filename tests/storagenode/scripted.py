"""A storage node over memory connections, and scripted neighbours: a client, a primary, a scripted repository."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varlog.model.batch import entries_of, pack, place_batch, walk
from varlog.model.commit import CommitRow, Report, TopicMark
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, LogStreamID, NodeID, ProducerID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.memory import MemoryTransport
from varlog.rpc.messages import (
    AddLogStream,
    Commits,
    Message,
    OpenSession,
    OpenSessionReply,
    ReplicaAddress,
    Reports,
    SealReplica,
    UnsealReplica,
)
from varlog.rpc.transport import Call, Connection
from varlog.runtime.disk import Disk, OsDisk
from varlog.runtime.environment import Environment, SystemClock
from varlog.runtime.worker import ThreadWorker
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNodeServer

TOPIC = TopicID(1)
STREAM = LogStreamID(1)
TIMEOUT_S = 60.0


def make_batch(*entries: bytes) -> bytearray:
    """A batch as a client sends it."""
    return pack(entries, producer=ProducerID(7), sequence=1, time_us=1)


def placed(first: int, *entries: bytes, epoch: int = 1) -> bytearray:
    """A batch as a primary forwards it."""
    batch = make_batch(*entries)
    place_batch(batch, Epoch(epoch), LLSN(first))
    return batch


def entries_in(payload: bytearray) -> list[bytes]:
    """The entries of all batches in `payload`."""
    return [entry for at, header in walk(payload) for entry in entries_of(payload, header, at)]


def row(
    begin: int, end: int, *, glsn: int | None = None, epoch: int = 1, version: int | None = None
) -> CommitRow:
    """LLSNs [begin, end) ordered from `glsn` (the same number) on."""
    first = begin if glsn is None else glsn
    last = GLSN(first + end - begin - 1)
    return CommitRow(
        version or last, last, GLSN(first - 1), GLSN(first), LLSN(begin), end - begin, Epoch(epoch)
    )


@dataclass
class Repository:
    """The metadata repository's side of a session, by hand."""

    connection: Connection
    opened: OpenSessionReply
    reports: list[Report]
    applied: list[int]
    serial: int = 0

    @property
    def marks_applied(self) -> int:
        return max(self.applied)

    def commit(
        self, *rows: CommitRow, high: int | None = None, trimmed: int = 0, stream: LogStreamID = STREAM
    ) -> None:
        """Push rows of one stream, and the topic's marks."""
        self.serial += 1
        newest = high if high is not None else max((r.high_watermark for r in rows), default=GLSN(0))
        mark = TopicMark(TOPIC, GLSN(newest), GLSN(trimmed))
        pushed = ((stream, rows),) if rows else ()
        self.connection.send(Commits(self.serial, self.serial, (mark,), pushed))


class Bench:
    """Nodes of one cluster and their transport. `start` may be called again after `stop`: a restart."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.transport = MemoryTransport()
        self.disk = disk or OsDisk()
        self.nodes: dict[int, StorageNodeServer] = {}

    async def start(
        self, node: int = 1, *, streams_max: int = 10, segment_bytes: int = 4096, **more: Any
    ) -> StorageNodeServer:
        volume = self.root / f"volume{node}"
        volume.mkdir(exist_ok=True)
        config = StorageNodeConfig(
            ClusterID(1),
            NodeID(node),
            (volume,),
            listen=f"node{node}",
            segment_bytes=segment_bytes,
            rows_sync_delay_s=0.01,
            streams_max=streams_max,
            **more,
        )
        environment = Environment(SystemClock(), random.Random(1), self.disk, ThreadWorker)
        self.nodes[node] = started = StorageNodeServer(config, environment, self.transport)
        await started.start()
        return started

    async def stop(self, node: int = 1) -> None:
        await self.nodes.pop(node).stop()

    async def close(self) -> None:
        for node in list(self.nodes):
            await self.stop(node)

    async def connect(self, node: int = 1) -> Connection:
        return await self.transport.connect(f"node{node}", timeout_s=TIMEOUT_S)

    async def call(
        self, request: Message, payload: bytes | bytearray = b"", *, node: int = 1
    ) -> tuple[Message, bytearray]:
        """One call on a connection of its own."""
        connection = await self.connect(node)
        try:
            return await connection.call(request, payload, timeout_s=TIMEOUT_S)
        finally:
            connection.close()

    async def session(self, node: int = 1, *, term: int = 1) -> Repository:
        # There before the session is: a node reports as soon as it has opened one, and that may be
        # read before the answer to OpenSession is looked at.
        reports: list[Report] = []
        applied = [0]

        def take(call: Call | None, message: Message, payload: bytearray) -> None:
            assert isinstance(message, Reports)
            reports.extend(message.reports)
            applied.append(message.marks_applied)

        connection = await self.transport.connect(f"node{node}", handler=take, timeout_s=TIMEOUT_S)
        opened, _ = await connection.call(OpenSession(term), timeout_s=TIMEOUT_S)
        assert isinstance(opened, OpenSessionReply)
        return Repository(connection, opened, reports, applied)

    async def run_stream(
        self, nodes: Sequence[int] = (1,), *, epoch: int = 1, sealed_end: int = 1, add: bool = True
    ) -> None:
        """Make the stream (if `add`) and bring it to RUNNING; the first node is the primary."""
        if add:
            for node in nodes:
                await self.call(AddLogStream(TOPIC, STREAM), node=node)
        for node in nodes:
            await self.call(SealReplica(STREAM, Epoch(epoch), LLSN(sealed_end)), node=node)
        replicas = tuple(ReplicaAddress(NodeID(node), f"node{node}") for node in nodes)
        for node in reversed(nodes):
            await self.call(UnsealReplica(STREAM, Epoch(epoch), replicas), node=node)


def run(tmp_path: Path, story: Callable[[Bench], Awaitable[None]]) -> None:
    """Run a scenario with a bench that is always closed at its end."""

    async def body() -> None:
        bench = Bench(tmp_path)
        try:
            await asyncio.wait_for(story(bench), 2 * TIMEOUT_S)
        finally:
            await bench.close()

    asyncio.run(body())


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that another task brings about."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.001)
