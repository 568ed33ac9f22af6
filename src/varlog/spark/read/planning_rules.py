"""PURE. ReadPiece: how a batch read is cut into tasks of about equal bytes.

A range may be cut anywhere; where a batch begins costs nothing, elsewhere both neighbours fetch the batch in between.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

MIB = 1 << 20
# A much smaller task is not worth its start, and a much larger one keeps the other cores waiting at the end.
PIECE_BYTES_MIN = 4 * MIB
PIECE_BYTES_MAX = 64 * MIB
# In between, a read is cut into about this many tasks: enough for the cores of a small machine, and for their different speeds.
PIECES = 8
# Within a piece, fetches of about this size can be in flight at once.
FETCH_BYTES = 2 * MIB

# Where a fetch begins, and about how many bytes there are up to the next one.
FetchPoint = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MeasuredRange:
    """LLSNs [begin, end) of a log stream, about `bytes` of them; `points` are (LLSN, bytes before it): batches begin there."""

    topic: str
    log_stream: int
    begin: int
    end: int
    bytes: int
    points: tuple[tuple[int, int], ...] = ()

    @property
    def records(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """What one task reads: LLSNs [begin, end) of a log stream. `cuts`: how it may be fetched, each with its bytes, about."""

    topic: str
    log_stream: int
    begin: int
    end: int
    cuts: tuple[FetchPoint, ...] = ()


def read_pieces(
    ranges: Sequence[MeasuredRange], *, partitions_min: int = 0, records_max: int = 0
) -> list[ReadPiece]:
    """All of `ranges`, cut: into `partitions_min` pieces or more, if there are enough entries, and none with more than
    `records_max` of them (0: any number)."""
    ranges = [found for found in ranges if found.records > 0]
    found: list[ReadPiece] = []
    for measured, count in zip(ranges, _counts(ranges, partitions_min), strict=True):
        for begin, end in pairwise([measured.begin, *_cuts(measured, count), measured.end]):
            found += [
                ReadPiece(measured.topic, measured.log_stream, low, high, fetches(measured, low, high))
                for low, high in _at_most(begin, end, records_max)
            ]
    return found


def _counts(ranges: Sequence[MeasuredRange], partitions_min: int) -> list[int]:
    """Into how many pieces each range is cut: the longest pieces first, until there are enough."""
    total = sum(found.bytes for found in ranges)
    piece_bytes = min(PIECE_BYTES_MAX, max(PIECE_BYTES_MIN, total // PIECES))
    counts = [min(found.records, max(1, round(found.bytes / piece_bytes))) for found in ranges]
    longest = [
        (-found.bytes / count, number)
        for number, (found, count) in enumerate(zip(ranges, counts, strict=True))
        if count < found.records
    ]
    heapq.heapify(longest)
    missing = partitions_min - sum(counts)
    while missing > 0 and longest:
        _, number = longest[0]
        counts[number] += 1
        missing -= 1
        if counts[number] < ranges[number].records:
            heapq.heapreplace(longest, (-ranges[number].bytes / counts[number], number))
        else:
            heapq.heappop(longest)
    return counts


def _cuts(measured: MeasuredRange, count: int) -> list[int]:
    """`count` - 1 LLSNs inside the range that cut its bytes into about equal parts, at points where some are near."""
    places = [(measured.begin, 0), *measured.points, (measured.end, max(measured.bytes, 1))]
    before = [place[1] for place in places]
    cuts: list[int] = []
    for number in range(1, count):
        wanted = measured.bytes * number // count
        at = min(max(1, bisect_left(before, wanted)), len(places) - 1)
        near = min(places[at - 1], places[at], key=lambda place: abs(place[1] - wanted))
        llsn = near[0]
        if abs(near[1] - wanted) > measured.bytes / count / 4 or not measured.begin < llsn < measured.end:
            llsn = _between(places[at - 1], places[at], wanted)
        # Each piece has an entry, whatever was measured.
        least = (cuts[-1] if cuts else measured.begin) + 1
        cuts.append(min(max(llsn, least), measured.end - (count - number)))
    return cuts


def _between(low: tuple[int, int], high: tuple[int, int], wanted: int) -> int:
    """The LLSN `wanted` bytes into the range, between two places that are known: entries are assumed to be equally long there."""
    share = (wanted - low[1]) / max(1, high[1] - low[1])
    return low[0] + round((high[0] - low[0]) * min(1.0, max(0.0, share)))


def _at_most(begin: int, end: int, records_max: int) -> Iterator[tuple[int, int]]:
    """[begin, end) in equal parts of `records_max` at most."""
    parts = -(-(end - begin) // records_max) if records_max else 1
    bounds = [begin + (end - begin) * number // parts for number in range(parts + 1)]
    return pairwise(bounds)


def fetches(measured: MeasuredRange, begin: int, end: int) -> tuple[FetchPoint, ...]:
    """Points of a piece that are about one fetch apart, from its begin on, each with the bytes up to the next."""
    first, stop = (bisect_left(measured.points, (llsn, 0)) for llsn in (begin + 1, end))
    inside = measured.points[first:stop]
    places = [(begin, _bytes_before(measured, begin)), *inside, (end, _bytes_before(measured, end))]
    kept = [places[0]]
    for place in places[1:-1]:
        if place[1] - kept[-1][1] >= FETCH_BYTES:
            kept.append(place)
    return tuple((low[0], max(1, high[1] - low[1])) for low, high in pairwise([*kept, places[-1]]))


def _bytes_before(measured: MeasuredRange, llsn: int) -> int:
    """About how many bytes of the range lie before `llsn`."""
    places = [(measured.begin, 0), *measured.points, (measured.end, measured.bytes)]
    at = min(max(1, bisect_left(places, (llsn, 0))), len(places) - 1)
    low, high = places[at - 1], places[at]
    share = (llsn - low[0]) / max(1, high[0] - low[0])
    return low[1] + round((high[1] - low[1]) * share)
