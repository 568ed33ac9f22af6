"""A small cluster of production code in virtual time, whose manager can be cut off at any of its calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from varlog.client.connect import connect_log
from varlog.client.log import Log
from varlog.manager.manager import Manager, ManagerConfig
from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.batch import Buffer
from varlog.model.cluster import ClusterView, StreamState
from varlog.model.errors import VarlogError
from varlog.model.ids import ClusterID, NodeID
from varlog.model.status import NodeStatus, ReplicaState
from varlog.rpc import messages as m
from varlog.rpc.transport import Connection, Handler, Server, Transport
from varlog.runtime.environment import Environment
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNodeServer
from varlog.testing.sim.core.host import VOLUME, Host, SimService
from varlog.testing.sim.core.loop import Process, ProcessCrashed
from varlog.testing.sim.core.network import SimNetwork

CLUSTER = ClusterID(7)
TOPIC = "orders"
REPOSITORY = "mr:7100"
# Questions change nothing: only what the manager does is counted.
QUESTIONS = (m.GetView, m.GetNodeStatus, m.GetTail, m.GetSequencer)


class When(StrEnum):
    """At which moment of a call the manager is cut off."""

    BEFORE = "before it is sent"
    SENT = "when it is sent"
    ANSWERED = "when it is answered"


@dataclass
class Cut:
    """The manager dies at its call number `call`, counted from 1; 0: never. `calls`: what it did; `fell`: it came to that."""

    call: int = 0
    when: When = When.BEFORE
    calls: list[str] = field(default_factory=list)

    fell: bool = False

    def due(self, call: int, when: When) -> bool:
        return call == self.call and self.when is when


class CutConnection:
    """A manager's connection, over which its death comes."""

    def __init__(self, inner: Connection, cut: Cut, die: Callable[[], None]) -> None:
        self._inner = inner
        self._cut = cut
        self._die = die

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def closed(self) -> bool:
        return self._inner.closed

    async def call(
        self, request: m.Message, payload: Buffer = b"", *, timeout_s: float
    ) -> tuple[m.Message, bytearray]:
        if isinstance(request, QUESTIONS):
            return await self._inner.call(request, payload, timeout_s=timeout_s)
        self._cut.calls.append(type(request).__name__)
        number = len(self._cut.calls)
        if self._cut.due(number, When.BEFORE):
            self._end()
        calling = asyncio.ensure_future(self._inner.call(request, payload, timeout_s=timeout_s))
        if self._cut.due(number, When.SENT):
            await asyncio.sleep(0)
            self._end()
        try:
            return await calling
        finally:
            if self._cut.due(number, When.ANSWERED):
                self._end()

    def _end(self) -> None:
        self._cut.fell = True
        self._die()
        raise ProcessCrashed("the manager is cut off")

    def send(self, message: m.Message, payload: Buffer = b"") -> None:
        self._inner.send(message, payload)

    async def wait_writable(self) -> None:
        await self._inner.wait_writable()

    def on_close(self, callback: Callable[[], None]) -> None:
        self._inner.on_close(callback)

    def close(self) -> None:
        self._inner.close()


class CutTransport:
    """The network of a manager that will be cut off."""

    def __init__(self, inner: Transport, cut: Cut, die: Callable[[], None]) -> None:
        self._inner = inner
        self._cut = cut
        self._die = die

    @property
    def corrupt_frames(self) -> int:
        return self._inner.corrupt_frames

    async def connect(self, address: str, *, handler: Handler | None = None, timeout_s: float) -> Connection:
        inner = await self._inner.connect(address, handler=handler, timeout_s=timeout_s)
        return CutConnection(inner, self._cut, self._die)

    async def serve(self, address: str, make_handler: Callable[[Connection], Handler]) -> Server:
        return await self._inner.serve(address, make_handler)


class SimCluster:
    """Four storage nodes, a repository, a manager and a client."""

    def __init__(self, nodes: int = 4, replicas: int = 3, zombie_grace_s: float = 10.0) -> None:
        self.network = SimNetwork(random.Random(1))
        self.replicas = replicas
        self.zombie_grace_s = zombie_grace_s
        self.complaints: list[str] = []
        self.cut = Cut()
        self._metadata = MemoryMetadata()
        self.nodes = {number: self._host(f"sn{number}", self._node(number)) for number in range(1, nodes + 1)}
        self.repository = self._host("mr", self._make_repository)
        self.manager = self._host("mc", self._make_manager)
        self._client = Process("client")
        self.environment = self._host("client", self._make_manager).environment(self._client)
        self.transport = self.network.transport(self._client)

    # --- the parts ------------------------------------------------------------------------------------------------

    def _host(self, name: str, make: Callable[[Environment, Transport], SimService]) -> Host:
        return Host(name, "1", self.network, make, lambda text: None, self.complaints.append)

    def _node(self, number: int) -> Callable[[Environment, Transport], SimService]:
        config = StorageNodeConfig(
            CLUSTER,
            NodeID(number),
            (VOLUME,),
            listen=f"sn{number}:7110",
            segment_bytes=1 << 16,
            scrub_bytes_per_s=0,
        )
        return lambda environment, transport: StorageNodeServer(config, environment, transport)

    def _make_repository(self, environment: Environment, transport: Transport) -> SimService:
        config = MetadataRepositoryConfig(CLUSTER, REPOSITORY)
        return MetadataRepository(config, MemoryStore(self._metadata), environment, transport)

    def _make_manager(self, environment: Environment, transport: Transport) -> SimService:
        cutting = CutTransport(transport, self.cut, self.manager.crash)
        return Manager(self._manager_config("mc:7101"), environment, cutting)

    def _manager_config(self, listen: str) -> ManagerConfig:
        nodes = tuple(f"sn{number}:7110" for number in self.nodes)
        return ManagerConfig(
            CLUSTER,
            REPOSITORY,
            listen,
            nodes=nodes,
            replicas=self.replicas,
            replace_after_s=5.0,
            zombie_grace_s=self.zombie_grace_s,
        )

    def second_manager(self) -> Host:
        """One more, which nobody cuts off."""
        config = self._manager_config("mc2:7101")
        return self._host("mc2", lambda environment, transport: Manager(config, environment, transport))

    # --- what a story does ----------------------------------------------------------------------------------------

    def start(self) -> None:
        for host in self.nodes.values():
            host.environment(Process("factory")).disk.make_directory(VOLUME)
            host.boot()
        self.repository.boot()
        self.manager.boot()

    def start_manager(self, cut: Cut | None = None) -> None:
        """A new manager; `cut` says when it dies."""
        self.cut = cut or Cut()
        self.manager.boot()

    def lose_directory(self, number: int) -> None:
        """The node ends, everything that it had is deleted, it starts again."""
        host = self.nodes[number]
        host.crash()
        host.wipe(VOLUME)
        host.boot()

    async def log(self, topic: str = TOPIC, *, create: bool = False) -> Log:
        return await connect_log(
            self.transport, self.environment, REPOSITORY, topic=topic, create=create, timeout_s=60.0
        )

    async def ask(self, address: str, request: m.Message) -> m.Message:
        connection = await self.transport.connect(address, timeout_s=3.0)
        try:
            return (await connection.call(request, timeout_s=20.0))[0]
        finally:
            connection.close()

    async def view(self) -> ClusterView:
        answer = await self.ask(REPOSITORY, m.GetView())
        assert isinstance(answer, m.GetViewReply)
        return answer.view

    async def statuses(self) -> dict[NodeID, NodeStatus]:
        """What the nodes that are up say."""
        found = {}
        for number, host in self.nodes.items():
            if host.up:
                answer = await self.ask(f"sn{number}:7110", m.GetNodeStatus())
                assert isinstance(answer, m.GetNodeStatusReply)
                found[NodeID(number)] = answer.status
        return found

    async def all_sealed(self, addresses: list[str]) -> bool:
        """Whether every replica of these nodes is sealed."""
        answers = [await self.ask(address, m.GetNodeStatus()) for address in addresses]
        return all(
            replica.state is ReplicaState.SEALED
            for answer in answers
            if isinstance(answer, m.GetNodeStatusReply)
            for replica in answer.status.replicas
        )

    async def trouble(self, streams: int) -> str:
        """What keeps the cluster from being whole and clean; "" when it is."""
        try:
            view, statuses = await self.view(), await self.statuses()
        except VarlogError as error:
            return str(error)
        if len(view.streams) != streams:
            return f"{len(view.streams)} streams, not {streams}"
        for stream in view.streams:
            if stream.state is not StreamState.RUNNING or len(stream.replicas) != self.replicas:
                return f"{stream}"
            for node in stream.replicas:
                replicas = statuses[node].replicas if node in statuses else ()
                if not any(
                    found.log_stream == stream.log_stream
                    and found.state is ReplicaState.RUNNING
                    and found.epoch == stream.epoch
                    for found in replicas
                ):
                    return f"log stream {stream.log_stream} does not run on node {node}: {replicas}"
        for node, status in statuses.items():
            for found in status.replicas:
                known = view.stream(found.log_stream)
                if known is None or node not in known.replicas:
                    return f"a zombie of log stream {found.log_stream} is on node {node}"
        return ""

    async def wait_whole(self, streams: int = 1, within_s: float = 300.0) -> None:
        """Until everything runs with all its replicas, and no zombie is left anywhere."""
        deadline = asyncio.get_running_loop().time() + within_s
        while trouble := await self.trouble(streams):
            assert asyncio.get_running_loop().time() < deadline, trouble
            await asyncio.sleep(0.5)
