"""[Q5] LlsnRuns: which LLSNs of a log unit are written, as runs without a gap: as many as there are holes, and one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from varlog.model.lsn import LLSN


class LlsnRuns:
    """Half-open runs, rising, with a gap between each two. One thread at a time."""

    __slots__ = ("_begins", "_ends")

    def __init__(self, begins: Sequence[int] = (), ends: Sequence[int] = ()) -> None:
        self._begins = list(begins)
        self._ends = list(ends)

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, begin: int, end: int) -> None:
        """Take in [begin, end); runs that it touches become one with it."""
        if self._ends and begin == self._ends[-1]:  # most come in order
            self._ends[-1] = end
            return
        first = bisect_left(self._ends, begin)  # those before end before it begins
        last = bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def drop_below(self, low: int) -> None:
        """Forget the runs that end at or below `low`."""
        gone = bisect_right(self._ends, low)
        del self._begins[:gone], self._ends[:gone]

    def gap_from(self, llsn: LLSN) -> LLSN:
        """The first LLSN from `llsn` on that is not written."""
        number = bisect_right(self._begins, llsn) - 1
        return LLSN(max(llsn, self._ends[number])) if number >= 0 else llsn
