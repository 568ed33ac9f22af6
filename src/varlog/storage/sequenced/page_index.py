"""[Q5] PageIndex: where the pages of a log unit are, by LLSN, range and time.

Pages are in blocks of arrays, 28 bytes per page: a page that arrives late moves no more than its block. One thread at a time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from varlog.model.batch import BatchHeader, Buffer, check_body, parse_header
from varlog.model.errors import CorruptBatch
from varlog.model.lsn import LLSN
from varlog.storage.segment_file import RangeBytes

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
        """Yields the pages in order, from the one that has `llsn`, or the next one. Nothing may be added meanwhile."""
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


# --- pages on disk, by range and by time ----------------------------------------------------------------------------------------


class PageRange(NamedTuple):
    """Bytes of a segment that begin with `first`, and the pages in them."""

    first: PageRef
    size: int
    pages: Sequence[PageRef] = ()


def page_ranges(pages: Sequence[PageRef]) -> list[PageRange]:
    """The pages in as few reads as possible: those that are adjacent, in this order, are one."""
    found: list[PageRange] = []
    begin, size = 0, 0
    for at, page in enumerate(pages):
        first = pages[begin]
        if at and (page.segment != first.segment or page.offset != first.offset + size):
            found.append(PageRange(first, size, pages[begin:at]))
            begin, size = at, 0
        size += page.size
    if pages:
        found.append(PageRange(pages[begin], size, pages[begin:]))
    return found


def joined(parts: Sequence[Buffer]) -> Buffer:
    """The parts concatenated, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_page_header(page: PageRef, data: Buffer, at: int, path: str) -> BatchHeader:
    """The header at `at`, which must be this page's; CorruptBatch says what is wrong, and where in the segment."""
    try:
        header = parse_header(data, at)
    except CorruptBatch as problem:
        raise CorruptBatch(problem.what, page.offset, path) from None
    if (header.first_llsn, header.count, header.crc) != (page.first_llsn, page.count, page.crc):
        raise CorruptBatch(f"it is not the batch at LLSN {page.first_llsn}", page.offset, path)
    return header


def check_pages(pages: Sequence[PageRef], data: Buffer, path: str) -> None:
    """Check that `data` is these pages, back to back and whole."""
    at = 0
    for page in pages:
        try:
            check_body(data, check_page_header(page, data, at, path), at)
        except CorruptBatch as problem:
            raise CorruptBatch(problem.what, page.offset, path) from None
        at += page.size


def measure_pages(
    firsts: npt.NDArray[np.unsignedinteger],
    sizes: npt.NDArray[np.unsignedinteger],
    begin: LLSN,
    end: LLSN,
    points_max: int,
) -> RangeBytes:
    """Bytes of these pages of [begin, end), and points at about equal distances."""
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
    total = int(before[-1])
    if not total:
        return RangeBytes(0, ())
    wanted = total * np.arange(1, points_max + 1, dtype=np.int64) // (points_max + 1)
    numbers = np.unique(np.searchsorted(before, wanted, side="right") - 1)
    points = [(LLSN(int(firsts[number])), int(before[number])) for number in numbers]
    return RangeBytes(total, tuple(point for point in points if begin < point[0] < end))


def find_page_time(
    low: LLSN,
    end: LLSN,
    time_us: int,
    data_from: Callable[[LLSN], PageRef | None],
    time_of: Callable[[PageRef], int],
) -> LLSN:
    """The first LLSN of [low, end) whose entry was appended at or after `time_us`, or `end`; by bisection over the LLSNs.

    `data_from`: the page holding an LLSN, or the next one; no junk, which has no time. Clocks that disagree make the answer as
    wrong as they are.
    """
    begin, limit, found = low, end, end
    while begin < limit:
        middle = LLSN((begin + limit) // 2)
        page = data_from(middle)
        if page is None or page.first_llsn >= limit:
            limit = middle
        elif time_of(page) < time_us:
            begin = page.end_llsn
        else:
            found = max(low, page.first_llsn)
            limit = min(middle, found)
    return found
