"""Metrics of a process: fixed-bucket histograms, and a replica's traffic.

Counted per batch, never per entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from varlog.model.status import LATENCY_BOUNDS_S, Traffic

# A mean time of writes is that of the last one to two windows, if there were enough of them, or if a few took long
# together: the slower a disk is, the fewer writes it makes.
WINDOW_S: Final = 5.0
WRITES_MIN: Final = 8
SLOW_WRITES_MIN: Final = 3
SLOW_WRITES_S: Final = 1.0


class Histogram:
    """How many values fell into each bucket; the last one is for values above all bounds."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class TrafficMeter:
    """Counts what one replica or log unit does for clients. `now` is the time of its event loop."""

    __slots__ = (
        "_append_bytes",
        "_append_entries",
        "_appends",
        "_before",
        "_latency",
        "_newer",
        "_read_bytes",
        "_read_entries",
        "_reads",
        "_write_s",
        "_writes",
        "now",
    )

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._latency = Histogram()
        self._appends = self._append_entries = self._append_bytes = 0
        self._reads = self._read_entries = self._read_bytes = 0
        self._writes, self._write_s = 0, 0.0
        # The counts of writes as they were at two times in the past: (time, writes, their time).
        self._before = self._newer = (now(), 0, 0.0)

    def appended(self, entries: int, size: int, seconds: float) -> None:
        """One batch was acknowledged."""
        self._appends += 1
        self._append_entries += entries
        self._append_bytes += size
        self._latency.observe(seconds)

    def read(self, entries: int, size: int) -> None:
        """One answer with entries."""
        self._reads += 1
        self._read_entries += entries
        self._read_bytes += size

    def wrote(self, seconds: float) -> None:
        """One group of batches was written and synced."""
        self._writes += 1
        self._write_s += seconds

    def snapshot(self) -> Traffic:
        """Everything so far."""
        latency = self._latency
        return Traffic(
            self._appends,
            self._append_entries,
            self._append_bytes,
            latency.total,
            tuple(latency.counts) if self._appends else (),
            self._reads,
            self._read_entries,
            self._read_bytes,
            self._mean_write_s(),
        )

    def _mean_write_s(self) -> float:
        now = self.now()
        if now - self._newer[0] >= WINDOW_S:
            self._before, self._newer = self._newer, (now, self._writes, self._write_s)
        writes, seconds = self._writes - self._before[1], self._write_s - self._before[2]
        enough = writes >= WRITES_MIN or (writes >= SLOW_WRITES_MIN and seconds >= SLOW_WRITES_S)
        return seconds / writes if enough else 0.0
