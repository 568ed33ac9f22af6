"""PURE. Figures: percentiles, rates, pauses between acknowledgements."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest measured value that at least `percent` of all values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values: a percentile of nothing is not a figure")
    if not 0 < percent <= 100:
        raise ValueError(f"a percentile is above 0 and at most 100, not {percent}")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[int(rank) - 1]


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    if not values:
        raise ValueError("no values: a median of nothing is not a figure")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def growth(series: Sequence[float]) -> float:
    """How much higher the last quarter of a series lies than its second quarter (the first is start-up), as medians."""
    if len(series) < 8:
        raise ValueError(f"{len(series)} samples are too few to distinguish growth from noise: at least 8")
    quarter = len(series) // 4
    return median(series[-quarter:]) - median(series[quarter : 2 * quarter])


def format_count(value: float) -> str:
    """A count or a rate for people: 1 234, 56 789 (three digits count, the rest is noise)."""
    return f"{value:,.0f}".replace(",", " ")


def format_ms(seconds: float) -> str:
    """A duration in milliseconds, three digits."""
    milliseconds = seconds * 1000
    return f"{milliseconds:.2f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def format_mb_s(bytes_per_s: float) -> str:
    """A bandwidth in 10^6 bytes a second."""
    return f"{bytes_per_s / 1e6:.0f} MB/s"


def format_mb(size_bytes: float) -> str:
    """A size in 10^6 bytes."""
    return f"{size_bytes / 1e6:.0f} MB"


# Acknowledgements: when appends were answered: how fast they came, when none came, when the old rate was back. No I/O.

# The old rate is back in the first window of this length that has this share of it.
WINDOW_S = 1.0
SHARE = 0.9
STEP_S = 0.05


class Acknowledgements:
    """Moments in seconds of one clock, in order."""

    def __init__(self) -> None:
        self.moments = array("d")

    def add(self, moment: float) -> None:
        """Later than all before it, or at the same time."""
        self.moments.append(moment)

    def count(self, begin: float, end: float) -> int:
        return bisect_left(self.moments, end) - bisect_left(self.moments, begin)

    def rate(self, begin: float, end: float) -> float:
        return self.count(begin, end) / (end - begin)

    def rates(self, begin: float, end: float, bin_s: float) -> list[float]:
        """A second, in whole bins from `begin` on."""
        bins = int((end - begin) / bin_s + 1e-9)
        return [self.rate(begin + number * bin_s, begin + (number + 1) * bin_s) for number in range(bins)]

    def longest_pause(self, begin: float, end: float) -> tuple[float, float]:
        """The longest interval within [begin, end) without any acknowledgement: where it begins and where it ends."""
        inside = self.moments[bisect_left(self.moments, begin) : bisect_left(self.moments, end)]
        return max(pairwise((begin, *inside, end)), key=lambda pair: pair[1] - pair[0])

    def old_rate_back(self, fault: float, end: float, rate_before: float) -> float | None:
        """Where the first window after the longest pause begins that has the old rate again; None if none does."""
        _, pause_end = self.longest_pause(fault, end)
        steps = int((end - WINDOW_S - pause_end) / STEP_S + 1e-9)
        for number in range(steps + 1):
            begin = pause_end + number * STEP_S
            if self.rate(begin, begin + WINDOW_S) >= SHARE * rate_before:
                return begin
        return None
