"""ReplicatedStateMachine on a log whose appends end as the test says, in virtual time: exactly once, deadlines, cancellation,
reads. What happens when it cannot continue is in test_replicated_ends.py."""

from __future__ import annotations

import asyncio

import pytest

from tests.recipes.replicas import NAME, copies, expect, in_virtual_time, now, opened
from tests.recipes.scripted_log import Fate, ScriptedLog
from varlog.model.errors import EntryTooLarge, NotAccepted, OutcomeUnknown, Unavailable
from varlog.recipes.core import command_rules
from varlog.recipes.core.command_rules import Sessions
from varlog.recipes.core.envelope import MAGIC, Envelope, Opener, encode_envelope
from varlog.recipes.core.replicated import PIECE_ENTRIES
from varlog.recipes.errors import NewerCommand

# --- Executing ------------------------------------------------------------------------------------------------------------


def test_a_command_returns_what_apply_returned_and_every_replica_is_the_same() -> None:
    """R-USE-2: a replicated state machine."""

    async def body(log: ScriptedLog) -> None:
        async with opened(log, seed=1) as one, opened(log, seed=2) as two:
            assert await one.execute(b"a") == 1
            assert await two.execute(b"b") == 2
            together = await asyncio.gather(*(one.execute(b"%d" % number) for number in range(20)))
            assert together == list(range(3, 23))
            await two.catch_up()
            assert one.machine.taken == two.machine.taken
            assert one.applied == two.applied == log.newest

    in_virtual_time(body)


def test_an_answer_that_is_lost_is_not_waited_for() -> None:
    """The command is in the log, which is all that counts: its result comes from there."""

    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.fates.append(Fate.ANSWER_LOST)
            began = now()
            assert await replica.execute(b"a") == 1
            assert now() - began < 1
            assert (len(log.appended), replica.machine.taken) == (1, [b"a"])

    in_virtual_time(body)


def test_a_command_that_may_be_lost_is_appended_again_and_applied_once() -> None:
    """R-USE-2: each command is applied once."""

    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica, opened(log, seed=2) as other:
            log.fates.append(Fate.LATE)
            assert await replica.execute(b"a") == 1
            assert len({data for data, _ in log.appended}) == 1, "the same envelope, client and sequence"
            assert await replica.execute(b"b") == 2
            log.put(log.late.pop())  # the first copy gets there after all
            for each in (replica, other):
                await each.catch_up()
                assert each.machine.taken == [b"a", b"b"]
            assert copies(log, b"a") == 2

    in_virtual_time(body)


def test_tries_take_longer_each_time_so_that_a_slow_log_is_not_flooded() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.fates.extend([Fate.LOST] * 9)
            await expect(OutcomeUnknown, replica.execute(b"a", timeout_s=20))
            assert [round(timeout_s) for _, timeout_s in log.appended] == [2, 4, 8, 6]

    in_virtual_time(body)


def test_at_the_deadline_a_command_that_may_be_in_the_log_is_unknown_and_may_still_be_applied_once() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.fates.extend([Fate.LATE] * 9)
            began = now()
            await expect(OutcomeUnknown, replica.execute(b"a", timeout_s=5))
            assert now() - began == pytest.approx(5, abs=0.1)
            log.fates.clear()
            assert await replica.execute(b"b") == 1
            while log.late:
                log.put(log.late.pop())
            await replica.catch_up()
            assert replica.machine.taken == [b"b", b"a"]

    in_virtual_time(body)


def test_at_the_deadline_a_command_that_nobody_took_is_certainly_not_applied() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.fates.extend([Fate.NOT_ACCEPTED] * 9)
            error = await expect(NotAccepted, replica.execute(b"a", timeout_s=5))
            assert str(error) == "nothing was appended: nobody took it"
            log.fates.clear()
            assert await replica.execute(b"b") == 1

    in_virtual_time(body)


def test_one_try_that_may_have_got_through_makes_all_of_it_unknown() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.fates.extend([Fate.NOT_ACCEPTED, Fate.LOST, *[Fate.NOT_ACCEPTED] * 9])
            await expect(OutcomeUnknown, replica.execute(b"a", timeout_s=10))

    in_virtual_time(body)


def test_a_command_in_the_log_that_is_not_applied_in_time_fails_with_its_position() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.change(held=True)
            error = await expect(OutcomeUnknown, replica.execute(b"a", timeout_s=3))
            assert "in the log at position 1" in str(error)
            log.change(held=False)
            await replica.catch_up()
            assert replica.machine.taken == [b"a"]

    in_virtual_time(body)


def test_a_command_that_no_log_accepts_is_refused_immediately() -> None:
    async def body(log: ScriptedLog) -> None:
        async def refuse(data: bytes, *, timeout_s: float) -> None:
            raise EntryTooLarge(len(data), 10)

        async with opened(log) as replica:
            with pytest.raises(TypeError, match="a command is bytes, not str"):
                await replica.execute("a")  # type: ignore[arg-type]
            append, log.append = log.append, refuse  # type: ignore[assignment,method-assign]
            began = now()
            await expect(EntryTooLarge, replica.execute(b"a"))
            assert now() == began
            log.append = append  # type: ignore[method-assign]
            assert await replica.execute(b"b") == 1

    in_virtual_time(body)


def test_a_cancelled_command_is_not_sent_again_and_those_after_it_proceed() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.fates.append(Fate.LATE)
            call = asyncio.create_task(replica.execute(b"a"))
            await asyncio.sleep(1)
            call.cancel()
            await expect(asyncio.CancelledError, call)
            await asyncio.sleep(30)
            assert len(log.appended) == 1
            for number in range(1, 4):
                assert await replica.execute(b"b") == number
            log.put(log.late.pop())
            assert await replica.execute(b"c") == 5
            assert replica.machine.taken == [b"b", b"b", b"b", b"a", b"c"]

    in_virtual_time(body)


def test_a_client_whose_command_never_settles_gives_way_to_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise replicas would have to remember all that follows it, forever."""
    monkeypatch.setattr(command_rules, "WINDOW_COMMANDS_MAX", 8)

    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.fates.append(Fate.LATE)
            await expect(OutcomeUnknown, replica.execute(b"lost", timeout_s=1))
            for number in range(1, 31):
                assert await replica.execute(b"x") == number
            log.put(log.late.pop())
            assert await replica.execute(b"y") == 32
            envelopes = [Opener(NAME).open(data) for data in log.entries if data is not None]
            assert len({envelope.client for envelope in envelopes if isinstance(envelope, Envelope)}) == 2

    in_virtual_time(body)


def test_a_client_that_was_forgotten_meanwhile_sends_its_command_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "varlog.recipes.core.replicated.Sessions", lambda: Sessions(2)
    )  # only the two that were applied last are known

    async def body(log: ScriptedLog) -> None:
        async with opened(log, seed=1) as quiet:
            assert await quiet.execute(b"a") == 1
            for seed in range(2, 6):
                async with opened(log, seed=seed) as other:
                    await other.execute(b"b")
            assert await quiet.execute(b"c") == 6
            assert quiet.machine.taken == [b"a", *[b"b"] * 4, b"c"]
            assert copies(log, b"c") == 2, "one was refused by all replicas"

    in_virtual_time(body)


# --- Reading --------------------------------------------------------------------------------------------------------------


def test_after_catching_up_a_replica_has_every_acknowledged_command() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, seed=1) as writer, opened(log, seed=2) as reader:
            for number in range(1, 50):
                await writer.execute(b"x")
                await reader.catch_up()
                assert len(reader.machine.taken) == number

    in_virtual_time(body)


def test_a_position_without_an_entry_at_the_tail_holds_nobody_up() -> None:
    """A sequenced log fills what an appender gave up: there is never an entry to wait for."""

    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            await replica.execute(b"a")
            log.put(None)
            assert await replica.catch_up(timeout_s=1) == 2

    in_virtual_time(body)


def test_concurrent_catch_ups_share_a_tail_request_that_is_sent_after_they_came() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.tails_asked = 0
            first = asyncio.create_task(replica.catch_up())
            await asyncio.sleep(
                0.0005
            )  # the request is in flight, and will be answered with the tail as it is now, or later
            others = [asyncio.create_task(replica.catch_up()) for _ in range(100)]
            await asyncio.gather(first, *others)
            assert log.tails_asked == 2

    in_virtual_time(body)


def test_catching_up_with_a_log_that_does_not_answer_ends_at_the_deadline() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.change(down=True)
            began = now()
            error = await expect(Unavailable, replica.catch_up(timeout_s=5))
            assert "has not caught up within 5 s: it is at 0, the log's tail is not known" in str(error)
            assert now() - began == pytest.approx(5)
            log.change(down=False)
            log.change(held=True)
            log.put(b"foreign")
            error = await expect(Unavailable, replica.catch_up(timeout_s=1))
            assert "it is at 0, the log is at 1" in str(error)
            log.change(held=False)
            assert await replica.catch_up() == 1

    in_virtual_time(body)


def test_waiting_looks_now_and_after_each_range() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, seed=1) as one, opened(log, seed=2) as two:
            assert await two.wait(lambda machine: "at once") == "at once"
            third = asyncio.create_task(two.wait(lambda m: m.taken[2] if len(m.taken) > 2 else None))
            for command in (b"a", b"b", b"c"):
                assert not third.done()
                await one.execute(command)
            assert await third == b"c"
            began = now()
            await expect(TimeoutError, two.wait(lambda machine: None, timeout_s=2))
            assert now() - began == pytest.approx(2)

    in_virtual_time(body)


def test_a_predicate_that_fails_fails_its_own_wait_only() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            looking = asyncio.create_task(
                replica.wait(lambda m: m.taken[0].decode("ascii") if m.taken else None)
            )
            await asyncio.sleep(0)
            assert await replica.execute(b"\xff") == 1
            await expect(UnicodeDecodeError, looking)
            assert await replica.execute(b"b") == 2

    in_virtual_time(body)


def test_a_long_list_is_applied_in_pieces_and_others_have_their_turn() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, seed=1) as writer:
            await asyncio.gather(*(writer.execute(b"x") for _ in range(3 * PIECE_ENTRIES)))
            async with opened(log, seed=2) as reader:
                assert len(reader.machine.taken) == 3 * PIECE_ENTRIES
        assert log.newest == 3 * PIECE_ENTRIES

        late = ScriptedLog()
        late.entries = log.entries
        late.held = True
        opening = asyncio.ensure_future(opened(late, seed=3))
        await asyncio.sleep(1)
        late.change(held=False)
        turns = 0
        while not opening.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 3
        await (await opening).close()

    in_virtual_time(body)


# --- What else is in the topic --------------------------------------------------------------------------------------------


def test_what_is_no_command_of_this_machine_is_passed_over() -> None:
    async def body(log: ScriptedLog) -> None:
        log.put(b"")
        log.put(b"hello")
        log.put(encode_envelope(Envelope(NAME, b"c", 0, 1, 1, b"x"))[:-1])
        log.put(MAGIC + b"\x02" + encode_envelope(Envelope("another", b"c", 0, 1, 1, b"x"))[5:])
        async with opened(log, seed=1) as one, opened(log, name="listed", seed=2) as other:
            assert await other.execute(b"o") == 1
            assert await one.execute(b"a") == 1
            assert (one.machine.taken, one.skipped_entries, one.applied) == ([b"a"], 5, 6)

    in_virtual_time(body)


def test_a_command_of_a_newer_format_stops_the_replica() -> None:
    """To pass over it would let this replica differ from those that know it."""

    async def body(log: ScriptedLog) -> None:
        async with opened(log) as replica:
            log.put(MAGIC + b"\x02" + encode_envelope(Envelope(NAME, b"c", 0, 1, 1, b"x"))[5:])
            error = await expect(NewerCommand, replica.catch_up())
            assert "position 1 has format 2" in str(error)
            assert "use the version that wrote it" in str(error)

    in_virtual_time(body)
