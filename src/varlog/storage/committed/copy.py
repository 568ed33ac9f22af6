"""Copy: one piece of a sync: committed batches with their rows (R-SYNC-3).

Whole batches, and the commit rows that order exactly them. The source reads and checks it (`read_copy`); the destination checks it
again and splits it into runs of one epoch (`runs_of`). Nothing is done per entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from varlog.model.batch import BatchHeader, Buffer, check_body, walk
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, Trimmed
from varlog.model.lsn import LLSN
from varlog.storage.committed.log_store import LogStore

# Rows in one copy: they are sent in the small part of a frame, 70 bytes each at most.
COPY_ROWS_MAX: Final = 8_192


@dataclass(frozen=True, slots=True)
class Copy:
    """Consecutive batches, ordered by `rows`, which are consecutive as well. Empty: there is nothing from `next_llsn` on."""

    data: memoryview
    rows: tuple[CommitRow, ...]
    next_llsn: LLSN


class CorruptCopy(Exception):
    """The replica that was to be copied is damaged somewhere in [begin, end), as `problem` says."""

    def __init__(self, begin: LLSN, end: LLSN, problem: CorruptBatch) -> None:
        super().__init__(begin, end, problem)
        self.begin = begin
        self.end = end
        self.problem = problem


@dataclass(frozen=True, slots=True)
class EpochRun:
    """Batches of one epoch out of a copy: `begins` are their (first LLSN, offset in `data`)."""

    epoch: Epoch
    rows: tuple[CommitRow, ...]
    data: memoryview
    begins: tuple[tuple[LLSN, int], ...]
    end_llsn: LLSN

    def data_from(self, llsn: LLSN) -> memoryview:
        """The batches from `llsn` on. CorruptBatch if none begins there: what is stored below is then not what was ordered."""
        if llsn >= self.end_llsn:
            return self.data[:0]
        offset = dict(self.begins).get(llsn)
        if offset is None:
            raise CorruptBatch(f"no batch of epoch {self.epoch} begins at LLSN {llsn}")
        return self.data[offset:]


# --- source --------------------------------------------------------------------------------------------------------------


def read_copy(store: LogStore, llsn: LLSN, bytes_max: int) -> Copy:
    """From the batch with `llsn` on, up to `bytes_max`, at least one batch; runs in any worker, of a replica that is sealed.

    Trimmed if `llsn` is; CorruptCopy if what is on disk is not what was once written.
    """
    if llsn >= store.committed_end:
        return Copy(memoryview(b""), (), llsn)
    rows = store.rows_from(llsn, COPY_ROWS_MAX)
    if not rows:
        raise Trimmed(llsn, store.low_llsn)
    extent = store.extent(llsn, bytes_max, rows[-1].llsn_end)
    try:
        chunk = store.read(extent)
        for at, header in walk(chunk.data):
            check_body(chunk.data, header, at)
    except CorruptBatch as problem:
        raise CorruptCopy(extent.first_llsn, extent.limit, problem) from None
    return Copy(chunk.data, _clipped(rows, chunk.first_llsn, chunk.end_llsn), chunk.end_llsn)


def _clipped(rows: Sequence[CommitRow], begin: LLSN, end: LLSN) -> tuple[CommitRow, ...]:
    clipped = []
    for row in rows:
        if row.llsn_end <= begin or row.llsn_begin >= end:
            continue
        row = row.rest(max(0, begin - row.llsn_begin))
        clipped.append(row.head(min(row.llsn_end, end) - row.llsn_begin))
    return tuple(clipped)


# --- destination -----------------------------------------------------------------------------------------------------


def runs_of(rows: Sequence[CommitRow], data: Buffer) -> list[EpochRun]:
    """The batches of a copy with their rows, in runs of one epoch, everything checked: CorruptBatch if they do not fit."""
    view = memoryview(data)
    batches: list[tuple[int, BatchHeader]] = []
    for at, header in walk(view):
        check_body(view, header, at)
        batches.append((at, header))
    runs: list[EpochRun] = []
    number = 0
    for epoch, part in _by_epoch(rows):
        first, end_llsn = number, part[-1].llsn_end
        llsn = part[0].llsn_begin
        while llsn < end_llsn:
            llsn = _follows(batches, number, llsn, epoch)
            number += 1
        if llsn != end_llsn:
            raise CorruptBatch(f"a batch ends at LLSN {llsn}, the rows of epoch {epoch} at {end_llsn}")
        begin = batches[first][0]
        end = batches[number][0] if number < len(batches) else len(view)
        begins = tuple((header.first_llsn, at - begin) for at, header in batches[first:number])
        runs.append(EpochRun(epoch, tuple(part), view[begin:end], begins, end_llsn))
    if number != len(batches):
        raise CorruptBatch(f"{len(batches) - number} batches are in no commit row")
    return runs


def _by_epoch(rows: Sequence[CommitRow]) -> list[tuple[Epoch, list[CommitRow]]]:
    parts: list[tuple[Epoch, list[CommitRow]]] = []
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and (row.llsn_begin != before.llsn_end or row.glsn_begin < before.glsn_end):
            raise CorruptBatch(f"the row from LLSN {row.llsn_begin} on does not follow the one before it")
        if not parts or parts[-1][0] != row.epoch:
            parts.append((row.epoch, []))
        parts[-1][1].append(row)
    return parts


def _follows(batches: Sequence[tuple[int, BatchHeader]], number: int, llsn: LLSN, epoch: Epoch) -> LLSN:
    """Where batch `number` ends, which must begin at `llsn` and be of `epoch`."""
    if number == len(batches):
        raise CorruptBatch(f"the rows continue behind the batches, which end at LLSN {llsn}")
    at, header = batches[number]
    if (header.first_llsn, header.epoch) != (llsn, epoch):
        raise CorruptBatch(
            f"a batch of LLSN {header.first_llsn}, epoch {header.epoch}, is where LLSN {llsn} of epoch {epoch} was ordered",
            at,
        )
    return header.end_llsn
