"""O1: twice the load brought what was acknowledged in time down to a seventh. Everything was queued, served in order and each a
moment too late, and those that waited for room were all woken for each free place."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.manager.sim_cluster import SimCluster
from tests.storagenode.scripted import STREAM, Bench, make_batch, row, until
from tests.storagenode.scripted import run as run_bench
from varlog.client.appender import Budget
from varlog.client.gatherer import Gatherer
from varlog.client.log import Log
from varlog.client.parcel import Parcel
from varlog.model.admission import STALL_S, Admission, CallerPatience
from varlog.model.batch import pack, parse_header
from varlog.model.commit import CommitRow
from varlog.model.entry import Position
from varlog.model.epoch import Epoch
from varlog.model.errors import NotAccepted, OutcomeUnknown, Overloaded
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import Append, Appended
from varlog.runtime.metrics import TrafficMeter
from varlog.runtime.tasks import Tasks
from varlog.storagenode.log_stream import replica as replica_module
from varlog.storagenode.log_stream import waiters as waiters_module
from varlog.storagenode.log_stream import writer as writer_module
from varlog.storagenode.log_stream.intake import Arrival, Intake
from varlog.storagenode.log_stream.waiters import Waiters
from varlog.testing.sim.loop import run as run_in_virtual_time

DATA = bytes(1000)
TIMEOUT_S = 1.0
# One at a time: a batch takes a fixed time and some for each entry, so that many small ones are as much load as few large ones.
FIXED_S, ENTRY_S = 0.002, 0.0002
CAPACITY = 1 / ENTRY_S


class OneServer:
    """A carrier to a log that serves one batch after the other."""

    closed = False
    stuck = 0

    def __init__(self, gather_entries_max: int, slower: Callable[[float], float] = lambda now: 1.0) -> None:
        self.gather_entries_max = gather_entries_max
        self.on_slow: Callable[[], None] = lambda: None
        self.entries = 0
        self._slower = slower
        self._free = asyncio.Lock()

    def streams_free(self) -> int:
        return 1

    async def deliver(self, parcel: Parcel) -> Position:
        loop = asyncio.get_running_loop()
        began = loop.time()
        parcel.attempt = True  # type: ignore[assignment] # only that there is one
        async with self._free:
            count = parse_header(parcel.batch, signed=False).count
            await asyncio.sleep((FIXED_S + count * ENTRY_S) * self._slower(loop.time()))
            self.entries += count
        if loop.time() > began + parcel.timeout_s:
            raise OutcomeUnknown("too late")
        return Position(GLSN(self.entries), LLSN(self.entries), 1)  # type: ignore[arg-type]


def packed(entries: Sequence[bytes]) -> bytearray:
    return pack(entries, producer=ProducerID(1), sequence=1, time_us=0)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return run_in_virtual_time(asyncio.wait_for(work, 1000.0))


async def offer(
    server: OneServer, multiple: float, seconds: float = 10.0
) -> tuple[Counter[str], list[float]]:
    """Poisson arrivals of so many times the capacity: how many ended how, and how long the refused ones waited for that."""
    loop, rng, ended = asyncio.get_running_loop(), Random(1), Counter[str]()
    refused_after: list[float] = []
    gatherer = Gatherer(server, Tasks("test", lambda name, error: None), packed, None)

    async def append() -> None:
        began = loop.time()
        try:
            await gatherer.append(DATA, TIMEOUT_S)
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


@pytest.mark.parametrize("gather_entries_max", [4096, 64], ids=["committed", "sequenced"])
@pytest.mark.parametrize("multiple", [1.0, 2.0, 4.0])
def test_goodput_stays_at_the_capacity_however_much_is_offered(
    multiple: float, gather_entries_max: int
) -> None:
    async def body() -> None:
        ended, refused_after = await offer(OneServer(gather_entries_max), multiple)
        # 64 to a batch: its fixed time is more than a tenth of it.
        best = 10 * CAPACITY * (1 if gather_entries_max > 64 else 64 * ENTRY_S / (64 * ENTRY_S + FIXED_S))
        assert ended["acknowledged"] >= 0.9 * min(best, 10 * CAPACITY)
        # While nothing is known of large batches too much is admitted: a moment at the beginning, and a certain no.
        assert ended["unknown"] + ended["late"] <= 0.01 * ended["acknowledged"]
        assert sum(after > 0 for after in refused_after) <= 0.1 * ended["acknowledged"]

    run(body())


def test_a_log_that_becomes_slower_serves_what_is_still_in_time() -> None:
    """The queue was admitted at the old rate: most of it is too late at the new one, and must not make the rest late as well."""

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
    """`asyncio.wait_for` around an append that has ten times as long: admitted by its own deadline, each would be served after its
    caller gave up."""

    async def body() -> None:
        loop, rng, ended = asyncio.get_running_loop(), Random(1), Counter[str]()
        gatherer = Gatherer(OneServer(4096), Tasks("test", lambda name, error: None), packed, None)

        async def append() -> None:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await gatherer.append(DATA, 10 * TIMEOUT_S)
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


def test_a_few_that_give_up_say_nothing_of_the_others() -> None:
    patience = CallerPatience()
    patience.gave_up([0.01, 0.02], 10, 1.0)
    assert patience.at(1.0) == math.inf
    patience.gave_up([0.5] * 9, 10, 1.0)
    assert patience.at(1.0) == 0.5
    assert 0.5 < patience.at(2.0) < 1.0
    assert patience.at(60.0) == math.inf


def test_a_refusal_is_immediate_and_says_when_to_come_back() -> None:
    async def body() -> None:
        server = OneServer(4096)
        gatherer = Gatherer(server, Tasks("test", lambda name, error: None), packed, None)
        first = [gatherer.append(DATA, 60.0) for _ in range(3000)]
        await asyncio.gather(*first)
        rest = [gatherer.append(DATA, 60.0) for _ in range(6000)]
        await asyncio.sleep(0)
        with pytest.raises(
            Overloaded, match=r"about \d+ appends are waiting, served at .*/s; retry after .* s"
        ) as refused:
            await gatherer.append(DATA, 0.5)
        assert refused.value.rate == pytest.approx(CAPACITY, rel=0.3)
        assert 0 < refused.value.retry_after_s < 2
        # One that has more time is not refused, and each that was admitted is served.
        rest.append(gatherer.append(DATA, 60.0))
        await asyncio.gather(*rest)

    run(body())


def test_nobody_is_refused_where_nothing_waits_whatever_the_last_request_took() -> None:
    """A wrong estimate must not keep itself alive: only a request that is sent makes a better one."""

    async def body() -> None:
        server = OneServer(4096, slower=lambda now: 2000.0 if now < 1 else 1.0)
        gatherer = Gatherer(server, Tasks("test", lambda name, error: None), packed, None)
        with pytest.raises(OutcomeUnknown):
            await gatherer.append(DATA, 0.5)
        await asyncio.sleep(10.0)
        for _ in range(5):
            await gatherer.append(DATA, 0.05)

    run(body())


def test_a_burst_after_single_appends_is_taken() -> None:
    """Requests of one entry say nothing of what a large batch takes: a burst is not refused by their rate."""

    async def body() -> None:
        server = OneServer(4096)
        gatherer = Gatherer(server, Tasks("test", lambda name, error: None), packed, None)
        for _ in range(50):
            await gatherer.append(DATA, TIMEOUT_S)
        burst = [gatherer.append(DATA, TIMEOUT_S) for _ in range(2000)]
        await asyncio.gather(*burst)
        assert server.entries == 2050

    run(body())


def test_an_append_that_waits_is_woken_once() -> None:
    """Its future is its place in the queue: what becomes free for another does not wake it."""

    async def body() -> None:
        loop: Any = asyncio.get_running_loop()
        server = OneServer(64)
        gatherer = Gatherer(server, Tasks("test", lambda name, error: None), packed, None)
        before = loop.steps
        await asyncio.gather(*(gatherer.append(DATA, 600.0) for _ in range(20_000)))
        batches = 20_000 / 64
        assert loop.steps - before <= 20_000 + 40 * batches

    run(body())


def test_the_estimate_learns_the_fixed_and_the_unit_time() -> None:
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

    async def body() -> None:
        budget = Budget(1_000_000)
        for _ in range(20):
            await budget.take(1000, 100.0, 100.0)
            await asyncio.sleep(0.05)
            budget.give(1000)
        out = 0
        with contextlib.suppress(Overloaded):
            while out < 1000:
                await budget.take(1000, asyncio.get_running_loop().time() + 1.0, 1.0)
                out += 1
        assert 5 <= out <= 20  # half of the second, at one each 50 ms

    run(body())


def test_refused_is_nowhere() -> None:
    """Law 10: what was refused is not sent later."""

    async def body() -> None:
        server = OneServer(4096)
        ended, _ = await offer(server, 4.0, seconds=3.0)
        assert server.entries == ended["acknowledged"] + ended["late"] + ended["unknown"]

    run(body())


# --- many clients: none of them has a queue, the primary has ------------------------------------------------------------------

# Of the primary's disk: one group of so many bytes in so long, so that about forty appends are served each second.
GROUP_BYTES, GROUP_S = 4096, 0.04
SERVED_PER_S = 40.0
CLIENTS = 150


async def many_clients(cluster: SimCluster) -> list[Log]:
    cluster.network.slow = 0.0
    cluster.start()
    first = await cluster.log(create=True)
    await cluster.wait_whole()
    logs = [first, *[await cluster.log() for _ in range(CLIENTS - 1)]]
    cluster.nodes[1].delay = lambda rng: GROUP_S
    return logs


@pytest.fixture
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_BYTES_MAX", GROUP_BYTES)
    monkeypatch.setattr(waiters_module, "GROUP_BYTES_MAX", GROUP_BYTES)


@pytest.mark.usefixtures("_small_groups")
def test_the_primary_refuses_what_many_clients_would_get_too_late() -> None:
    """Each client finds its own queue empty, and sends: together they made a line of four seconds for a deadline of one, and
    nearly everything ended as unknown."""

    async def story(multiple: float) -> tuple[Counter[str], list[float], int]:
        cluster, seconds = SimCluster(nodes=1, replicas=1), 10.0
        logs = await many_clients(cluster)
        loop, rng, ended = asyncio.get_running_loop(), Random(1), Counter[str]()
        refused_after: list[float] = []

        async def append(log: Log) -> None:
            began = loop.time()
            try:
                await log.append(DATA, timeout_s=TIMEOUT_S)
                ended["acknowledged"] += 1
            except Overloaded as refused:
                ended["refused" if refused.retry_after_s > 0 else "refused without a hint"] += 1
                refused_after.append(loop.time() - began)
            except OutcomeUnknown:
                ended["unknown"] += 1

        tasks, end = [], loop.time() + seconds
        while loop.time() < end:
            tasks.append(asyncio.create_task(append(rng.choice(logs))))
            await asyncio.sleep(rng.expovariate(multiple * SERVED_PER_S))
        await asyncio.gather(*tasks)
        written = await logs[0].tail()
        for log in logs:
            await log.close()
        return ended, refused_after, written

    found = {multiple: run_in_virtual_time(story(multiple)) for multiple in (1.0, 2.0, 4.0)}
    best = max(ended["acknowledged"] for ended, _, _ in found.values())
    for ended, refused_after, written in found.values():
        assert ended["acknowledged"] >= 0.9 * best
        assert ended["unknown"] <= 0.02 * best
        assert not ended["refused without a hint"]
        assert sum(after > 0.1 for after in refused_after) <= 0.1 * best
        # What was refused is nowhere.
        assert ended["acknowledged"] <= written <= ended["acknowledged"] + ended["unknown"]


def test_the_primary_tells_how_long_one_more_would_wait() -> None:
    now = 0.0
    waiters = Waiters(TrafficMeter(lambda: now))
    call: Any = SimpleNamespace(reply=lambda message: None)
    end = served = 1

    def add(size: int) -> None:
        nonlocal end
        batch = pack([bytes(size)], producer=ProducerID(1), sequence=end, time_us=0)
        waiters.add(LLSN(end), LLSN(end + 1), size, call, parse_header(batch, signed=False))
        end += 1

    def ordered(count: int) -> None:
        nonlocal served
        newest, before = GLSN(served + count - 1), GLSN(served - 1)
        waiters.answer(CommitRow(1, newest, before, GLSN(served), LLSN(served), count, Epoch(1)))
        served += count

    assert waiters.wait_s(now) == 0.0
    # Ten milliseconds a cut, and one more for each 100 kB.
    for count in (1, 9, 3, 20, 6, 12) * 5:
        for _ in range(count):
            add(100_000)
        now += 0.01 + 0.001 * count
        ordered(count)
    for _ in range(300):
        add(100_000)
    assert waiters.wait_s(now) == pytest.approx(0.31, rel=0.2)
    assert waiters.wait_s(now, 300, 30_000_000) == pytest.approx(0.61, rel=0.2)
    # It is not quicker than it is seen to be.
    now += 2.0
    assert waiters.wait_s(now) >= 2.0
    ordered(300)
    assert waiters.wait_s(now) == 0.0


def test_what_is_refused_by_time_gets_no_place_and_what_waits_in_line_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(replica_module, "TrafficMeter", lambda now: TrafficMeter(lambda: clock[0]))
    monkeypatch.setattr(replica_module, "UNCOMMITTED_BATCHES_MAX", 1)

    async def story(bench: Bench) -> None:
        node = await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        (replica,) = node._replicas.values()
        taken = asyncio.create_task(bench.call(Append(STREAM, within_ms=1000), make_batch(b"a")))
        await until(lambda: any(report.durable_end == 2 for report in repository.reports))
        clock[0] = 0.5
        in_line = asyncio.create_task(bench.call(Append(STREAM, within_ms=1000), make_batch(b"b")))
        await until(lambda: len(replica._intake) == 1)
        # The oldest has waited for half a second: whoever has less is refused, whether its batch is whole or not.
        with pytest.raises(Overloaded) as refused:
            await bench.call(Append(STREAM, within_ms=500), b"not a batch")
        assert refused.value.waiting == 2
        patient = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"c")))
        await until(lambda: len(replica._intake) == 2)
        # Nobody waits for the first in line any more when its turn comes; the next one named no time.
        clock[0] = 2.0
        repository.commit(row(1, 2))
        assert (await taken)[0] == Appended(GLSN(1), LLSN(1))
        with pytest.raises(Overloaded):
            await in_line
        await until(lambda: any(report.durable_end == 3 for report in repository.reports))
        repository.commit(row(2, 3))
        assert (await patient)[0] == Appended(GLSN(2), LLSN(2))

    run_bench(tmp_path, story)


def test_a_light_client_waits_for_its_turns_only() -> None:
    """What a client with a long line has there is not ahead of one with a short line."""
    intake, batch = Intake(LogStreamID(1)), packed([DATA])
    for connection, batches in (("flood", 100), ("other", 3)):
        for _ in range(batches):
            call: Any = SimpleNamespace(connection=connection)
            intake.join(Arrival(call, parse_header(batch, signed=False), batch))
    light: Any = "light"
    flood: Any = "flood"
    assert intake.ahead_of(light)[0] == 2
    assert intake.ahead_of(light)[1] == pytest.approx(2 * len(batch), rel=0.01)
    assert intake.ahead_of(flood)[0] == 103
