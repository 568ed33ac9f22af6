"""A repository and storage nodes without disks: they keep the contracts, and fail on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from varlog.manager.manager import Manager, ManagerConfig
from varlog.metarepo.membership.rules import (
    Members,
    new_log_stream_id,
    register_log_stream,
    register_node,
    register_topic,
    seal_stream,
    set_manager,
    set_replicas,
    set_sealed_by_admin,
    unregister_node,
    unregister_topic,
    unseal_stream,
)
from varlog.model.cluster import ClusterView, StreamState
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import PreconditionFailed, StaleEpoch, UnknownLogStream
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN
from varlog.model.status import NodeStatus, ReplicaState, ReplicaStatus, SyncState, SyncStatus
from varlog.rpc import messages
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.memory import MemoryTransport
from varlog.rpc.messages import Message
from varlog.rpc.transport import Server, Transport
from varlog.runtime.environment import system_environment

CLUSTER = ClusterID(7)
# Only so that nothing hangs: a busy machine may stall for seconds.
WAIT_S = 90.0
M = TypeVar("M", bound=Message)


class FakeRepository:
    """The real membership rules, in memory. Nothing is ordered: a seal ends where `ends` says, or at LLSN 1."""

    def __init__(self, transport: Transport, cluster: ClusterID = CLUSTER) -> None:
        self.members = Members(ClusterView(cluster, 1))
        self.asked: list[str] = []
        self.ends: dict[LogStreamID, LLSN] = {}
        self.suspects: tuple[NodeID, ...] = ()
        self._transport = transport
        self._server: Server | None = None
        self._changed = asyncio.Event()
        self._dispatcher = Dispatcher("a fake repository")
        self._dispatcher.on_async(messages.GetView, self._view)
        self._on(
            messages.RegisterNode, lambda m: register_node(self.members, m.node, m.address, m.volumes, ())
        )
        self._on(messages.UnregisterNode, lambda m: unregister_node(self.members, m.node))
        self._on(messages.UnregisterTopic, lambda m: unregister_topic(self.members, m.topic))
        self._on(messages.SetManager, lambda m: set_manager(self.members, m.address, m.auto_create_topics))
        self._on(
            messages.RegisterTopic,
            lambda m: register_topic(self.members, m.name, m.ordering, m.first),
            messages.TopicReply,
        )
        self._on(
            messages.NewLogStreamID, lambda m: new_log_stream_id(self.members), messages.NewLogStreamIDReply
        )
        self._on(
            messages.RegisterLogStream,
            lambda m: register_log_stream(self.members, m.topic, m.log_stream, m.replicas, m.streams_max),
            messages.StreamReply,
        )
        self._on(
            messages.SealStream,
            lambda m: seal_stream(self.members, m.log_stream, self.ends.get(m.log_stream, LLSN(1))),
            messages.StreamReply,
        )
        self._on(
            messages.SetSealedByAdmin,
            lambda m: set_sealed_by_admin(self.members, m.log_stream, m.sealed_by_admin),
            messages.StreamReply,
        )
        self._on(
            messages.SetReplicas,
            lambda m: set_replicas(self.members, m.log_stream, m.epoch, m.replicas),
            messages.StreamReply,
        )
        self._on(
            messages.UnsealStream,
            lambda m: unseal_stream(self.members, m.log_stream, m.epoch),
            messages.StreamReply,
        )
        self._dispatcher.on_async(messages.GetTail, self._tail)
        self._dispatcher.on_async(messages.GetReaders, self._readers)

    async def start(self) -> None:
        self._server = await self._transport.serve("mr:1", lambda _: self._dispatcher.handle)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()
        await self._dispatcher.close()

    @property
    def view(self) -> ClusterView:
        return self.members.view

    def _on(self, kind: type[M], rule: Callable[[M], object], answer: type[Message] | None = None) -> None:
        async def handle(message: M, payload: bytearray) -> Message:
            self.asked.append(kind.__name__)
            result = rule(message)
            found = result if isinstance(result, tuple) else (result, None)
            if isinstance(found[0], Members):
                self.members = found[0]
            self._wake()
            return messages.Done() if answer is None else answer(found[1])

        self._dispatcher.on_async(kind, handle)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def suspect(self, *nodes: NodeID) -> None:
        self.suspects = nodes
        self._wake()

    async def _view(self, message: messages.GetView, payload: bytearray) -> Message:
        try:
            async with asyncio.timeout(message.wait_s):
                suspects = self.suspects
                while (
                    message.wait_s and self.view.revision <= message.newer_than and self.suspects == suspects
                ):
                    await self._changed.wait()
        except TimeoutError:
            pass
        members = self.members
        return messages.GetViewReply(members.view, self.suspects, members.next_log_stream, members.unused)

    async def _tail(self, message: messages.GetTail, payload: bytearray) -> Message:
        return messages.GetTailReply(GLSN(0), GLSN(0))

    async def _readers(self, message: messages.GetReaders, payload: bytearray) -> Message:
        return messages.GetReadersReply(tuple(self.members.readers.of(message.topic)))


@dataclass
class FakeReplica:
    """`end`: one past what it holds, which is all ordered. `copies`: entries that each question about a sync finds copied."""

    topic: TopicID
    state: ReplicaState = ReplicaState.SEALING
    epoch: Epoch = NO_EPOCH
    opened: bool = False
    end: LLSN = FIRST_LLSN
    sealed_end: LLSN = FIRST_LLSN
    copies: int = 1_000_000
    sync: SyncStatus | None = None
    damage: tuple[tuple[LLSN, LLSN], ...] = ()
    full: bool = False

    def status(self, log_stream: LogStreamID) -> ReplicaStatus:
        self._copy()
        return ReplicaStatus(
            log_stream=log_stream,
            topic=self.topic,
            state=self.state,
            epoch=self.epoch,
            committed_end=self.end,
            durable_end=self.end,
            low_watermark=GLSN(0),
            high_watermark=GLSN(self.end - 1),
            path=f"/v/lsid={log_stream}",
            opened=self.opened,
            sync=self.sync,
            damage=self.damage,
            full=self.full,
        )

    def _copy(self) -> None:
        if self.sync is not None and self.sync.state is SyncState.IN_PROGRESS:
            self.end = LLSN(min(self.sealed_end, self.end + self.copies))
            state = SyncState.COMPLETE if self.end == self.sealed_end else SyncState.IN_PROGRESS
            self.sync = SyncStatus(state, self.sync.source, self.end, self.sealed_end)


@dataclass
class FakeNode:
    """One storage node. `refuse` makes it fail that message; `stop` and `start` are a crash and a restart."""

    transport: Transport
    node: NodeID
    cluster: ClusterID = CLUSTER
    replicas: dict[LogStreamID, FakeReplica] = field(default_factory=dict)
    refuse: dict[type[Message], None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    streams_max: int = 1_000
    _server: Server | None = None

    @property
    def address(self) -> str:
        return f"sn:{self.node}"

    async def start(self) -> None:
        for replica in self.replicas.values():
            replica.state = ReplicaState.SEALING
        dispatcher = Dispatcher(f"fake node {self.node}")
        handlers: dict[type[Message], Callable[..., Message]] = {
            messages.GetNodeStatus: self._status,
            messages.AddLogStream: self._add,
            messages.RemoveLogStream: self._remove,
            messages.RebuildReplica: self._rebuild,
            messages.SyncReplica: self._sync,
            messages.RepairReplica: self._repair,
            messages.SealReplica: self._seal,
            messages.UnsealReplica: self._unseal,
        }
        for kind, handler in handlers.items():
            dispatcher.on_async(kind, self._guarded(kind, handler))
        self._server = await self.transport.serve(self.address, lambda _: dispatcher.handle)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()

    def _guarded(
        self, kind: type[Message], handler: Callable[..., Message]
    ) -> Callable[[Message, bytearray], Coroutine[Any, Any, Message]]:
        async def handle(message: Message, payload: bytearray) -> Message:
            if kind is not messages.GetNodeStatus:
                self.asked.append(kind.__name__)
            if kind in self.refuse:
                raise PreconditionFailed(f"node {self.node} is configured to refuse {kind.__name__}")
            return handler(message)

        return handle

    def _status(self, message: messages.GetNodeStatus) -> Message:
        replicas = tuple(replica.status(log_stream) for log_stream, replica in self.replicas.items())
        return messages.GetNodeStatusReply(
            NodeStatus(self.cluster, self.node, self.address, ("/v",), replicas, streams_max=self.streams_max)
        )

    def _add(self, message: messages.AddLogStream) -> Message:
        if message.log_stream in self.replicas:
            raise PreconditionFailed(f"node {self.node} has data of log stream {message.log_stream} already")
        self.replicas[message.log_stream] = FakeReplica(message.topic)
        return messages.Done()

    def _remove(self, message: messages.RemoveLogStream) -> Message:
        replica = self._replica(message.log_stream)
        if message.epoch not in (-1, replica.epoch):
            raise PreconditionFailed(f"it is in epoch {replica.epoch}, not {message.epoch}")
        del self.replicas[message.log_stream]
        return messages.Done()

    def _rebuild(self, message: messages.RebuildReplica) -> Message:
        if self._replica(message.log_stream).state is not ReplicaState.FROZEN:
            raise PreconditionFailed("it is usable")
        self.replicas[message.log_stream] = FakeReplica(message.topic)
        return messages.Done()

    def _sync(self, message: messages.SyncReplica) -> Message:
        replica = self._replica(message.log_stream)
        if replica.state is not ReplicaState.SEALING or message.epoch != replica.epoch:
            raise PreconditionFailed(f"it is {replica.state} in epoch {replica.epoch}")
        replica.sync = SyncStatus(SyncState.IN_PROGRESS, message.source.node, replica.end, replica.sealed_end)
        return messages.SyncReply(replica.sync)

    def _repair(self, message: messages.RepairReplica) -> Message:
        self._replica(message.log_stream).damage = ()
        return messages.Done()

    def _seal(self, message: messages.SealReplica) -> Message:
        replica = self._replica(message.log_stream)
        if message.epoch < replica.epoch or (message.epoch == replica.epoch and replica.opened):
            raise StaleEpoch(message.log_stream, message.epoch, replica.epoch)
        if replica.end > message.committed_end:
            replica.state = ReplicaState.FROZEN
            raise PreconditionFailed("a seal never undoes a commit")
        whole = replica.end == message.committed_end
        replica.state = ReplicaState.SEALED if whole else ReplicaState.SEALING
        replica.epoch, replica.opened, replica.sealed_end = message.epoch, False, message.committed_end
        return messages.ReplicaStateReply(replica.state, replica.end)

    def _unseal(self, message: messages.UnsealReplica) -> Message:
        replica = self._replica(message.log_stream)
        if replica.state is ReplicaState.SEALED and message.epoch == replica.epoch:
            replica.state, replica.opened = ReplicaState.RUNNING, True
        if replica.state is not ReplicaState.RUNNING:
            raise PreconditionFailed("not sealed in this epoch")
        return messages.ReplicaStateReply(replica.state, replica.end)

    def _replica(self, log_stream: LogStreamID) -> FakeReplica:
        if log_stream not in self.replicas:
            raise UnknownLogStream(log_stream)
        return self.replicas[log_stream]


class FakeCluster:
    """A repository, nodes and the real manager on one MemoryTransport."""

    def __init__(self, nodes: int, *, named: bool = True, replicas: int = 3, **settings: Any) -> None:
        self.transport = MemoryTransport()
        self.repository = FakeRepository(self.transport)
        self.nodes = {node: FakeNode(self.transport, NodeID(node)) for node in range(1, nodes + 1)}
        self.config = ManagerConfig(
            CLUSTER,
            "mr:1",
            "vmc:1",
            nodes=tuple(node.address for node in self.nodes.values()) if named else (),
            replicas=replicas,
            **{"heartbeat_s": 0.02, "auto_create_topics": True, "node_timeout_s": WAIT_S, **settings},
        )
        self.manager = Manager(self.config, system_environment(), self.transport)

    async def __aenter__(self) -> FakeCluster:
        await self.repository.start()
        for node in self.nodes.values():
            await node.start()
        await self.manager.start()
        await self.wait(lambda: len(self.repository.view.nodes) == len(self.config.nodes))
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.manager.stop()
        for node in self.nodes.values():
            await node.stop()
        await self.repository.stop()

    async def ask(self, request: Message, *, timeout_s: float = WAIT_S) -> Message:
        connection = await self.transport.connect("vmc:1", timeout_s=WAIT_S)
        try:
            return (await connection.call(request, timeout_s=timeout_s))[0]
        finally:
            connection.close()

    async def wait(self, there: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        async with asyncio.timeout(timeout_s):
            while True:
                if there():
                    return
                await asyncio.sleep(0.002)

    def all_running(self) -> bool:
        view = self.repository.view
        return all(
            stream.state is StreamState.RUNNING
            and all(
                (replica := self.nodes[node].replicas.get(stream.log_stream)) is not None
                and replica.state is ReplicaState.RUNNING
                and replica.epoch == stream.epoch
                for node in stream.replicas
            )
            for stream in view.streams
        )
