"""Lock over a log, in virtual time: one holder at a time by every clock, and none blocks the others forever."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.recipes.parties import Party, passed, run_parties
from tests.recipes.scripted_log import Fate
from varlog import aio
from varlog.model.errors import InvalidRequest, Unavailable
from varlog.model.limits import CLOCK_DRIFT_MAX
from varlog.recipes.errors import LockBusy, LockLost, MachineFailed, NotHeld
from varlog.recipes.lock.guard import LockGuard
from varlog.recipes.lock.lock import Lock, LockHolder

SLOW, FAST = 1 - CLOCK_DRIFT_MAX, 1 + CLOCK_DRIFT_MAX
TTL_S = 10.0


def line(lock: Lock) -> list[str]:
    """The queue of the lock, as far as this party has applied the log."""
    return [claim.who for claim in lock.replica.machine]


async def line_as_of_now(lock: Lock) -> list[str]:
    await lock.replica.catch_up()
    return line(lock)


def test_a_lock_goes_from_one_to_the_next_in_the_order_they_came_with_growing_tokens() -> None:
    async def body(*parties: Party) -> None:
        locks = [await party.lock() for party in parties]
        order: list[str] = []
        tokens: list[int] = []

        async def work(lock: Lock, name: str) -> None:
            async with lock as hold:
                assert hold.held
                assert lock.token == hold.token
                order.append(name)
                tokens.append(hold.token)
                await asyncio.sleep(3)

        first = await locks[0].acquire()
        waiting = []
        for lock, party in [*zip(locks, parties, strict=True)][1:]:
            waiting.append(asyncio.create_task(work(lock, party.name)))
            await passed(0.5)
        assert await locks[3].holder() == LockHolder("party-1", first.token)
        assert line(locks[3]) == ["party-1", "party-2", "party-3", "party-4"]
        assert await first.release()
        await asyncio.gather(*waiting)
        assert order == ["party-2", "party-3", "party-4"]
        assert all(before < after for before, after in pairwise([first.token, *tokens]))
        assert await locks[0].holder() is None
        for lock in locks:
            await lock.close()

    run_parties(body, 1.0, 1.0, 1.0, 1.0)


def test_a_holder_that_renews_keeps_its_lock_however_long_it_works() -> None:
    async def body(one: Party, other: Party) -> None:
        lock, participant = await one.lock(), await other.lock()
        async with lock as hold:
            for _ in range(50):
                with pytest.raises(LockBusy, match="'party-1' has it, by token"):
                    await participant.acquire(timeout_s=TTL_S)
                hold.check()
                assert 0 < hold.left_s <= TTL_S
        assert line(lock) == []
        await lock.close()
        await participant.close()

    run_parties(body, SLOW, FAST)


@pytest.mark.parametrize(
    ("holder_rate", "other_rate"), [(1.0, 1.0), (SLOW, FAST), (FAST, SLOW), (SLOW, SLOW)]
)
def test_a_holder_that_is_cut_off_gives_up_the_lock_before_the_next_one_has_it(
    holder_rate: float, other_rate: float
) -> None:
    """R-USE-2: whatever their clocks do within the bounds that a lease relies on."""

    async def body(one: Party, other: Party) -> None:
        lock, participant = await one.lock(TTL_S), await other.lock(TTL_S)
        hold = await lock.acquire()
        waiting = asyncio.create_task(participant.acquire())
        await passed(2 * TTL_S)
        assert hold.held
        one.link.cut = True
        await hold.lost.wait()
        assert not waiting.done()
        assert (hold.held, lock.held, lock.token, hold.left_s) == (False, False, None, 0)
        with pytest.raises(LockLost, match="is not held any more"):
            hold.check()
        with pytest.raises(NotHeld):
            await lock.release()
        assert not await hold.release(), "it has nothing to let go of"
        lost_at = asyncio.get_running_loop().time()
        next_hold = await waiting
        assert next_hold.token > hold.token
        # And it does not take much longer than it must.
        assert asyncio.get_running_loop().time() - lost_at < TTL_S / 2
        one.link.restore()
        assert await line_as_of_now(lock) == ["party-2"]
        await lock.close()
        await participant.close()

    run_parties(body, holder_rate, other_rate)


def test_what_is_done_under_a_lost_lock_is_cancelled() -> None:
    async def body(one: Party) -> None:
        lock = await one.lock()
        cancelled: list[LockGuard] = []

        async def work() -> None:
            async with lock as hold:
                one.link.cut = True
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    cancelled.append(hold)
                    assert hold.lost.is_set()
                    raise

        with pytest.raises(LockLost):
            await work()
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        assert asyncio.get_running_loop().time() < TTL_S
        one.link.restore()
        async with lock as again:
            assert again.token > cancelled[0].token
        await lock.close()

    run_parties(body, 1.0)


def test_a_holder_that_catches_the_cancellation_still_gets_the_loss_of_the_lock() -> None:
    async def body(one: Party) -> None:
        lock = await one.lock()

        async def work_on() -> None:
            async with lock:
                one.link.cut = True
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(1000)

        async def fail() -> None:
            async with lock as hold:
                hold.lose()
                raise ZeroDivisionError

        with pytest.raises(LockLost):
            await work_on()
        one.link.restore()
        with pytest.raises(ZeroDivisionError):  # an error of its own is not hidden by it
            await fail()
        await lock.close()

    run_parties(body, 1.0)


def test_an_error_or_a_cancellation_inside_lets_go_of_the_lock() -> None:
    async def body(one: Party, other: Party) -> None:
        lock, participant = await one.lock(), await other.lock()
        with pytest.raises(ZeroDivisionError):
            async with lock:
                raise ZeroDivisionError
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), lock.holding(timeout_s=5):
                await asyncio.sleep(100)
        async with participant.holding(timeout_s=1) as hold:
            assert hold.held
        await lock.close()
        await participant.close()

    run_parties(body, 1.0, 1.0)


def test_an_acquire_that_gives_up_leaves_nothing_in_the_line() -> None:
    async def body(one: Party, other: Party) -> None:
        lock, participant = await one.lock(), await other.lock()
        async with lock:
            with pytest.raises(LockBusy) as busy:
                await participant.acquire(timeout_s=2)
            assert (busy.value.who, busy.value.waited_s) == ("party-1", 2)
            await passed(0.1)
            assert await line_as_of_now(lock) == ["party-1"]
        await lock.close()
        await participant.close()

    run_parties(body, 1.0, 1.0)


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
def test_an_acquire_that_is_cancelled_half_way_leaves_nothing_in_the_line(after_s: float) -> None:
    """Also when its command is in flight: it must not arrive after the participant has left."""

    async def body(one: Party, other: Party) -> None:
        lock, participant = await one.lock(), await other.lock()
        one.link.slow_s = 2.0
        acquiring = asyncio.create_task(lock.acquire())
        await passed(after_s)
        acquiring.cancel()
        (ended,) = await asyncio.gather(acquiring, return_exceptions=True)
        if isinstance(ended, LockGuard):
            await ended.release()
        await passed(5)
        assert await line_as_of_now(participant) == []
        await lock.close()
        await participant.close()

    run_parties(body, 1.0, 1.0)


def test_a_claim_that_arrives_when_its_owner_has_gone_delays_the_others_and_no_more() -> None:
    async def body(one: Party, other: Party) -> None:
        lock, participant = await one.lock(), await other.lock()
        common = one.link.of
        common.fates.extend([Fate.LATE] * 20)
        with pytest.raises(LockBusy):
            await lock.acquire(timeout_s=1)
        await passed(60)
        common.fates.clear()
        common.put(common.late[0])
        assert await line_as_of_now(participant) == ["party-1"], "a claim that nobody makes any more"
        begun = asyncio.get_running_loop().time()
        async with participant.holding(timeout_s=2 * TTL_S):
            assert asyncio.get_running_loop().time() - begun >= TTL_S
        await lock.close()
        await participant.close()

    run_parties(body, 1.0, 1.0)


def test_the_dead_in_the_middle_of_the_line_are_passed_over() -> None:
    """A whole crowd that died waiting costs the next one a single time to live."""

    async def body(*parties: Party) -> None:
        locks = [await party.lock() for party in parties]
        first = await locks[0].acquire()
        waiting = []
        for lock in locks[1:]:
            waiting.append(asyncio.create_task(lock.acquire()))
            await passed(0.1)
        for party in parties[1:-1]:
            party.link.cut = True
        await passed(2 * TTL_S)
        assert line(locks[0]) == ["party-1", "party-5"]
        assert await first.release()
        async with asyncio.timeout(1):
            last = await waiting[-1]
        assert last.held
        for party in parties[1:-1]:
            party.link.restore()
        await last.release()
        # They come back: by the line's end, each once.
        for hold in asyncio.as_completed(waiting[:-1]):
            await (await hold).release()
        assert await line_as_of_now(locks[0]) == []
        for lock in locks:
            await lock.close()

    run_parties(body, 1.0, SLOW, FAST, 1.0, 1.0)


def test_a_holder_clears_the_dead_behind_it_too() -> None:
    """Otherwise processes that enter, die and enter again would fill the queue behind a leader that leads forever."""

    async def body(one: Party, other: Party) -> None:
        lock, participant = await one.lock(), await other.lock()
        async with lock:
            waiting = asyncio.create_task(participant.acquire())
            await passed(1)
            other.link.cut = True
            await passed(2 * TTL_S)
            assert line(lock) == ["party-1"]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        other.link.restore()
        await lock.close()
        await participant.close()

    run_parties(body, 1.0, 1.0)


def test_a_grant_is_not_valid_yet_when_the_last_heartbeat_is_old() -> None:
    """Others may be about to expire it: only its next sign, once applied, is something to believe in."""

    async def body(one: Party, other: Party) -> None:
        lock, participant = await one.lock(), await other.lock(ttl_s=TTL_S)
        first = await lock.acquire()
        waiting = asyncio.create_task(participant.acquire())
        await passed(1)
        other.link.cut = True
        await passed(TTL_S)
        assert await first.release()
        # It receives all of it at once: that it was granted the lock, or was expired.
        other.link.restore()
        hold = await waiting
        assert hold.held
        assert hold.left_s > TTL_S / 2, "counted from a sign that was sent lately"
        await lock.close()
        await participant.close()

    run_parties(body, 1.0, 1.0)


def test_tasks_that_share_a_lock_take_turns() -> None:
    async def body(one: Party) -> None:
        lock = await one.lock()
        inside = 0

        async def work() -> None:
            nonlocal inside
            async with lock:
                inside += 1
                assert inside == 1
                await asyncio.sleep(1)
                inside -= 1

        await asyncio.gather(*(work() for _ in range(5)))
        async with lock:
            with pytest.raises(LockBusy):
                await lock.acquire(timeout_s=1)
        await lock.close()

    run_parties(body, 1.0)


def test_locks_of_other_names_in_the_same_topic_are_other_locks() -> None:
    async def body(one: Party, other: Party) -> None:
        left, right = await one.lock(name="left"), await other.lock(name="right")
        async with left as first, right.holding(timeout_s=1) as second:
            assert first.held and second.held
        await left.close()
        await right.close()

    run_parties(body, 1.0, 1.0)


def test_closing_releases_the_lock_and_ends_its_waiters() -> None:
    async def body(one: Party, other: Party) -> None:
        lock, participant = await one.lock(), await other.lock()
        hold = await lock.acquire()
        waiting = asyncio.create_task(participant.acquire())
        await passed(1)
        await participant.close()
        with pytest.raises(Unavailable, match="closed"):
            await waiting
        assert await line_as_of_now(lock) == ["party-1"]
        await lock.close()
        assert not hold.held
        assert not hold.lost.is_set()
        with pytest.raises(Unavailable, match="closed"):
            await lock.acquire()
        async with await other.lock() as again:
            assert again.held
        await lock.close()

    run_parties(body, 1.0, 1.0)


def test_closing_ends_in_time_when_the_log_cannot_be_reached() -> None:
    async def body(one: Party) -> None:
        lock = await one.lock()
        await lock.acquire()
        one.link.cut = True
        begun = asyncio.get_running_loop().time()
        await lock.close()
        assert asyncio.get_running_loop().time() - begun < TTL_S * 2

    run_parties(body, 1.0)


def test_a_replica_that_stops_holds_nothing_and_gets_nothing() -> None:
    async def body(one: Party) -> None:
        lock = await one.lock()
        hold = await lock.acquire()
        lock.replica.machine.apply = None  # type: ignore[method-assign,assignment]  # a machine that fails
        await hold.lost.wait()
        with pytest.raises(MachineFailed):
            await lock.acquire()
        await lock.close()

    run_parties(body, 1.0)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 1e9])
def test_a_lock_without_a_sensible_time_to_live_is_refused(ttl_s: float) -> None:
    async def body(one: Party) -> None:
        with pytest.raises(InvalidRequest, match="time to live"):
            await one.lock(ttl_s)

    run_parties(body, 1.0)


@pytest.mark.parametrize("number", range(20))
def test_under_any_cuts_and_delays_one_holds_at_a_time_and_in_the_end_everybody_can(number: int) -> None:
    """R-USE-2: exclusion by every participant's own clock, growing tokens, and nothing left behind forever."""
    chance = Random(number)
    rates = [chance.choice([SLOW, 1.0, FAST]) for _ in range(3)]

    async def body(*parties: Party) -> None:
        locks = [await party.lock(ttl_s=2.0) for party in parties]
        tokens: list[int] = []

        def check(hold: LockGuard) -> None:
            holding = [lock.token for lock in locks if lock.held]
            assert holding in ([], [hold.token]), "two hold it at one moment"

        async def user(lock: Lock) -> None:
            while True:
                try:
                    async with lock.holding(timeout_s=chance.uniform(0.1, 20)) as hold:
                        assert all(token < hold.token for token in tokens)
                        tokens.append(hold.token)
                        while hold.held and chance.random() < 0.9:
                            check(hold)
                            await asyncio.sleep(chance.uniform(0, 0.5))
                except (LockBusy, LockLost):
                    await asyncio.sleep(chance.uniform(0, 0.2))

        async def trouble() -> None:
            for _ in range(60):
                party = chance.choice(parties)
                party.link.slow_s = chance.choice([0.0, 0.01, 0.3, 1.5])
                if chance.random() < 0.5:
                    party.link.cut = True
                await asyncio.sleep(chance.uniform(0, 3))
                if chance.random() < 0.8:
                    party.link.restore()

        users = [asyncio.create_task(user(lock)) for lock in locks]
        await trouble()
        for party in parties:
            party.link.restore()
            party.link.slow_s = 0.0
        for task in users:
            task.cancel()
        ended = await asyncio.gather(*users, return_exceptions=True)
        assert [type(one) for one in ended] == [asyncio.CancelledError] * len(users), ended
        assert len(tokens) > 3, "nothing happened"
        for lock in locks:
            async with lock.holding(timeout_s=60) as hold:
                assert hold.token > max(tokens)
        await passed(30)
        assert await line_as_of_now(locks[0]) == []
        for lock in locks:
            await lock.close()

    run_parties(body, *rates)


def test_a_lock_on_a_real_log(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            asyncio.timeout(60),
            aio.open(tmp_path / "data", topic="locks", sync=False) as log,
            Lock.open(log, name="left", who="one", ttl_s=2) as one,
            Lock.open(log, name="left", who="other", ttl_s=2) as other,
        ):
            tokens = []
            for _ in range(3):
                for lock in (one, other):
                    async with lock as hold:
                        assert await other.holder() == LockHolder(
                            "one" if lock is one else "other", hold.token
                        )
                        tokens.append(hold.token)
            assert tokens == sorted(set(tokens))

    asyncio.run(body())
