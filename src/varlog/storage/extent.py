"""[R6] Extent: the bytes to read for a fetch, found in memory. Chunk: the whole, committed batches that were in them."""

from __future__ import annotations

from dataclasses import dataclass

from varlog.model.batch import BatchHeader, Buffer, parse_header
from varlog.model.errors import CorruptBatch
from varlog.model.invariant import invariant
from varlog.model.lsn import LLSN
from varlog.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class Chunk:
    """Placed batches back to back, the first of them holding the LLSN asked for. Bodies are not checked: the reader does."""

    data: memoryview
    first_llsn: LLSN
    end_llsn: LLSN


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the batches are. The first byte is a batch's, and so is the byte at `sure_bytes`, unless that is the end."""

    segment: Segment
    offset: int
    size: int
    first_llsn: LLSN  # of the first batch in it
    llsn: LLSN  # asked for
    limit: LLSN  # nothing at or above is committed
    bytes_max: int
    sure_bytes: int
    sure_llsn: LLSN  # of the batch at `sure_bytes`

    def chunk(self, data: Buffer) -> Chunk:
        """Cut what was read to whole batches. Only those near the two ends are walked: the index vouches for the rest."""
        view = memoryview(data)
        begin, first_llsn = 0, self.first_llsn
        header = self._header(view, begin, first_llsn)
        while header.end_llsn <= self.llsn:
            begin, first_llsn = begin + header.size, header.end_llsn
            header = self._header(view, begin, first_llsn)
        end, end_llsn = begin + header.size, header.end_llsn
        if end > len(view):
            raise self._corrupt("the body is cut off", begin)
        invariant(end_llsn <= self.limit, "a batch is ordered whole or not at all (R-ORD-5)",
                  batch_end=end_llsn, committed_end=self.limit)  # fmt: skip
        if end < self.sure_bytes <= len(view):
            end, end_llsn = self.sure_bytes, self.sure_llsn
        while end < len(view) and end_llsn < self.limit:
            header = self._header(view, end, end_llsn)
            if header.end_llsn > self.limit or end + header.size > min(len(view), begin + self.bytes_max):
                break
            end, end_llsn = end + header.size, header.end_llsn
        return Chunk(view[begin:end], first_llsn, end_llsn)

    def _header(self, view: memoryview, at: int, llsn: LLSN) -> BatchHeader:
        try:
            header = parse_header(view, at)
        except CorruptBatch as problem:
            raise self._corrupt(problem.what, at) from None
        if header.first_llsn != llsn:
            raise self._corrupt(f"it begins at LLSN {header.first_llsn}, not {llsn}", at)
        return header

    def _corrupt(self, what: str, at: int) -> CorruptBatch:
        return CorruptBatch(what, self.offset + at, str(self.segment.path))


def find_extent(segment: Segment, llsn: LLSN, limit: LLSN, bytes_max: int) -> Extent:
    """The extent of a fetch from `llsn` on, in the segment that holds it. Touches memory only."""
    index = segment.index
    point = index.at_or_before(llsn)
    offset = index.offset(point)
    sure = max(point, index.last_within(limit, offset + bytes_max))
    sure_offset = index.offset(sure)
    # Behind the last sure point come at most two strides of small batches, or one large batch: take them if they fit, and in
    # any case if the batch asked for is among them.
    end = index.offset(sure + 1) if sure + 1 < len(index) else segment.size
    if sure > point and end - offset > bytes_max:
        end = sure_offset
    return Extent(
        segment,
        offset,
        end - offset,
        index.llsn(point),
        llsn,
        limit,
        bytes_max,
        sure_offset - offset,
        index.llsn(sure),
    )
