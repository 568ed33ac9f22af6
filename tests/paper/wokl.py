"""Wokl: the cluster of the diagrams in 003 and 004, in virtual time: clients CL…, storage nodes SN…, sequencer SQ, repository MR.

The services are the real ones, on the network and disks of the simulator, which here lose nothing by themselves. The manager
(MCL) creates the topic and then leaves: what happens afterwards is done by the clients, as drawn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tests.paper.transcript import ToldTransport, Transcript
from varlog.client.connect import connect_admin, connect_log
from varlog.client.log import Log
from varlog.manager.config import ManagerConfig
from varlog.manager.manager import Manager
from varlog.metarepo.repository import MetadataRepository, MetadataRepositoryConfig
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.batch import Buffer
from varlog.model.cluster import ClusterView, Grouping, Ordering, UnitStatus
from varlog.model.errors import VarlogError
from varlog.model.ids import ClusterID, LogStreamID, NodeID
from varlog.model.projection import Projection
from varlog.reconfiguration.reconfigurer import Reconfigurer
from varlog.rpc.messages import Message
from varlog.rpc.transport import Transport
from varlog.runtime.doors import Doors
from varlog.sequencer.config import SequencerConfig
from varlog.sequencer.sequencer import Sequencer
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNode
from varlog.testing.sim.host import VOLUME, Host, Service
from varlog.testing.sim.loop import run
from varlog.testing.sim.network import SimNetwork
from varlog.testing.sim.process import Process, ProcessCrashed

T = TypeVar("T")
M = TypeVar("M", bound=Message)

CLUSTER = ClusterID(1)
TOPIC = "log"
REPOSITORY, SEQUENCER, MANAGER = "mr:7100", "sq:7102", "mc:7101"
FOR_EVER_S = 1e9
START_S = 30.0
ASK_S = 1.0
STORY_S = 300.0


class Idle:
    """A host on which nothing runs but what a test does there."""

    def __init__(self, doors: Doors, transport: Transport) -> None:
        self.doors = doors
        self.transport = transport

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Client:
    """CL: a process with a log."""

    def __init__(self, name: str, host: Host, transport: ToldTransport, idle: Idle) -> None:
        self.name = name
        self.log: Log
        self.transport = transport
        self.died = asyncio.Event()
        self._idle = idle
        self._process: Process = host.process  # type: ignore[assignment]  # it was booted

    async def connect(self) -> None:
        self.log = await self.do(
            connect_log(self.transport, self._idle.doors, REPOSITORY, topic=TOPIC, create=False)
        )

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._process.spawn("work", work)

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.start(work)

    async def ask(self, whom: str, request: Message, payload: Buffer = b"") -> tuple[Message, bytearray]:
        """One message of its own."""
        connection = await self.transport.connect(self.transport.address_of(whom), timeout_s=ASK_S)
        try:
            return await self.do(connection.call(request, payload, timeout_s=ASK_S))
        finally:
            connection.close()

    def reconfigurer(self) -> Reconfigurer:
        """As the log's own one, with a view of the world that is handed to it."""

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
        """As a hook: in the middle of what it does, for ever."""
        self._process.die()
        self.died.set()
        raise ProcessCrashed(self._process.name)


class Wokl:
    """`nodes` storage nodes, on all of which a log stream is, unless there are fewer `replicas`."""

    def __init__(
        self,
        nodes: int,
        *,
        replicas: int = 0,
        streams: int = 1,
        unit: int = 1,
        grouping: Grouping = Grouping.STREAM,
    ) -> None:
        self.transcript = Transcript(streams=streams > 1)
        self.streams, self.unit, self.grouping = streams, unit, grouping
        self.replicas = replicas or nodes
        self.complaints: list[str] = []
        self.network = SimNetwork(random.Random("wokl/network"))
        self.network.slow = 0.0
        self._metadata = MemoryMetadata()
        self.nodes = {
            NodeID(number): self._host(f"sn{number}", self._node(number)) for number in range(1, nodes + 1)
        }
        self.repository = self._host("mr", self._make_repository)
        self.sequencer = self._host("sq", self._make_sequencer)
        self.manager = self._host("mc", self._make_manager)
        self.transcript.names = {REPOSITORY: "MR", SEQUENCER: "SQ", MANAGER: "MCL"} | {
            f"sn{number}:7110": f"SN{number}" for number in self.nodes
        }
        self._hosts: dict[str, Host] = {
            "MR": self.repository,
            "SQ": self.sequencer,
            **{f"SN{number}": host for number, host in self.nodes.items()},
        }

    # --- Before the diagram begins ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """All processes run; there is no topic yet."""
        for host in self.nodes.values():
            host.doors(Process("factory")).disk.make_directory(VOLUME)
        for host in (*self.nodes.values(), self.repository, self.sequencer, self.manager):
            host.boot()
        async with asyncio.timeout(START_S):
            while not await self._ready():
                await asyncio.sleep(0.05)

    async def _ready(self) -> bool:
        service = self.repository.service
        if not isinstance(service, MetadataRepository) or (view := service.view) is None:
            return False
        return len(view.nodes) == len(self.nodes) and bool(view.sequencers) and bool(view.manager_address)

    async def create(self) -> None:
        """The topic, by the manager."""
        idle = self._idle("operator")
        async with asyncio.timeout(START_S):
            while True:
                try:
                    async with await connect_admin(idle.transport, idle.doors, REPOSITORY) as admin:
                        await admin.create_topic(
                            TOPIC,
                            streams=self.streams,
                            replicas=self.replicas,
                            ordering=Ordering.SEQUENCED,
                            unit=self.unit,
                            grouping=self.grouping,
                        )
                        return
                except VarlogError:
                    await asyncio.sleep(0.1)

    async def drawn(self) -> Wokl:
        """As every diagram but that of the creation begins: epoch 1, everyone in it, SN1 the head of the first chain, and nobody
        but clients does anything."""
        await self.start()
        await self.create()
        async with asyncio.timeout(START_S):
            while not all(self.node(node).status().leased for node in self.nodes):
                await asyncio.sleep(0.05)
        await self.manager.stop()
        chain = self.projection.chains[0].nodes
        order = [*chain, *(node for node in self.nodes if node not in chain)]
        for number, node in enumerate(order, 1):
            self.transcript.names[f"sn{node}:7110"] = f"SN{number}"
            self._hosts[f"SN{number}"] = self.nodes[node]
        assert self.epoch == 1
        self.transcript.take()
        return self

    async def client(self, name: str, *, watches: bool = True) -> Client:
        host = self._host(name.lower(), Idle)
        host.boot()
        idle = host.service
        assert isinstance(idle, Idle)
        told = ToldTransport(name, idle.transport, self.transcript)
        told.watches = watches
        client = Client(name, host, told, idle)
        await client.connect()
        self.transcript.take()
        return client

    # --- While it goes on ---------------------------------------------------------------------------------------------

    def fail(self, name: str) -> None:
        """The process dies."""
        self._hosts[name].crash()

    def cut(self, name: str, *others: str) -> None:
        """Nothing passes any more between one and some others (none: all others); what is sent is lost."""
        for other in others or ("",):
            self.network.lose(
                self._hosts[name].name if name in self._hosts else name.lower(),
                self._place(other),
                FOR_EVER_S,
            )

    def _place(self, name: str) -> str:
        return self._hosts[name].name if name in self._hosts else name.lower()

    @property
    def view(self) -> ClusterView:
        service = self.repository.service
        assert isinstance(service, MetadataRepository)
        assert service.view is not None
        return service.view

    @property
    def projection(self) -> Projection:
        (projection,) = self.view.projections
        return projection

    @property
    def epoch(self) -> int:
        return self.projection.epoch

    def node(self, node: NodeID) -> StorageNode:
        service = self.nodes[node].service
        assert isinstance(service, StorageNode)
        return service

    def name(self, node: NodeID) -> str:
        return self.transcript.names[f"sn{node}:7110"]

    def chain(self, log_stream: LogStreamID | None = None) -> str:
        """As the diagrams write it: SN1->SN2->SN3."""
        found = self.projection.chains[0] if log_stream is None else self.projection.chain(log_stream)
        return "->".join(map(self.name, found.nodes))

    def units(self, name: str) -> list[UnitStatus]:
        """The log units of a storage node."""
        service = self._hosts[name].service
        assert isinstance(service, StorageNode)
        return sorted(service.status().units, key=lambda unit: unit.log_stream)

    def epochs(self, *names: str) -> list[int]:
        """Of the first log unit of each."""
        return [self.units(name)[0].epoch for name in names]

    # --- The processes ------------------------------------------------------------------------------------------------

    def _host(self, name: str, make: Callable[[Doors, Transport], Service]) -> Host:
        return Host(name, "wokl", self.network, make, lambda text: None, self.complaints.append)

    def _idle(self, name: str) -> Idle:
        host = self._host(name, Idle)
        host.boot()
        assert isinstance(host.service, Idle)
        return host.service

    def _node(self, number: int) -> Callable[[Doors, Transport], Service]:
        config = StorageNodeConfig(CLUSTER, NodeID(number), (VOLUME,), listen=f"sn{number}:7110")
        return lambda doors, transport: StorageNode(config, doors, transport)

    def _make_repository(self, doors: Doors, transport: Transport) -> Service:
        config = MetadataRepositoryConfig(CLUSTER, REPOSITORY)
        return MetadataRepository(config, MemoryStore(self._metadata), doors, transport)

    def _make_sequencer(self, doors: Doors, transport: Transport) -> Service:
        return Sequencer(SequencerConfig(CLUSTER, REPOSITORY, SEQUENCER), doors, transport)

    def _make_manager(self, doors: Doors, transport: Transport) -> Service:
        config = ManagerConfig(
            CLUSTER,
            REPOSITORY,
            MANAGER,
            nodes=tuple(f"sn{number}:7110" for number in self.nodes),
            replicas=self.replicas,
        )
        return Manager(config, doors, ToldTransport("MCL", transport, self.transcript))


def told(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a story in virtual time; one that does not end is over after a while."""

    async def within() -> T:
        async with asyncio.timeout(STORY_S):
            return await story()

    return run(within())
