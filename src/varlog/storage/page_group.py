"""[Q5] PageGroup: batches that go to a segment of pages at once, and the pages that they become there."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from varlog.model.batch import HEADER_BYTES, JUNK, Buffer
from varlog.model.invariant import invariant
from varlog.model.lsn import LLSN
from varlog.storage.page_index import Page
from varlog.storage.page_segment import PageSegment

# flags, count, first LLSN, body length, the header's own checksum: of a batch, from byte 5 on
_PLACED = struct.Struct("<B6xIQ24xI8xI")
_PLACED_AT: Final = 5


class Placed(NamedTuple):
    """What a batch says of itself."""

    first_llsn: LLSN
    end_llsn: LLSN
    size: int
    crc: int
    is_junk: bool


class PageGroup:
    """Batches to be written at once behind the last page of a segment."""

    __slots__ = ("_headers", "buffers", "segment", "size", "tried")

    def __init__(self, segment: PageSegment) -> None:
        self.segment = segment
        self.buffers: list[Buffer] = []
        self.size = 0
        self.tried = False  # what is on disk may have changed
        self._headers: list[Placed] = []

    @property
    def end(self) -> int:
        return self.segment.size + self.size

    def add(self, buffer: Buffer, headers: Sequence[Placed]) -> None:
        self.buffers.append(buffer)
        self.size += len(buffer)
        self._headers += headers

    def pages(self) -> list[Page]:
        ends = accumulate((header.size for header in self._headers), initial=self.segment.size)
        number = self.segment.number
        return [
            Page(first, end - first, size, crc, number, offset, is_junk)
            for (first, end, size, crc, is_junk), offset in zip(self._headers, ends, strict=False)
        ]


def placed_in(buffer: Buffer) -> list[Placed]:
    """The batches in a buffer."""
    found, at, size = [], 0, len(buffer)
    while at < size:
        flags, count, first, body_bytes, crc = _PLACED.unpack_from(buffer, at + _PLACED_AT)
        batch_bytes = HEADER_BYTES + body_bytes
        found.append(Placed(first, LLSN(first + count), batch_bytes, crc, bool(flags & JUNK)))
        at += batch_bytes
    invariant(at == size and size > 0, "a buffer holds whole batches", bytes=size, batches_bytes=at)
    return found
