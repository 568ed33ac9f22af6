"""World: a cluster of production code on a simulated clock, network and disks.

One seed in, one history out.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec

from varlog.client.connect import connect_admin, connect_log
from varlog.client.log import Log
from varlog.manager.manager import Manager, ManagerConfig
from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.base import MetadataStore
from varlog.metarepo.store.journal import journal_path
from varlog.metarepo.store.memory import InMemoryReplicatedStore, MemoryMetadata
from varlog.model.cluster import ClusterView, Ordering, Topic
from varlog.model.errors import VarlogError
from varlog.model.ids import ClusterID, NodeID
from varlog.rpc.messages import Commits, Message
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNodeServer
from varlog.testing.sim.core.host import METADATA_PATH, VOLUME, DriveStore, Host, SimService, hanging_delay
from varlog.testing.sim.core.loop import CURRENT, Process, SimLoop
from varlog.testing.sim.core.message_observer import MessageObserver, SequencedObserver
from varlog.testing.sim.core.network import SimConnection, SimNetwork
from varlog.testing.sim.core.plan import COPY_LOSSES, NEED_AN_OPERATOR, FaultKind, SimPlan
from varlog.testing.sim.ending import EndingCheck, examine
from varlog.testing.sim.faults.gray_watch import APPENDERS, GrayWatch
from varlog.testing.sim.faults.schedule import Faults
from varlog.testing.sim.faults.survivor_check import SurvivorCheck
from varlog.testing.sim.sequenced.ending import examine_units
from varlog.testing.sim.sequenced.fault_actions import CUT_S_MAX
from varlog.testing.sim.sequenced.rogue_reconfigurer import RogueReconfigurer
from varlog.testing.sim.sequenced.unit_inspector import UnitInspector
from varlog.testing.sim.users.operator import Operator
from varlog.testing.sim.users.registry_client import RegistryClient
from varlog.testing.sim.users.user import COPY, Attempts, Copier, User, UserWork
from varlog.testing.workload import Client, Mix
from varlog.verify.checkers import check_history
from varlog.verify.history import CallOutcome, Checker, ClientCall, History, TrimCall

CLUSTER = ClusterID(7)
BOOTSTRAP_S = 120.0
# Longer than any message, disk or process is held up.
SETTLE_S = 5.0
# Longer than a manager tries to do what it was asked for.
MANAGERS_S = 60.0
# In this many passes each replica is scrubbed once for sure, and what was found is repaired.
SCRUBBED_PASSES = 3


class World:
    """One run. `trace` gets every event, as text."""

    def __init__(
        self,
        seed: int,
        ordering: Ordering = Ordering.COMMITTED,
        *,
        trace: Callable[[str], None] | None = None,
        messages: bool = False,
    ) -> None:
        self.seed = seed
        self.plan = self._draw_plan(ordering)
        self.history = History()
        self.history.calm = self.plan.calm
        self.history.first = self.plan.first
        self.history.beyond = FaultKind.BEYOND in self.plan.kinds()
        self.over = False
        self._trace = trace
        self._messages = messages
        self._network = SimNetwork(random.Random(f"{seed}/network"))
        self._network.on_message = self._on_message
        self._network.far_share = self.plan.far_share
        self._metadata = MemoryMetadata(before_commit=self._at_store, after_commit=self._behind_store)
        self._metadata.held_until = self._store_held_until
        self._metadata_rng = random.Random(f"{seed}/metadata")
        self._topics = [f"t{number + 1}" for number in range(self.plan.topics)]
        self._all_topics = [*self._topics, *([COPY] if self.plan.copied else [])]
        self._apart: list[str] = []  # topics that are made, too, and that nobody reads back
        if self.plan.copied:
            self.history.copies[COPY] = self._topics[0]
        if self.plan.first > 1:
            self.history.operations += [_beginning(topic, self.plan.first) for topic in self._all_topics]
        self._attempts = Attempts(self.plan, random.Random(f"{seed}/attempts"), self.history, self.trace)
        self._copier = Copier(self.plan.first, random.Random(f"{seed}/copier"), self.history, self.trace)
        self._sequenced_observer = SequencedObserver(self.history)
        self._observer = MessageObserver(
            self.history,
            self._sequenced_observer.is_sequenced,
            rewound=bool(set(NEED_AN_OPERATOR) & self.plan.kinds()),
        )
        if set(NEED_AN_OPERATOR) & self.plan.kinds():
            self._network.on_arrival = self._on_arrival
        self.history.sequenced = {
            topic
            for number, topic in enumerate(self._topics)
            if self.plan.ordering_of(number) is Ordering.SEQUENCED
        }
        self._sessions_before: dict[int, tuple[list[object] | None, set[int]]] = {}
        self._stopping = False
        self._users_left = self.plan.clients
        self._nodes = [self._host(f"sn{n + 1}", self._make_node(n + 1)) for n in range(self.plan.nodes)]
        names = (
            ["mr"] if self.plan.repositories == 1 else [f"mr{n + 1}" for n in range(self.plan.repositories)]
        )
        self._repository = ",".join(f"{name}:7100" for name in names)
        self._repositories = [self._host(name, self._make_repository(f"{name}:7100")) for name in names]
        self._servers = [
            *self._repositories,
            *(
                self._host(f"mc{n or ''}", self._make_manager(f"mc{n or ''}:7101"))
                for n in range(self.plan.managers)
            ),
            *self._nodes,
            *(
                self._host(f"sq{n + 1}", self._make_sequencer(f"sq{n + 1}:7120"))
                for n in range(self.plan.sequencers)
            ),
        ]
        self._users = [
            self._host(f"c{n + 1}", self._make_user(self._topics[n % len(self._topics)]))
            for n in range(self.plan.clients)
        ]
        self._faults: Faults | None = None
        self._inspector = UnitInspector(self._nodes, self._view, self.history)
        self._gray = GrayWatch(random.Random(f"{seed}/gray watch"), self._nodes, self._view, self.history)
        self._rogue = RogueReconfigurer(
            self.plan, random.Random(f"{seed}/meddler"), self._repository, self.trace
        )
        if self.plan.ordering is Ordering.SEQUENCED:
            self._set_clocks(random.Random(f"{seed}/clocks"))

    # --- the parts ------------------------------------------------------------------------------------------------

    def _draw_plan(self, ordering: Ordering) -> SimPlan:
        return SimPlan.of(self.seed, ordering)

    def _host(self, name: str, make: Callable[[Environment, Transport], SimService]) -> Host:
        return Host(name, str(self.seed), self._network, make, self.trace, self.history.complaints.append)

    def _set_clocks(self, rng: random.Random) -> None:
        """Steady clocks run as wrong as they may, each in its own way."""
        for host in (*self._servers, *self._users):
            host.clock.steady_from_us = rng.randrange(10**12)
            host.clock.rate = 1 + self.plan.drift * rng.choice((-1, -1, 1, 1, rng.uniform(-1, 1)))
            if self.plan.slow_disks:
                host.delay = hanging_delay

    def _make_sequencer(self, listen: str) -> Callable[[Environment, Transport], SimService]:
        from varlog.sequencer.sequencer import Sequencer, SequencerConfig

        config = SequencerConfig(cluster=CLUSTER, repository=self._repository, listen=listen)
        return lambda environment, transport: Sequencer(config, environment, transport)

    def _make_node(self, number: int) -> Callable[[Environment, Transport], SimService]:
        def make(environment: Environment, transport: Transport) -> SimService:
            config = StorageNodeConfig(
                cluster=CLUSTER,
                node=NodeID(number),
                volumes=(VOLUME,),
                listen=f"sn{number}:7110",
                segment_bytes=self.plan.segment_bytes,
                rows_sync_delay_s=self.plan.rows_sync_delay_s,
                scrub_interval_s=self.plan.scrub_interval_s,
            )
            return StorageNodeServer(config, environment, transport)

        return make

    def _make_repository(self, listen: str) -> Callable[[Environment, Transport], SimService]:
        config = MetadataRepositoryConfig(cluster=CLUSTER, listen=listen)

        def make(environment: Environment, transport: Transport) -> SimService:
            store: MetadataStore = DriveStore(self._metadata, environment)
            if self.plan.repositories > 1:
                store = InMemoryReplicatedStore(
                    self._metadata, environment, listen, lease_s=self.plan.lease_s
                )
            return MetadataRepository(config, store, environment, transport)

        return make

    def _make_manager(self, listen: str) -> Callable[[Environment, Transport], SimService]:
        nodes = tuple(f"sn{number + 1}:7110" for number in range(self.plan.nodes))
        config = ManagerConfig(
            cluster=CLUSTER,
            repository=self._repository,
            listen=listen,
            nodes=nodes,
            replicas=self.plan.replicas,
            replace_after_s=self.plan.replace_after_s,
            zombie_grace_s=self.plan.zombie_grace_s,
            # Where hosts are far from each other, an answer takes longer than a LAN's manager waits.
            node_timeout_s=2.0 if self.plan.far_share else 0.5,
        )
        return lambda environment, transport: Manager(config, environment, transport)

    def _make_user(self, topic: str) -> Callable[[Environment, Transport], SimService]:
        def make(environment: Environment, transport: Transport) -> SimService:
            return User(
                environment,
                transport,
                topic=topic,
                repository=self._repository,
                plan=self.plan,
                history=self.history,
                stopping=lambda: self._stopping,
                finished=self._user_finished,
                on_begin=self._operation_begins,
                on_end=self._operation_ends,
                besides=partial(self._besides, topic),
            )

        return make

    def _besides(
        self, topic: str, name: str, environment: Environment, transport: Transport, log: Log
    ) -> list[UserWork]:
        """What users do besides: attempts at tasks, and the copy of the first topic."""
        work: list[UserWork] = []
        if self.plan.gray_watch:
            for number in range(APPENDERS):
                rng = random.Random(environment.entropy.getrandbits(64))
                client = Client(f"{name}.{number}", topic, log, self.history, rng, Mix(entry_bytes_max=40))
                work.append(partial(self._gray.append, client, lambda: self._stopping))
            return work
        if self.plan.tasks:
            work.append(partial(self._attempts.work, name, log, topic, lambda: self._stopping))
        if self.history.copies.get(COPY) == topic:
            work.append(partial(self._copy, name, environment, transport, log))
        if topic in self.history.sequenced:
            work.append(partial(self._watch, name, environment, log, topic))
        if self.plan.meddling and topic in self.history.sequenced:
            work.append(
                partial(self._rogue.work, name, environment, transport, topic, lambda: self._stopping)
            )
        return work

    async def _watch(self, name: str, environment: Environment, log: Log, topic: str) -> None:
        """A loop that only reads, with short timeouts: servers that are cut off with a client must not show it stale state."""
        weights = {"tail": 4, "read": 2, "read_stream": 1}
        rng = random.Random(environment.entropy.getrandbits(64))
        client = Client(
            f"{name}.watch",
            topic,
            log,
            self.history,
            rng,
            Mix(weights=weights, think_s=0.3, timeout_s=8.0 if self.plan.calm else 1.0),
            self._operation_begins,
            self._operation_ends,
        )
        await client.run(self.plan.operations, lambda: self._stopping or self._users_left <= 0)

    async def _copy(self, name: str, environment: Environment, transport: Transport, source: Log) -> None:
        while not self._stopping:
            try:
                async with await connect_log(
                    transport, environment, self._repository, topic=COPY, create=False, timeout_s=2.0
                ) as copy:
                    await self._copier.work(name, source, copy, lambda: self._stopping)
            except VarlogError as error:
                self.trace(f"{name} cannot copy: {error}")
                await asyncio.sleep(0.2)

    async def _at_store(self) -> None:
        """Right before and right behind each commit: it takes a moment, or long, and may be the last that its process does."""
        rng, process, faults = self._metadata_rng, CURRENT.get(), self._faults
        # Where throughput is measured, chance must not hide what a slow node does to it.
        brief = self.plan.gray_watch or rng.random() < 0.95
        await asyncio.sleep(rng.uniform(0.0001, 0.001) if brief else rng.uniform(0.01, 0.2))
        if process is None or faults is None:
            return
        held_s = self._store_held_until(process.host) - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, held_s))
        faults.actions.on_commit(process)
        await asyncio.sleep(0)

    async def _behind_store(self) -> None:
        for found in self._metadata.keys.range("varlog/commit", "varlog/commit0"):
            term, serial, *_ = msgspec.msgpack.decode(found.value)
            self.history.record_commit(term, serial)
        await self._at_store()

    def _store_held_until(self, host: str) -> float:
        return self._faults.actions.store_held_until(host) if self._faults is not None else 0.0

    # --- the run --------------------------------------------------------------------------------------------------

    @property
    def damaged_hosts(self) -> frozenset[str]:
        """Hosts that have reason to complain about their files."""
        return self._faults.actions.harms.damaged_hosts if self._faults is not None else frozenset()

    async def run(self) -> None:
        """Bootstrap, work under faults, heal, read back, look at the disks."""
        plan = self.plan
        self.trace(f"seed {self.seed}: {plan}")
        for host in (*self._nodes, *self._repositories):
            host.environment(Process("factory")).disk.make_directory(VOLUME)
        for host in self._servers:
            host.boot()
        faults = self._faults = Faults(
            plan,
            random.Random(f"{self.seed}/faults"),
            self._network,
            [*self._servers, *self._users],
            SurvivorCheck(self._nodes, self._view),
            self.trace,
            self.history.said.append,
        )
        harms = self.history.store_harms = []
        faults.actions.harms.on_store_harm = lambda: harms.append(self.history.event())
        judge_process = Process("judge")
        judge_environment = self._host("judge", self._make_user("")).environment(judge_process)
        transport = self._network.transport(judge_process)
        ending_check = EndingCheck(
            judge_environment, transport, self._repository, self._all_topics, plan.replicas, self.history
        )
        if plan.early_faults:
            faults.start()
            asyncio.get_running_loop().call_later(plan.duration_s, faults.stop)
        if await judge_process.spawn("bootstrap", self._bootstrap(judge_environment, transport)):
            operator = Operator(
                judge_environment,
                transport,
                self._repository,
                self._topics,
                plan,
                random.Random(f"{self.seed}/operator"),
                self.trace,
            )
            registry_client = RegistryClient(
                judge_environment,
                transport,
                self._repository,
                self._topics[0],
                plan,
                random.Random(f"{self.seed}/bookkeeper"),
                self.history,
                self.trace,
            )
            if self._apart:
                await self._before_work()  # an operator may seal the only stream that this needs
            working = judge_process.spawn("operator", operator.work())
            registry_work = judge_process.spawn("bookkeeper", registry_client.work())
            if self.history.sequenced and not self.history.beyond:
                _ = judge_process.spawn("inspector", self._inspector.work())
            if plan.gray_watch:
                _ = judge_process.spawn("gray watch", self._gray.work(faults.actions.harms))
            await self._work(faults)
            await working
            await registry_work
            await self._end(ending_check, operator, registry_client, judge_process, faults)
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

    async def _bootstrap(self, environment: Environment, transport: Transport) -> bool:
        loop = asyncio.get_running_loop()
        while loop.time() < BOOTSTRAP_S:
            try:
                async with await connect_admin(
                    transport, environment, self._repository, timeout_s=5.0
                ) as admin:
                    view = await admin.view() if self.history.sequenced else None
                    for topic in (*self._all_topics, *self._apart):
                        # A second manager may have made more streams out of a question that was asked again.
                        found = next((one for one in await admin.topics() if one.name == topic), None)
                        if found is None or not await admin.streams(topic) or _unfinished(found, view):
                            sequenced = topic in self.history.sequenced
                            more: dict[str, Any] = (
                                {
                                    "ordering": Ordering.SEQUENCED,
                                    "stripe_size": self.plan.stripe_size,
                                    "grouping": self.plan.grouping,
                                }
                                if sequenced
                                else {}
                            )
                            await admin.create_topic(
                                topic,
                                streams=1 if topic == COPY else self.plan.streams,
                                replicas=self.plan.replicas,
                                first=self.plan.first,
                                **more,
                            )
                return True
            except VarlogError as error:
                self.trace(f"not yet: {error}")
                await asyncio.sleep(0.2)
        return False

    async def _end(
        self,
        ending_check: EndingCheck,
        operator: Operator,
        registry_client: RegistryClient,
        process: Process,
        faults: Faults,
    ) -> None:
        self.trace("the faults stop")
        self._stopping = True
        self._network.slow = 0.0
        await self._wait_users()
        # What was held up while hosts were cut off from each other arrives until then, and so do late appends.
        await asyncio.sleep(SETTLE_S + (CUT_S_MAX if self.history.sequenced else 0))
        await self._wait_managers()
        if self.plan.handwork and not await process.spawn("release", operator.release()):
            self.history.trouble.append("what an operator has sealed cannot be unsealed")
            return
        if FaultKind.STORE_REWIND in self.plan.kinds():
            put_back = partial(faults.actions.harms.put_back_store, self._repositories[0])
            if not await process.spawn("adopt", operator.adopt(put_back)):
                self.history.trouble.append("the order of a stopped topic cannot be taken from the nodes")
                return
            self.history.adopted = self.history.event()
        if self.history.beyond:
            await self._account(ending_check, process, faults)
            return
        if not await process.spawn("heal", ending_check.heal()):
            return
        if self.plan.last_blackout:
            faults.actions.blackout()
            faults.stop()
            if not await process.spawn("heal", ending_check.heal()):
                return
        elif faults.actions.harms.harmed:
            # Nobody starts again: what is wrong in any file has to be found and put right by those who run.
            if FaultKind.HARM in self.plan.kinds():
                faults.actions.harms.unlink()
            if not await process.spawn("heal", ending_check.heal()):
                return
            await asyncio.sleep(SCRUBBED_PASSES * self.plan.scrub_interval_s)
            if not await process.spawn("heal", ending_check.heal()):
                return
        # One of several managers was asked: another may have lost its connection to a node, and move streams away from it.
        if any(map(self._is_behind, self._servers)):
            await self._wait_managers()
            if not await process.spawn("heal", ending_check.heal()):
                return
        await process.spawn("settle", registry_client.settle())
        await process.spawn("finish", ending_check.finish(self._attempts, self._copier))
        if self._apart:
            await process.spawn("look", self._look_apart())
        await process.spawn("quiet", ending_check.wait_quiet())
        self.history.healed = self.history.event()
        await process.spawn("read", ending_check.read_back())
        if self.history.sequenced:
            await process.spawn("tidy", ending_check.wait_tidy())
        faults.end()
        for host in self._servers:
            if host not in self._repositories:
                await host.stop()
        self._examine_store()
        if ending_check.view is not None:
            # As it was when all was well: nothing hurts the cluster since, so no stream has a reason to move.
            examine(self._nodes, ending_check.view, self.history, self.plan.segment_bytes)
            newest = self._view() or ending_check.view
            rotten = bool({FaultKind.FLIP, *COPY_LOSSES} & self.plan.kinds())
            examine_units(self._nodes, newest, self.history, self.plan.segment_bytes, rotten=rotten)

    def _examine_store(self) -> None:
        """The only repository runs: the files that its next start needs have their names."""
        if len(self._repositories) > 1 or not self._repositories[0].up:
            return
        host = self._repositories[0]
        for path in (METADATA_PATH, journal_path(METADATA_PATH)):
            if host.drive.find(path) is None:
                self.history.not_whole.append(f"{path} on {host.name} is missing at the end")

    async def _account(self, ending_check: EndingCheck, process: Process, faults: Faults) -> None:
        """Of harm that replication does not survive: nobody has to be well, and what is lost must be shown."""
        if self.plan.last_blackout:
            faults.actions.blackout()
            faults.stop()
        await process.spawn("account", ending_check.account(self.history.said))
        faults.end()

    async def _before_work(self) -> None:
        """The topics exist: what else must exist before users start."""

    async def _look_apart(self) -> None:
        """All is well again: what else there is to look at."""

    async def _wait_users(self) -> None:
        """Let the operations in flight end; those whose client died never do."""
        patience = asyncio.get_running_loop().time() + 60.0
        while asyncio.get_running_loop().time() < patience and self._has_work():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        for operation in self.history.operations:
            operation.abandoned = operation.ended is None and not self._lives(operation.client)

    async def _wait_managers(self) -> None:
        """Let the managers end what an operator asked for and gave up, and reach all nodes that run: until then they may
        create, seal or move a stream."""
        patience = asyncio.get_running_loop().time() + MANAGERS_S
        while asyncio.get_running_loop().time() < patience and any(map(self._is_behind, self._servers)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    def _is_behind(self, host: Host) -> bool:
        """Whether a living manager still works on a request, or has not reached a node that runs."""
        if not host.up or not isinstance(host.service, Manager):
            return False
        missed = host.service._repair._heartbeat.unreachable_s()
        return bool(host.service._dispatcher._tasks._running) or any(
            node.up and NodeID(number) in missed for number, node in enumerate(self._nodes, 1)
        )

    def _has_work(self) -> bool:
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

    # --- tracing --------------------------------------------------------------------------------------------------

    def trace(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{asyncio.get_running_loop().time():9.4f}  {text}")

    def _operation_begins(self, operation: ClientCall) -> None:
        if isinstance(operation, TrimCall):
            self._sessions_before[id(operation)] = self._sessions(), self._links()

    def _operation_ends(self, operation: ClientCall) -> None:
        if isinstance(operation, TrimCall):
            before, links = self._sessions_before.pop(id(operation))
            if FaultKind.STORE_REWIND in self.plan.kinds():
                operation.forgettable = not links & self._links() and not self._is_trimmed_somewhere(
                    operation
                )
            operation.binding = before is not None and before == self._sessions()
            # A node that has not received a trim has no lease, and answers nothing (R-SEQ-13).
            operation.binding |= operation.topic in self.history.sequenced
        if self._trace is not None:
            self.trace(f"{operation}")

    def _sessions(self) -> list[object] | None:
        """The repository's sessions with all living nodes; None if one of them has none, or has a replica that left its stream. A
        trim waits for those in session, and sends it to those that hold the stream."""
        leader, view = self._leader(), self._view()
        if leader is None or leader.sessions is None or view is None:
            return None
        sessions = leader.sessions._sessions
        links: list[object] = [leader.sessions]
        for number, host in enumerate(self._nodes, 1):
            session = sessions.get(NodeID(number))
            if host.up and (session is None or not session.is_open or _leftovers(host, number, view)):
                return None
            links.append(session._link if session is not None else None)
        return links

    def _links(self) -> set[int]:
        """The links over which storage nodes that hold something are in session, by identity."""
        leader, view = self._leader(), self._view()
        if leader is None or leader.sessions is None or view is None:
            return set()
        sessions = leader.sessions._sessions.items()
        return {id(one._link) for node, one in sessions if one.is_open and view.streams_on(node)}

    def _is_trimmed_somewhere(self, trim: TrimCall) -> bool:
        """Whether a replica of a living node has received this trim, or a newer one."""
        view = self._view()
        topic = view.topic_named(trim.topic) if view is not None else None
        return topic is not None and any(
            replica.topic == topic.topic and replica.low_watermark >= trim.glsn
            for host in self._nodes
            if host.up and isinstance(host.service, StorageNodeServer)
            for replica in host.service.status().replicas
        )

    def _view(self) -> ClusterView | None:
        leader = self._leader()
        return leader.view if leader is not None else None

    def _leader(self) -> MetadataRepository | None:
        """The repository that leads, if one does beyond doubt."""
        leading = [host.service for host in self._repositories if host.up and self._leads(host)]
        leader = leading[0] if len(leading) == 1 else None
        return leader if isinstance(leader, MetadataRepository) else None

    def _leads(self, host: Host) -> bool:
        return isinstance(host.service, MetadataRepository) and host.service.leads

    def _on_message(self, connection: SimConnection, message: Message) -> None:
        if self._messages and self._trace is not None:
            self.trace(f"{connection.process.name} -> {connection.peer}: {message}")
        if self.history.sequenced:
            self._sequenced_observer.observe(connection, message)
        self._observer.observe(connection.process, message)
        if self._faults is not None:
            self._faults.actions.on_message(connection, message)

    def _on_arrival(self, connection: SimConnection, message: Message) -> None:
        host = next((one for one in self._nodes if one.process is connection.process), None)
        if (
            host is None
            or not isinstance(host.service, StorageNodeServer)
            or not isinstance(message, Commits)
        ):
            return
        replicas = {int(one.log_stream): one.committed_end for one in host.service.status().replicas}
        self._observer.applied(connection.other.process, message, lambda stream: replicas.get(stream, 0))

    def tighten(self, tight: ExitStack) -> None:
        """More limits that are tight in this world."""

    def violations(self) -> Iterator[tuple[str, str, str]]:
        """Checker, law, sentence."""
        found: list[tuple[Checker, str]] = check_history(self.history)
        return ((checker.name, checker.law, sentence) for checker, sentence in found)

    def digest(self) -> str:
        return self.history.digest()

    def counts(self) -> dict[str, int]:
        """How many operations ended in which way."""
        return Counter(
            f"{type(operation).__name__.lower()} {operation.outcome}" for operation in self.history.operations
        )

    def _write_down_complaints(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimLoop):
            self.history.complaints.extend(loop.complaints)
        self.history.complaints.extend(self._network.complaints)


def _unfinished(topic: Topic, view: ClusterView | None) -> bool:
    """Whether the creation of a sequenced topic began and did not finish."""
    return topic.sequenced and view is not None and view.projection(topic.topic) is None


def _leftovers(host: Host, number: int, view: ClusterView) -> bool:
    """Whether a storage node still has replicas that belong to no stream."""
    if not isinstance(host.service, StorageNodeServer):
        return False
    mine = {stream.log_stream for stream in view.streams_on(NodeID(number))}
    return any(replica.log_stream not in mine for replica in host.service.status().replicas)


def _beginning(topic: str, first: int) -> TrimCall:
    """What is before a topic's first position counts as trimmed, from its making on."""
    made = TrimCall(topic=topic, client="its making", glsn=first - 1)
    made.ended, made.ended_s, made.outcome = 0, 0.0, CallOutcome.DONE
    return made
