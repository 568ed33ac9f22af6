"""PURE. Ranges: a bounded set of LLSNs, as sorted, separate ranges.

What is damaged, and what is to be examined.
"""

from __future__ import annotations

from varlog.model.limits import DAMAGE_RANGES_MAX
from varlog.model.lsn import LLSN

LLSNRange = tuple[LLSN, LLSN]


class Ranges:
    """When there are too many ranges, the two nearest are merged with what is between them: every range is examined before
    anything is done, so that naming too much costs time only."""

    def __init__(self, count_max: int = DAMAGE_RANGES_MAX) -> None:
        self._count_max = count_max
        self._ranges: tuple[LLSNRange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def above(self, low: LLSN) -> tuple[LLSNRange, ...]:
        """The parts at or above `low`."""
        return tuple((max(begin, low), end) for begin, end in self._ranges if end > low)

    def covers(self, begin: LLSN, end: LLSN) -> bool:
        """Whether all of [begin, end) is in it."""
        return any(low <= begin and end <= high for low, high in self._ranges)

    def touches(self, begin: LLSN, end: LLSN) -> bool:
        """Whether any of [begin, end) is in it."""
        return any(low < end and begin < high for low, high in self._ranges)

    def add(self, begin: LLSN, end: LLSN) -> None:
        """Add a range; it is merged with those that it touches."""
        if begin >= end:
            return
        apart = [known for known in self._ranges if known[1] < begin or end < known[0]]
        touched = [known for known in self._ranges if known not in apart]
        joined = (
            min([begin, *(known[0] for known in touched)]),
            max([end, *(known[1] for known in touched)]),
        )
        self._ranges = _joined(sorted([*apart, joined]), self._count_max)

    def remove(self, begin: LLSN, end: LLSN) -> None:
        """Remove [begin, end)."""
        if begin >= end:
            return
        left: list[LLSNRange] = []
        for low, high in self._ranges:
            left += [part for part in ((low, min(high, begin)), (max(low, end), high)) if part[0] < part[1]]
        self._ranges = _joined(left, self._count_max)

    def pop_first(self) -> LLSNRange | None:
        """The first range, removed."""
        if not self._ranges:
            return None
        first, self._ranges = self._ranges[0], self._ranges[1:]
        return first


def _joined(ranges: list[LLSNRange], count_max: int) -> tuple[LLSNRange, ...]:
    while len(ranges) > count_max:
        nearest = min(range(1, len(ranges)), key=lambda number: ranges[number][0] - ranges[number - 1][1])
        ranges[nearest - 1 : nearest + 1] = [(ranges[nearest - 1][0], ranges[nearest][1])]
    return tuple(ranges)
