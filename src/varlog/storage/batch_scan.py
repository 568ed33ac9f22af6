"""[A5 Q5] Walks the batches of a segment file and checks every checksum.

Both orderings recover with it: a replica expects LLSNs in order, a log unit takes batches in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from varlog.model.batch import HEADER_BYTES, BatchHeader, Buffer, check_body, parse_header
from varlog.model.errors import CorruptBatch
from varlog.model.limits import MIB
from varlog.model.lsn import LLSN

# Bytes of a segment that are in memory at a time.
_WINDOW_BYTES: Final = 4 * MIB

# (size, offset): bytes of a file.
ReadAt = Callable[[int, int], Buffer]


def good_batches(read: ReadAt, file_bytes: int, first_llsn: LLSN | None) -> Iterator[tuple[int, BatchHeader]]:
    """(offset, header) of each batch, checked whole and in LLSN order (None: any order); CorruptBatch at the first bad one."""
    for at, header, problem in all_batches(read, file_bytes, first_llsn):
        if problem is not None:
            raise problem
        yield at, header


def all_batches(
    read: ReadAt, file_bytes: int, first_llsn: LLSN | None
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


def only_zeros(read: ReadAt, file_bytes: int, at: int) -> bool:
    """True if nothing was ever written from `at` on, which is then reserved space. The file may be shorter than `file_bytes` if
    it was cut after its size was read."""
    while at < file_bytes and (window := bytes(read(_WINDOW_BYTES, at))):
        if window.count(0) != len(window):
            return False
        at += len(window)
    return True
