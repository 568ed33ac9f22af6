"""[A5 R6] One append-only file of batches, named by its first LLSN: reserve, write, sync, read, cut.

Only the newest segment of a replica is written to. It is reserved ahead in steps, because a sync of reserved space is twice as
fast; a closed one is cut to its size and has its index beside it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from varlog.model.batch import HEADER_BYTES, BatchHeader, Buffer, parse_header
from varlog.model.errors import CorruptBatch
from varlog.model.invariant import invariant
from varlog.model.limits import MIB
from varlog.model.lsn import LLSN
from varlog.runtime.disk import Disk
from varlog.storage.index import SparseIndex
from varlog.storage.open_file import OpenFile
from varlog.storage.room import Room

RESERVE_STEP_BYTES: Final = 8 * MIB
# One writev takes no more buffers than this (IOV_MAX of Linux).
WRITE_BUFFERS_MAX: Final = 1024
SEGMENT_SUFFIX: Final = ".seg"
INDEX_SUFFIX: Final = ".idx"

_NAME = re.compile(r"[0-9]{20}")


def segment_path(directory: Path, first_llsn: LLSN) -> Path:
    return directory / f"{first_llsn:020d}{SEGMENT_SUFFIX}"


def index_path(segment: Path) -> Path:
    return segment.with_suffix(INDEX_SUFFIX)


def first_llsn_of(name: str) -> LLSN | None:
    """The LLSN in a segment's or a sidecar's name; None for other files."""
    stem, _, suffix = name.partition(".")
    return (
        LLSN(int(stem)) if _NAME.fullmatch(stem) and f".{suffix}" in (SEGMENT_SUFFIX, INDEX_SUFFIX) else None
    )


class Segment:
    """Entries [first_llsn, end_llsn) in `size` bytes. `size` and `end_llsn` move only after a sync."""

    __slots__ = ("_disk", "_open", "_reserved", "end_llsn", "first_llsn", "index", "path", "size")

    def __init__(self, disk: Disk, path: Path, index: SparseIndex, size: int, end_llsn: LLSN) -> None:
        self.path = path
        self.first_llsn = index.first_llsn
        self.index = index
        self.size = size
        self.end_llsn = end_llsn
        self._disk = disk
        self._open: OpenFile | None = None
        self._reserved = size

    @classmethod
    def create(cls, disk: Disk, directory: Path, first_llsn: LLSN) -> Segment:
        """A new, empty one, whose name survives a power loss."""
        path = segment_path(directory, first_llsn)
        segment = cls(disk, path, SparseIndex(first_llsn), 0, first_llsn)
        segment._open = OpenFile(disk.open(path, create=True))
        disk.sync_directory(directory)
        return segment

    # --- any thread --------------------------------------------------------------------------------------------------

    def opened(self) -> OpenFile | None:
        """The open file, if it is open. Keep it as long as it is used."""
        return self._open

    def open(self) -> OpenFile:
        """The open file; opened now if it was not. FileNotFoundError if a trim or a cut removed it."""
        file = self._open
        if file is None:
            file = self._open = OpenFile(self._disk.open(self.path))
        return file

    def borrow(self) -> OpenFile:
        """The open file, or one for this use alone: looking through old segments must not keep them all open."""
        return self._open or OpenFile(self._disk.open(self.path))

    def let_go(self) -> None:
        """Close the file once nobody reads it any more."""
        self._open = None

    def batch_at(self, llsn: LLSN, opened: OpenFile | None = None) -> tuple[int, BatchHeader]:
        """(offset, header) of the batch that holds `llsn`, read from disk; CorruptBatch if what is there is something else."""
        point = self.index.at_or_before(llsn)
        at, expected = self.index.offset(point), self.index.llsn(point)
        header = self._header(at, expected, opened)
        while header.end_llsn <= llsn:
            at, expected = at + header.size, header.end_llsn
            header = self._header(at, expected, opened)
        return at, header

    def start_of(self, llsn: LLSN) -> int:
        """Where the batch begins whose first entry is `llsn`, or the next one will. Only those before it are looked at."""
        if llsn == self.first_llsn:
            return 0
        point = self.index.at_or_before(llsn)
        at, expected = self.index.offset(point), self.index.llsn(point)
        while expected < llsn:
            header = self._header(at, expected)
            at, expected = at + header.size, header.end_llsn
        invariant(expected == llsn, "a cut never divides a batch (R-ORD-5)", end=llsn, batch_end=expected)
        return at

    def _header(self, at: int, llsn: LLSN, opened: OpenFile | None = None) -> BatchHeader:
        opened = opened or self.open()
        try:
            header = parse_header(opened.file.read_at(HEADER_BYTES, at))
        except CorruptBatch as problem:
            raise CorruptBatch(problem.what, at, str(self.path)) from None
        if header.first_llsn != llsn:
            raise CorruptBatch(f"it begins at LLSN {header.first_llsn}, not {llsn}", at, str(self.path))
        return header

    # --- worker ----------------------------------------------------------------------------------------------------------

    def write(self, buffers: Sequence[Buffer], size: int, reserve_max: int, room: Room) -> None:
        """Write behind the last batch and sync. `size` and `end_llsn` are moved by the caller, who knows the batches."""
        file = self.open().file
        end = self.size + size
        if end > self._reserved:
            steps = -(-end // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES
            wanted = max(end, min(steps, reserve_max))
            self._reserved += room.take(end - self._reserved, wanted - self._reserved)
            file.reserve(self._reserved)
        offset = self.size
        for begin in range(0, len(buffers), WRITE_BUFFERS_MAX):
            part = buffers[begin : begin + WRITE_BUFFERS_MAX]
            file.write_at(part, offset)
            offset += sum(map(len, part))
        file.sync()

    def seal_off(self) -> None:
        """Close it for good: cut to size, index beside it, both durable."""
        file = self.open().file
        file.truncate(self.size)
        file.sync()
        self._disk.replace_file(index_path(self.path), self.index.encode(self.end_llsn, self.size))

    def cut_at(self, end: LLSN, offset: int) -> Segment:
        """This segment without its batches from `end` on, which is at `offset`, durably. A reader may go on with the old one
        below `end`."""
        file = self.open()
        file.file.truncate(offset)
        file.file.sync()
        kept = Segment(self._disk, self.path, self.index.below(offset), offset, end)
        kept._open = file
        return kept

    def discard_doubtful(self) -> None:
        """After a failed write or sync: try to drop what is behind the last sure batch, so that no later process finds it in
        the page cache and believes it to be on the disk."""
        with contextlib.suppress(OSError):
            self.open().file.truncate(self.size)
