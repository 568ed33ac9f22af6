"""PURE. Selection: what of a read is left by its filters: topics, log streams, positions and times, all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

# Half-open. Time is in microseconds since 1970.
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows with one of these topics and log streams, a position in one of these intervals, and a time in this one; None: any.
    `empty`: no row at all."""

    topics: frozenset[str] | None = None
    log_streams: frozenset[int] | None = None
    positions: tuple[Interval, ...] | None = None
    time: Interval | None = None
    empty: bool = False

    def and_(self, other: Selection) -> Selection:
        """Rows that both let through."""
        return Selection(
            _both(self.topics, other.topics),
            _both(self.log_streams, other.log_streams),
            _common(self.positions, other.positions),
            _overlap(self.time, other.time),
            self.empty or other.empty,
        )

    def within(self, begin: int, end: int) -> list[Interval]:
        """Which positions of [begin, end) are left, in order."""
        found = _common(self.positions, ((begin, end),)) or ()
        return [] if self.empty else [(low, high) for low, high in found if low < high]


def _both(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _overlap(one: Interval | None, other: Interval | None) -> Interval | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one[0], other[0]), min(one[1], other[1])


def _common(one: Sequence[Interval] | None, other: Sequence[Interval] | None) -> tuple[Interval, ...] | None:
    """Intervals are in order and apart, in each of the two and in what they have in common."""
    if one is None or other is None:
        rest = other if one is None else one
        return None if rest is None else tuple(rest)
    pairs = [(max(a[0], b[0]), min(a[1], b[1])) for a in one for b in other]
    return tuple(sorted(pair for pair in pairs if pair[0] < pair[1]))
