"""Finds batches by producer, from the headers of a range of LLSNs (R-ORD-7).

The newest range first. There is no index by producer: a retry is rare and searches only above its floor, and every append would
pay for an index.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from varlog.model.batch import HEADER_BYTES, MAGIC, crc32c
from varlog.model.errors import CorruptBatch
from varlog.model.ids import ProducerID
from varlog.model.limits import KIB, MIB
from varlog.model.lsn import LLSN
from varlog.runtime.disk import File
from varlog.storage.committed.segment import Segment

# What identifies a batch: its producer, and its number in the producer's sequence.
BatchKey = tuple[ProducerID, int]

# Bytes that one job of a worker examines: this bounds the wait of other readers of the same disk.
RANGE_BYTES: Final = 8 * MIB
# Bytes read at a time. A body that extends further is skipped, not read; after a long one there is likely another.
_WINDOW_BYTES: Final = 256 * KIB
_STEP_BYTES: Final = 4 * KIB

# magic, count, first LLSN, producer, sequence, body length and checksum, own checksum: what a batch is, and where the next one is.
_FIELDS = struct.Struct("<I8xIQQQ8xI4xII")
_CRC_AT: Final = 60


class BatchPlace(NamedTuple):
    """A batch by its header: its producer, position and content."""

    producer: ProducerID
    sequence: int
    llsn: LLSN
    entries: int
    body_crc: int


@dataclass(frozen=True, slots=True)
class HeaderRange:
    """Batches of one segment, back to back: [offset, offset_end), the first of them at `first_llsn`; none from `limit` on."""

    segment: Segment
    offset: int
    offset_end: int
    first_llsn: LLSN
    limit: LLSN


def header_ranges_back(
    segments: Sequence[Segment], begin: LLSN, end: LLSN, bytes_max: int
) -> list[HeaderRange]:
    """What holds LLSNs [begin, end), in ranges, the newest first, as far back as `bytes_max` allow. Touches memory only."""
    found: list[HeaderRange] = []
    number = bisect_right(segments, end - 1, key=lambda segment: segment.first_llsn) - 1
    while number >= 0 and begin < end and bytes_max > 0:
        header_range = _newest_range(segments[number], begin, end)
        found.append(header_range)
        bytes_max -= header_range.offset_end - header_range.offset
        end = header_range.first_llsn
        if header_range.offset == 0:
            number -= 1
    return found


def _newest_range(segment: Segment, begin: LLSN, end: LLSN) -> HeaderRange:
    """The last batches below `end`, back to the one with `begin` if that is near enough."""
    index = segment.index
    last = index.at_or_before(LLSN(end - 1))
    offset_end = index.offset(last + 1) if last + 1 < len(index) else segment.size
    first = index.last_within(LLSN(end - 1), max(0, offset_end - RANGE_BYTES))
    first = max(first, index.at_or_before(begin))
    return HeaderRange(segment, index.offset(first), offset_end, index.llsn(first), end)


def find_in(file: File, header_range: HeaderRange, wanted: Container[BatchKey]) -> dict[BatchKey, LLSN]:
    """The first LLSN of each wanted batch in the range. Raises CorruptBatch if the range does not hold these batches."""
    return {place[:2]: place.llsn for place in _places(file, header_range) if place[:2] in wanted}


def of_producers(file: File, header_range: HeaderRange, producers: Container[ProducerID]) -> list[BatchPlace]:
    """The batches of these producers in the range, in order. Raises CorruptBatch if the range does not hold these batches."""
    return [place for place in _places(file, header_range) if place.producer in producers]


def _places(file: File, header_range: HeaderRange) -> Iterator[BatchPlace]:
    at, llsn = header_range.offset, int(header_range.first_llsn)
    window, base = memoryview(b""), at
    while at < header_range.offset_end and llsn < header_range.limit:
        if at + HEADER_BYTES > base + len(window):
            size = _STEP_BYTES if at - base - len(window) > _STEP_BYTES else _WINDOW_BYTES
            window, base = memoryview(file.read_at(size, at)), at
            if len(window) < HEADER_BYTES:
                raise CorruptBatch("the header is cut off", at, str(file.path))
        here = at - base
        magic, count, first, producer, sequence, body_bytes, body_crc, crc = _FIELDS.unpack_from(window, here)
        if magic != MAGIC or first != llsn or crc != crc32c(window[here : here + _CRC_AT]):
            raise CorruptBatch(f"there is no header of LLSN {llsn}", at, str(file.path))
        yield BatchPlace(producer, sequence, first, count, body_crc)
        at, llsn = at + HEADER_BYTES + body_bytes, llsn + count
