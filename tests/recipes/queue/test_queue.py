"""Queue and Counter: each item with one holder at a time, lost holders' items come back, in order; sums are exact."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.recipes.scripted_log import Fate, ScriptedLog
from varlog.aio import Opening
from varlog.model.errors import InvalidRequest, NotAccepted, Unavailable
from varlog.recipes.core.counter import Counter
from varlog.recipes.errors import ClaimLost
from varlog.recipes.queue.queue import Queue
from varlog.testing.sim.core.loop import run_simulated

TTL_S = 10.0


class LoopClock:
    """Virtual time on a clock that runs `speed` times as fast."""

    def __init__(self, speed: float = 1.0) -> None:
        self._speed = speed

    def wall_us(self) -> int:
        return self.steady_us()

    def steady_us(self) -> int:
        return int(asyncio.get_running_loop().time() * self._speed * 1_000_000)

    def monotonic_us(self) -> int:
        return self.steady_us()


def opened(log: ScriptedLog, seed: int = 1, speed: float = 1.0) -> Opening[Queue]:
    return Queue.open(log.log, entropy=random.Random(seed), clock=LoopClock(speed))


def in_virtual_time(body: Callable[[ScriptedLog], Coroutine[Any, Any, None]]) -> None:
    async def work() -> None:
        async with asyncio.timeout(10_000):
            await body(ScriptedLog())

    run_simulated(work())


def now() -> float:
    return asyncio.get_running_loop().time()


# --- Queue ----------------------------------------------------------------------------------------------------------------


def test_items_are_taken_in_the_order_in_which_they_were_put() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, 1) as one, opened(log, 2) as two:
            assert await one.put(b"a") == 1
            assert await two.put_all([b"b", b"c"]) == [2, 3]
            claims = [await two.take(), await one.take(), await two.take()]
            assert [claim.body for claim in claims] == [b"a", b"b", b"c"]
            assert [claim.token for claim in claims] == sorted({claim.token for claim in claims})
            assert await one.size() == (0, 3)
            for claim in claims:
                await claim.done()
            assert await two.size() == (0, 0)

    in_virtual_time(body)


def test_a_waiter_gets_an_item_as_soon_as_there_is_one() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, 1) as one, opened(log, 2) as two:
            waiting = [asyncio.create_task(queue.take()) for queue in (one, two, one)]
            await asyncio.sleep(100)
            assert not any(task.done() for task in waiting)
            await two.put_all([b"a", b"b", b"c"])
            claims = await asyncio.gather(*waiting)
            assert sorted(claim.body for claim in claims) == [b"a", b"b", b"c"]

    in_virtual_time(body)


def test_an_item_given_back_comes_before_those_put_later() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as queue:
            await queue.put_all([b"a", b"b"])
            first = await queue.take()
            await first.release()
            assert not first.held
            again = await queue.take()
            assert (again.body, again.deliveries) == (b"a", 2)
            assert again.token > first.token

    in_virtual_time(body)


def test_with_a_block_it_is_done_or_given_back_if_the_block_raises() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as queue:
            await queue.put(b"a")
            with pytest.raises(ZeroDivisionError):
                async with await queue.take():
                    raise ZeroDivisionError
            async with await queue.take() as claim:
                assert claim.deliveries == 2
            assert await queue.take_now() is None
            with pytest.raises(ClaimLost, match="done or released before"):
                await claim.done()

    in_virtual_time(body)


def test_a_holder_that_works_for_long_keeps_its_item() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, 1) as one, opened(log, 2) as two:
            await one.put(b"a")
            claim = await one.take(ttl_s=TTL_S)
            other = asyncio.create_task(two.take(ttl_s=TTL_S))
            await asyncio.sleep(20 * TTL_S)
            assert claim.held
            assert not other.done()
            await claim.done()
            other.cancel()

    in_virtual_time(body)


@pytest.mark.parametrize(("holder", "other"), [(1.0, 1.0), (0.95, 1.05), (1.05, 0.95)])
def test_the_item_of_a_lost_holder_goes_to_another_after_its_holder_knows(
    holder: float, other: float
) -> None:
    """Whatever their clocks do, within what clocks may do."""

    async def body(log: ScriptedLog) -> None:
        async with opened(log.for_others(), 1, holder) as lost, opened(log, 2, other) as queue:
            await queue.put(b"a")
            await lost.replica.catch_up()
            claim = await lost.take(ttl_s=TTL_S)
            cut_off = lost.replica.log
            cut_off.fates.extend([Fate.LOST] * 1000)  # type: ignore[attr-defined]
            began = now()
            losing = asyncio.create_task(claim.lost.wait())
            again = await queue.take(ttl_s=TTL_S)
            assert again.body == b"a"
            assert losing.done()
            assert not claim.held
            assert now() - began < 2 * TTL_S
            assert again.token > claim.token
            cut_off.fates.clear()  # type: ignore[attr-defined]
            with pytest.raises(ClaimLost, match="sent no heartbeat"):
                await claim.done()
            await again.done()

    in_virtual_time(body)


def test_a_take_that_is_cancelled_half_way_gives_its_item_back() -> None:
    """Nobody would know that it is claimed, and it would be kept from the others for its time to live."""

    async def body(log: ScriptedLog) -> None:
        async with opened(log, 1) as one, opened(log, 2) as two:
            await one.put(b"a")
            log.change(held=True)
            taking = asyncio.create_task(one.take())
            await asyncio.sleep(1)
            taking.cancel()
            await asyncio.sleep(1)
            log.change(held=False)
            began = now()
            assert (await two.take()).body == b"a"
            assert now() - began < 1

    in_virtual_time(body)


def test_taking_ends_at_its_deadline() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as queue:
            began = now()
            with pytest.raises(TimeoutError, match="nothing came to queue 'queue' within 3 s"):
                await queue.take(timeout_s=3)
            assert now() - began == pytest.approx(3)

    in_virtual_time(body)


def test_closing_returns_claimed_items_and_notifies_their_holder() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, 2) as other:
            async with opened(log, 1) as queue:
                await queue.put(b"a")
                claim = await queue.take()
            assert claim.lost.is_set()
            assert not claim.held
            assert (await other.take(timeout_s=1)).body == b"a"

    in_virtual_time(body)


def test_closing_ends_the_calls_of_waiters() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as queue:
            waiting = asyncio.create_task(queue.take())
            await asyncio.sleep(1)
            log.fates.extend([Fate.LOST] * 100)
            taking = asyncio.create_task(queue.take_now())
            await asyncio.sleep(1)
        for call in (waiting, taking, queue.take(), queue.take_now(), queue.size()):
            with pytest.raises(Unavailable, match="was closed"):
                await call

    in_virtual_time(body)


def test_a_log_that_is_closed_ends_a_wait_for_a_lost_holder() -> None:
    """Found by the simulator: it said again and again that the claim is over, was refused at once each time, and never paused."""

    async def body(log: ScriptedLog) -> None:
        async with opened(log, 1) as queue:
            await queue.put(b"a")
            lost = await opened(log.for_others(), 2)
            await lost.take(ttl_s=TTL_S)
            await lost.replica.close()
            log.change()
            log.fates.append(Fate.LOST)
            waiting = asyncio.create_task(queue.take())
            while len(log.appended) < 2:  # the put, and that the claim is over
                await asyncio.sleep(1)
            log.change(closed=True, failing=Unavailable("the log was closed"))
            with pytest.raises(Unavailable):
                await waiting
            await lost.close()

    in_virtual_time(body)


def test_closing_does_not_wait_for_a_log_that_does_not_answer() -> None:
    async def body(log: ScriptedLog) -> None:
        queue = await opened(log)
        await queue.put(b"a")
        claim = await queue.take()
        log.fates.extend([Fate.LOST] * 100)
        began = now()
        await queue.close()
        assert now() - began <= 1.1
        assert claim.lost.is_set()
        with pytest.raises(NotAccepted):
            await claim.done()

    in_virtual_time(body)


def test_what_is_no_item_or_time_to_live_is_refused_before_it_is_in_the_log() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log) as queue:
            with pytest.raises(InvalidRequest, match="an item is bytes, not str"):
                await queue.put("a")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="time to live"):
                await queue.take(ttl_s=0)
            assert log.newest == 0

    in_virtual_time(body)


# --- Counter --------------------------------------------------------------------------------------------------------------


def test_whatever_becomes_of_the_appends_the_sum_is_exact() -> None:
    async def body(log: ScriptedLog) -> None:
        chance = random.Random(7)
        async with Counter.open(log.log, entropy=random.Random(1)) as counter:
            fates = [Fate.ACKNOWLEDGED, Fate.ANSWER_LOST, Fate.LATE, Fate.LOST, Fate.NOT_ACCEPTED]
            counted = []
            for _ in range(200):
                log.fates.append(chance.choice(fates))
                counted.append(await counter.add())
                if log.late and chance.random() < 0.5:
                    log.put(log.late.pop())
            while log.late:
                log.put(log.late.pop())
            assert counted == list(range(1, 201))
            assert await counter.value() == 200
            async with Counter.open(log.log, entropy=random.Random(2)) as other:
                assert await other.value() == 200

    in_virtual_time(body)


def test_a_counter_is_set_and_compared() -> None:
    async def body(log: ScriptedLog) -> None:
        async with Counter.open(log.log, entropy=random.Random(1)) as counter:
            assert await counter.add(-5) == -5
            await counter.set(10)
            assert await counter.compare_and_set(11, expected=10)
            assert not await counter.compare_and_set(12, expected=10)
            assert await counter.value(stale=True) == await counter.value() == 11
            with pytest.raises(TypeError):
                await counter.add(1.5)  # type: ignore[arg-type]

    in_virtual_time(body)
