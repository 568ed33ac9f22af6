"""Workload: a name, a target, how it runs and how its figures are assessed."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from varlog.bench.context import Display
from varlog.bench.figures import format_count, format_mb, format_mb_s, format_ms, percentile
from varlog.bench.machine import RawLimits

if TYPE_CHECKING:
    from varlog.bench.context import BenchContext

# Figures by name, unit last: {"p50_s": 0.0011, "appends_per_s": 21000.0}.
Measured = dict[str, float]
Runner = Callable[["BenchContext"], Awaitable[Measured]]
Judge = Callable[[Measured, RawLimits], "BenchResult"]


class WorkloadPlace(StrEnum):
    """Where a workload runs."""

    LOG = "log"  # on the cluster, or embedded if that is asked for
    CLUSTER = "cluster"  # observes the processes of a cluster that the bench has started itself
    DISK = "disk"  # needs a data directory only
    IN_TURNS = "in turns"  # on a cluster, started or running: one side against another


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What the figures mean: a summary, the ratio to a raw limit if there is one, and whether the target is met."""

    summary: str
    met: bool
    ratio: float | None = None
    against: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table."""

    name: str
    title: str
    target: str
    place: WorkloadPlace
    run: Runner
    judge: Judge
    # The raw limits are measured right before and right after: only what ran side by side is compared.
    beside_raw: bool = False
    # Why the target does not apply to a run with --quick; empty where it applies.
    quick_note: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """One workload, measured and assessed. `met` is None where the target does not apply."""

    workload: str
    title: str
    target: str
    measured: Measured
    summary: str
    ratio: float | None
    against: str
    met: bool | None
    note: str = ""
    series: dict[str, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        return {
            "workload": self.workload,
            "title": self.title,
            "target": self.target,
            "measured": self.measured,
            "summary": self.summary,
            "ratio": self.ratio,
            "against": self.against,
            "met": self.met,
            "note": self.note,
        } | ({"series": self.series} if self.series else {})


def judged(
    workload: Workload,
    measured: Measured,
    raw: RawLimits,
    *,
    applies: bool,
    note: str = "",
    series: dict[str, list[float]] | None = None,
) -> WorkloadResult:
    """The result; where the target does not apply (another load than the table's) it is left open."""
    assessed = workload.judge(measured, raw)
    return WorkloadResult(
        workload.name,
        workload.title,
        workload.target,
        measured,
        assessed.summary,
        assessed.ratio,
        assessed.against,
        assessed.met if applies else None,
        note,
        series or {},
    )


def failed(workload: Workload, why: str) -> WorkloadResult:
    """A workload that could not be measured: reported, not left out."""
    return WorkloadResult(
        workload.name, workload.title, workload.target, {}, "not measured", None, "", None, why
    )


# Targets: pure functions from figures and raw limits to a BenchResult, one per kind of workload.

LATENCY_RATIO_MAX = 6.0
BATCH_RATIO_MIN = 0.7
SYNC_RATIO_MIN = 0.5
IDLE_CORE_MAX = 0.01
OPEN_S_MAX = 1.0
OPEN_BYTES_MAX = 100_000_000
NODE_BYTES_MAX = 300_000_000
# Memory that grows by less than this over a run is flat: allocators keep what they freed.
FLAT_BYTES_MAX = 16_000_000


def judge_latency(measured: Measured, raw: RawLimits) -> BenchResult:
    """One appender: p50 against the raw p50 of a write + fdatasync."""
    ratio = measured["p50_s"] / raw.sync_p50_s
    summary = (
        f"p50 {format_ms(measured['p50_s'])}, p99 {format_ms(measured['p99_s'])}, "
        f"{format_count(measured['appends_per_s'])} appends/s"
    )
    return BenchResult(
        summary, ratio <= LATENCY_RATIO_MAX, ratio, f"raw write+fdatasync p50 {format_ms(raw.sync_p50_s)}"
    )


def appends_judge(at_least: float) -> _RateJudge:
    """Many appenders, one entry per call."""
    return _RateJudge("appends_per_s", "appends/s", at_least)


def entries_judge(at_least: float) -> _RateJudge:
    """Readers, and batches where the disk is not waited for."""
    return _RateJudge("entries_per_s", "entries/s", at_least)


class _RateJudge:
    """A rate and its floor, with p50 and p99 where they were measured."""

    def __init__(self, figure: str, unit: str, at_least: float) -> None:
        self._figure = figure
        self._unit = unit
        self._at_least = at_least

    def __call__(self, measured: Measured, raw: RawLimits) -> BenchResult:
        rate = measured[self._figure]
        summary = f"{format_count(rate)} {self._unit}"
        if "bytes_per_s" in measured:
            summary += f", {format_mb_s(measured['bytes_per_s'])}"
        if "p50_s" in measured:
            summary += f", p50 {format_ms(measured['p50_s'])}, p99 {format_ms(measured['p99_s'])}"
        return BenchResult(summary, rate >= self._at_least)


def judge_batches(measured: Measured, raw: RawLimits) -> BenchResult:
    """What all copies write together, against the bandwidth of the disk."""
    written = measured["bytes_per_s"] * measured["copies"]
    ratio = written / raw.write_bytes_per_s
    summary = (
        f"{format_count(measured['entries_per_s'])} entries/s, {format_mb_s(measured['bytes_per_s'])} x "
        f"{measured['copies']:.0f} copies = {format_mb_s(written)}, p50 {format_ms(measured['p50_s'])}"
    )
    return BenchResult(
        summary, ratio >= BATCH_RATIO_MIN, ratio, f"raw write+fdatasync {format_mb_s(raw.write_bytes_per_s)}"
    )


def bandwidth_judge(at_least: float) -> _BandwidthJudge:
    """A reader of large entries."""
    return _BandwidthJudge(at_least)


class _BandwidthJudge:
    """A bandwidth and its floor, compared with loopback too."""

    def __init__(self, at_least: float) -> None:
        self._at_least = at_least

    def __call__(self, measured: Measured, raw: RawLimits) -> BenchResult:
        rate = measured["bytes_per_s"]
        summary = f"{format_mb_s(rate)}, {format_count(measured['entries_per_s'])} entries/s"
        ratio = rate / raw.loopback_bytes_per_s
        return BenchResult(
            summary, rate >= self._at_least, ratio, f"raw loopback {format_mb_s(raw.loopback_bytes_per_s)}"
        )


def judge_idle(measured: Measured, raw: RawLimits) -> BenchResult:
    """The busiest process, and what all of them wrote."""
    core, written = measured["core_max"], measured["written_bytes"]
    summary = f"{format_count(written)} bytes written, at most {core * 100:.2f} % of a core per process"
    return BenchResult(summary, written == 0 and core < IDLE_CORE_MAX)


def judge_open(measured: Measured, raw: RawLimits) -> BenchResult:
    """Time and memory of a process that opens a replica."""
    opening_bytes = measured["peak_bytes"] - measured["before_bytes"]
    summary = (
        f"{format_ms(measured['open_s'])} (cached: {format_ms(measured['open_warm_s'])}), "
        f"{format_mb(measured['peak_bytes'])} peak memory of the process, {format_mb(opening_bytes)} of it by opening"
    )
    return BenchResult(summary, measured["open_s"] < OPEN_S_MAX and measured["peak_bytes"] < OPEN_BYTES_MAX)


def judge_sync(measured: Measured, raw: RawLimits) -> BenchResult:
    """One replica filled from another, against the bandwidth of the disk, from which the source is read at the same time."""
    rate = measured["bytes_per_s"]
    ratio = rate / raw.write_bytes_per_s
    summary = f"{format_mb_s(rate)}, {format_count(measured['entries_per_s'])} entries/s, {measured['seconds']:.1f} s"
    return BenchResult(
        summary, ratio >= SYNC_RATIO_MIN, ratio, f"raw write+fdatasync {format_mb_s(raw.write_bytes_per_s)}"
    )


def judge_memory(measured: Measured, raw: RawLimits) -> BenchResult:
    """The largest storage node under load: how large, and does it grow."""
    summary = (
        f"at most {format_mb(measured['resident_max_bytes'])}, {measured['growth_bytes'] / 1e6:+.0f} MB from the second "
        f"to the last quarter of {measured['seconds']:.0f} s at {format_mb_s(measured['bytes_per_s'])}"
    )
    flat = measured["growth_bytes"] <= FLAT_BYTES_MAX
    return BenchResult(summary, flat and measured["resident_max_bytes"] < NODE_BYTES_MAX)


# --- meter ----------------------------------------------------------------------------------------------------------------------
#
# Calls that end inside the measured window, with their latencies. The warm-up is not counted.

TICK_S = 0.2


class Meter:
    """One window of time, `warm_up_s` after its making, `seconds` long; longer if not one call ends in it, until the first does."""

    def __init__(self, warm_up_s: float, seconds: float) -> None:
        self._made = time.perf_counter()
        self.begin = self._made + warm_up_s
        self.end = self.begin + seconds
        self.latencies = array("d")

    @property
    def open(self) -> bool:
        """False once the window is over: callers stop."""
        return time.perf_counter() < self.end

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def record(self, started: float, ended: float) -> None:
        if not self.latencies and ended >= self.end:
            self.end = ended
            self.latencies.append(ended - started)
        elif self.begin <= ended < self.end:
            self.latencies.append(ended - started)

    async def show(self, display: Display, unit: str, each: int) -> None:
        """Update the display until the window is over. `each` entries are one call."""
        seen, seen_at = 0, self.begin
        while self.open:
            await asyncio.sleep(TICK_S)
            now, calls = time.perf_counter(), len(self.latencies)
            rate = (calls - seen) * each / (now - seen_at) if now > seen_at else 0.0
            seen, seen_at = calls, max(now, self.begin)
            display.advance(
                (now - self._made) / (self.end - self._made), f"{format_count(max(rate, 0.0))} {unit}"
            )

    def measured(self, *, entries: int, entry_bytes: int) -> Measured:
        """Figures of calls of `entries` entries each."""
        if not self.latencies:
            raise TimeoutError(
                f"not one call ended within {self.seconds:g} s: measure longer (--seconds), or look at the processes"
            )
        rate = len(self.latencies) / self.seconds
        return {
            "calls": float(len(self.latencies)),
            "appends_per_s": rate,
            "entries_per_s": rate * entries,
            "bytes_per_s": rate * entries * entry_bytes,
            "p50_s": percentile(self.latencies, 50),
            "p99_s": percentile(self.latencies, 99),
        }


async def metered(
    meter: Meter, display: Display, callers: int, call: Callable[[], Awaitable[object]], *, each: int
) -> None:
    """`callers` tasks that each call again and again, one call at a time, at least once, until the window is over."""

    async def again() -> None:
        clock = time.perf_counter
        while True:
            started = clock()
            await call()
            meter.record(started, clock())
            if not meter.open:
                return

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(meter.show(display, "entries/s", each), name="bench/progress")
        for number in range(callers):
            tasks.create_task(again(), name=f"bench/caller={number}")
