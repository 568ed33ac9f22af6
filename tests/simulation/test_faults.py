"""FaultActions: every kind can be injected, hits its targets, and ends; plans draw it alone, in pairs and with many others."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from varlog.model.cluster import ClusterView, LogStream, changed
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.rpc.messages import Append, SealStream
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.testing.sim.core import loop
from varlog.testing.sim.core.host import VOLUME, Host, SimService
from varlog.testing.sim.core.loop import Process
from varlog.testing.sim.core.network import SimConnection, SimNetwork, link_connections
from varlog.testing.sim.core.plan import (
    LATER_KINDS,
    MANY,
    NEED_AN_OPERATOR,
    NEWEST_KINDS,
    SEQUENCED_KINDS,
    FaultKind,
    SimPlan,
)
from varlog.testing.sim.faults.fault_actions import FaultActions
from varlog.testing.sim.faults.schedule import Faults
from varlog.testing.sim.faults.survivor_check import SurvivorCheck
from varlog.testing.sim.world import SETTLE_S


class Idle:
    """A service that does nothing."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Lucky(SurvivorCheck):
    """Everything has another whole copy."""

    def __init__(self) -> None:
        super().__init__((), lambda: ClusterView(7, 1))  # type: ignore[arg-type]

    def spare(self, host: Host) -> list[LogStreamID]:
        return [LogStreamID(1)]

    def may_go(self, host: Host) -> bool:
        return True

    def may_go_later(self, host: Host) -> bool:
        return True


class Scene:
    """One host of each class, all up."""

    def __init__(self, *, plan: SimPlan | None = None) -> None:
        self.network = SimNetwork(random.Random(1))
        self.traced: list[str] = []
        self.hosts = [self._host(name) for name in ("mr", "mc", "sn1", "sn2", "c1", "sq1")]
        for host in self.hosts:
            host.environment(Process(host.name)).disk.make_directory(VOLUME / "lsid=1")
            host.boot()
            disk = host.disk
            assert disk is not None
            disk.open(VOLUME / "lsid=1" / "x.seg", create=True).write_at([b"batch"], 0)
        self.plan = plan or SimPlan(rates={FaultKind.CRASH: 1.0})
        self.actions = FaultActions(
            self.plan, random.Random(1), self.network, self.hosts, Lucky(), self.traced.append
        )

    def _host(self, name: str) -> Host:
        def make(environment: Environment, transport: Transport) -> SimService:
            return Idle()

        return Host(name, "1", self.network, make, self.traced.append, self.traced.append)

    def named(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def connection(self, one: str, two: str) -> SimConnection:
        here, there = self.named(one).process, self.named(two).process
        assert here is not None and there is not None
        return link_connections(self.network, here, there, f"{two}:1")[0]


@pytest.mark.parametrize("kind", FaultKind)
def test_every_kind_is_injected_into_some_host_and_has_a_rate(kind: FaultKind) -> None:
    async def work() -> Host | None:
        scene = Scene()
        hit = scene.actions.serve(kind)
        await asyncio.sleep(0.1)
        scene.actions.clear()
        return hit

    assert loop.run_simulated(work()) is not None
    assert any(MANY[kind])


@pytest.mark.parametrize("kind", FaultKind)
def test_no_link_is_closed_or_slow_after_the_faults_have_stopped(kind: FaultKind) -> None:
    """A healed cluster is judged as it is: a link that closes later would make a manager move streams again."""

    async def work() -> None:
        scene = Scene()
        scene.actions.serve(kind)
        await asyncio.sleep(0.01)
        scene.actions.clear()
        names = [host.name for host in scene.hosts]
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert not any(scene.network.held_until(one, two) for one in names for two in names)
            assert not any(scene.network.distance(one, two) for one in names for two in names)

    loop.run_simulated(work())


def test_the_second_of_two_faults_hits_the_host_of_the_first_where_it_can() -> None:
    async def work() -> tuple[str, str]:
        scene = Scene()
        node = scene.named("sn2")
        beside, elsewhere = (
            scene.actions.serve(FaultKind.FSYNC, node),
            scene.actions.serve(FaultKind.STORE_CUT, node),
        )
        assert beside is not None and elsewhere is not None
        return beside.name, elsewhere.name

    assert loop.run_simulated(work()) == ("sn2", "mr")


def test_a_pair_overlaps() -> None:
    async def work() -> list[str]:
        plan = SimPlan(pair=(FaultKind.CLOCK, FaultKind.PARTITION))
        scene = Scene()
        faults = Faults(
            plan,
            random.Random(1),
            scene.network,
            scene.hosts,
            Lucky(),
            lambda text: traced.append((_now(), text)),
        )
        traced: list[tuple[float, str]] = []
        faults.start()
        await asyncio.sleep(20.0)
        faults.stop()
        gaps = [b - a for (a, _), (b, _) in zip(traced[::2], traced[1::2], strict=False)]
        assert gaps and max(gaps) <= 0.5
        return [text for _, text in traced]

    traced = loop.run_simulated(work())
    assert any("clock" in text for text in traced) and any("cut off" in text for text in traced)


def test_a_process_that_is_paused_in_the_middle_of_its_own_work_resumes_on_its_own() -> None:
    async def work() -> float:
        scene = Scene()
        host = scene.named("mr")
        process = host.process
        assert process is not None

        async def in_the_middle() -> None:
            scene.actions.pause(host)

        await process.spawn("pause", in_the_middle())
        for _ in range(200):
            if process.held is None:
                break
            await asyncio.sleep(0.05)
        return _now()

    assert 0 < loop.run_simulated(work()) < 8.5


def test_a_full_disk_is_freed_and_failing_ones_work_again_after_the_end() -> None:
    async def work() -> None:
        scene = Scene()
        node = scene.named("sn1")
        scene.actions.serve(FaultKind.FULL, node)
        assert node.drive.free_bytes() < 10_000 and node.excused
        await asyncio.sleep(5.0)
        assert node.drive.free_bytes() > 10_000
        scene.actions.serve(FaultKind.FSYNC, node)
        scene.actions.serve(FaultKind.WRITE, node)
        assert node.drive.fail_syncs and node.drive.fail_writes
        scene.actions.clear()
        assert not (node.drive.fail_syncs or node.drive.fail_writes or node.excused)

    loop.run_simulated(work())


def test_a_flip_changes_one_bit_and_a_wipe_leaves_nothing() -> None:
    async def work() -> None:
        scene = Scene()
        node, path = scene.named("sn1"), VOLUME / "lsid=1" / "x.seg"
        scene.actions.serve(FaultKind.FLIP, node)
        flipped = bytes(node.drive.file(path).content)
        changed = [a ^ b for a, b in zip(flipped, b"batch", strict=True) if a != b]
        assert len(changed) == 1 and changed[0].bit_count() == 1
        scene.actions.serve(FaultKind.WIPE, node)
        assert not node.up and node.drive.folder(VOLUME).entries == {}
        assert node.drive.find(Path("/data")) is not None

    loop.run_simulated(work())


def test_a_message_that_was_waited_for_crashes_its_sender_or_straggles() -> None:
    async def work() -> None:
        scene = Scene()
        connection = scene.connection("c1", "sn1")
        scene.actions.serve(FaultKind.STRAGGLE)
        scene.actions.on_message(connection, SealStream(LogStreamID(1)))
        closed = [connection.closed]
        scene.actions.on_message(connection, Append(LogStreamID(1)))
        await asyncio.sleep(0)
        closed += [connection.closed, connection.other.closed]
        assert closed == [False, True, False]
        manager = scene.named("mc")
        scene.actions.serve(FaultKind.CRASH_SENDING, manager)
        steering = scene.connection("mc", "sn1")
        for _ in range(10):
            if manager.up:
                scene.actions.on_message(steering, SealStream(LogStreamID(1)))
        down.append(not manager.up)

    down: list[bool] = []
    loop.run_simulated(work())
    assert down == [True]


def test_plans_draw_every_kind_alone_in_pairs_and_with_many_others() -> None:
    plans = [SimPlan.seeded(random.Random(seed)) for seed in range(600)]
    kinds = set(FaultKind) - {*SEQUENCED_KINDS, *LATER_KINDS, *NEWEST_KINDS, *NEED_AN_OPERATOR}
    assert {kind for plan in plans for kind in plan.rates} == kinds
    assert {kind for plan in plans if plan.pair for kind in plan.pair} == kinds
    assert {len(plan.rates) for plan in plans} >= {0, 1, 2, 3, 4, 10}
    assert {plan.repositories for plan in plans} == {1, 3}
    assert all(not plan.rates and not plan.handwork for plan in plans if plan.calm)


def test_no_two_nodes_lose_what_they_write_next_where_a_stream_has_two_copies() -> None:
    """It may be made on both of them after the second was hit."""

    async def work() -> None:
        scene = Scene()
        hosts = [scene.named("sn1"), scene.named("sn2")]
        stream = LogStream(LogStreamID(1), TopicID(1), (NodeID(3), NodeID(4)))
        view = ClusterView(7, 1)  # type: ignore[arg-type]
        survivors = SurvivorCheck(hosts, lambda: view)
        assert not survivors.may_go_later(hosts[0])  # nobody knows how many copies there will be
        view = changed(view, streams=(stream,))
        assert survivors.may_go_later(hosts[0])
        hosts[0].drive.lose_writes = 1
        assert survivors.may_go_later(hosts[0]) and not survivors.may_go_later(hosts[1])

    loop.run_simulated(work())


def test_a_node_that_may_refuse_its_next_start_counts_as_one_that_loses_its_writes() -> None:
    """A bad identity is met at the next start: streams that were made until then would be gone with it."""

    async def work() -> None:
        scene = Scene()
        hosts = [scene.named("sn1"), scene.named("sn2")]
        stream = LogStream(LogStreamID(1), TopicID(1), (NodeID(3), NodeID(4)))
        survivors = SurvivorCheck(hosts, lambda: ClusterView(7, 1, streams=(stream,)))  # type: ignore[arg-type]
        survivors.doomed.add("sn1")
        assert not survivors.may_go_later(hosts[1])
        survivors.doomed.clear()
        assert survivors.may_go_later(hosts[1])
        assert survivors.registered(hosts[0], VOLUME / "identity")
        assert not survivors.registered(hosts[0], VOLUME / "lsid=1" / "x.seg")

    loop.run_simulated(work())


def test_no_job_of_a_slow_disk_outlasts_the_time_that_all_waits_for() -> None:
    async def work() -> float:
        host = Scene().named("sn1")
        host.slowness = 1e6
        return host._delay_s(random.Random(1))

    assert 0 < loop.run_simulated(work()) < SETTLE_S


def test_where_one_replica_is_all_there_is_nothing_takes_it_away() -> None:
    alone = [plan for seed in range(300) if (plan := SimPlan.seeded(random.Random(seed))).replicas == 1]
    assert alone and not any({FaultKind.FLIP, FaultKind.WIPE} & set(plan.rates) for plan in alone)


def _now() -> float:
    return asyncio.get_running_loop().time()
