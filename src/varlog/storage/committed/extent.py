"""[R6] Extent: where a replica's entries are on disk, by range and by time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from varlog.model.batch import BatchHeader, Buffer, parse_header
from varlog.model.errors import CorruptBatch
from varlog.model.invariant import invariant
from varlog.model.lsn import LLSN
from varlog.storage.committed.segment import Segment
from varlog.storage.open_file import OpenFile
from varlog.storage.segment_file import RangeBytes


@dataclass(frozen=True, slots=True)
class BatchChunk:
    """Consecutive batches with LLSNs, the first of which holds the requested one. Bodies are not checked: the reader does that."""

    data: memoryview
    first_llsn: LLSN
    end_llsn: LLSN


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the batches are. A batch begins at the first byte, and at `sure_bytes` unless that is the end."""

    segment: Segment
    offset: int
    size: int
    first_llsn: LLSN  # of the first batch in it
    llsn: LLSN  # the requested one
    limit: LLSN  # nothing at or above is committed
    bytes_max: int
    sure_bytes: int
    sure_llsn: LLSN  # of the batch at `sure_bytes`

    def chunk(self, data: Buffer) -> BatchChunk:
        """Cut what was read to whole batches. Only those near the two ends are walked: the index knows the rest."""
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
        return BatchChunk(view[begin:end], first_llsn, end_llsn)

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
    # After the last sure point there are at most two strides of small batches, or one large batch: include them if they fit, and
    # always if the requested batch is among them.
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


# --- ranges and times: found without reading entries ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a range in one segment: its bytes [begin, end); `before` bytes of the range are in older segments."""

    segment: Segment
    begin: int
    end: int
    before: int


def measure(segments: Sequence[Segment], begin: LLSN, end: LLSN, points_max: int) -> RangeBytes:
    """The size of the committed entries [begin, end) in `segments`. Reads memory only."""
    parts = list(_parts(segments, begin, end))
    total = parts[-1].before + parts[-1].end - parts[-1].begin if parts else 0
    points: list[tuple[LLSN, int]] = []
    for number in range(1, points_max + 1 if parts else 0):
        wanted = total * number // (points_max + 1)
        part = parts[bisect_right(parts, wanted, key=lambda part: part.before) - 1]
        index = part.segment.index
        point = index.last_within(LLSN(end - 1), part.begin + wanted - part.before)
        llsn, bytes_before = index.llsn(point), part.before + index.offset(point) - part.begin
        if begin < llsn < end and (not points or llsn > points[-1][0]):
            points.append((llsn, bytes_before))
    return RangeBytes(total, tuple(points))


def _parts(segments: Sequence[Segment], begin: LLSN, end: LLSN) -> Iterator[_Part]:
    before = 0
    for segment in _within(segments, begin, end):
        low, high = _offset_of(segment, begin), _offset_of(segment, end)
        yield _Part(segment, low, high, before)
        before += high - low


def _within(segments: Sequence[Segment], begin: LLSN, end: LLSN) -> Iterator[Segment]:
    """The segments that hold entries of [begin, end)."""
    first = max(0, bisect_right(segments, begin, key=_first_llsn) - 1)
    for segment in segments[first : bisect_right(segments, end - 1, key=_first_llsn)]:
        if begin < end and len(segment.index):
            yield segment


def _offset_of(segment: Segment, llsn: LLSN) -> int:
    """About where `llsn` is: between two points of the index, entries are assumed to be equally long."""
    if llsn <= segment.first_llsn:
        return 0
    if llsn >= segment.end_llsn:
        return segment.size
    index = segment.index
    point = index.at_or_before(llsn)
    last = point + 1 >= len(index)
    next_offset = segment.size if last else index.offset(point + 1)
    next_llsn = segment.end_llsn if last else index.llsn(point + 1)
    at, first = index.offset(point), index.llsn(point)
    return at + (next_offset - at) * (llsn - first) // max(1, next_llsn - first)


def find_time(
    segments: Sequence[Segment],
    begin: LLSN,
    end: LLSN,
    time_us: int,
    opened: Callable[[Segment], OpenFile],
) -> LLSN:
    """The first entry of the committed [begin, end) that was appended at or after `time_us`, or `end`. Headers are read from disk.

    By bisection over the segments, then over the points of one; the last steps batch by batch. Clocks that disagree make
    the answer as wrong as they are. CorruptBatch: a header that was looked at is bad.
    """
    within = list(_within(segments, begin, end))

    def early(segment: Segment, llsn: LLSN) -> bool:
        return segment.batch_at(max(begin, llsn), opened(segment))[1].time_us < time_us

    # The result is in the last segment that begins early, or where the next one begins.
    number = _last_of(len(within), lambda number: early(within[number], within[number].first_llsn))
    if number < 0:
        return begin if within else end
    segment, index = within[number], within[number].index
    limit, base = min(end, segment.end_llsn), index.at_or_before(max(begin, segment.first_llsn))
    points = index.at_or_before(LLSN(limit - 1)) - base + 1
    point = _last_of(points, lambda point: early(segment, index.llsn(base + point)))
    llsn = max(begin, index.llsn(base + max(0, point)))
    while llsn < limit and early(segment, llsn):
        llsn = segment.batch_at(llsn, opened(segment))[1].end_llsn
    return min(llsn, limit)


def _last_of(count: int, early: Callable[[int], bool]) -> int:
    """The index of the last of `count` that is early, -1 if none is; they are assumed to be sorted, the early ones first."""
    low, high = -1, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if early(middle) else (low, middle)
    return low


def _first_llsn(segment: Segment) -> LLSN:
    return segment.first_llsn
