"""[Q5] PageSegment: a file of batches in order of arrival, numbered 1, 2, 3 …."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from varlog.model.batch import HEADER_BYTES, JUNK, Buffer
from varlog.model.invariant import invariant
from varlog.model.lsn import LLSN
from varlog.runtime.disk import Disk
from varlog.storage.open_file import OpenFile
from varlog.storage.segment_file import INDEX_SUFFIX, SEGMENT_SUFFIX, SegmentFile
from varlog.storage.sequenced.page_index import PageRef
from varlog.storage.sequenced.sidecar import encode_pages, encode_sidecar

_NAME = re.compile(r"([0-9]{20})(\..*)")


def page_segment_path(directory: Path, number: int) -> Path:
    return directory / f"{number:020d}{SEGMENT_SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in a segment's or a sidecar's name; None for other files."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and match[2] in (SEGMENT_SUFFIX, INDEX_SUFFIX) else None


class PageSegment(SegmentFile):
    """Segment `number`; no page in it ends above `end_llsn`. The newest one collects its pages' rows for the sidecar."""

    __slots__ = ("_rows", "end_llsn", "number")

    def __init__(
        self, disk: Disk, path: Path, number: int, size: int, end_llsn: LLSN, rows: bytes = b""
    ) -> None:
        super().__init__(disk, path, size)
        self.number = number
        self.end_llsn = end_llsn
        self._rows = bytearray(rows)

    @classmethod
    def create(cls, disk: Disk, directory: Path, number: int) -> PageSegment:
        """Create an empty segment, whose name survives a power loss."""
        path = page_segment_path(directory, number)
        segment = cls(disk, path, number, 0, LLSN(0))
        segment._open = OpenFile(disk.open(path, create=True))
        disk.sync_directory(directory)
        return segment

    def add(self, pages: Sequence[PageRef]) -> None:
        """Record pages that were written and synced after the last ones."""
        self._rows += encode_pages(pages)
        self.size += sum(page.size for page in pages)
        self.end_llsn = max(self.end_llsn, *(page.end_llsn for page in pages))

    def seal_off(self) -> None:
        """Close it for good: cut to size, index beside it, both durable."""
        self.close_off(encode_sidecar(self.number, self.size, self._rows))

    def forget_rows(self) -> None:
        """Drop the rows of a closed segment: another one is the newest."""
        self._rows = bytearray()


# flags, count, first LLSN, body length, the header's own checksum: of a batch, from byte 5 on
_PAGE_HEADER = struct.Struct("<B6xIQ24xI8xI")
_PAGE_HEADER_AT: Final = 5


class PageHeader(NamedTuple):
    """The fields of a batch's header that place it."""

    first_llsn: LLSN
    end_llsn: LLSN
    size: int
    crc: int
    is_junk: bool


class PageGroup:
    """[Q5] Batches that are written at once behind the last page of a segment, and the pages that they become."""

    __slots__ = ("_headers", "buffers", "segment", "size", "tried")

    def __init__(self, segment: PageSegment) -> None:
        self.segment = segment
        self.buffers: list[Buffer] = []
        self.size = 0
        self.tried = False  # the disk may have changed
        self._headers: list[PageHeader] = []

    @property
    def end(self) -> int:
        return self.segment.size + self.size

    def add(self, buffer: Buffer, headers: Sequence[PageHeader]) -> None:
        self.buffers.append(buffer)
        self.size += len(buffer)
        self._headers += headers

    def pages(self) -> list[PageRef]:
        ends = accumulate((header.size for header in self._headers), initial=self.segment.size)
        number = self.segment.number
        return [
            PageRef(first, end - first, size, crc, number, offset, is_junk)
            for (first, end, size, crc, is_junk), offset in zip(self._headers, ends, strict=False)
        ]


def page_headers(buffer: Buffer) -> list[PageHeader]:
    """The batches in a buffer."""
    found, at, size = [], 0, len(buffer)
    while at < size:
        flags, count, first, body_bytes, crc = _PAGE_HEADER.unpack_from(buffer, at + _PAGE_HEADER_AT)
        batch_bytes = HEADER_BYTES + body_bytes
        found.append(PageHeader(first, LLSN(first + count), batch_bytes, crc, bool(flags & JUNK)))
        at += batch_bytes
    invariant(at == size and size > 0, "a buffer holds whole batches", bytes=size, batches_bytes=at)
    return found
