"""Walks the batches of a segment and checks every checksum: where the good ones end, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from varlog.model.batch import HEADER_BYTES, BatchHeader, Buffer, check_body, parse_header
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch
from varlog.model.limits import MIB
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.storage.committed.index import SparseIndex

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
    corrupt_ranges: list[tuple[LLSN, LLSN]] = field(
        default_factory=list
    )  # ordered entries whose bytes have rotted


def scan(
    read: Read,
    file_bytes: int,
    first_llsn: LLSN,
    fence: Fence | None = None,
    ordered_end: LLSN = FIRST_LLSN,
) -> Scan:
    """Check the segment from its first byte on; stop at the first batch that is damaged, out of order or cut by a seal.

    A rotten body below `ordered_end` is stepped over: no crash spoils what was ordered, and its header still says where the next
    batch begins. It is noted, and another replica has its bytes.
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


def good_batches(read: Read, file_bytes: int, first_llsn: LLSN | None) -> Iterator[tuple[int, BatchHeader]]:
    """(offset, header) of each batch, checked whole and in LLSN order (None: any order); CorruptBatch at the first not good one."""
    for at, header, problem in all_batches(read, file_bytes, first_llsn):
        if problem is not None:
            raise problem
        yield at, header


def all_batches(
    read: Read, file_bytes: int, first_llsn: LLSN | None
) -> Iterator[tuple[int, BatchHeader, CorruptBatch | None]]:
    """The same, and what is wrong with the body; CorruptBatch at the first whose header is not good: there is no way behind it."""
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


def only_zeros(read: Read, file_bytes: int, at: int) -> bool:
    """True if nothing was ever written from `at` on: that is reserved space. The file may be shorter than `file_bytes`, if it was
    cut after that was measured."""
    while at < file_bytes and (window := bytes(read(_WINDOW_BYTES, at))):
        if window.count(0) != len(window):
            return False
        at += len(window)
    return True
