"""ReplicatedStateMachine when something ends: the log below it by a trim, the machine by a bug, the topic, the log, itself; in
virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.recipes.replicas import NAME, MemorySnapshots, Sequence, expect, in_virtual_time, now, opened
from tests.recipes.scripted_log import Fate, ScriptedLog
from varlog.model.errors import (
    InvalidRequest,
    NotAccepted,
    OutcomeUnknown,
    PreconditionFailed,
    Unavailable,
    UnknownTopic,
)
from varlog.model.lsn import GLSN
from varlog.recipes.core.replicated import WITHOUT_SNAPSHOTS, ReplicatedStateMachine
from varlog.recipes.errors import BehindTrim, MachineFailed, ResultLost
from varlog.testing.sim.core.loop import run_simulated

# --- Snapshots and trims ----------------------------------------------------------------------------------------------------


def test_a_replica_opens_from_the_newest_snapshot_and_what_came_after_it() -> None:
    """R-USE-2: a replica of a state machine can begin late."""

    async def body(log: ScriptedLog) -> None:
        contents = MemorySnapshots()
        async with opened(log, contents, seed=1) as one:
            await one.execute(b"a")
            await one.execute(b"b")
            assert await one.checkpoint(trim=True) == 2
            assert (log.positions, log.trims) == ({NAME: 2}, [2])
            await one.execute(b"c")
            async with opened(log, contents, seed=2) as two:
                assert (two.machine.taken, two.applied) == ([b"a", b"b", b"c"], 3)

    in_virtual_time(body)


def test_a_copy_that_comes_after_the_snapshot_is_known_from_it() -> None:
    async def body(log: ScriptedLog) -> None:
        contents = MemorySnapshots()
        async with opened(log, contents, seed=1) as one:
            log.fates.append(Fate.LATE)
            await one.execute(b"a")
            await one.checkpoint(trim=True)
            log.put(log.late.pop())
            async with opened(log, contents, seed=2) as two:
                assert two.machine.taken == [b"a"]

    in_virtual_time(body)


def test_a_trim_waits_for_every_named_reader_and_for_machines_without_snapshots() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, MemorySnapshots()) as one:
            await one.execute(b"a")
            await log.set_reader("slow", GLSN(0))
            await one.checkpoint(trim=True)
            assert log.trims == []
            del log.positions["slow"]
            async with opened(log, name="other", seed=2):
                await one.checkpoint(trim=True)
            assert (log.trims, log.positions[WITHOUT_SNAPSHOTS]) == ([], 0)
            del log.positions[WITHOUT_SNAPSHOTS]
            await one.checkpoint(trim=True)
            assert log.trims == [1]

    in_virtual_time(body)


def test_a_reader_that_comes_in_the_last_moment_keeps_what_it_needs() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, MemorySnapshots()) as one:
            await one.execute(b"a")
            readers = log.readers

            async def another_registers_meanwhile() -> Any:
                found = await readers()
                await log.set_reader("new", GLSN(0))
                return found

            log.readers = another_registers_meanwhile  # type: ignore[method-assign]
            assert await one.checkpoint(trim=True) == 1
            assert log.trims == []

    in_virtual_time(body)


def test_without_a_store_there_is_no_checkpoint() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            assert "open it with `snapshots=`" in str(await expect(PreconditionFailed, replica.checkpoint()))

    in_virtual_time(body)


def test_a_replica_that_fell_behind_a_trim_continues_from_a_newer_snapshot() -> None:
    async def body(log: ScriptedLog) -> None:
        contents = MemorySnapshots()
        async with opened(log, contents, seed=1) as slow:
            await slow.execute(b"a")
            log.change(held=True)
            seen = asyncio.create_task(slow.wait(lambda m: list(m.taken) if len(m.taken) > 2 else None))
            others = log.for_others()
            async with opened(others, contents, seed=2) as fast:
                await fast.execute(b"b")
                await fast.execute(b"c")
                await fast.checkpoint(trim=True)
            log.change(held=False)
            assert await slow.catch_up() == 3
            assert slow.machine.taken == await seen == [b"a", b"b", b"c"]
            assert await slow.execute(b"d") == 4

    in_virtual_time(body)


def test_behind_a_trim_without_a_snapshot_every_call_fails_with_that() -> None:
    async def body(log: ScriptedLog) -> None:
        contents = MemorySnapshots()
        async with opened(log, contents) as replica:
            await replica.execute(b"a")
            log.change(held=True)
            waiting = [
                asyncio.create_task(replica.execute(b"b")),
                asyncio.create_task(replica.catch_up()),
                asyncio.create_task(replica.wait(lambda m: None)),
            ]
            await asyncio.sleep(1)
            await log.trim(GLSN(2))
            log.change(held=False)
            for each in waiting:
                await expect(BehindTrim, each)
            error = await expect(BehindTrim, replica.execute(b"c"))
            assert "is at position 1, and everything below 3 was trimmed" in str(error)
            assert len(log.appended) == 2
        await expect(BehindTrim, opened(log, contents, seed=2))
        assert log.positions == {NAME: 0}

    in_virtual_time(body)


def jump(*, b_is_applied: bool) -> tuple[list[bytes], Any]:
    """A replica sends `b` and gets no reply, while another one checkpoints and trims; then it continues from that snapshot.
    Returns its state then, and how its call ended."""
    found: list[Any] = []

    async def body(log: ScriptedLog) -> None:
        contents = MemorySnapshots()
        slow = await opened(log, contents, seed=1)
        log.change(held=True)
        log.fates.append(Fate.ANSWER_LOST if b_is_applied else Fate.LATE)
        call = asyncio.create_task(slow.execute(b"b", timeout_s=30))
        await asyncio.sleep(1)
        async with opened(log.for_others(), contents, seed=2) as fast:
            await fast.execute(b"x")
            await fast.checkpoint(trim=True)
        log.change(held=False)
        found.append(await asyncio.gather(call, return_exceptions=True))
        await slow.catch_up()
        while log.late:
            log.put(log.late.pop())
        await slow.catch_up()
        found.append(list(slow.machine.taken))
        await slow.close()

    in_virtual_time(body)
    return found[1], found[0][0]


def test_a_command_that_was_applied_within_the_snapshot_reports_that_its_result_is_lost() -> None:
    taken, outcome = jump(b_is_applied=True)
    assert taken == [b"b", b"x"]
    assert isinstance(outcome, ResultLost)
    assert "applied once, and its result is lost" in str(outcome)


def test_a_command_that_is_not_in_the_snapshot_is_applied_behind_it() -> None:
    taken, outcome = jump(b_is_applied=False)
    assert (taken, outcome) == ([b"x", b"b"], 2)


def test_a_snapshot_of_another_machine_or_version_is_refused_and_a_damaged_one_is_passed_over() -> None:
    async def body(log: ScriptedLog) -> None:
        contents = MemorySnapshots()
        async with opened(log, contents) as replica:
            await replica.execute(b"a")
            await replica.checkpoint()
        position, content = contents.saved[NAME]
        contents.saved[NAME] = (position, content[:4] + b"\x07" + content[5:])
        assert "has format 07" in str(await expect(PreconditionFailed, opened(log, contents)))
        for damaged in (b"something", content[:-1], b""):
            contents.saved[NAME] = (position, damaged)
            async with opened(log, contents) as replica:
                assert replica.machine.taken == [b"a"]
        contents.saved["other"] = (position, content)
        error = await expect(PreconditionFailed, opened(log, contents, name="other"))
        assert "a snapshot of machine 'list' under the name 'other'" in str(error)

    in_virtual_time(body)


# --- When it cannot continue -------------------------------------------------------------------------------------------------


def test_a_machine_that_raises_stops_its_replica_and_nothing_is_skipped() -> None:
    async def body(log: ScriptedLog) -> None:
        contents = MemorySnapshots()
        async with opened(log, contents, seed=1) as replica, opened(log, seed=2) as other:
            waiting: asyncio.Task[None] = asyncio.create_task(replica.wait(lambda machine: None))
            before = asyncio.create_task(replica.execute(b"a"))
            failing = asyncio.create_task(replica.execute(b"boom"))
            after = asyncio.create_task(replica.execute(b"c"))
            assert await before == 1
            error = await expect(MachineFailed, failing)
            assert "failed at position 2" in str(error)
            assert "ZeroDivisionError: by nothing" in str(error)
            for call in (after, waiting, replica.execute(b"d"), replica.catch_up(), replica.checkpoint()):
                await expect(MachineFailed, call)
            await expect(MachineFailed, other.catch_up())
            assert (replica.applied, other.applied, replica.machine.taken) == (1, 1, [b"a"])
            assert contents.saved == {}

    in_virtual_time(body)


def test_no_snapshot_is_taken_of_a_machine_that_failed_just_now() -> None:
    """It may have done half of a command."""

    async def body(log: ScriptedLog) -> None:
        contents = MemorySnapshots()
        calls: list[asyncio.Task[GLSN]] = []

        class Hasty(Sequence):
            def apply(self, at: GLSN, command: bytes) -> int:
                if command == b"boom":
                    self.taken.append(b"half")
                    calls.append(asyncio.create_task(replica.checkpoint()))
                return super().apply(at, command)

        opening = ReplicatedStateMachine.open(log.log, Hasty(), name=NAME, snapshots=contents)
        async with opening as replica:
            await expect(MachineFailed, replica.execute(b"boom"))
            await expect(MachineFailed, calls[0])
            assert contents.saved == {}

    in_virtual_time(body)


def test_a_subscription_that_breaks_off_is_taken_up_where_it_was() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            await replica.execute(b"a")
            log.change(failing=Unavailable("cut off"))
            call = asyncio.create_task(replica.execute(b"b"))
            await asyncio.sleep(1)
            log.change(failing=None)
            assert await call == 2

    in_virtual_time(body)


def test_a_deleted_topic_ends_all_calls_with_that_error() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.held = True
            call = asyncio.create_task(replica.execute(b"a"))
            await asyncio.sleep(1)
            log.change(failing=UnknownTopic("scripted"), held=False)
            assert "there is no topic" in str(await expect(OutcomeUnknown, call))
            await expect(NotAccepted, replica.execute(b"b"))
            await expect(UnknownTopic, replica.catch_up())

    in_virtual_time(body)


def test_closing_ends_every_call_with_what_is_known_of_it() -> None:
    async def body(log: ScriptedLog) -> None:
        replica = await opened(log)
        log.change(held=True)
        log.fates.extend([Fate.LATE, Fate.NOT_ACCEPTED])
        maybe = asyncio.create_task(replica.execute(b"a", timeout_s=30))
        await asyncio.sleep(1.9)
        sending = asyncio.create_task(replica.execute(b"b", timeout_s=30))
        log.fates.extend([Fate.LATE] * 9)
        waiting: asyncio.Task[None] = asyncio.create_task(replica.wait(lambda machine: None))
        log.put(b"foreign")
        catching = asyncio.create_task(replica.catch_up())
        await asyncio.sleep(0.01)
        await replica.close()
        await replica.close()
        await expect(OutcomeUnknown, maybe)
        await expect(OutcomeUnknown, sending)
        await expect(Unavailable, waiting)
        await expect(Unavailable, catching)
        await expect(NotAccepted, replica.execute(b"c"))
        await expect(Unavailable, replica.catch_up())
        await expect(Unavailable, replica.wait(lambda machine: None))
        sent = len(log.appended)
        await asyncio.sleep(60)
        assert len(log.appended) == sent, "nothing is left running"

    in_virtual_time(body)


def test_a_log_that_is_closed_under_a_replica_ends_its_calls() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            waiting: asyncio.Task[None] = asyncio.create_task(replica.wait(lambda machine: None))
            await asyncio.sleep(0)
            log.change(closed=True)
            assert "the log was closed" in str(await expect(Unavailable, waiting))
            await expect(NotAccepted, replica.execute(b"a"))

    in_virtual_time(body)


def test_a_name_that_no_reader_could_have_is_refused() -> None:
    async def body(log: ScriptedLog) -> None:
        await expect(InvalidRequest, opened(log, name="a/b"))
        await expect(InvalidRequest, opened(log, name=""))

    in_virtual_time(body)


def test_opening_ends_at_its_deadline_and_leaves_nothing_behind() -> None:
    async def body(log: ScriptedLog) -> None:
        log.down = True
        began = now()
        await expect(Unavailable, opened(log, timeout_s=3))
        assert now() - began == pytest.approx(3)
        asked = log.tails_asked
        await asyncio.sleep(60)
        assert log.tails_asked == asked

    in_virtual_time(body)


def test_a_topic_that_does_not_begin_at_1_is_no_trimmed_one() -> None:
    async def work() -> None:
        log = ScriptedLog(first=1001)
        async with opened(log) as replica:
            assert replica.applied == 1000
            assert await replica.execute(b"a") == 1
            assert replica.applied == 1001

    run_simulated(work())
