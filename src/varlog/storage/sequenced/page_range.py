"""[Q5] Where pages of a log unit are on disk, by range and by time.

Stretches that are read at once, the bytes of a range and points in it, the position of a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from varlog.model.batch import BatchHeader, Buffer, check_body, parse_header
from varlog.model.errors import CorruptBatch
from varlog.model.lsn import LLSN
from varlog.storage.segment_file import RangeBytes
from varlog.storage.sequenced.page_index import PageRef


class PageRange(NamedTuple):
    """Bytes of a segment that begin with `first`, and the pages in them."""

    first: PageRef
    size: int
    pages: Sequence[PageRef] = ()


def stretches(pages: Sequence[PageRef]) -> list[PageRange]:
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
    """The parts back to back, without a copy where there is one."""
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
