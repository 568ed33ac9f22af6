"""What happens behind a process's back: files that are harmed, drives put back in time, lying disks, damaged messages."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from pathlib import Path

import pytest

from tests.simulation.test_disk import FILE, HOME, Host
from varlog.model.cluster import Ordering
from varlog.model.ids import LogStreamID
from varlog.model.lsn import LLSN
from varlog.rpc.messages import CopyUnit, Message
from varlog.rpc.transport import Connection, ConnectionLost, Handler, Transport
from varlog.runtime.environment import Environment
from varlog.testing.sim.core import loop
from varlog.testing.sim.core.drive import BLOCK_BYTES
from varlog.testing.sim.core.host import VOLUME, SimClock, SimService
from varlog.testing.sim.core.host import Host as Machine
from varlog.testing.sim.core.loop import Process
from varlog.testing.sim.core.network import SimNetwork, damaged
from varlog.testing.sim.core.plan import COPY_LOSSES, LATER_KINDS, FaultKind, SimPlan
from varlog.testing.sim.faults.harm import Harm, Past, files_of, harm_file
from varlog.testing.sim.simulate import LogLines
from varlog.testing.sim.world import World


def test_a_lost_write_is_read_until_the_page_cache_lets_go_of_it_and_is_never_on_the_platter() -> None:
    host = Host(1)
    host.disk.replace_file(FILE, b"abcdef")
    file = host.disk.open(FILE)
    host.drive.lose_writes = 1
    file.write_at([b"XYZ"], 0)
    file.sync()
    assert host.disk.read_file(FILE) == b"XYZdef"
    host.drive.file(FILE).reload()
    assert host.disk.read_file(FILE) == b"abcdef"


def test_a_misplaced_write_lands_elsewhere_on_the_platter() -> None:
    host = Host(1)
    host.disk.replace_file(FILE, bytes(2048))
    file = host.disk.open(FILE)
    host.drive.misplace_writes = 1
    file.write_at([b"XYZ"], 512)
    file.sync()
    assert host.disk.read_file(FILE)[512:515] == b"XYZ"
    host.drive.file(FILE).reload()
    content = host.disk.read_file(FILE)
    assert content[512:515] == bytes(3) and content.count(b"XYZ") == 1 and len(content) == 2048


def test_reads_and_opens_fail_as_often_as_configured() -> None:
    host = Host(1)
    host.disk.replace_file(FILE, b"abc")
    file = host.disk.open(FILE)
    host.drive.fail_reads = 1
    with pytest.raises(OSError, match="Input/output error"):
        file.read_at(3, 0)
    assert file.read_at(3, 0) == b"abc"
    for number in (errno.EMFILE, errno.ENOMEM):
        host.drive.fail_opens, host.drive.open_errno = 1, number
        with pytest.raises(OSError, match=str(FILE)) as refused:
            host.disk.open(FILE)
        assert refused.value.errno == number
    host.disk.open(FILE).close()


def test_a_torn_write_spoils_its_own_block_where_the_device_does_that_and_no_other() -> None:
    damaged_hosts = 0
    for seed in range(200):
        host = Host(seed)
        host.disk.replace_file(FILE, b"a" * (3 * BLOCK_BYTES))
        host.drive.spoils = True
        host.disk.open(FILE).write_at([b"b" * 10], BLOCK_BYTES + 1000)
        host.reboot()
        content = host.disk.read_file(FILE)
        assert content[:BLOCK_BYTES] == b"a" * BLOCK_BYTES == content[2 * BLOCK_BYTES :]
        damaged_hosts += set(content) > {ord("a"), ord("b")}
    assert damaged_hosts


def test_a_drive_goes_back_to_what_was_durable_then() -> None:
    host = Host(1)
    host.disk.replace_file(FILE, b"old")
    before = host.drive.snapshot()
    host.disk.replace_file(FILE, b"new")
    host.disk.replace_file(HOME / "g", b"later")
    host.crash()
    host.drive.restore(before)
    host.boot()
    assert (host.disk.list(HOME), host.disk.read_file(FILE)) == (["f"], b"old")
    host.drive.restore(before)
    assert host.disk.read_file(FILE) == b"old", "a snapshot can be used again"


class Idle:
    """A service that does nothing."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def machine() -> Machine:
    def make(environment: Environment, transport: Transport) -> SimService:
        return Idle()

    found = Machine("sn1", "1", SimNetwork(random.Random(1)), make, lambda text: None, lambda text: None)
    disk = found.environment(Process("sn1")).disk
    disk.make_directory(VOLUME / "lsid=1")
    disk.replace_file(VOLUME / "lsid=1" / "state", b"one")
    disk.replace_file(VOLUME / "lock", b"")
    return found


def test_every_way_to_harm_a_file_is_met_and_a_lock_is_left_alone() -> None:
    applied: set[str] = set()
    for seed in range(200):
        host = machine()
        past = Past([host])
        past.take(0.0)
        path = VOLUME / "lsid=1" / "state"
        host.environment(Process("sn1")).disk.replace_file(path, b"two and more")
        assert files_of(host, VOLUME) == [path]
        before = host.drive.find(path)
        how = harm_file(host, path, random.Random(seed), past)
        applied |= {way for way in Harm if how.startswith(way)}
        left = host.drive.find(path)
        if how == Harm.REPLACED:  # also by a copy of itself
            assert left is not before
        else:
            assert left is None or host.drive.file(path).content != b"two and more"
        if how == Harm.OLDER:
            assert host.drive.file(path).content == b"one"
    assert applied == set(Harm)


def test_a_steady_clock_that_was_stopped_continues_from_there() -> None:
    async def work() -> None:
        clock = SimClock(0)
        await asyncio.sleep(1.0)
        clock.freeze()
        await asyncio.sleep(5.0)
        assert clock.steady_us() == 1_000_000
        clock.unfreeze()
        await asyncio.sleep(2.0)
        assert clock.steady_us() == 3_000_000

    loop.run_simulated(work())


def test_a_damaged_message_has_one_other_number() -> None:
    message = CopyUnit(LogStreamID(6), LLSN(61), LLSN(71), 100)
    seen = {damaged(message, random.Random(seed)) for seed in range(50)}
    assert message not in seen and len(seen) >= 4
    for one in seen:
        assert isinstance(one, CopyUnit)
        fields = zip(_numbers(one), _numbers(message), strict=True)
        assert sum(a != b for a, b in fields) == 1


def _numbers(message: Message) -> list[int]:
    return [getattr(message, name) for name in message.__struct_fields__]


def test_nothing_of_a_damaged_message_arrives_and_its_connection_ends() -> None:
    async def work() -> None:
        network = SimNetwork(random.Random(1))
        taken: list[Message] = []

        def handler(_: Connection) -> Handler:
            return lambda call, message, payload: taken.append(message)

        here, there = Process("a"), Process("b")
        await network.transport(there).serve("b:1", handler)
        connection = await network.transport(here).connect("b:1", timeout_s=1.0)
        network.spoil = lambda end, message: True
        connection.send(CopyUnit(LogStreamID(6), LLSN(61), LLSN(71), 100))
        await asyncio.sleep(1.0)
        assert not taken and connection.closed
        with pytest.raises(ConnectionLost):
            connection.send(CopyUnit(LogStreamID(6), LLSN(61), LLSN(71), 100))

    loop.run_simulated(work())


def test_a_share_of_the_seeds_has_each_of_the_later_kinds_and_calm_ones_have_none() -> None:
    for ordering in Ordering:
        plans = [SimPlan.of(seed, ordering) for seed in range(1, 200)]
        assert {kind for plan in plans for kind in plan.kinds()} >= set(LATER_KINDS) - COPY_LOSSES
        harmed = [plan for plan in plans if set(LATER_KINDS) & plan.kinds()]
        assert len(plans) / 5 < len(harmed) < len(plans) / 2
        assert not any(plan.calm for plan in harmed)
        assert all(plan.replicas > 1 for plan in harmed if COPY_LOSSES & plan.kinds())
        # In half of them all lose power at the end, in the others those that run have to find what is wrong.
        ends = {plan.last_blackout for plan in plans if COPY_LOSSES & plan.kinds()}
        assert ends == {True, False}
    assert FaultKind.REWIND in COPY_LOSSES
    assert Path(VOLUME).is_absolute()


def test_only_a_host_whose_files_were_harmed_may_call_them_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what an engine writes wrongly on one node would pass wherever another one was harmed."""
    monkeypatch.setattr(World, "damaged_hosts", frozenset({"sn1"}))
    world = World(1, Ordering.SEQUENCED)
    lines = LogLines(world, tracing=False)
    record = logging.LogRecord("varlog", logging.CRITICAL, "", 0, "replica is damaged", None, None)
    for host in ("sn1", "sn2"):
        Process(host).context.run(lines.emit, record)
    assert world.history.complaints == ["sn2#1 [critical] replica is damaged"]


@pytest.mark.parametrize("excused", [False, True], ids=["a sound disk", "a failing disk"])
def test_only_a_start_that_began_on_a_failing_disk_may_fail_when_the_faults_have_stopped(
    excused: bool,
) -> None:
    class Slow:
        async def start(self) -> None:
            await asyncio.sleep(1.0)
            raise OSError(errno.ENOSPC, "no space")

        async def stop(self) -> None:
            pass

    async def story() -> list[str]:
        complaints: list[str] = []
        network = SimNetwork(random.Random(1))
        host = Machine(
            "mr", "1", network, lambda environment, transport: Slow(), lambda text: None, complaints.append
        )
        host.excused = excused
        host.boot()
        await asyncio.sleep(0.5)
        host.excused = False
        await asyncio.sleep(1.0)
        return complaints

    assert bool(loop.run_simulated(story())) is not excused
