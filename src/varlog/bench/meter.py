"""Meter: calls that end inside the measured window, with their latencies.

The warm-up is not counted.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable

from varlog.bench.context import Display
from varlog.bench.figures import format_count, percentile
from varlog.bench.workload import Measured

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
