"""PURE. Positions of a request: a range, or the start of a subscription."""

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
            raise ValueError(f"a range ends at or behind its begin, and at the tail at the latest: {self}")

    @property
    def empty(self) -> bool:
        return self.begin == self.end


def clamped_range(
    begin: int | None, until: int | None, limit: int | None, trimmed: int, tail: int
) -> PositionRange:
    """The requested positions that exist: from the oldest (None) to the tail (None), at most `limit` of them. Trimmed if `begin` is
    trimmed; positions beyond the tail are left out, so that the next request can begin there."""
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


def entries_that_fit(sizes: Sequence[int], used: int, room: int) -> int:
    """How many more entries of these sizes fit on a page that has used `used` bytes of `room`. An empty page has room for any first
    one."""
    fit = bisect_right(list(accumulate(sizes, initial=used)), room) - 1
    return max(fit, 1 if used == 0 and sizes else 0)


# --- the start of a subscription ----------------------------------------------------------------------------------------

OLDEST, NEXT = "oldest", "next"
# As the OpenAPI document says it. A negative number counts from the end: -10 are the last ten.
PATTERN = r"^(oldest|next|-?[1-9][0-9]{0,18})$"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a follower begins: a position, the oldest entry, the next one to be appended, or a number of entries before the end. A
    trimmed position is kept: whether to continue later is decided elsewhere."""

    text: str = OLDEST

    def __post_init__(self) -> None:
        if self.text not in (OLDEST, NEXT) and not -LSN_MAX <= self._number() <= LSN_MAX:
            raise ValueError(f"a position is at most {LSN_MAX}, not {self.text}")

    @classmethod
    def behind(cls, position: int) -> Start:
        """Behind the last entry that was received."""
        return cls(str(position + 1))

    def position(self, *, oldest: int, newest: int) -> int:
        """The first position to read, in a topic with these ends."""
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
                f"{self.text!r} is not a valid start: name a position, {OLDEST}, {NEXT}, or -10 for the last ten"
            )
        return number
