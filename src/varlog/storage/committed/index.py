"""[R6] SparseIndex: LLSN -> offset in a segment.

It has a point at least every INDEX_STRIDE_BYTES; a closed segment has it in a sidecar. A point is the start of a batch. Between
two points is either one batch, or several small ones that together are shorter than two strides: a read scans no further than
that for its batch. The sidecar can always be rebuilt from the segment.

offset  size  field of the sidecar (little endian)
     0     4  magic "VLX1"
     4     2  format version
     6     2  reserved, zero
     8     8  first LLSN of the segment
    16     8  end LLSN: one past its last entry
    24     8  bytes of the segment
    32     4  count of points
    36     4  CRC32C of bytes 0 to 35 and of the points
    40     -  points: uint32 LLSNs, counted from the first LLSN, then as many uint32 offsets
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from varlog.model.batch import crc32c
from varlog.model.limits import INDEX_STRIDE_BYTES
from varlog.model.lsn import LLSN

_FORMAT_VERSION: Final = 1

_MAGIC: Final = b"VLX1"
_HEADER = struct.Struct("<4sHHQQQI")
_CRC = struct.Struct("<I")
_POINTS_AT: Final = _HEADER.size + _CRC.size


class SparseIndex:
    """The points of one segment, in order. One thread adds; others may search at the same time (see `add`)."""

    __slots__ = ("_llsns", "_offsets", "first_llsn")

    def __init__(self, first_llsn: LLSN) -> None:
        self.first_llsn = first_llsn
        self._llsns = array("I")
        self._offsets = array("I")

    def __len__(self) -> int:
        return len(self._llsns)

    def add(self, llsn: LLSN, offset: int, size: int) -> None:
        """Add the batch of `size` bytes at `offset`; it becomes a point if one is due."""
        offsets = self._offsets
        if not offsets or size >= INDEX_STRIDE_BYTES or offset - offsets[-1] >= INDEX_STRIDE_BYTES:
            # The offset first: a thread that sees a point's LLSN also finds its offset.
            offsets.append(offset)
            self._llsns.append(llsn - self.first_llsn)

    def at_or_before(self, llsn: LLSN) -> int:
        """The number of the last point whose LLSN is not above `llsn`; -1 if there is none."""
        return bisect_right(self._llsns, llsn - self.first_llsn) - 1

    def last_within(self, llsn_end: LLSN, offset_end: int) -> int:
        """The number of the last point whose LLSN is at most `llsn_end` and whose offset is at most `offset_end`; or -1."""
        return (
            bisect_right(self._offsets, offset_end, hi=bisect_right(self._llsns, llsn_end - self.first_llsn))
            - 1
        )

    def offset(self, point: int) -> int:
        return self._offsets[point]

    def llsn(self, point: int) -> LLSN:
        return LLSN(self.first_llsn + self._llsns[point])

    def below(self, offset_end: int) -> SparseIndex:
        """A copy with the points before `offset_end` alone."""
        copy = SparseIndex(self.first_llsn)
        count = bisect_left(self._offsets, offset_end)
        copy._offsets = self._offsets[:count]
        copy._llsns = self._llsns[:count]
        return copy

    def encode(self, end_llsn: LLSN, segment_bytes: int) -> bytes:
        """The sidecar of a segment that was closed at `end_llsn` and `segment_bytes`."""
        head = _HEADER.pack(
            _MAGIC, _FORMAT_VERSION, 0, self.first_llsn, end_llsn, segment_bytes, len(self._llsns)
        )
        points = self._llsns.tobytes() + self._offsets.tobytes()
        return head + _CRC.pack(crc32c(head + points)) + points


def decode_index(content: bytes, first_llsn: LLSN, end_llsn: LLSN, segment_bytes: int) -> SparseIndex | None:
    """The index in a sidecar, or None if it is damaged or not of the segment as it is: then it must be rebuilt."""
    if len(content) < _POINTS_AT:
        return None
    head, points = content[: _HEADER.size], content[_POINTS_AT:]
    magic, version, reserved, first, end, size, count = _HEADER.unpack(head)
    (crc,) = _CRC.unpack_from(content, _HEADER.size)
    if (magic, version, reserved, first, end, size) != (
        _MAGIC,
        _FORMAT_VERSION,
        0,
        first_llsn,
        end_llsn,
        segment_bytes,
    ):
        return None
    if len(points) != 8 * count or crc != crc32c(head + points):
        return None
    index = SparseIndex(first_llsn)
    index._llsns.frombytes(points[: 4 * count])
    index._offsets.frombytes(points[4 * count :])
    return index
