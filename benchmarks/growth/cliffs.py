"""Cliff: two neighbouring loads between which far more is lost than the load can explain. Pure: points in, cliffs out.

Doubled or quadrupled load may cost throughput, and a closed loop's latency grows with the load. A cliff is what goes beyond that:
less than half the throughput at the next step, or a latency that grows more than twice as much as the load. A rate that is a share
of something (see Sweep.shares) may fall as much as the load grows; half of that would be a cliff.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.growth.sweeps import Point, Sweep

RATE_KEPT_MIN = 0.5
JUMP_MAX = 2.0
# Shorter waits are a scheduler's business: a latency that grows from a third of a millisecond to one is no cliff.
LATENCY_S_MIN = 0.010


@dataclass(frozen=True, slots=True)
class Cliff:
    sweep: str
    figure: str
    load: int
    next_load: int
    value: float
    next_value: float

    @property
    def ratio(self) -> float:
        return self.next_value / self.value

    def __str__(self) -> str:
        return f"{self.sweep}: {self.figure} is {self.ratio:.2f} of what it was, from {self.load} to {self.next_load}"


def cliffs_of(sweep: Sweep, points: Sequence[Point]) -> list[Cliff]:
    """Every cliff between two points that were measured one after the other."""
    found = []
    for one, other in pairwise(points):
        grown = other.load / one.load
        for figure in (*sweep.rates, *sweep.shares, *sweep.latencies):
            value, after = one.figures.get(figure), other.figures.get(figure)
            if value is None or after is None or value <= 0:
                continue
            lost = figure in sweep.rates and after < value * RATE_KEPT_MIN
            lost |= figure in sweep.shares and after < value / grown * RATE_KEPT_MIN
            jumped = figure in sweep.latencies and after > max(LATENCY_S_MIN, value * grown * JUMP_MAX)
            if lost or jumped:
                found.append(Cliff(sweep.name, figure, one.load, other.load, value, after))
    return found
