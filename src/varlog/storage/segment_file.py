"""[A5 R6 Q5] SegmentFile: writes, syncs and scans a segment file.

It is opened when needed. Only the newest segment of a store is written to. It is reserved ahead in steps, because a sync of
reserved space is twice as fast. The steps begin small and double: a thousand small topics must not fill a disk with reserved
space.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from varlog.model.batch import HEADER_BYTES, BatchHeader, Buffer, check_body, parse_header
from varlog.model.errors import CorruptBatch
from varlog.model.limits import KIB, MIB
from varlog.model.lsn import LLSN
from varlog.runtime.disk import Disk
from varlog.storage.disk_space import DiskSpace
from varlog.storage.open_file import OpenFile, relinked, unlinked

RESERVE_FIRST_BYTES: Final = 256 * KIB
RESERVE_STEP_BYTES: Final = 8 * MIB
# One writev takes no more buffers than this (IOV_MAX of Linux).
WRITE_BUFFERS_MAX: Final = 1024
SEGMENT_SUFFIX: Final = ".seg"
INDEX_SUFFIX: Final = ".idx"


def reserved_for(end: int) -> int:
    """How far a segment that needs `end` bytes is reserved: the next power of two, and from a step on whole steps."""
    step = min(RESERVE_STEP_BYTES, max(RESERVE_FIRST_BYTES, 1 << (end - 1).bit_length()))
    return -(-end // step) * step


def index_path(segment: Path) -> Path:
    """The sidecar of a closed segment."""
    return segment.with_suffix(INDEX_SUFFIX)


# Why entries cannot be read whose file was removed by another program.
MISSING: Final = "its segment file is missing"


class SegmentFile:
    """`size` bytes of batches; it moves only after a sync."""

    __slots__ = ("_disk", "_open", "_reserved", "path", "size")

    def __init__(self, disk: Disk, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self._disk = disk
        self._open: OpenFile | None = None
        self._reserved = size

    # --- any thread --------------------------------------------------------------------------------------------------

    def opened(self) -> OpenFile | None:
        """The open file, if it is open. Keep it as long as it is used."""
        return self._open

    def open(self) -> OpenFile:
        """The open file; opened now if it was not. FileNotFoundError if a trim or a cut removed it, or another program."""
        file = self._open
        if file is None:
            file = self._open = OpenFile(self._disk.open(self.path))
        return file

    def borrow(self) -> OpenFile:
        """The open file, or one for this use alone: reading old segments must not keep them all open."""
        return self._open or OpenFile(self._disk.open(self.path))

    def release(self) -> None:
        """Close the file once its last reader is done."""
        self._open = None

    # --- worker ----------------------------------------------------------------------------------------------------------

    def reserve(self, size: int, reserve_max: int, disk_space: DiskSpace) -> None:
        """Reserve space for `size` bytes behind the last batch. OSError: there is none, and no batch was changed."""
        end = self.size + size
        if end > self._reserved:
            wanted = max(end, min(reserved_for(end), reserve_max))
            reserved = self._reserved + disk_space.grant(end - self._reserved, wanted - self._reserved)
            self.open().file.reserve(reserved)
            self._reserved = reserved

    def write(self, buffers: Sequence[Buffer], size: int, reserve_max: int, disk_space: DiskSpace) -> None:
        """[A5 Q5] Write behind the last batch and sync. The caller, which knows the batches, moves `size`."""
        self.reserve(size, reserve_max, disk_space)
        file = self.open().file
        offset = self.size
        for begin in range(0, len(buffers), WRITE_BUFFERS_MAX):
            part = buffers[begin : begin + WRITE_BUFFERS_MAX]
            file.write_at(part, offset)
            offset += sum(map(len, part))
        file.sync()

    def close_off(self, sidecar: bytes) -> None:
        """Close it for good: cut to size, index beside it, both durable."""
        file = self.open().file
        file.truncate(self.size)
        self._reserved = self.size
        file.sync()
        self._disk.replace_file(index_path(self.path), sidecar)

    def cut_excess(self) -> str:
        """Of a closed one: drop what is behind its last batch; returns a note, or ''. An older copy that was put in its place,
        and whose batches were repaired, may still have reserved space there: the next start would call that damage."""
        if not self._disk.exists(self.path):
            return ""
        opened = self.borrow()
        if opened.file.size() <= self.size:
            return ""
        opened.file.truncate(self.size)
        opened.file.sync()
        return f"{self.path} is longer than what was written to it"

    def relink(self) -> str:
        """If the file is open and was deleted or replaced, write what is known to be durable of it under its name again; returns
        a note, or ''. A file that is not open is found by its name whenever it is read."""
        opened = self._open
        fresh = relinked(self._disk, opened, self.size) if opened is not None else None
        if fresh is None:
            return ""
        self._open, self._reserved = fresh, self.size
        return unlinked(self.path)

    def truncate_unsynced(self) -> None:
        """After a failed write or sync: try to drop what is behind the last durable batch, so that no later process finds it in
        the page cache and takes it for durable."""
        with contextlib.suppress(OSError):
            self.open().file.truncate(self.size)


# RangeBytes: how many bytes a range of entries has on disk, of either ordering.


@dataclass(frozen=True, slots=True)
class RangeBytes:
    """An estimate in bytes, and `points`: (LLSN, bytes before it), increasing, inside the range, each the start of a batch."""

    bytes: int
    points: tuple[tuple[LLSN, int], ...]


# --- scan: walks the batches of a segment file and checks every checksum --------------------------------------------------------
#
# Both orderings recover with it: a replica expects LLSNs in order, a log unit accepts batches in any order.

# Bytes of a segment that are in memory at a time.
_WINDOW_BYTES: Final = 4 * MIB

# (size, offset): bytes of a file.
ReadFileAt = Callable[[int, int], Buffer]


def good_batches(
    read: ReadFileAt, file_bytes: int, first_llsn: LLSN | None
) -> Iterator[tuple[int, BatchHeader]]:
    """(offset, header) of each batch, checked whole and in LLSN order (None: any order); CorruptBatch at the first bad one."""
    for at, header, problem in all_batches(read, file_bytes, first_llsn):
        if problem is not None:
            raise problem
        yield at, header


def all_batches(
    read: ReadFileAt, file_bytes: int, first_llsn: LLSN | None
) -> Iterator[tuple[int, BatchHeader, CorruptBatch | None]]:
    """The same, with what is wrong with the body; CorruptBatch at the first bad header: what follows it cannot be found."""
    window: Buffer = b""
    base, at, llsn = 0, 0, first_llsn
    while at < file_bytes:
        if at + HEADER_BYTES > base + len(window):
            window, base = memoryview(read(_WINDOW_BYTES, at)), at
        header = parse_header(window, at - base)
        if llsn is not None and header.first_llsn != llsn:
            raise CorruptBatch(f"it begins at LLSN {header.first_llsn}, not {llsn}", at)
        if at + header.size > base + len(window):
            window, base = memoryview(read(max(_WINDOW_BYTES, header.size), at)), at
        try:
            check_body(window, header, at - base)
            problem = None
        except CorruptBatch as found:
            problem = found
        yield at, header, problem
        at += header.size
        if llsn is not None:
            llsn = header.end_llsn


def only_zeros(read: ReadFileAt, file_bytes: int, at: int) -> bool:
    """True if nothing was ever written from `at` on, which is then reserved space. The file may be shorter than `file_bytes` if
    it was cut after its size was read."""
    while at < file_bytes and (window := bytes(read(_WINDOW_BYTES, at))):
        if window.count(0) != len(window):
            return False
        at += len(window)
    return True
