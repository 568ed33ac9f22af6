"""Checks metadata files against memory: state, commit rows, sidecars.

None of them is read again while a replica is open. Found only at the next start, a flipped bit in one of them would cost the whole
replica, or get a valid checksum by a compaction. A file that is intact but old, because the device lost a write that it had
acknowledged, would be trusted then: an epoch, a seal, a trim or synced rows would be forgotten. So each file is compared with
memory, and rewritten from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptReplica
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import Disk, File
from varlog.storage.committed.index import decode_index
from varlog.storage.committed.row_file import (
    ROW_BYTES,
    ROW_TYPE,
    RowArray,
    encode_end_mark,
    encode_row,
    good_rows,
    row_at,
)
from varlog.storage.committed.segment import Segment, index_path
from varlog.storage.committed.state_file import STATE_NAME, ReplicaStateFile, read_state, write_state


def scrub_state(disk: Disk, directory: Path, state: ReplicaStateFile, *, rewrite: bool) -> str:
    """Rewrite the state if the file is damaged or old, or always (`rewrite`); returns what was wrong, or ''."""
    wrong = ""
    try:
        found = read_state(disk, directory)
        if is_older(found, state):
            wrong = lost_write(directory / STATE_NAME, found, state)
    except CorruptReplica as damaged:
        wrong = str(damaged)
    if wrong or rewrite:
        write_state(disk, directory, state)
    return wrong


def is_older(found: ReplicaStateFile, state: ReplicaStateFile) -> bool:
    """Whether an intact file is not what was written last. The low LLSN may be ahead in memory: rows that begin later show it
    themselves, and a trim moves another field as well."""
    return msgspec.structs.replace(found, low_llsn=state.low_llsn) != state


def lost_write(path: Path, found: object, known: object) -> str:
    """The message about a file that is intact but old."""
    return f"{path} is intact but old, the device lost a write: it has {found}, and {known} was written"


def scrub_file(disk: Disk, path: Path, content: bytes) -> str:
    """Rewrite a file that is not what was written last: damaged, old or missing; returns a note, or ''."""
    found = disk.read_file(path) if disk.exists(path) else None
    if found == content:
        return ""
    disk.make_directory(path.parent)
    disk.replace_file(path, content)
    return f"{path} is {'missing' if found is None else 'damaged or old'}"


def scrub_sidecar(disk: Disk, segment: Segment) -> str:
    """Rewrite the index of a closed segment if the file is damaged or missing, and cut what is behind the segment's last batch;
    returns a note, or ''."""
    path, excess = index_path(segment.path), segment.cut_excess()
    content = disk.read_file(path) if disk.exists(path) else b""
    if decode_index(content, segment.first_llsn, segment.end_llsn, segment.size) is not None:
        return excess
    disk.replace_file(path, segment.index.encode(segment.end_llsn, segment.size))
    return f"{path} is damaged"


@dataclass(frozen=True, slots=True)
class RowsInMemory:
    """What memory knows of the synced rows. Entries below `low` are trimmed."""

    header: bytes
    count: int
    low: LLSN
    end: LLSN
    last: CommitRow | None  # the newest, synced or not
    # Where the run that orders an LLSN begins, and its GLSN.
    run_of: Callable[[LLSN], tuple[LLSN, GLSN] | None]
    epoch_of: Callable[[LLSN], Epoch | None]  # the epoch in which an LLSN was written


# The LLSN and the GLSN at which each run of entries begins; a run is adjacent in both orders.
Runs = tuple[Sequence[int], Sequence[int]]


def scrub_rows(file: File, memory: RowsInMemory, *, rewrite: bool) -> str:
    """Repair single bad rows, the header and the end mark in place; returns what was wrong, or ''. CorruptReplica: two
    consecutive rows are bad, and nothing shows where one ended and the next began. `rewrite`: the whole file is written again."""
    content = file.read_at(ROW_BYTES * (memory.count + 2), 0)
    rows = np.frombuffer(content[ROW_BYTES : ROW_BYTES * (memory.count + 1)], ROW_TYPE)
    if len(rows) < memory.count:
        raise CorruptReplica(str(file.path), f"it has {len(rows)} rows of {memory.count}")
    patches: list[tuple[int, bytes]] = []
    if content[:ROW_BYTES] != memory.header:
        patches.append((0, memory.header))
    bad = np.flatnonzero(~good_rows(rows)).tolist()
    if any(later == earlier + 1 for earlier, later in pairwise(bad)):
        raise CorruptReplica(str(file.path), f"rows {bad} are bad")
    for number in bad:
        row = _row_again(rows, number, memory, file.path)
        patches.append((ROW_BYTES * (number + 1), encode_row(row, 0)))
    # The mark comes last: it proves the rows, so they must be good before.
    mark, marked_at = encode_end_mark(memory.count), ROW_BYTES * (memory.count + 1)
    if content[marked_at : marked_at + ROW_BYTES] != mark:
        patches.append((marked_at, mark))
    for offset, patch in patches:
        file.write_at([patch], offset)
        file.sync()
    if rewrite:
        file.write_at([file.read_at(marked_at + ROW_BYTES, 0)], 0)
        file.sync()
    damaged = [offset for offset, _ in patches if offset != marked_at]
    return f"{file.path} is damaged at bytes {damaged}" if damaged else ""


def agreeing(rows: RowArray, memory: RowsInMemory, runs: Runs) -> int:
    """How many of the first rows are good, follow each other, and order entries as memory does (`runs`: where they begin)."""
    if not len(rows) or rows["llsn"][0] > memory.low:
        return 0
    ends = rows["llsn"] + rows["count"]
    right = good_rows(rows) & (ends <= memory.end)
    right[1:] &= rows["llsn"][1:] == ends[:-1]
    llsns, glsns = (np.array(column, np.int64) for column in runs)
    run = np.searchsorted(llsns, rows["llsn"], side="right") - 1
    known = (run >= 0) & (ends > memory.low)
    right &= ~known | (glsns[run] + rows["llsn"] - llsns[run] == rows["glsn"] if len(llsns) else True)
    wrong = np.flatnonzero(~right)
    return int(wrong[0]) if len(wrong) else len(rows)


def is_old(rows: RowArray, memory: RowsInMemory, runs: Runs) -> bool:
    """Whether the `rows` of a file are not those that were synced last, though nothing shows damage: they are intact and
    contradict memory, or the newest of them, two or more, are missing."""
    there = rows[: memory.count]
    same = agreeing(there, memory, runs)
    if same == memory.count:
        return int(there["llsn"][-1] + there["count"][-1]) != memory.end if memory.count else False
    good = good_rows(there)
    return bool(good.all()) or (memory.count - same > 1 and not good[same:].any())


def rows_again(
    rows: RowArray, memory: RowsInMemory, between: tuple[tuple[LLSN, GLSN, int], ...], path: Path
) -> list[CommitRow]:
    """Rebuild the rows after `rows`, which memory agrees with. `between` are the runs up to the newest row. They get a version
    that is not too new: what it claims to exist does exist, and a row that arrives twice does no harm (R-CTX-4)."""
    last = memory.last
    if not len(rows) or last is None or last.llsn_end != memory.end:
        raise CorruptReplica(str(path), "it is old, and memory does not know all of its rows")
    version = int(rows["version"][-1])
    made = []
    for llsn, glsn, count in between:
        for begin, end, epoch in _epochs(llsn, LLSN(llsn + count), memory, Epoch(int(rows["epoch"][-1]))):
            first = GLSN(glsn + begin - llsn)
            made.append(
                CommitRow(
                    version, GLSN(first + end - begin - 1), GLSN(first - 1), first, begin, end - begin, epoch
                )
            )
    begin = LLSN(max(last.llsn_begin, int(rows["llsn"][-1] + rows["count"][-1])))
    first = GLSN(last.glsn_begin + begin - last.llsn_begin)
    made.append(
        CommitRow(
            last.version, last.high_watermark, GLSN(first - 1), first, begin, memory.end - begin, last.epoch
        )
    )
    return made


def _epochs(
    begin: LLSN, end: LLSN, memory: RowsInMemory, default: Epoch
) -> Iterator[tuple[LLSN, LLSN, Epoch]]:
    """Split [begin, end) into pieces of one epoch each: epochs never decrease."""
    first, last = memory.epoch_of(begin), memory.epoch_of(LLSN(end - 1))
    if first == last or first is None or end - begin == 1:
        yield begin, end, default if last is None else last
        return
    middle = LLSN((begin + end) // 2)
    yield from _epochs(begin, middle, memory, default)
    yield from _epochs(middle, end, memory, default)


def _row_again(rows: RowArray, number: int, memory: RowsInMemory, path: Path) -> CommitRow:
    """Rebuild row `number` from its neighbours and from memory. Which entries it orders, and where, is certain. Its version is
    that of a neighbour, which does not matter: only the newest row's version is ever used."""
    before = row_at(rows, number - 1) if number > 0 else None
    after = row_at(rows, number + 1) if number + 1 < len(rows) else None
    end = after.llsn_begin if after is not None else memory.end
    run = memory.run_of(LLSN(end - 1))
    begin = before.llsn_end if before is not None else (run[0] if run is not None else LLSN(end - 1))
    if run is not None and run[0] <= begin < end:
        glsn = GLSN(run[1] + begin - run[0])
    elif begin < end <= memory.low:
        # Trimmed and dropped from memory: its position is never read, but it must be above the row before.
        glsn = before.glsn_end if before is not None else GLSN(1)
    else:
        raise CorruptReplica(str(path), f"row {number} is bad, and LLSNs [{begin}, {end}) are not one run")
    last = memory.last
    newest = last if after is None and last is not None and last.llsn_end == end else None
    like = newest or after or before or last
    epoch = memory.epoch_of(LLSN(end - 1))
    if like is None:
        raise CorruptReplica(str(path), f"row {number} is bad, and there is no other")
    high = newest.high_watermark if newest is not None else GLSN(glsn + end - begin - 1)
    return CommitRow(
        like.version, high, GLSN(glsn - 1), glsn, begin, end - begin, like.epoch if epoch is None else epoch
    )
