"""Walks the batches of a segment and checks every checksum: where the good ones end, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from varlog.model.batch import HEADER_BYTES, BatchHeader, Buffer, check_body, parse_header
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch
from varlog.model.limits import MIB
from varlog.model.lsn import LLSN
from varlog.storage.index import SparseIndex

# So much of a segment is in memory at a time.
_WINDOW_BYTES: Final = 4 * MIB

Read = Callable[[int, int], Buffer]


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


def scan(read: Read, file_bytes: int, first_llsn: LLSN, fence: Fence | None = None) -> Scan:
    """Check the segment from its first byte on; stop at the first batch that is damaged, out of order or cut by a seal."""
    found = Scan(SparseIndex(first_llsn), first_llsn)
    try:
        for at, header in good_batches(read, file_bytes, first_llsn):
            if fence is not None and fence.cuts(header):
                found.fenced = True
                return found
            found.index.add(header.first_llsn, at, header.size)
            found.size, found.end_llsn = at + header.size, header.end_llsn
            found.batches += 1
    except CorruptBatch as problem:
        if not _only_zeros(read, file_bytes, found.size):
            found.problem = problem.what
    return found


def good_batches(read: Read, file_bytes: int, first_llsn: LLSN) -> Iterator[tuple[int, BatchHeader]]:
    """(offset, header) of each batch, checked whole and in LLSN order; CorruptBatch at the first that is not good."""
    window: Buffer = b""
    base, at, llsn = 0, 0, first_llsn
    while at < file_bytes:
        if at + HEADER_BYTES > base + len(window):
            window, base = memoryview(read(_WINDOW_BYTES, at)), at
        header = parse_header(window, at - base)
        if header.first_llsn != llsn:
            raise CorruptBatch(f"it begins at LLSN {header.first_llsn}, not {llsn}", at)
        if at + header.size > base + len(window):
            window, base = memoryview(read(max(_WINDOW_BYTES, header.size), at)), at
        check_body(window, header, at - base)
        yield at, header
        at, llsn = at + header.size, header.end_llsn


def _only_zeros(read: Read, file_bytes: int, at: int) -> bool:
    """True if nothing was ever written from `at` on: that is reserved space."""
    while at < file_bytes:
        window = bytes(read(_WINDOW_BYTES, at))
        if window.count(0) != len(window):
            return False
        at += len(window)
    return True
