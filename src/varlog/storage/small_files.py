"""Bit rot in what lies beside the segments: state, commit rows, sidecars. Memory knows what was in them, and writes it anew.

None of them is read again while a replica is open. Found only at the next start, a flipped bit in one of them would cost the whole
replica, or be signed anew by a compaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import Damaged
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import Disk, File
from varlog.storage.index import decode_index
from varlog.storage.row_file import ROW_BYTES, ROW_TYPE, Rows, encode_end_mark, encode_row, good_rows, row_at
from varlog.storage.segment import Segment, index_path
from varlog.storage.state_file import ReplicaStateFile, read_state, write_state


def tend_state(disk: Disk, directory: Path, state: ReplicaStateFile, *, rewrite: bool) -> str:
    """Write the state anew if the file is damaged, or in any case; tells what was wrong, or ''."""
    try:
        read_state(disk, directory)
        if rewrite:
            write_state(disk, directory, state)
        return ""
    except Damaged as damaged:
        write_state(disk, directory, state)
        return str(damaged)


def tend_sidecar(disk: Disk, segment: Segment) -> str:
    """Write the index of a closed segment anew if the file is damaged or gone; tells so, or ''."""
    path = index_path(segment.path)
    content = disk.read_file(path) if disk.exists(path) else b""
    if decode_index(content, segment.first_llsn, segment.end_llsn, segment.size) is not None:
        return ""
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
    run_of: Callable[
        [LLSN], tuple[LLSN, GLSN] | None
    ]  # where the run begins that orders an LLSN, and at which GLSN
    epoch_of: Callable[[LLSN], Epoch | None]  # in which epoch an LLSN was written


def tend_rows(file: File, memory: RowsInMemory, *, rewrite: bool) -> str:
    """Put single bad rows, the header and the end mark right in place; tells what was wrong, or ''. Damaged: two rows in a row are
    bad, and nothing says any more where one ended and the next began. `rewrite`: all of the file is written once more."""
    content = file.read_at(ROW_BYTES * (memory.count + 2), 0)
    rows = np.frombuffer(content[ROW_BYTES : ROW_BYTES * (memory.count + 1)], ROW_TYPE)
    if len(rows) < memory.count:
        raise Damaged(str(file.path), f"it has {len(rows)} rows of {memory.count}")
    patches: list[tuple[int, bytes]] = []
    if content[:ROW_BYTES] != memory.header:
        patches.append((0, memory.header))
    bad = np.flatnonzero(~good_rows(rows)).tolist()
    if any(later == earlier + 1 for earlier, later in pairwise(bad)):
        raise Damaged(str(file.path), f"rows {bad} are bad")
    for number in bad:
        row = _row_again(rows, number, memory, file.path)
        patches.append((ROW_BYTES * (number + 1), encode_row(row, 0)))
    # The mark is behind the rows at last: it is what proves them, so it comes when they are good.
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


def _row_again(rows: Rows, number: int, memory: RowsInMemory, path: Path) -> CommitRow:
    """Row `number`, out of its neighbours and of memory. Which entries it orders, and where, is certain; its version is that of a
    neighbour, which is all the same: only the newest row's is ever asked for."""
    before = row_at(rows, number - 1) if number > 0 else None
    after = row_at(rows, number + 1) if number + 1 < len(rows) else None
    end = after.llsn_begin if after is not None else memory.end
    run = memory.run_of(LLSN(end - 1))
    begin = before.llsn_end if before is not None else (run[0] if run is not None else LLSN(end - 1))
    if run is not None and run[0] <= begin < end:
        glsn = GLSN(run[1] + begin - run[0])
    elif begin < end <= memory.low:
        # Trimmed, and forgotten here: nobody asks for its place any more, but it must be behind the row before.
        glsn = before.glsn_end if before is not None else GLSN(1)
    else:
        raise Damaged(str(path), f"row {number} is bad, and LLSNs [{begin}, {end}) are not one run")
    last = memory.last
    newest = last if after is None and last is not None and last.llsn_end == end else None
    like = newest or after or before or last
    epoch = memory.epoch_of(LLSN(end - 1))
    if like is None:
        raise Damaged(str(path), f"row {number} is bad, and there is no other")
    high = newest.high_watermark if newest is not None else GLSN(glsn + end - begin - 1)
    return CommitRow(
        like.version, high, GLSN(glsn - 1), glsn, begin, end - begin, like.epoch if epoch is None else epoch
    )
