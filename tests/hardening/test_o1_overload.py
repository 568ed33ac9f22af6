"""O1: goodput of one client stays at the capacity under overload.

Twice the load reduced what was acknowledged in time to a seventh. Everything was queued, served in order and each a
moment too late, and all waiters for space were woken for each free place.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

import pytest

from varlog.client.append_rules import InflightBatch
from varlog.client.appender import Budget
from varlog.client.batcher import Batcher
from varlog.model.batch import pack, parse_header
from varlog.model.entry import Position
from varlog.model.errors import NotAccepted, OutcomeUnknown
from varlog.model.ids import ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.tasks import Tasks
from varlog.testing.sim.core.loop import run_simulated as run_in_virtual_time

DATA = bytes(1000)
TIMEOUT_S = 1.0
# One at a time: a batch takes a fixed time and some for each entry, so that many small ones are as much load as few
# large ones.
FIXED_S, ENTRY_S = 0.002, 0.0002
CAPACITY = 1 / ENTRY_S


class OneServer:
    """A transport to a log that serves one batch after the other."""

    closed = False
    stalled = 0

    def __init__(self, gather_entries_max: int, slower: Callable[[float], float] = lambda now: 1.0) -> None:
        self.gather_entries_max = gather_entries_max
        self.on_stall: Callable[[], None] = lambda: None
        self.entries = 0
        self._slower = slower
        self._free = asyncio.Lock()

    def is_probe_next(self) -> bool:
        return False

    def streams_free(self) -> int:
        return 1

    async def deliver(self, inflight: InflightBatch) -> Position:
        loop = asyncio.get_running_loop()
        began = loop.time()
        inflight.attempt = True  # type: ignore[assignment] # only that there is one
        async with self._free:
            count = parse_header(inflight.batch, signed=False).count
            await asyncio.sleep((FIXED_S + count * ENTRY_S) * self._slower(loop.time()))
            self.entries += count
        if loop.time() > began + inflight.timeout_s:
            raise OutcomeUnknown("too late")
        return Position(GLSN(self.entries), LLSN(self.entries), 1)  # type: ignore[arg-type]


def packed(entries: Sequence[bytes]) -> bytearray:
    return pack(entries, producer=ProducerID(1), sequence=1, time_us=0)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return run_in_virtual_time(asyncio.wait_for(work, 1000.0))


async def offer(
    server: OneServer, multiple: float, seconds: float = 10.0
) -> tuple[Counter[str], list[float]]:
    """Poisson arrivals at this multiple of the capacity: counts by outcome, and how long the refused ones waited."""
    loop, rng, ended = asyncio.get_running_loop(), Random(1), Counter[str]()
    refused_after: list[float] = []
    batcher = Batcher(server, Tasks("test", lambda name, error: None), packed, None)

    async def append() -> None:
        began = loop.time()
        try:
            await batcher.append(DATA, TIMEOUT_S)
            ended["acknowledged" if loop.time() <= began + TIMEOUT_S else "late"] += 1
        except NotAccepted:
            ended["refused"] += 1
            refused_after.append(loop.time() - began)
        except OutcomeUnknown:
            ended["unknown"] += 1

    tasks, end = [], loop.time() + seconds
    while loop.time() < end:
        tasks.append(asyncio.create_task(append()))
        await asyncio.sleep(rng.expovariate(multiple * CAPACITY))
    await asyncio.gather(*tasks)
    return ended, refused_after


def most(seconds: float, gather_entries_max: int) -> float:
    """What can be served in this time. With 64 per batch the fixed time is more than a tenth."""
    share = 1.0 if gather_entries_max > 64 else 64 * ENTRY_S / (64 * ENTRY_S + FIXED_S)
    return seconds * CAPACITY * share


@pytest.mark.parametrize("gather_entries_max", [4096, 64], ids=["committed", "sequenced"])
def test_o1_twice_the_load_leaves_goodput_at_the_capacity(gather_entries_max: int) -> None:
    """On a slow log, so that it also ends soon with a client that scans its whole queue at every deadline."""

    async def body() -> None:
        ended, _ = await offer(OneServer(gather_entries_max, slower=lambda now: 8.0), 2.0 / 8)
        assert ended["acknowledged"] >= 0.9 * most(10.0 / 8, gather_entries_max), ended

    run(body())


@pytest.mark.parametrize("gather_entries_max", [4096, 64], ids=["committed", "sequenced"])
@pytest.mark.parametrize("multiple", [1.0, 2.0, 4.0])
def test_goodput_stays_at_the_capacity_however_much_is_offered(
    multiple: float, gather_entries_max: int
) -> None:
    async def body() -> None:
        ended, refused_after = await offer(OneServer(gather_entries_max), multiple)
        assert ended["acknowledged"] >= 0.9 * most(10.0, gather_entries_max)
        # While nothing is known of large batches too much is admitted: a moment at the beginning, and a definite
        # failure.
        assert ended["unknown"] + ended["late"] <= 0.01 * ended["acknowledged"]
        assert sum(after > 0 for after in refused_after) <= 0.1 * ended["acknowledged"]

    run(body())


def test_a_log_that_becomes_slower_serves_what_is_still_in_time() -> None:
    """The queue was admitted at the old rate: most of it is too late at the new one, and must not make the rest late as
    well."""

    async def body() -> None:
        server = OneServer(4096, slower=lambda now: 1.0 if now < 4 else 3.0)
        ended, _ = await offer(server, 2.0)
        best = CAPACITY * 4 + CAPACITY * 6 / 3
        assert ended["acknowledged"] >= 0.85 * best
        assert (
            ended["unknown"] + ended["late"] <= 0.05 * ended["acknowledged"]
        )  # in flight when it became slow

    run(body())


@pytest.mark.parametrize("multiple", [2.0, 4.0])
def test_callers_that_give_up_before_their_deadline_are_noticed(multiple: float) -> None:
    """`asyncio.wait_for` around an append whose deadline is ten times as long: admitted by its own deadline, each would
    be served after its caller gave up."""

    async def body() -> None:
        loop, rng, ended = asyncio.get_running_loop(), Random(1), Counter[str]()
        batcher = Batcher(OneServer(4096), Tasks("test", lambda name, error: None), packed, None)

        async def append() -> None:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await batcher.append(DATA, 10 * TIMEOUT_S)
                ended["acknowledged"] += 1
            except NotAccepted:
                ended["refused"] += 1
            except TimeoutError:
                ended["given up"] += 1

        tasks, end = [], loop.time() + 10.0
        while loop.time() < end:
            tasks.append(asyncio.create_task(append()))
            await asyncio.sleep(rng.expovariate(multiple * CAPACITY))
        await asyncio.gather(*tasks)
        assert ended["acknowledged"] >= 0.9 * 10 * CAPACITY
        assert ended["given up"] <= 0.1 * ended["acknowledged"]

    run(body())


def test_a_few_callers_that_give_up_do_not_affect_the_others() -> None:
    from varlog.model.admission import CallerPatience

    patience = CallerPatience()
    patience.gave_up([0.01, 0.02], 10, 1.0)
    assert patience.at(1.0) == math.inf
    patience.gave_up([0.5] * 9, 10, 1.0)
    assert patience.at(1.0) == 0.5
    assert 0.5 < patience.at(2.0) < 1.0
    assert patience.at(60.0) == math.inf


def test_a_refusal_is_immediate_and_names_when_to_retry() -> None:
    from varlog.model.errors import Overloaded

    async def body() -> None:
        server = OneServer(4096)
        batcher = Batcher(server, Tasks("test", lambda name, error: None), packed, None)
        first = [batcher.append(DATA, 60.0) for _ in range(3000)]
        await asyncio.gather(*first)
        rest = [batcher.append(DATA, 60.0) for _ in range(6000)]
        await asyncio.sleep(0)
        with pytest.raises(
            Overloaded, match=r"about \d+ appends are waiting, served at .*/s; retry after .* s"
        ) as refused:
            await batcher.append(DATA, 0.5)
        assert refused.value.rate == pytest.approx(CAPACITY, rel=0.3)
        assert 0 < refused.value.retry_after_s < 2
        # An append with more time is not refused, and each admitted one is served.
        rest.append(batcher.append(DATA, 60.0))
        await asyncio.gather(*rest)

    run(body())


def test_nothing_is_refused_where_nothing_waits_whatever_the_last_request_took() -> None:
    """A wrong estimate must not sustain itself: only a request that is sent produces a better one."""

    async def body() -> None:
        server = OneServer(4096, slower=lambda now: 2000.0 if now < 1 else 1.0)
        batcher = Batcher(server, Tasks("test", lambda name, error: None), packed, None)
        with pytest.raises(OutcomeUnknown):
            await batcher.append(DATA, 0.5)
        await asyncio.sleep(10.0)
        for _ in range(5):
            await batcher.append(DATA, 0.05)

    run(body())


def test_a_burst_after_single_appends_is_accepted() -> None:
    """Requests of one entry do not predict the time of a large batch: a burst is not refused by their rate."""

    async def body() -> None:
        server = OneServer(4096)
        batcher = Batcher(server, Tasks("test", lambda name, error: None), packed, None)
        for _ in range(50):
            await batcher.append(DATA, TIMEOUT_S)
        burst = [batcher.append(DATA, TIMEOUT_S) for _ in range(2000)]
        await asyncio.gather(*burst)
        assert server.entries == 2050

    run(body())


def test_an_append_that_waits_is_woken_once() -> None:
    """Its future is its place in the queue: space that becomes free for another does not wake it."""

    async def body() -> None:
        loop: Any = asyncio.get_running_loop()
        server = OneServer(64)
        batcher = Batcher(server, Tasks("test", lambda name, error: None), packed, None)
        before = loop.steps
        await asyncio.gather(*(batcher.append(DATA, 600.0) for _ in range(20_000)))
        batches = 20_000 / 64
        assert loop.steps - before <= 20_000 + 40 * batches

    run(body())


def test_the_estimate_learns_the_fixed_and_the_unit_time() -> None:
    from varlog.model.admission import STALL_S, Admission

    admission, now = Admission(), 0.0
    for units in (100, 4000, 50, 2500, 900, 3000) * 10:
        began, now = now, now + 0.002 + units * 1e-6
        admission.served(units, began, now)
    assert admission.fixed_s == pytest.approx(0.002, rel=0.01)
    assert admission.unit_s == pytest.approx(1e-6, rel=0.01)
    admission.served(100, now, now + 30.0)
    assert admission.estimate_s(1, 100) < STALL_S / 2


def test_batches_that_cannot_be_served_in_time_are_refused_without_waiting() -> None:
    """append_batch: what is sent and not answered is bounded by time as well as by bytes."""
    from varlog.model.errors import Overloaded

    async def body() -> None:
        budget = Budget(1_000_000)
        for _ in range(20):
            await budget.acquire(1000, 100.0, 100.0)
            await asyncio.sleep(0.05)
            budget.release(1000)
        out = 0
        with contextlib.suppress(Overloaded):
            while out < 1000:
                await budget.acquire(1000, asyncio.get_running_loop().time() + 1.0, 1.0)
                out += 1
        assert 5 <= out <= 20  # half of the second, at one each 50 ms

    run(body())


def test_a_refused_append_is_nowhere() -> None:
    """Law 10: what was refused is not sent later."""

    async def body() -> None:
        server = OneServer(4096)
        ended, _ = await offer(server, 4.0, seconds=3.0)
        assert server.entries == ended["acknowledged"] + ended["late"] + ended["unknown"]

    run(body())
