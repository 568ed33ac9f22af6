"""[A5] Scans a replica's segment: where the good batches end, and why.

A batch that a seal has cut ends the scan as well (law 6). See batch_scan for the checks that both orderings share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from varlog.model.batch import BatchHeader
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.storage.batch_scan import ReadAt, all_batches, only_zeros
from varlog.storage.committed.index import SparseIndex


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
    read: ReadAt,
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
