"""PaperCluster: the participants of the diagrams, in virtual time.

Clients are CL, storage nodes SN, the repository is MR and the manager MCL. The services are the real ones, on the network and
disks of the simulator, which here lose nothing by themselves. `wokl.py` and `varlog.py` say what a cluster is like when a diagram
of their documents begins.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tests.paper.transcript import RecordedTransport, Transcript
from varlog.client.admin import Admin
from varlog.client.connect import connect_admin, connect_log
from varlog.client.log import Log
from varlog.manager.config import ManagerConfig
from varlog.manager.manager import Manager
from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.batch import Buffer
from varlog.model.cluster import ClusterView
from varlog.model.errors import VarlogError
from varlog.model.ids import ClusterID, NodeID
from varlog.reconfiguration.reconfigurer import Reconfigurer
from varlog.rpc.messages import Message
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNodeServer
from varlog.testing.sim.core.host import VOLUME, Host, SimService
from varlog.testing.sim.core.loop import Process, ProcessCrashed, run_simulated
from varlog.testing.sim.core.network import SimNetwork

T = TypeVar("T")
M = TypeVar("M", bound=Message)

CLUSTER = ClusterID(1)
TOPIC = "log"
REPOSITORY, MANAGER = "mr:7100", "mc:7101"
FOREVER_S = 1e9
START_S = 30.0
ASK_S = 1.0
STORY_S = 300.0


def node_address(number: int) -> str:
    return f"sn{number}:7110"


class Idle:
    """A host on which nothing runs except what a test does there."""

    def __init__(self, environment: Environment, transport: Transport) -> None:
        self.environment = environment
        self.transport = transport

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Client:
    """CL: a process with a log; or, not connected, a participant whose messages a test sends by hand."""

    def __init__(self, name: str, host: Host, transport: RecordedTransport, idle: Idle) -> None:
        self.name = name
        self.log: Log
        self.transport = transport
        self.died = asyncio.Event()
        self._idle = idle
        self._process: Process = host.process  # type: ignore[assignment]  # it was booted

    async def connect(self) -> None:
        self.log = await self.do(
            connect_log(self.transport, self._idle.environment, REPOSITORY, topic=TOPIC, create=False)
        )

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._process.spawn("work", work)

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.start(work)

    async def ask(
        self, whom: str, request: Message, payload: Buffer = b"", *, timeout_s: float = ASK_S
    ) -> tuple[Message, bytearray]:
        """One message of its own."""
        connection = await self.transport.connect(self.transport.address_of(whom), timeout_s=timeout_s)
        try:
            return await self.do(connection.call(request, payload, timeout_s=timeout_s))
        finally:
            connection.close()

    def reconfigurer(self) -> Reconfigurer:
        """Like the log's own one, with a view of the cluster that is passed in."""

        async def ask(address: str, request: Message, answer: type[M], timeout_s: float) -> M:
            connection = await self.transport.connect(address, timeout_s=timeout_s)
            try:
                got, _ = await connection.call(request, timeout_s=timeout_s)
            finally:
                connection.close()
            assert isinstance(got, answer)
            return got

        return Reconfigurer(ask, partial(ask, REPOSITORY))

    def die(self) -> None:
        """As a hook: in the middle of its operation, and forever."""
        self._process.die()
        self.died.set()
        raise ProcessCrashed(self._process.name)


class PaperCluster:
    """`nodes` storage nodes, a repository and a manager."""

    def __init__(self, nodes: int, *, replicas: int, transcript: Transcript) -> None:
        self.transcript = transcript
        self.replicas = replicas
        self.complaints: list[str] = []
        self.network = SimNetwork(random.Random("wokl/network"))
        self.network.slow = 0.0
        self._metadata = MemoryMetadata()
        self.nodes = {
            NodeID(number): self._host(f"sn{number}", self._node(number)) for number in range(1, nodes + 1)
        }
        self.repository = self._host("mr", self._make_repository)
        self.manager = self._host("mc", self._make_manager)
        self._hosts: dict[str, Host] = {
            "MR": self.repository,
            "MCL": self.manager,
            **{f"SN{number}": host for number, host in self.nodes.items()},
        }
        self.transcript.names = {REPOSITORY: "MR", MANAGER: "MCL"} | {
            node_address(number): f"SN{number}" for number in self.nodes
        }

    # --- Before the diagram begins ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """All processes run; there is no topic yet."""
        for number, host in self.nodes.items():
            for volume in self._node_config(number).volumes:
                host.environment(Process("factory")).disk.make_directory(volume)
        for host in (*self.nodes.values(), *self._others()):
            host.boot()
        await self.wait(self._ready)

    def _others(self) -> tuple[Host, ...]:
        return self.repository, self.manager

    def _ready(self) -> bool:
        """Whether every process has found the repository."""
        service = self.repository.service
        view = service.view if isinstance(service, MetadataRepository) else None
        return view is not None and len(view.nodes) == self._expected() and bool(view.manager_address)

    def _expected(self) -> int:
        """How many nodes are registered."""
        return len(self.nodes)

    async def operate(self, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """What an operator has the manager do, repeated until it is done."""
        idle = self._idle("operator")
        async with asyncio.timeout(START_S):
            while True:
                try:
                    async with await connect_admin(idle.transport, idle.environment, REPOSITORY) as admin:
                        return await work(admin)
                except VarlogError:
                    await asyncio.sleep(0.1)

    def call_in_order(self, order: list[NodeID]) -> None:
        """From now on the first of these nodes is SN1, and so on."""
        rest = [node for node in self.nodes if node not in order]
        for number, node in enumerate([*order, *rest], 1):
            self.transcript.names[node_address(node)] = f"SN{number}"
            self._hosts[f"SN{number}"] = self.nodes[node]

    async def client(self, name: str, *, watches: bool = True) -> Client:
        client = self.by_hand(name)
        client.transport.watches = watches
        await client.connect()
        self.transcript.take()
        return client

    def by_hand(self, name: str) -> Client:
        """A process under this name that sends only what the test has it send."""
        host = self._host(f"hand-{name.lower()}" if name in self._hosts else name.lower(), Idle)
        host.boot()
        idle = host.service
        assert isinstance(idle, Idle)
        return Client(name, host, RecordedTransport(name, idle.transport, self.transcript), idle)

    # --- While it is drawn --------------------------------------------------------------------------------------------

    async def wait(self, condition: Callable[[], object], within_s: float = START_S) -> None:
        """In virtual time, which costs none."""
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.01)

    def fail(self, name: str) -> None:
        """The process dies."""
        self._hosts[name].crash()

    async def boot(self, name: str) -> None:
        """Start its process over its former disk; raises the error with which it refuses to start."""
        host, done = self._hosts[name], asyncio.get_running_loop().create_future()

        def refuse(_host: Host, error: Exception) -> bool:
            done.set_exception(error)
            return True

        host.on_start, host.on_refusal = lambda _: done.set_result(None), refuse
        try:
            host.boot()
            await done
        finally:
            host.on_start, host.on_refusal = lambda _: None, lambda _, error: False

    def cut(self, name: str, *others: str) -> None:
        """Nothing passes any more between one and some others (none: all others); what is sent is lost."""
        for other in others or ("",):
            self.network.lose(self.place(name), self.place(other), FOREVER_S)

    def place(self, name: str) -> str:
        """The host of a participant."""
        return self._hosts[name].name if name in self._hosts else name.lower()

    def host(self, name: str) -> Host:
        return self._hosts[name]

    @property
    def view(self) -> ClusterView:
        service = self.repository.service
        assert isinstance(service, MetadataRepository)
        assert service.view is not None
        return service.view

    def node(self, node: NodeID) -> StorageNodeServer:
        service = self.nodes[node].service
        assert isinstance(service, StorageNodeServer)
        return service

    def name(self, node: NodeID) -> str:
        return self.transcript.names[node_address(node)]

    def storage_node(self, name: str) -> StorageNodeServer:
        """The services that run as SN1, SN2 …"""
        service = self._hosts[name].service
        assert isinstance(service, StorageNodeServer)
        return service

    # --- The processes ------------------------------------------------------------------------------------------------

    def _host(self, name: str, make: Callable[[Environment, Transport], SimService]) -> Host:
        return Host(name, "wokl", self.network, make, lambda text: None, self.complaints.append)

    def _idle(self, name: str) -> Idle:
        host = self._host(name, Idle)
        host.boot()
        assert isinstance(host.service, Idle)
        return host.service

    def _node_config(self, number: int) -> StorageNodeConfig:
        return StorageNodeConfig(CLUSTER, NodeID(number), (VOLUME,), listen=node_address(number))

    def _node(self, number: int) -> Callable[[Environment, Transport], SimService]:
        return lambda environment, transport: StorageNodeServer(
            self._node_config(number), environment, transport
        )

    def _make_repository(self, environment: Environment, transport: Transport) -> SimService:
        config = MetadataRepositoryConfig(CLUSTER, REPOSITORY)
        return MetadataRepository(config, MemoryStore(self._metadata), environment, transport)

    def _manager_config(self) -> ManagerConfig:
        return ManagerConfig(
            CLUSTER,
            REPOSITORY,
            MANAGER,
            nodes=tuple(map(node_address, self.nodes)),
            replicas=self.replicas,
        )

    def _make_manager(self, environment: Environment, transport: Transport) -> SimService:
        return Manager(
            self._manager_config(), environment, RecordedTransport(MANAGER, transport, self.transcript)
        )


def run_story(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a story in virtual time; one that does not end is stopped after a while."""

    async def within() -> T:
        async with asyncio.timeout(STORY_S):
            return await story()

    return run_simulated(within())
