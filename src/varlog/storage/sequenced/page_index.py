"""[Q5] PageIndex: LLSN -> page of a log unit, and which LLSNs are written.

Pages are in blocks of arrays, 28 bytes per page: a page that arrives late moves no more than its block. One thread at a time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from varlog.model.lsn import LLSN

# A full block is split. Adding a page shifts at most this many numbers.
BLOCK_PAGES_MAX: Final = 4096
# In the count of a page, on disk and in memory: it is junk. Counts are far smaller (BATCH_ENTRIES_MAX).
JUNK_BIT: Final = 1 << 31

_COLUMNS: Final = ("firsts", "counts", "offsets", "sizes", "crcs", "segments")


class PageRef(msgspec.Struct, frozen=True, gc=False):
    """One batch on disk: entries [first_llsn, end_llsn), `size` bytes of header and body at `offset` of segment `segment`.
    `crc`: the header's own checksum, which distinguishes it from any other batch at its positions."""

    first_llsn: LLSN
    count: int
    size: int
    crc: int
    segment: int
    offset: int
    is_junk: bool = False

    @property
    def end_llsn(self) -> LLSN:
        return LLSN(self.first_llsn + self.count)


class _Block:
    """Some pages in the order of their LLSNs."""

    __slots__ = _COLUMNS

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.counts = array("I")  # with JUNK_BIT
        self.offsets = array("I")
        self.sizes = array("I")
        self.crcs = array("I")
        self.segments = array("I")

    def __len__(self) -> int:
        return len(self.firsts)

    def page(self, at: int) -> PageRef:
        count = self.counts[at]
        return PageRef(
            LLSN(self.firsts[at]),
            count & ~JUNK_BIT,
            self.sizes[at],
            self.crcs[at],
            self.segments[at],
            self.offsets[at],
            count >= JUNK_BIT,
        )

    def end(self, at: int) -> int:
        return self.firsts[at] + (self.counts[at] & ~JUNK_BIT)

    def insert(self, at: int, page: PageRef) -> None:
        self.firsts.insert(at, page.first_llsn)
        self.counts.insert(at, page.count | JUNK_BIT if page.is_junk else page.count)
        self.offsets.insert(at, page.offset)
        self.sizes.insert(at, page.size)
        self.crcs.insert(at, page.crc)
        self.segments.insert(at, page.segment)

    def cut(self, at: int) -> _Block:
        """Move the pages from `at` on to a new block."""
        rest = _Block()
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(rest, name, column[at:])
            del column[at:]
        return rest


class PageIndex:
    """The pages of one log unit. No two overlap (law 8): the caller of `add` has called `overlapping` before."""

    __slots__ = ("_blocks", "_starts")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._starts: list[int] = []  # the first LLSN of each block

    @classmethod
    def of_sorted(cls, columns: dict[str, npt.NDArray[np.unsignedinteger]]) -> PageIndex:
        """An index of whole columns (`firsts`, `counts` …), sorted by LLSN already."""
        index = cls()
        step = BLOCK_PAGES_MAX * 3 // 4
        for begin in range(0, len(columns["firsts"]), step):
            block = _Block()
            for name in _COLUMNS:
                column = getattr(block, name)
                part = columns[name][begin : begin + step]
                column.frombytes(part.astype(np.dtype(column.typecode)).tobytes())
            index._blocks.append(block)
            index._starts.append(block.firsts[0])
        return index

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    @property
    def end(self) -> LLSN:
        """One past the last LLSN that is written; 0 if none is."""
        return LLSN(self._blocks[-1].end(-1)) if self._blocks else LLSN(0)

    def add(self, page: PageRef) -> None:
        first = page.first_llsn
        if not self._blocks:
            self._blocks.append(_Block())
            self._starts.append(first)
        number = max(0, bisect_right(self._starts, first) - 1)
        block = self._blocks[number]
        at = bisect_right(block.firsts, first)
        block.insert(at, page)
        self._starts[number] = block.firsts[0]
        if len(block) > BLOCK_PAGES_MAX:
            # Pages mostly arrive in order: then the full block stays full.
            at_end = number + 1 == len(self._blocks) and at + 1 == len(block)
            rest = block.cut(BLOCK_PAGES_MAX if at_end else BLOCK_PAGES_MAX // 2)
            self._blocks.insert(number + 1, rest)
            self._starts.insert(number + 1, rest.firsts[0])

    def drop_below(self, low: LLSN) -> None:
        """Drop the pages that end at or below `low`."""
        gone = max(0, bisect_right(self._starts, low) - 1)  # they end where the next block begins, or before
        del self._blocks[:gone], self._starts[:gone]
        if not self._blocks:
            return
        block = self._blocks[0]
        at = bisect_left(block.firsts, low)
        if at and block.end(at - 1) > low:
            at -= 1
        self._blocks[0] = block.cut(at)
        if len(self._blocks[0]):
            self._starts[0] = self._blocks[0].firsts[0]
        else:
            del self._blocks[0], self._starts[0]

    def holding(self, llsn: LLSN) -> PageRef | None:
        """The page that has `llsn`."""
        number = bisect_right(self._starts, llsn) - 1
        if number < 0:
            return None
        block = self._blocks[number]
        at = bisect_right(block.firsts, llsn) - 1
        return block.page(at) if block.end(at) > llsn else None

    def overlapping(self, first: LLSN, end: LLSN) -> PageRef | None:
        """The first page that has one of [first, end)."""
        if first >= self.end:
            return None  # the common case
        page = next(self.walk(first), None)
        return page if page is not None and page.first_llsn < end else None

    def walk(self, llsn: LLSN) -> Iterator[PageRef]:
        """The pages in order, from the one that has `llsn`, or else the next, on. Nothing is added meanwhile."""
        number = max(0, bisect_right(self._starts, llsn) - 1)
        if number >= len(self._blocks):
            return
        at = max(0, bisect_right(self._blocks[number].firsts, llsn) - 1)
        if self._blocks[number].end(at) <= llsn:
            at += 1
        for block in self._blocks[number:]:
            for here in range(at, len(block)):
                yield block.page(here)
            at = 0

    def sizes_between(
        self, begin: LLSN, end: LLSN
    ) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.unsignedinteger]]:
        """(first LLSNs, sizes) of the pages that have one of [begin, end), copied."""
        firsts, sizes = b"", b""
        number = max(0, bisect_right(self._starts, begin) - 1)
        last = bisect_left(self._starts, end)
        for block in self._blocks[number:last]:
            low = max(0, bisect_right(block.firsts, begin) - 1)
            if low < len(block) and block.end(low) <= begin:
                low += 1
            high = bisect_left(block.firsts, end)
            firsts += block.firsts[low:high].tobytes()
            sizes += block.sizes[low:high].tobytes()
        return np.frombuffer(firsts, "<u8"), np.frombuffer(sizes, "<u4")


class LlsnRuns:
    """Which LLSNs of a log unit are written, as half-open runs in order: one more than there are holes. One thread at a time."""

    __slots__ = ("_begins", "_ends")

    def __init__(self, begins: Sequence[int] = (), ends: Sequence[int] = ()) -> None:
        self._begins = list(begins)
        self._ends = list(ends)

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, begin: int, end: int) -> None:
        """Add [begin, end); runs that it touches are merged with it."""
        if self._ends and begin == self._ends[-1]:  # the common case
            self._ends[-1] = end
            return
        first = bisect_left(self._ends, begin)  # those before end before it begins
        last = bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def drop_below(self, low: int) -> None:
        """Drop the runs that end at or below `low`."""
        gone = bisect_right(self._ends, low)
        del self._begins[:gone], self._ends[:gone]

    def gap_from(self, llsn: LLSN) -> LLSN:
        """The first LLSN from `llsn` on that is not written."""
        number = bisect_right(self._begins, llsn) - 1
        return LLSN(max(llsn, self._ends[number])) if number >= 0 else llsn
