"""A scripted storage node and a repository around it, on a memory transport; time moves only where a test waits for something."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.cluster import ClusterView, LogStream
from varlog.model.commit import CommitRow, Report, TopicMark
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Proposal
from varlog.model.status import ReplicaState
from varlog.rpc import messages as m
from varlog.rpc.memory import MemoryTransport
from varlog.rpc.transport import Call, Connection, Server
from varlog.runtime.disk import OsDisk
from varlog.runtime.environment import Environment, SystemClock
from varlog.runtime.worker import ThreadWorker

M = TypeVar("M", bound=m.Message)

CLUSTER = ClusterID(1)
MR = "mr"
# Only so that nothing hangs: a busy machine may stall for seconds.
WAIT_S = 90.0


def seeded_environment() -> Environment:
    return Environment(SystemClock(), random.Random(1), OsDisk(), ThreadWorker)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0)


async def settle() -> None:
    """Let everything run that can run without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


class ScriptedReplica:
    """What a storage node knows of one replica."""

    def __init__(self) -> None:
        self.state = ReplicaState.RUNNING
        self.epoch = Epoch(1)
        self.durable_end = LLSN(1)
        self.committed_end = LLSN(1)
        self.rows_synced_end = LLSN(1)
        self.rows: list[CommitRow] = []


class ScriptedNode:
    """A storage node that does what a test says: it applies rows as a real one does, and reports on demand."""

    def __init__(self, transport: MemoryTransport, node: int, address: str = "") -> None:
        self.node = NodeID(node)
        self.address = address or f"node-{node}"
        self.replicas: dict[LogStreamID, ScriptedReplica] = {}
        self.commits: list[m.Commits] = []
        self.marks: dict[TopicID, TopicMark] = {}
        self.terms: list[int] = []
        self.confirms = True
        self.units: dict[LogStreamID, m.UnitOrder] = {}
        self.views: list[int] = []
        self.proposed: list[Proposal] = []
        self.keeps = True
        self.leases: list[m.LeaseReply] = []
        self.obeys = True
        self.gaps = 0
        self._transport = transport
        self._server: Server | None = None
        self._session: Connection | None = None

    async def start(self) -> None:
        self._server = await self._transport.serve(self.address, lambda connection: self._handle)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()
            self._server = None
        self._session = None

    @property
    def in_session(self) -> bool:
        return self._session is not None and not self._session.closed

    def replica(self, log_stream: int) -> ScriptedReplica:
        return self.replicas.setdefault(LogStreamID(log_stream), ScriptedReplica())

    def lose_unsynced_rows(self) -> None:
        """What a power loss does: commit rows that were not synced are gone, durable entries are not."""
        for replica in self.replicas.values():
            replica.committed_end = replica.rows_synced_end
            replica.state = ReplicaState.SEALING

    def report(
        self, log_stream: int, durable_end: int, *, epoch: int | None = None, synced: int | None = None
    ) -> None:
        replica = self.replica(log_stream)
        replica.durable_end = LLSN(durable_end)
        replica.epoch = replica.epoch if epoch is None else Epoch(epoch)
        replica.rows_synced_end = replica.rows_synced_end if synced is None else LLSN(synced)
        found = Report(LogStreamID(log_stream), replica.epoch, replica.durable_end, replica.rows_synced_end)
        self.send(m.Reports((found,), self._applied()))

    def confirm(self) -> None:
        self.send(m.Reports((), self._applied()))

    def send(self, message: m.Message) -> None:
        assert self._session is not None
        self._session.send(message)

    def drop_session(self) -> None:
        assert self._session is not None
        self._session.close()

    def hold_unit(self, log_stream: int, epoch: int = 0, low: int = 1) -> None:
        self.units[LogStreamID(log_stream)] = m.UnitOrder(LogStreamID(log_stream), Epoch(epoch), LLSN(low))

    def ask_lease(self, stamp: int) -> None:
        self.send(m.RequestLease(stamp, tuple(self.units.values())))

    def _take_lease(self, lease: m.LeaseReply) -> None:
        self.leases.append(lease)
        behind = [order for order in lease.orders if self._is_behind(order)]
        if self.obeys and behind:
            self.units.update((order.log_stream, order) for order in behind)
            self.ask_lease(lease.stamp + 1)

    def _is_behind(self, order: m.UnitOrder) -> bool:
        unit = self.units.get(order.log_stream)
        return unit is not None and (unit.epoch < order.epoch or unit.low < order.low)

    def _applied(self) -> int:
        return self.commits[-1].serial if self.commits else 0

    def _handle(self, call: Call | None, message: m.Message, payload: bytearray) -> None:
        if isinstance(message, m.OpenSession):
            assert call is not None
            self._open(call, message)
        elif isinstance(message, m.Commits):
            self._apply(message)
        elif isinstance(message, m.LeaseReply):
            self._take_lease(message)
        elif isinstance(message, m.KeepView):
            self.views.append(message.revision)
        elif isinstance(message, m.KeepProjection):
            assert call is not None
            self.proposed.append(message.proposal)
            if self.keeps:
                call.reply(m.Done())
        else:
            raise AssertionError(f"unexpected {message}")

    def _open(self, call: Call, message: m.OpenSession) -> None:
        self.terms.append(message.term)
        self._session = call.connection
        self.commits.clear()
        points = tuple(
            m.ReplicaPoint(ls, r.epoch, r.state, r.committed_end, r.durable_end, r.rows_synced_end)
            for ls, r in self.replicas.items()
        )
        call.reply(m.OpenSessionReply(self.node, points))

    def _apply(self, message: m.Commits) -> None:
        assert message.serial == len(self.commits) + 1, "serials count the messages of a session"
        self.commits.append(message)
        for log_stream, rows in message.rows:
            replica = self.replicas[log_stream]
            for row in rows:
                if row.llsn_begin != replica.committed_end:
                    self.gaps += 1
                replica.committed_end = row.llsn_end
                replica.rows.append(row)
        trims = False
        for mark in message.marks:
            old = self.marks.get(mark.topic)
            trims = trims or mark.trimmed > (old.trimmed if old is not None else 0)
            self.marks[mark.topic] = mark
        if trims and self.confirms:
            self.confirm()


class World:
    """A transport, metadata that outlive the repository, the repository, and a client's connection to it."""

    def __init__(self, environment: Environment | None = None) -> None:
        self.transport = MemoryTransport()
        self.environment = environment or seeded_environment()
        self.commits = 0
        self.hold: Callable[[], Awaitable[None]] | None = None
        self.metadata = MemoryMetadata(before_commit=self._before_commit)
        self.repository: MetadataRepository | None = None
        self.nodes: dict[int, ScriptedNode] = {}
        self._client: Connection | None = None

    async def _before_commit(self) -> None:
        self.commits += 1
        if self.hold is not None:
            await self.hold()

    async def start_repository(self, retry_s: float = 0.001) -> None:
        config = MetadataRepositoryConfig(CLUSTER, MR, node_retry_s=retry_s)
        self.repository = MetadataRepository(
            config, MemoryStore(self.metadata), self.environment, self.transport
        )
        await self.repository.start()
        self._client = await self.transport.connect(MR, timeout_s=WAIT_S)

    async def stop_repository(self) -> None:
        if self._client is not None:
            self._client.close()
        if self.repository is not None:
            await self.repository.stop()
            self.repository = None

    async def add_node(self, number: int, *, register: bool = True) -> ScriptedNode:
        node = self.nodes[number] = ScriptedNode(self.transport, number)
        await node.start()
        if register:
            await self.ask(m.RegisterNode(node.node, node.address, ("/data",)), m.Done)
            await until(lambda: len(node.commits) >= 1)
        return node

    async def ask(self, request: m.Message, expected: type[M]) -> M:
        assert self._client is not None
        answer, _ = await self._client.call(request, timeout_s=WAIT_S)
        assert isinstance(answer, expected), answer
        return answer

    async def view(self) -> ClusterView:
        return (await self.ask(m.GetView(), m.GetViewReply)).view

    async def tail(self, topic: int = 1) -> GLSN:
        return (await self.ask(m.GetTail(TopicID(topic)), m.GetTailReply)).high_watermark

    async def add_stream(self, *nodes: int, topic: str = "orders", run: bool = True) -> LogStream:
        """A registered stream on `nodes`, running by default."""
        found = (await self.ask(m.RegisterTopic(topic), m.TopicReply)).topic
        log_stream = (await self.ask(m.NewLogStreamID(), m.NewLogStreamIDReply)).log_stream
        for number in nodes:
            self.nodes[number].replica(log_stream)
        replicas = tuple(NodeID(number) for number in nodes)
        stream = (
            await self.ask(m.RegisterLogStream(found.topic, log_stream, replicas), m.StreamReply)
        ).stream
        if run:
            stream = (await self.ask(m.UnsealStream(log_stream, stream.epoch), m.StreamReply)).stream
        return stream

    async def close(self) -> None:
        await self.stop_repository()
        for node in self.nodes.values():
            await node.stop()


@asynccontextmanager
async def world(*nodes: int, environment: Environment | None = None) -> AsyncIterator[World]:
    """A repository and registered nodes in session."""
    made = World(environment)
    await made.start_repository()
    try:
        for number in nodes:
            await made.add_node(number)
        yield made
    finally:
        made.hold = None
        await made.close()
