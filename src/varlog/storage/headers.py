"""[R-ORD-7] Looks for batches by producer and sequence: walks the headers of a range of LLSNs, the newest stretch first.

There is no index by producer: a retry is rare and looks only above its floor, and every append would pay for one.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from varlog.model.batch import HEADER_BYTES, MAGIC, crc32c
from varlog.model.errors import CorruptBatch
from varlog.model.ids import ProducerID
from varlog.model.limits import KIB, MIB
from varlog.model.lsn import LLSN
from varlog.runtime.disk import File
from varlog.storage.segment import Segment

# What names a batch: who packed it, and the how-manieth of his it is.
BatchKey = tuple[ProducerID, int]

# One job of a worker walks so far: readers of the same disk do not wait longer than for this.
STRETCH_BYTES: Final = 8 * MIB
# So much is read at a time. A body that reaches further is stepped over, not read.
_WINDOW_BYTES: Final = 256 * KIB

# magic, count, first LLSN, producer, sequence, body length: those fields of a header that say what it is and where the next one is.
_FIELDS = struct.Struct("<I8xIQQQ8xI")
_CRC = struct.Struct("<I")
_CRC_AT: Final = 60


@dataclass(frozen=True, slots=True)
class HeaderStretch:
    """Batches of one segment, back to back: [offset, offset_end), the first of them at `first_llsn`; none from `limit` on."""

    segment: Segment
    offset: int
    offset_end: int
    first_llsn: LLSN
    limit: LLSN


def stretches_back(
    segments: Sequence[Segment], begin: LLSN, end: LLSN, bytes_max: int
) -> list[HeaderStretch]:
    """What holds LLSNs [begin, end), in stretches, the newest first, as far back as `bytes_max` allow. Touches memory only."""
    found: list[HeaderStretch] = []
    number = bisect_right(segments, end - 1, key=lambda segment: segment.first_llsn) - 1
    while number >= 0 and begin < end and bytes_max > 0:
        stretch = _newest_stretch(segments[number], begin, end)
        found.append(stretch)
        bytes_max -= stretch.offset_end - stretch.offset
        end = stretch.first_llsn
        if stretch.offset == 0:
            number -= 1
    return found


def _newest_stretch(segment: Segment, begin: LLSN, end: LLSN) -> HeaderStretch:
    """The last batches below `end`, back to the one with `begin` if that is near enough."""
    index = segment.index
    last = index.at_or_before(LLSN(end - 1))
    offset_end = index.offset(last + 1) if last + 1 < len(index) else segment.size
    first = index.last_within(LLSN(end - 1), max(0, offset_end - STRETCH_BYTES))
    first = max(first, index.at_or_before(begin))
    return HeaderStretch(segment, index.offset(first), offset_end, index.llsn(first), end)


def find_in(file: File, stretch: HeaderStretch, wanted: Container[BatchKey]) -> dict[BatchKey, LLSN]:
    """The first LLSN of each wanted batch in the stretch. CorruptBatch: what is there are not these batches."""
    found: dict[BatchKey, LLSN] = {}
    at, llsn = stretch.offset, int(stretch.first_llsn)
    window, base = memoryview(b""), at
    while at < stretch.offset_end and llsn < stretch.limit:
        if at + HEADER_BYTES > base + len(window):
            window, base = memoryview(file.read_at(_WINDOW_BYTES, at)), at
            if len(window) < HEADER_BYTES:
                raise CorruptBatch("the header is cut off", at, str(file.path))
        here = at - base
        magic, count, first, producer, sequence, body_bytes = _FIELDS.unpack_from(window, here)
        (crc,) = _CRC.unpack_from(window, here + _CRC_AT)
        if magic != MAGIC or first != llsn or crc != crc32c(window[here : here + _CRC_AT]):
            raise CorruptBatch(f"there is no header of LLSN {llsn}", at, str(file.path))
        if (producer, sequence) in wanted:
            found[ProducerID(producer), sequence] = LLSN(first)
        at, llsn = at + HEADER_BYTES + body_bytes, llsn + count
    return found
