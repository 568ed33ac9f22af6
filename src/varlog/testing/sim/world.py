"""World: a whole cluster of production code on simulated clock, network and disks. One seed in, one history out."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from varlog.client.connect import connect_admin
from varlog.manager.manager import Manager, ManagerConfig
from varlog.metarepo.repository import MetadataRepository, MetadataRepositoryConfig
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.errors import VarlogError
from varlog.model.ids import ClusterID, NodeID
from varlog.rpc.messages import Message
from varlog.rpc.transport import Transport
from varlog.runtime.doors import Doors
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNode
from varlog.testing.checkers import Checker, check
from varlog.testing.history import History, Operation, Trim
from varlog.testing.sim.connection import SimConnection
from varlog.testing.sim.ending import Judge, examine
from varlog.testing.sim.faults import Faults
from varlog.testing.sim.host import Host, Service
from varlog.testing.sim.limits import tight_limits
from varlog.testing.sim.loop import SimLoop, SimulationStuck, make_loop
from varlog.testing.sim.network import SimNetwork
from varlog.testing.sim.plan import Plan
from varlog.testing.sim.process import CURRENT, Process
from varlog.testing.sim.users import User

CLUSTER = ClusterID(7)
REPOSITORY = "mr:7100"
VOLUME = Path("/data")
BOOTSTRAP_S = 120.0
STEPS_MAX = 2_000_000
# Longer than any message, disk or process is held up.
SETTLE_S = 5.0


@dataclass(frozen=True)
class Result:
    """What one seed came to."""

    seed: int
    digest: str
    violations: tuple[tuple[str, str, str], ...]  # checker, law, sentence
    operations: int
    steps: int
    virtual_s: float
    counts: dict[str, int]


class World:
    """One run. `trace` hears every event, as text."""

    def __init__(
        self, seed: int, *, trace: Callable[[str], None] | None = None, messages: bool = False
    ) -> None:
        self.seed = seed
        self.plan = Plan.seeded(random.Random(f"{seed}/plan"))
        self.history = History()
        self.history.calm = self.plan.calm
        self.over = False
        self._trace = trace
        self._messages = messages
        self._network = SimNetwork(random.Random(f"{seed}/network"))
        self._network.on_message = self._on_message
        self._network.far_share = self.plan.far_share
        self._metadata = MemoryMetadata(before_commit=self._metadata_delay, after_commit=self._metadata_delay)
        self._metadata_rng = random.Random(f"{seed}/metadata")
        self._topics = [f"t{number + 1}" for number in range(self.plan.topics)]
        self._topic_ids: dict[int, str] = {}
        self._sessions_before: dict[int, list[object] | None] = {}
        self._stopping = False
        self._users_left = self.plan.clients
        self._nodes = [self._host(f"sn{n + 1}", self._make_node(n + 1)) for n in range(self.plan.nodes)]
        self._servers = [
            self._host("mr", self._make_repository),
            *(
                self._host(f"mc{n or ''}", self._make_manager(f"mc{n or ''}:7101"))
                for n in range(self.plan.managers)
            ),
            *self._nodes,
        ]
        self._users = [
            self._host(f"c{n + 1}", self._make_user(self._topics[n % len(self._topics)]))
            for n in range(self.plan.clients)
        ]
        self._faults: Faults | None = None

    # --- the parts ------------------------------------------------------------------------------------------------

    def _host(self, name: str, make: Callable[[Doors, Transport], Service]) -> Host:
        return Host(name, str(self.seed), self._network, make, self.tell, self.history.complaints.append)

    def _make_node(self, number: int) -> Callable[[Doors, Transport], Service]:
        def make(doors: Doors, transport: Transport) -> Service:
            config = StorageNodeConfig(
                cluster=CLUSTER,
                node=NodeID(number),
                volumes=(VOLUME,),
                listen=f"sn{number}:7110",
                segment_bytes=self.plan.segment_bytes,
                rows_sync_delay_s=self.plan.rows_sync_delay_s,
            )
            return StorageNode(config, doors, transport)

        return make

    def _make_repository(self, doors: Doors, transport: Transport) -> Service:
        config = MetadataRepositoryConfig(cluster=CLUSTER, listen=REPOSITORY)
        return MetadataRepository(config, MemoryStore(self._metadata), doors, transport)

    def _make_manager(self, listen: str) -> Callable[[Doors, Transport], Service]:
        nodes = tuple(f"sn{number + 1}:7110" for number in range(self.plan.nodes))
        config = ManagerConfig(
            cluster=CLUSTER, repository=REPOSITORY, listen=listen, nodes=nodes, replicas=self.plan.replicas
        )
        return lambda doors, transport: Manager(config, doors, transport)

    def _make_user(self, topic: str) -> Callable[[Doors, Transport], Service]:
        def make(doors: Doors, transport: Transport) -> Service:
            return User(
                doors,
                transport,
                topic=topic,
                repository=REPOSITORY,
                plan=self.plan,
                history=self.history,
                stopping=lambda: self._stopping,
                finished=self._user_finished,
                on_begin=self._operation_begins,
                on_end=self._operation_ends,
            )

        return make

    async def _metadata_delay(self) -> None:
        rng = self._metadata_rng
        await asyncio.sleep(rng.uniform(0.0001, 0.001) if rng.random() < 0.95 else rng.uniform(0.01, 0.2))

    # --- the run --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Bootstrap, work under faults, heal, read back, look at the disks."""
        plan = self.plan
        self.tell(f"seed {self.seed}: {plan}")
        for host in self._nodes:
            host.doors(Process("factory")).disk.make_directory(VOLUME)
        for host in self._servers:
            host.boot()
        faults = self._faults = Faults(
            plan,
            random.Random(f"{self.seed}/faults"),
            self._network,
            [*self._servers, *self._users],
            self.tell,
        )
        judge_process = Process("judge")
        judge_host = Host("judge", str(self.seed), self._network, self._make_repository, self.tell, self.tell)
        judge_doors = judge_host.doors(judge_process)
        transport = self._network.transport(judge_process)
        judge = Judge(judge_doors, transport, REPOSITORY, self._topics, self.history)
        if plan.early_faults:
            faults.start()
            asyncio.get_running_loop().call_later(plan.duration_s, faults.stop)
        if await judge_process.spawn("bootstrap", self._bootstrap(judge_doors, transport)):
            if plan.new_streams:
                _ = judge_process.spawn("new streams", self._make_streams(judge_doors, transport))
            await self._work(faults)
            await self._end(judge, judge_process, faults)
        else:
            self.history.trouble.append(f"no topic could be made within {BOOTSTRAP_S:g} s")
        self._write_down_complaints()

    async def _work(self, faults: Faults) -> None:
        """Users work under faults for the time that the plan has, or until they have done all they wanted."""
        for host in self._users:
            host.boot()
        faults.start()
        end = asyncio.get_running_loop().time() + self.plan.duration_s
        while asyncio.get_running_loop().time() < end and self._users_left > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        faults.stop()

    async def _bootstrap(self, doors: Doors, transport: Transport) -> bool:
        loop = asyncio.get_running_loop()
        while loop.time() < BOOTSTRAP_S:
            try:
                async with await connect_admin(transport, doors, REPOSITORY, timeout_s=5.0) as admin:
                    for topic in self._topics:
                        # A second manager may have made more streams out of a question that was asked again.
                        found = next((one for one in await admin.topics() if one.name == topic), None)
                        if found is None or not await admin.streams(topic):
                            found = await admin.create_topic(
                                topic, streams=self.plan.streams, replicas=self.plan.replicas
                            )
                        self._topic_ids[found.topic] = topic
                return True
            except VarlogError as error:
                self.tell(f"not yet: {error}")
                await asyncio.sleep(0.2)
        return False

    async def _make_streams(self, doors: Doors, transport: Transport) -> None:
        """An operator adds streams to topics in use; one that could not be made is no matter."""
        rng = random.Random(f"{self.seed}/operator")
        for _ in range(self.plan.new_streams):
            await asyncio.sleep(rng.uniform(0, self.plan.duration_s / self.plan.new_streams))
            try:
                async with await connect_admin(transport, doors, REPOSITORY, timeout_s=2.0) as admin:
                    made = await admin.add_stream(rng.choice(self._topics))
                self.tell(f"the operator made log stream {made.log_stream} of topic {made.topic}")
            except VarlogError as error:
                self.tell(f"the operator made no log stream: {error}")

    async def _end(self, judge: Judge, process: Process, faults: Faults) -> None:
        self.tell("the faults stop")
        self._stopping = True
        self._network.slow = 0.0
        await self._wait_users()
        # What was held up while hosts were cut off from each other arrives until then, and so do late appends.
        await asyncio.sleep(SETTLE_S)
        if not await process.spawn("heal", judge.heal()):
            return
        if self.plan.last_blackout:
            faults.blackout()
            faults.stop()
            if not await process.spawn("heal", judge.heal()):
                return
        self.history.healed = self.history.event()
        await process.spawn("read", judge.read_back())
        for host in self._servers[1:]:
            await host.stop()
        examine(self._nodes, self._topic_ids, self.history, self.plan.segment_bytes)

    async def _wait_users(self) -> None:
        """Let the operations under way end; those whose client died never do."""
        patience = asyncio.get_running_loop().time() + 60.0
        while asyncio.get_running_loop().time() < patience and self._under_way():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        for operation in self.history.operations:
            operation.abandoned = operation.ended is None and not self._lives(operation.client)

    def _under_way(self) -> bool:
        return any(
            operation.ended is None and self._lives(operation.client) for operation in self.history.operations
        )

    def _lives(self, client: str) -> bool:
        name = client.partition(".")[0]
        return any(
            host.process is not None and host.process.name == name and host.process.alive
            for host in self._users
        )

    def _user_finished(self) -> None:
        self._users_left -= 1

    # --- telling --------------------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{asyncio.get_running_loop().time():9.4f}  {text}")

    def _operation_begins(self, operation: Operation) -> None:
        if isinstance(operation, Trim):
            self._sessions_before[id(operation)] = self._sessions()

    def _operation_ends(self, operation: Operation) -> None:
        if isinstance(operation, Trim):
            before = self._sessions_before.pop(id(operation))
            operation.binding = before is not None and before == self._sessions()
        if self._trace is not None:
            self.tell(f"{operation}")

    def _sessions(self) -> list[object] | None:
        """The repository's sessions with all living nodes; None if one of them has none. A trim waits for those in session."""
        repository = self._servers[0]
        if not repository.up or not isinstance(repository.service, MetadataRepository):
            return None
        sessions = repository.service._sessions
        links: list[object] = [repository.process]
        for number, host in enumerate(self._nodes, 1):
            session = sessions._sessions.get(NodeID(number)) if sessions is not None else None
            if host.up and (session is None or not session.is_open):
                return None
            links.append(session._link if session is not None else None)
        return links

    def _on_message(self, connection: SimConnection, message: Message) -> None:
        if self._messages and self._trace is not None:
            self.tell(f"{connection.process.name} -> {connection.peer}: {message}")
        if self._faults is not None:
            self._faults.on_message(connection, message)

    def _write_down_complaints(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimLoop):
            self.history.complaints.extend(loop.complaints)
        self.history.complaints.extend(self._network.complaints)


class LogLines(logging.Handler):
    """What the services log while the world runs: errors are complaints, the rest is part of the trace."""

    def __init__(self, world: World, *, tracing: bool) -> None:
        super().__init__(logging.DEBUG if tracing else logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get()
        if self._world.over or (process is not None and not process.alive):
            return
        name = process.name if process is not None else "simulator"
        text = f"{name} [{record.levelname.lower()}] {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._world.tell(text)
        if record.levelno >= logging.ERROR:
            self._world.history.complaints.append(text)


def simulate(
    seed: int, *, trace: Callable[[str], None] | None = None, messages: bool = False
) -> tuple[Result, World]:
    """Run one seed and judge it."""
    world = World(seed, trace=trace, messages=messages)
    logger = logging.getLogger("varlog")
    lines = LogLines(world, tracing=trace is not None)
    before = logger.level, logger.propagate
    logger.addHandler(lines)
    logger.setLevel(lines.level)
    logger.propagate = False
    loop = make_loop(steps_max=STEPS_MAX)
    try:
        try:
            with tight_limits(random.Random(f"{seed}/limits")):
                loop.run_until_complete(world.run())
        except SimulationStuck as stuck:
            world.history.trouble.append(str(stuck))
        # Before the loop lets go of what is unfinished: that is the end of the world, not a part of it.
        return judge(world, loop), world
    finally:
        world.over = True
        loop.close()
        logger.removeHandler(lines)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def judge(world: World, loop: SimLoop) -> Result:
    history = world.history
    found: list[tuple[Checker, str]] = check(history)
    counts: dict[str, int] = {}
    for operation in history.operations:
        key = f"{type(operation).__name__.lower()} {operation.outcome}"
        counts[key] = counts.get(key, 0) + 1
    return Result(
        seed=world.seed,
        digest=history.digest(),
        violations=tuple((checker.name, checker.law, sentence) for checker, sentence in found),
        operations=len(history.operations),
        steps=loop.steps,
        virtual_s=loop.time(),
        counts=counts,
    )
