"""[A5 R6] Segment: one append-only file of batches, named by its first LLSN.

Only the newest segment of a replica is written to; a closed one is cut to its size and has its index beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from varlog.model.batch import HEADER_BYTES, BatchHeader, parse_header
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch
from varlog.model.invariant import invariant
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.runtime.disk import Disk
from varlog.storage.committed.index import SparseIndex
from varlog.storage.open_file import OpenFile
from varlog.storage.segment_file import (
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    ReadFileAt,
    SegmentFile,
    all_batches,
    index_path,
    only_zeros,
)

__all__ = ["SEGMENT_SUFFIX", "Segment", "first_llsn_of", "index_path", "segment_path"]

_NAME = re.compile(r"[0-9]{20}")


def segment_path(directory: Path, first_llsn: LLSN) -> Path:
    return directory / f"{first_llsn:020d}{SEGMENT_SUFFIX}"


def first_llsn_of(name: str) -> LLSN | None:
    """The LLSN in a segment's or a sidecar's name; None for other files."""
    stem, _, suffix = name.partition(".")
    return (
        LLSN(int(stem)) if _NAME.fullmatch(stem) and f".{suffix}" in (SEGMENT_SUFFIX, INDEX_SUFFIX) else None
    )


class Segment(SegmentFile):
    """Entries [first_llsn, end_llsn) in `size` bytes. `size` and `end_llsn` move only after a sync."""

    __slots__ = ("end_llsn", "first_llsn", "index")

    def __init__(self, disk: Disk, path: Path, index: SparseIndex, size: int, end_llsn: LLSN) -> None:
        super().__init__(disk, path, size)
        self.first_llsn = index.first_llsn
        self.index = index
        self.end_llsn = end_llsn

    @classmethod
    def create(cls, disk: Disk, directory: Path, first_llsn: LLSN) -> Segment:
        """Create an empty segment, whose name survives a power loss."""
        path = segment_path(directory, first_llsn)
        segment = cls(disk, path, SparseIndex(first_llsn), 0, first_llsn)
        segment._open = OpenFile(disk.open(path, create=True))
        disk.sync_directory(directory)
        return segment

    # --- any thread --------------------------------------------------------------------------------------------------

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
        """The offset of the batch whose first entry is `llsn`, or of the next one to be written. Reads only the batches before
        it."""
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

    def seal_off(self) -> None:
        """Close it for good: cut to size, index beside it, both durable."""
        self.close_off(self.index.encode(self.end_llsn, self.size))

    def cut_at(self, end: LLSN, offset: int) -> Segment:
        """This segment without its batches from `end` on, which is at `offset`, durably. A reader may continue to use the old
        object below `end`."""
        file = self.open()
        file.file.truncate(offset)
        file.file.sync()
        kept = Segment(self._disk, self.path, self.index.below(offset), offset, end)
        kept._open = file
        return kept


# --- scan: where the good batches of a segment end, and why ---------------------------------------------------------------------
#
# A batch that a seal has cut ends the scan as well (law 6). The checks that both orderings share are in storage/segment_file.


@dataclass(frozen=True, slots=True)
class Fence:
    """Epoch and sealed end of the newest seal: what an older epoch wrote at or above the sealed end is not in the log (law 6)."""

    epoch: Epoch
    sealed_end: LLSN

    def cuts(self, header: BatchHeader) -> bool:
        return header.epoch < self.epoch and header.end_llsn > self.sealed_end


@dataclass(slots=True)
class Scan:
    """The good batches of a segment, and what comes behind them."""

    index: SparseIndex
    end_llsn: LLSN
    size: int = 0
    batches: int = 0
    problem: str = ""  # why the next bytes are no batch; empty where the file ends or only zeros follow
    fenced: bool = False  # the next bytes are a batch that a seal has cut
    corrupt_ranges: list[tuple[LLSN, LLSN]] = field(
        default_factory=list
    )  # ordered entries with damaged bytes


def scan(
    read: ReadFileAt,
    file_bytes: int,
    first_llsn: LLSN,
    fence: Fence | None = None,
    ordered_end: LLSN = FIRST_LLSN,
) -> Scan:
    """Check the segment from its first byte on; stop at the first batch that is damaged, out of order or cut by a seal.

    A damaged body below `ordered_end` is skipped: no crash damages ordered entries, and the header still says where the next batch
    begins. It is recorded, and another replica has the bytes.
    """
    found = Scan(SparseIndex(first_llsn), first_llsn)
    try:
        for at, header, problem in all_batches(read, file_bytes, first_llsn):
            if fence is not None and fence.cuts(header):
                found.fenced = True
                return found
            if problem is not None:
                if header.end_llsn > ordered_end:
                    raise problem
                found.corrupt_ranges.append((header.first_llsn, header.end_llsn))
            found.index.add(header.first_llsn, at, header.size)
            found.size, found.end_llsn = at + header.size, header.end_llsn
            found.batches += 1
    except CorruptBatch as problem:
        if not only_zeros(read, file_bytes, found.size):
            found.problem = problem.what
    return found
