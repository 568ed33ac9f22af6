"""[Q5] One file of pages: batches in the order of their arrival, numbered 1, 2, 3 … in its unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from varlog.model.lsn import LLSN
from varlog.runtime.disk import Disk
from varlog.storage.open_file import OpenFile
from varlog.storage.page_index import Page
from varlog.storage.page_sidecar import encode_pages, encode_sidecar
from varlog.storage.segment_file import INDEX_SUFFIX, SEGMENT_SUFFIX, SegmentFile

_NAME = re.compile(r"([0-9]{20})(\..*)")


def page_segment_path(directory: Path, number: int) -> Path:
    return directory / f"{number:020d}{SEGMENT_SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in a segment's or a sidecar's name; None for other files."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and match[2] in (SEGMENT_SUFFIX, INDEX_SUFFIX) else None


class PageSegment(SegmentFile):
    """Segment `number`; no page in it ends above `end_llsn`. The newest one gathers its pages' rows for the sidecar."""

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
        """A new, empty one, whose name survives a power loss."""
        path = page_segment_path(directory, number)
        segment = cls(disk, path, number, 0, LLSN(0))
        segment._open = OpenFile(disk.open(path, create=True))
        disk.sync_directory(directory)
        return segment

    def add(self, pages: Sequence[Page]) -> None:
        """These have been written and synced behind the last ones."""
        self._rows += encode_pages(pages)
        self.size += sum(page.size for page in pages)
        self.end_llsn = max(self.end_llsn, *(page.end_llsn for page in pages))

    def seal_off(self) -> None:
        """Close it for good: cut to size, index beside it, both durable."""
        self.close_off(encode_sidecar(self.number, self.size, self._rows))

    def forget_rows(self) -> None:
        """It is closed, and another one is the newest."""
        self._rows = bytearray()
