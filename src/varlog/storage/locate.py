"""[R6] Where entries of a replica lie, without reading them: the bytes of a range and points in it; the place of a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from varlog.model.lsn import LLSN
from varlog.storage.open_file import OpenFile
from varlog.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class Measured:
    """About so many bytes, and (LLSN, bytes before it), rising, strictly inside the range. Each LLSN begins a batch."""

    bytes: int
    points: tuple[tuple[LLSN, int], ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one segment has of a range: its bytes [begin, end), `before` bytes of the range lie in older segments."""

    segment: Segment
    begin: int
    end: int
    before: int


def measure(segments: Sequence[Segment], begin: LLSN, end: LLSN, points_max: int) -> Measured:
    """How the committed entries [begin, end) lie in `segments`. Touches memory only."""
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
    return Measured(total, tuple(points))


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
    """About where `llsn` lies: between two points of the index entries are taken to be equally long."""
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

    # The place is in the last segment that begins early, or where the next one begins.
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
    """The last of `count` that is early, -1 if there is none; taken to be sorted, the early ones first."""
    low, high = -1, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if early(middle) else (low, middle)
    return low


def _first_llsn(segment: Segment) -> LLSN:
    return segment.first_llsn
