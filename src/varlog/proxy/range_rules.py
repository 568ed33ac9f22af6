"""PURE. Which positions an answer about a range covers, and how many entries of it fit on a page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from varlog.model.errors import Trimmed


@dataclass(frozen=True, slots=True)
class Span:
    """Positions [begin, end) of a log whose newest position was `tail`; all of them are written."""

    begin: int
    end: int
    tail: int

    def __post_init__(self) -> None:
        if not self.begin <= self.end or (self.end > self.begin and self.end > self.tail + 1):
            raise ValueError(f"a range ends behind its beginning and at the tail at the latest: {self}")

    @property
    def empty(self) -> bool:
        return self.begin == self.end


def span(begin: int | None, until: int | None, limit: int | None, trimmed: int, tail: int) -> Span:
    """What is asked for and is there: from the oldest (None) to the tail (None), `limit` positions at most. Trimmed if its
    beginning is gone; what is beyond the tail is left out, so that the next question can begin there."""
    oldest = trimmed + 1
    first = oldest if begin is None else begin
    if first < oldest:
        raise Trimmed(first, oldest)
    ends = [tail + 1]
    if until is not None:
        ends.append(until)
    if limit is not None:
        ends.append(first + limit)
    return Span(first, max(first, min(ends)), tail)


def fitting(sizes: Sequence[int], taken: int, room: int) -> int:
    """How many more entries of these sizes a page takes that has `taken` bytes of `room`. An empty page takes any first one."""
    fit = bisect_right(list(accumulate(sizes, initial=taken)), room) - 1
    return max(fit, 1 if taken == 0 and sizes else 0)
