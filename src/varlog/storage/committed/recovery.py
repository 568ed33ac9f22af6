"""[A5] Opening a replica after a crash: read everything, decide, then change.

`survey` changes nothing. What a crash can leave is repaired: a torn tail is cut, a tail that a seal has cut already is cut again
(law 6), segments that a trim was removing are removed (law 9), commit rows beyond the data are dropped (R-CTX-3). What a crash
cannot explain is CorruptReplica: the error names the file, and not one byte of the replica is changed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.commit import CommitRow
from varlog.model.errors import CorruptBatch, CorruptReplica
from varlog.model.limits import MIB
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.runtime.disk import Disk
from varlog.storage.committed.index import SparseIndex, decode_index
from varlog.storage.committed.row_file import (
    ROW_BYTES,
    ROWS_NAME,
    FoundRows,
    check_row_header,
    read_row,
    read_rows,
)
from varlog.storage.committed.segment import (
    SEGMENT_SUFFIX,
    Fence,
    Scan,
    Segment,
    first_llsn_of,
    index_path,
    scan,
    segment_path,
)
from varlog.storage.committed.state_file import ReplicaStateFile, read_state

# Bytes that are written again at a time.
_REWRITE_BYTES: Final = 4 * MIB


@dataclass(slots=True)
class FoundSegment:
    """A segment that stays. `size` are its good bytes; `file_bytes` may be more in the newest one."""

    path: Path
    index: SparseIndex
    size: int
    end_llsn: LLSN
    file_bytes: int
    index_lost: bool = False

    @property
    def first_llsn(self) -> LLSN:
        return self.index.first_llsn


@dataclass(frozen=True, slots=True)
class ReplicaRecovery:
    """What a replica has on disk, and what is to be done before it can be used."""

    state: ReplicaStateFile
    segments: tuple[FoundSegment, ...]  # empty: the first one, where the rows begin, must be created
    rows: FoundRows
    rows_kept: int
    last_row: CommitRow | None
    remove: tuple[Path, ...]  # in this order
    notes: tuple[str, ...]  # what the crash left, for people
    corrupt_ranges: tuple[
        tuple[LLSN, LLSN], ...
    ] = ()  # ordered entries of the newest segment with damaged bytes

    @property
    def written_end(self) -> LLSN:
        return self.segments[-1].end_llsn if self.segments else self.rows.begin

    @property
    def committed_end(self) -> LLSN:
        return self.last_row.llsn_end if self.last_row is not None else self.rows.begin


def survey(disk: Disk, directory: Path) -> ReplicaRecovery:
    """Read what opening needs: state, commit rows, sidecars and the newest segment. Changes nothing; raises CorruptReplica."""
    state = read_state(disk, directory)
    if directory.name.startswith("lsid=") and directory.name != f"lsid={state.log_stream}":
        raise CorruptReplica(
            str(directory), f"it holds log stream {state.log_stream}: it was renamed or copied"
        )
    rows = _find_rows(disk, directory, state)
    state = msgspec.structs.replace(state, low_llsn=max(state.low_llsn, rows.begin))
    names = _Names(disk, directory, state.low_llsn)
    if names.newest < rows.begin:
        return _begun(disk, state, rows, names)
    fence = Fence(state.epoch, state.sealed_end)
    closed = [_closed_segment(disk, path, end) for path, end in names.closed()]
    notes: list[str] = []
    corrupt_ranges: tuple[tuple[LLSN, LLSN], ...] = ()
    # Commits behind the seal are of the newer epoch: then the cut was finished long ago, and there is nothing to cut.
    fenced = _fenced_segment(disk, closed, fence) if rows.end_llsn <= fence.sealed_end else None
    if fenced is not None:
        keep, segment = fenced
        cut = names.segments[keep + 1 :]
        segments = [*closed[:keep], segment]
        notes.append(
            f"cut again what the seal of epoch {state.epoch} had cut from LLSN {segment.end_llsn} on"
        )
        problem = f"it holds entries of an older epoch behind the seal at LLSN {state.sealed_end}"
    else:
        cut = []
        found, newest = _newest_segment(disk, names.segments[-1], fence, rows.end_llsn)
        corrupt_ranges = tuple(found.corrupt_ranges)
        segments = [*closed, newest]
        problem = found.problem
        if found.fenced:
            problem = f"it holds entries of an older epoch behind the seal at LLSN {state.sealed_end}"
        if problem:
            notes.append(f"cut {newest.path.name} at byte {newest.size} (LLSN {newest.end_llsn}): {problem}")
    kept, last_row = _check_rows(disk, directory, state, rows, segments[-1], problem, notes)
    removed = [*names.trimmed, *reversed(cut)]
    remove = [path for segment in removed for path in (segment, index_path(segment))] + names.leftovers()
    there = [path for path in remove if disk.exists(path)]
    return ReplicaRecovery(
        state, tuple(segments), rows, kept, last_row, tuple(there), tuple(notes), corrupt_ranges
    )


def _begun(disk: Disk, state: ReplicaStateFile, rows: FoundRows, names: _Names) -> ReplicaRecovery:
    """The replica was about to restart at a later LLSN, because all its entries were trimmed: they are not read."""
    old = [path for segment in names.segments for path in (segment, index_path(segment))]
    remove = [path for path in [*old, *names.leftovers()] if disk.exists(path)]
    return ReplicaRecovery(state, (), rows, 0, None, tuple(remove), (f"it restarts at LLSN {rows.begin}",))


class _Names:
    """The segments of a directory by their names: those that a trim was removing, and those that must be consecutive."""

    def __init__(self, disk: Disk, directory: Path, low_llsn: LLSN) -> None:
        self._directory = directory
        self._listed = disk.list(directory)
        firsts = [
            llsn
            for name in self._listed
            if name.endswith(SEGMENT_SUFFIX) and (llsn := first_llsn_of(name)) is not None
        ]
        if not firsts or firsts[0] > low_llsn:
            oldest = f"the oldest segment begins at LLSN {firsts[0]}" if firsts else "there is no segment"
            raise CorruptReplica(str(directory), f"entries from LLSN {low_llsn} on are missing: {oldest}")
        # A segment is trimmed when another one begins at or below the low LLSN. The first that stays holds it.
        oldest_kept = max(number for number, llsn in enumerate(firsts) if llsn <= low_llsn)
        self.trimmed = [segment_path(directory, llsn) for llsn in firsts[:oldest_kept]]
        self._firsts = firsts[oldest_kept:]
        self.segments = [segment_path(directory, llsn) for llsn in self._firsts]
        self.newest = self._firsts[-1]

    def closed(self) -> list[tuple[Path, LLSN]]:
        """(path, end LLSN) of all but the newest: each ends where the next begins."""
        return list(zip(self.segments[:-1], self._firsts[1:], strict=True))

    def leftovers(self) -> list[Path]:
        """Replacements that were never put in place, and sidecars whose segment is gone."""
        segments = {name for name in self._listed if name.endswith(SEGMENT_SUFFIX)}
        orphans = [
            name
            for name in self._listed
            if first_llsn_of(name) is not None and Path(name).with_suffix(SEGMENT_SUFFIX).name not in segments
        ]
        return [
            self._directory / name for name in [*orphans, *(n for n in self._listed if n.endswith(".new"))]
        ]


def _find_rows(disk: Disk, directory: Path, state: ReplicaStateFile) -> FoundRows:
    path = directory / ROWS_NAME
    if not disk.exists(path):
        raise CorruptReplica(str(path), "it is missing")
    file = disk.open(path)
    try:
        begin = check_row_header(file.read_at(ROW_BYTES, 0), state.topic, state.log_stream, path)
        rows = read_rows(file.read_at, file.size(), path, begin)
    finally:
        file.close()
    low_llsn = max(state.low_llsn, rows.begin)
    if len(rows) and rows.llsns[0] > low_llsn:
        raise CorruptReplica(
            str(path), f"its first row begins at LLSN {rows.llsns[0]}, after the low LLSN {low_llsn}"
        )
    return rows


def _closed_segment(disk: Disk, path: Path, end_llsn: LLSN) -> FoundSegment:
    """From its sidecar, without reading the segment; scanned only if the sidecar is lost."""
    first_llsn = _first_llsn(path)
    sidecar = index_path(path)
    file = disk.open(path)
    try:
        size = file.size()
        index = (
            decode_index(disk.read_file(sidecar), first_llsn, end_llsn, size)
            if disk.exists(sidecar)
            else None
        )
        if index is not None:
            return FoundSegment(path, index, size, end_llsn, size)
        found = scan(file.read_at, size, first_llsn)
    finally:
        file.close()
    if found.problem or found.size != size:
        raise CorruptReplica(
            str(path), f"at byte {found.size} (LLSN {found.end_llsn}): {found.problem or 'zeros follow'}"
        )
    if found.end_llsn != end_llsn:
        raise CorruptReplica(
            str(path), f"it ends at LLSN {found.end_llsn}, and the next segment begins at {end_llsn}"
        )
    return FoundSegment(path, found.index, size, end_llsn, size, index_lost=True)


def _fenced_segment(disk: Disk, closed: list[FoundSegment], fence: Fence) -> tuple[int, FoundSegment] | None:
    """The closed segment in which the tail begins that a seal has cut, if the cut was not finished; already cut to size.

    One batch is enough: a newer epoch writes nothing before the cut is done, so the first batch behind the seal stands for all.
    """
    for number, segment in enumerate(closed):
        if segment.end_llsn <= fence.sealed_end:
            continue
        try:
            opened = Segment(disk, segment.path, segment.index, segment.size, segment.end_llsn)
            offset, header = opened.batch_at(LLSN(max(fence.sealed_end, segment.first_llsn)))
        except CorruptBatch as problem:
            raise CorruptReplica(str(segment.path), f"at byte {problem.at}: {problem.what}") from None
        if not fence.cuts(header):
            return None
        cut = FoundSegment(
            segment.path, segment.index.below(offset), offset, header.first_llsn, segment.file_bytes
        )
        return number, cut
    return None


def _newest_segment(disk: Disk, path: Path, fence: Fence, ordered_end: LLSN) -> tuple[Scan, FoundSegment]:
    file = disk.open(path)
    try:
        size = file.size()
        found = scan(file.read_at, size, _first_llsn(path), fence, ordered_end)
    finally:
        file.close()
    return found, FoundSegment(path, found.index, found.size, found.end_llsn, size)


def _check_rows(
    disk: Disk,
    directory: Path,
    state: ReplicaStateFile,
    rows: FoundRows,
    newest: FoundSegment,
    problem: str,
    notes: list[str],
) -> tuple[int, CommitRow | None]:
    """How many rows are kept, and the last of them. CorruptReplica if committed entries are damaged."""
    if problem and newest.end_llsn < rows.end_llsn:
        raise CorruptReplica(
            str(newest.path),
            f"at byte {newest.size}, LLSN {newest.end_llsn}, which is committed (up to {rows.end_llsn}): {problem}",
        )
    kept = rows.within(newest.end_llsn)
    if kept < len(rows):
        notes.append(
            f"dropped {len(rows) - kept} commit rows beyond the data, which ends at LLSN {newest.end_llsn} (R-CTX-3)"
        )
    if rows.torn:
        notes.append(f"cut {ROWS_NAME} behind row {len(rows)}: a torn write")
    last_row = None
    if kept:
        file = disk.open(directory / ROWS_NAME)
        try:
            last_row = read_row(file.read_at, kept - 1)
        finally:
            file.close()
    committed_end = last_row.llsn_end if last_row is not None else rows.begin
    if committed_end < state.low_llsn:
        raise CorruptReplica(
            str(directory),
            f"it is trimmed up to LLSN {state.low_llsn}, but its entries or rows end at {committed_end}",
        )
    return kept, last_row


def _first_llsn(path: Path) -> LLSN:
    llsn = first_llsn_of(path.name)
    return llsn if llsn is not None else FIRST_LLSN


# --- what opening writes -------------------------------------------------------------------------------------------------


def keep_evidence(disk: Disk, path: Path) -> None:
    """The proof that a bad row was durable once may be in the page cache alone: without it that row would be cut as torn after
    the next power loss."""
    with contextlib.suppress(OSError):
        if disk.exists(path):
            file = disk.open(path)
            try:
                file.sync()
            finally:
                file.close()


def settle_tail(segment: Segment, found: ReplicaRecovery) -> None:
    """Make the newest segment on disk what was found: cut behind the last good batch, and truly durable.

    What is not committed is written again. A process that was killed between write and sync, or whose sync failed, leaves bytes
    that can be read back but may never have reached the disk; they must not be reported before a sync that counts (law 1).
    """
    file = segment.open().file
    if found.segments[-1].file_bytes > segment.size:
        file.truncate(segment.size)
    begin = segment.size
    if found.committed_end <= segment.first_llsn:
        begin = 0
    elif found.committed_end < segment.end_llsn:
        begin, _ = segment.batch_at(found.committed_end)
    for offset in range(begin, segment.size, _REWRITE_BYTES):
        file.write_at([file.read_at(min(_REWRITE_BYTES, segment.size - offset), offset)], offset)
    file.sync()
