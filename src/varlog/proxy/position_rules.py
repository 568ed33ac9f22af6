"""PURE. Positions that a request names: a range, or the start of a subscription"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from varlog.model.errors import Trimmed
from varlog.model.lsn import LSN_MAX


@dataclass(frozen=True, slots=True)
class PositionRange:
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


def clamped_range(
    begin: int | None, until: int | None, limit: int | None, trimmed: int, tail: int
) -> PositionRange:
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
    return PositionRange(first, max(first, min(ends)), tail)


def entries_that_fit(sizes: Sequence[int], taken: int, room: int) -> int:
    """How many more entries of these sizes a page takes that has `taken` bytes of `room`. An empty page takes any first one."""
    fit = bisect_right(list(accumulate(sizes, initial=taken)), room) - 1
    return max(fit, 1 if taken == 0 and sizes else 0)


# PURE. Start: where a follower begins: a position, the oldest entry, the next one that comes, or so many before the end.

OLDEST, NEXT = "oldest", "next"
# As the OpenAPI document says it. A negative number counts from the end: -10 are the last ten.
PATTERN = r"^(oldest|next|-?[1-9][0-9]{0,18})$"


@dataclass(frozen=True, slots=True)
class Start:
    """`text` is what was asked for. A position that is trimmed stays what it is: whether to go on later is not for us to decide."""

    text: str = OLDEST

    def __post_init__(self) -> None:
        if self.text not in (OLDEST, NEXT) and not -LSN_MAX <= self._number() <= LSN_MAX:
            raise ValueError(f"a position is at most {LSN_MAX}, not {self.text}")

    @classmethod
    def behind(cls, position: int) -> Start:
        """Behind the last entry that was taken."""
        return cls(str(position + 1))

    def position(self, *, oldest: int, newest: int) -> int:
        """The first position, in a topic that has these now."""
        if self.text == OLDEST:
            return oldest
        if self.text == NEXT:
            return newest + 1
        number = self._number()
        return number if number > 0 else max(oldest, newest + 1 + number)

    def _number(self) -> int:
        try:
            number = int(self.text)
        except ValueError:
            number = 0
        if number == 0:
            raise ValueError(
                f"{self.text!r} is no place to begin: name a position, {OLDEST}, {NEXT}, or -10 for the last ten"
            )
        return number
