"""Open loop: appends at a steady rate, offered against acknowledged.

A closed loop never overloads a log: an appender that waits for its answer offers nothing meanwhile. Here the capacity is measured
by a closed loop first. Its appenders must be more than fit in the batches that may be in flight: all that share a batch are
answered at once and append again at once, so that fewer of them make one batch after the other, and all but one node of a chain
are idle. Then twice of that is offered, until no more is acknowledged: the speed of a disk may change meanwhile. Then multiples
of it are offered: arrivals are a Poisson process, each append has a deadline, and what counts is what was acknowledged before
it. The servers are other processes; this one appends and looks at the clock, and it reports how late it was itself (`lag`): a
driver that lags measures itself. One process cannot start hundreds of thousands of appends per second, so entries are made
larger until the servers are the limit and not the driver, unless their size is given.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from rich.console import Console
from rich.table import Table

from varlog.bench.context import BenchSettings, BenchTarget, Display, QuietDisplay, target_for
from varlog.bench.figures import format_count, format_ms, percentile
from varlog.bench.machine import Conditions, busy_cores, conditions_of
from varlog.bench.workload import Meter, metered
from varlog.client.log import Log
from varlog.client.ordering import AppendTransport
from varlog.model.cluster import Ordering
from varlog.model.entry import Position
from varlog.model.errors import OutcomeUnknown, Rejected, VarlogError
from varlog.model.limits import GATHER_BYTES_MAX, GATHER_REQUESTS_MAX, KIB

MULTIPLES = (0.5, 1.0, 2.0, 4.0)
DEADLINE_S = 1.0
# Of the closed loop: the capacity is the most that any of these reach; and as many as fill all batches that may be in flight so
# many times, if that is more.
APPENDERS = (256, 1024)
FILLED = 2
# The capacity grows to what is acknowledged in time when SATURATION times the known capacity is offered, while that is MORE.
SATURATION, MORE, SATURATIONS_MAX = 2.0, 1.1, 4
# Entries are larger where the largest multiple of the capacity is more than this process can offer beside its other work.
ENTRY_BYTES = (1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB)
ARRIVALS_PER_S_MAX = 25_000
# Refused within this share of its deadline: its caller has nearly all of its time left for something else.
AT_ONCE = 0.1
# Between two looks at the clock: all arrivals that are due by then are made in one turn of the loop.
TURN_S = 0.001
JSON_VERSION = 2

_HEADINGS = (
    "ordering",
    "offered, of capacity",
    "offered/s",
    "in time/s",
    "of the best",
    "late",
    "refused at once",
    "refused later",
    "unknown",
    "p50",
    "p99",
    "lag p99",
)


@dataclass(slots=True)
class Tally:
    """What became of the appends that arrived in one measured window."""

    in_time: array[float] = field(default_factory=lambda: array("d"))
    late: int = 0
    refused_at_once: int = 0
    refused_later: int = 0
    unknown: int = 0

    def count(self, error: VarlogError | None, took_s: float, deadline_s: float) -> None:
        if error is None and took_s <= deadline_s:
            self.in_time.append(took_s)
        elif error is None:
            self.late += 1
        elif isinstance(error, OutcomeUnknown) or not isinstance(error, Rejected):
            self.unknown += 1
        elif took_s <= AT_ONCE * deadline_s:
            self.refused_at_once += 1
        else:
            self.refused_later += 1


@dataclass(frozen=True, slots=True)
class Point:
    """One offered rate and what came of it. Rates are per second of the window in which the appends arrived."""

    ordering: str
    multiple: float
    offered_per_s: float
    in_time_per_s: float
    late: int
    refused_at_once: int
    refused_later: int
    unknown: int
    p50_s: float | None
    p99_s: float | None
    lag_p99_s: float
    busy_cores_before: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a closed loop of this many appenders reaches with entries of this size, or an open loop beyond it."""

    per_s: float
    appenders: int
    entry_bytes: int

    def __str__(self) -> str:
        return (
            f"{format_count(self.per_s)}/s ({self.appenders} appenders, entries of {self.entry_bytes} bytes)"
        )


@dataclass(frozen=True, slots=True)
class Curve:
    """The whole curve: capacity by a closed loop for each ordering, then its points."""

    conditions: Conditions
    deadline_s: float
    capacity: dict[str, Capacity]
    points: tuple[Point, ...]
    took_s: float

    def as_json(self) -> str:
        return json.dumps(
            {"version": JSON_VERSION, "conditions": self.conditions.as_json()}
            | {name: value for name, value in asdict(self).items() if name != "conditions"},
            indent=2,
        )

    def rows(self) -> list[tuple[str, ...]]:
        best: dict[str, float] = {}
        for point in self.points:
            best[point.ordering] = max(best.get(point.ordering, 0.0), point.in_time_per_s)
        return [
            (
                point.ordering,
                f"{point.multiple:g} x",
                format_count(point.offered_per_s),
                format_count(point.in_time_per_s),
                f"{point.in_time_per_s / best[point.ordering]:.2f}" if best[point.ordering] else "-",
                format_count(point.late),
                format_count(point.refused_at_once),
                format_count(point.refused_later),
                format_count(point.unknown),
                format_ms(point.p50_s) if point.p50_s is not None else "-",
                format_ms(point.p99_s) if point.p99_s is not None else "-",
                format_ms(point.lag_p99_s),
            )
            for point in self.points
        ]

    def lines(self) -> list[str]:
        capacity = ", ".join(f"{name} {found}" for name, found in self.capacity.items())
        return [
            *self.conditions.lines(),
            f"capacity by a closed loop, or more where an open one reached it: {capacity}",
            f"then Poisson arrivals, each append with a deadline of {self.deadline_s:g} s",
        ]

    def markdown(self) -> str:
        """Rows for docs/benchmarks.md, with their conditions above."""
        cells = [_HEADINGS, ("---",) * len(_HEADINGS), *self.rows()]
        return "\n".join(
            [*(f"- {line}" for line in self.lines()), "", *(f"| {' | '.join(row)} |" for row in cells)]
        )

    def show(self, console: Console) -> None:
        """The table for people."""
        for line in self.lines():
            console.print(line, highlight=False, style="dim", soft_wrap=True, markup=False)
        table = Table()
        for heading in _HEADINGS:
            table.add_column(heading, overflow="fold")
        for row in self.rows():
            table.add_row(*row)
        console.print(table)
        console.print(f"took {self.took_s:.0f} s", highlight=False, style="dim")


class Arrivals:
    """Starts appends at a rate, whatever became of the earlier ones, and counts how each ended.

    An append is started as Log.append starts it, without the coroutine and the task that each caller of an application has: with
    them the driver would be slower than what it measures.
    """

    def __init__(self, log: Log, data: bytes, rate: float, deadline_s: float, rng: random.Random) -> None:
        self._appender = log._appender
        self._data = data
        self._rate = rate
        self._deadline_s = deadline_s
        self._rng = rng
        self._in_flight = 0
        self._settled = asyncio.Event()
        self.lags = array("d")

    async def run(self, seconds: float, tally: Tally | None) -> int:
        """Offer for this long; returns how many arrived. None: a warm-up, nothing is counted."""
        clock, rng, rate = time.perf_counter, self._rng, self._rate
        begin = clock()
        due, end, arrived = begin + rng.expovariate(rate), begin + seconds, 0
        while due < end:
            now = clock()
            while due <= now and due < end:
                # Counted from when it was due: what the driver itself is late by is part of what a caller waits.
                self._start(due, tally)
                arrived += 1
                if tally is not None:
                    self.lags.append(now - due)
                due += rng.expovariate(rate)
            await asyncio.sleep(TURN_S)
        return arrived

    async def settle(self) -> None:
        """Wait for what is in flight: each ends by its deadline."""
        while self._in_flight:
            self._settled.clear()
            await self._settled.wait()

    def _start(self, due: float, tally: Tally | None) -> None:
        try:
            answer = asyncio.ensure_future(self._appender.append(self._data, None, self._deadline_s))
        except VarlogError as refused:
            if tally is not None:
                tally.count(refused, time.perf_counter() - due, self._deadline_s)
            return
        self._in_flight += 1
        answer.add_done_callback(partial(self._ended, due, tally))

    def _ended(self, due: float, tally: Tally | None, answer: asyncio.Future[Position]) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self._settled.set()
        error = answer.exception()
        if error is not None and not isinstance(error, VarlogError):
            raise error
        if tally is not None:
            tally.count(error, time.perf_counter() - due, self._deadline_s)


class OpenLoop:
    """One run: a cluster, and for each ordering its capacity and the points of its curve."""

    def __init__(self, settings: BenchSettings, multiples: Sequence[float], deadline_s: float) -> None:
        if not multiples or any(multiple <= 0 for multiple in multiples):
            raise ValueError("--offered must be above 0: it is a multiple of the capacity")
        if deadline_s <= 0:
            raise ValueError(f"--deadline must be above 0, not {deadline_s:g}")
        self._settings = settings
        self._multiples = tuple(multiples)
        self._deadline_s = deadline_s
        self._display: Display = QuietDisplay()
        self._sizes = (settings.entry_bytes,) if settings.entry_bytes else ENTRY_BYTES

    async def curve(self, display: Display) -> Curve:
        """Measure everything. The data directory must exist; the caller removes what is created in it."""
        self._display = display
        started, settings = time.perf_counter(), self._settings
        conditions = conditions_of(
            settings.data, where=settings.where, sync=f"each point measured for {settings.seconds:g} s"
        )
        capacity: dict[str, Capacity] = {}
        points: list[Point] = []
        self._display.begin("starting the cluster")
        async with target_for(settings) as bench_target:
            ordering = settings.ordering
            capacity[ordering] = await self._capacity(bench_target, ordering)
            for multiple in self._multiples:
                points.append(await self._point(bench_target, ordering, multiple, capacity[ordering]))
        took_s = time.perf_counter() - started
        return Curve(conditions, self._deadline_s, capacity, tuple(points), took_s)

    async def _capacity(self, bench_target: BenchTarget, ordering: Ordering) -> Capacity:
        """With the smallest entries of which this process can offer the largest multiple."""
        *smaller, largest = self._sizes
        for size in smaller:
            found = await self._capacity_at(bench_target, ordering, size, self._can_offer)
            if self._can_offer(found):
                return found
        return await self._capacity_at(bench_target, ordering, largest, lambda found: True)

    def _can_offer(self, capacity: Capacity) -> bool:
        return max(self._multiples) * capacity.per_s <= ARRIVALS_PER_S_MAX

    async def _capacity_at(
        self, bench_target: BenchTarget, ordering: Ordering, size: int, worth: Callable[[Capacity], bool]
    ) -> Capacity:
        """With entries of this size; not to the end where what was found is not `worth` it."""
        found = Capacity(0.0, 0, size)
        async with bench_target.log(f"bench-open-loop-{ordering}", ordering) as log:
            for appenders in self._appenders(log, size):
                more = await self._closed_loop(log, appenders, size)
                found = max(found, more, key=lambda one: one.per_s)
                if not worth(found):
                    return found
        return await self._saturated(bench_target, ordering, found)

    def _appenders(self, log: Log, size: int) -> tuple[int, ...]:
        if self._settings.appenders:
            return (self._settings.appenders,)
        enough = filling(log._appender.sender, size)
        return (*APPENDERS, enough) if enough > max(APPENDERS) else APPENDERS

    async def _saturated(self, bench_target: BenchTarget, ordering: Ordering, found: Capacity) -> Capacity:
        """What the log takes where more is offered, if that is more than the closed loop found."""
        for _ in range(SATURATIONS_MAX):
            point = await self._point(bench_target, ordering, SATURATION, found)
            if point.in_time_per_s <= MORE * found.per_s:
                break
            found = replace(found, per_s=point.in_time_per_s)
        return found

    async def _closed_loop(self, log: Log, appenders: int, size: int) -> Capacity:
        self._display.begin(f"capacity, {appenders} appenders, entries of {size} bytes")
        data = os.urandom(size)
        meter = Meter(self._settings.warm_up_s, self._settings.seconds)
        await metered(meter, self._display, appenders, lambda: log.append(data), each=1)
        per_s = meter.measured(entries=1, entry_bytes=size)["appends_per_s"]
        return Capacity(per_s, appenders, size)

    async def _point(
        self, bench_target: BenchTarget, ordering: Ordering, multiple: float, capacity: Capacity
    ) -> Point:
        """A client of its own for each point: none begins with what another left in a queue."""
        data = os.urandom(capacity.entry_bytes)
        self._display.begin(f"{ordering}: {multiple:g} times the capacity offered")
        tally, settings, busy = Tally(), self._settings, busy_cores()
        async with bench_target.log(f"bench-open-loop-{ordering}", ordering) as log:
            await log.append(data)
            arrivals = Arrivals(
                log,
                data,
                multiple * capacity.per_s,
                self._deadline_s,
                random.Random(f"{ordering} {multiple}"),
            )
            gc.collect()
            await arrivals.run(settings.warm_up_s, None)
            arrived = await arrivals.run(settings.seconds, tally)
            await arrivals.settle()
        point = Point(
            ordering,
            multiple,
            arrived / settings.seconds,
            len(tally.in_time) / settings.seconds,
            tally.late,
            tally.refused_at_once,
            tally.refused_later,
            tally.unknown,
            percentile(tally.in_time, 50) if tally.in_time else None,
            percentile(tally.in_time, 99) if tally.in_time else None,
            percentile(arrivals.lags, 99) if arrivals.lags else 0.0,
            busy,
        )
        self._display.result(
            f"{ordering}, {multiple:g} x: {format_count(point.in_time_per_s)}/s of {format_count(point.offered_per_s)}/s in time"
        )
        return point


def filling(carrier: AppendTransport, size: int) -> int:
    """How many appenders of entries of this size keep as many batches in flight as may be, while others wait."""
    batches = GATHER_REQUESTS_MAX * carrier.streams_free()
    return FILLED * batches * min(carrier.gather_entries_max, max(1, GATHER_BYTES_MAX // size))
