"""Acknowledgements: when appends were answered: how fast they came, when none came, when the old rate was back. No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import pairwise

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
        """The longest stretch within [begin, end) without any acknowledgement: where it begins and where it ends."""
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
