"""[A9 R5] CommitStore: GLSN <-> LLSN of ordered entries, and the last commit row.

Rows merge in memory and are written lazily. The order is durable in the metadata repository before a row arrives here, so a row
needs no sync before it is applied; the repository keeps it until `rows_synced_end` has passed it.

Threads: the event loop commits and looks up; the replica's worker writes and compacts the file, and looks up for a trim. The
index only grows at its end and is replaced, never changed, when old rows are forgotten: a thread that has a reference can search
it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import replace
from operator import sub
from pathlib import Path
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.invariant import invariant
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN, NO_GLSN
from varlog.runtime.disk import Disk
from varlog.storage.committed.row_file import (
    ROW_BYTES,
    ROW_TYPE,
    ROWS_NAME,
    FoundRows,
    RowArray,
    encode_end_mark,
    encode_row,
    encode_row_file,
    encode_row_header,
    find_rows,
    good_rows,
    merge_adjacent,
    merge_rows,
)
from varlog.storage.disk_space import DiskSpace
from varlog.storage.metadata_files import (
    RowsInMemory,
    Runs,
    agreeing,
    is_old,
    lost_write,
    rows_again,
    scrub_rows,
)
from varlog.storage.open_file import OpenFile, relinked, unlinked

# The file is rewritten when it has this many rows and twice as many as it needs.
_COMPACT_ROWS_MIN: Final = 4096
# Trimmed rows leave memory when they are this many and at least half of all.
_FORGET_ROWS_MIN: Final = 1024


class RowIndex:
    """Runs that are adjacent in both orders, merged: run i is [llsns[i], llsns[i + 1]) at glsns[i] on; the last one is open."""

    __slots__ = ("glsns", "llsns")

    def __init__(self, llsns: array[int], glsns: array[int]) -> None:
        self.llsns = llsns
        self.glsns = glsns

    @classmethod
    def of(cls, llsns: NDArray[np.int64], glsns: NDArray[np.int64]) -> RowIndex:
        """An index built from the columns of a file."""
        # Rows are consecutive in LLSN, so they are adjacent in both orders if the distance between the orders did not change.
        begins = (
            np.concatenate(([True], np.diff(glsns - llsns) != 0)) if len(llsns) else np.zeros(0, np.bool_)
        )
        index = cls(array("q"), array("q"))
        index.llsns.frombytes(llsns[begins].astype(np.int64).tobytes())
        index.glsns.frombytes(glsns[begins].astype(np.int64).tobytes())
        return index

    def __len__(self) -> int:
        return len(self.glsns)

    def append(self, llsn: LLSN, glsn: GLSN) -> None:
        """Add a run that begins where the last one ended; it is merged if it continues in both orders."""
        llsns, glsns = self.llsns, self.glsns
        if glsns and glsn - glsns[-1] == llsn - llsns[-1]:
            return
        # The LLSN first: a trim searches by GLSN from another thread, and then needs the LLSN.
        llsns.append(llsn)
        glsns.append(glsn)

    def begins_by(self, llsn: LLSN) -> bool:
        """A run begins at or before `llsn`."""
        return bool(self.llsns) and self.llsns[0] <= llsn

    def glsn_of(self, llsn: LLSN) -> GLSN:
        """The GLSN of `llsn`, which is in a run."""
        run = bisect_right(self.llsns, llsn) - 1
        return GLSN(self.glsns[run] + llsn - self.llsns[run])

    def llsn_from(self, glsn: GLSN, end: LLSN) -> LLSN:
        """The first LLSN whose GLSN is at least `glsn`; `end`, which is that of the last run, if there is none."""
        run = bisect_right(self.glsns, glsn) - 1
        if run < 0:
            return LLSN(self.llsns[0]) if len(self) else end
        run_end = self.llsns[run + 1] if run + 1 < len(self.llsns) else end
        return LLSN(min(self.llsns[run] + glsn - self.glsns[run], run_end))

    def between(self, begin: LLSN, end: LLSN) -> tuple[tuple[LLSN, GLSN, int], ...]:
        """(llsn, glsn, count) of the runs in [begin, end), cut to it."""
        if len(self):
            begin = LLSN(max(begin, self.llsns[0]))
        if begin >= end:
            return ()
        first, stop = bisect_right(self.llsns, begin) - 1, bisect_left(self.llsns, end)
        llsns, glsns = self.llsns[first:stop], self.glsns[first:stop]
        glsns[0] += begin - llsns[0]
        llsns[0] = begin
        counts = map(sub, [*llsns[1:], end], llsns)
        # In C: a fetch of a stream among many may span a thousand runs.
        return cast("tuple[tuple[LLSN, GLSN, int], ...]", tuple(zip(llsns, glsns, counts, strict=True)))

    def without(self, low_llsn: LLSN) -> RowIndex:
        """A copy without the runs that end at or below `low_llsn`; the newest always stays."""
        first = max(0, bisect_right(self.llsns, low_llsn) - 1)
        return RowIndex(self.llsns[first:], self.glsns[first:])


class CommitStore:
    """The commit rows of one replica: all of them in memory, merged, and in `commits.log`."""

    def __init__(self, disk: Disk, directory: Path, topic: TopicID, log_stream: LogStreamID) -> None:
        self.committed_end = FIRST_LLSN
        self.high_watermark = NO_GLSN
        self.last_row: CommitRow | None = None
        self.rows_synced_end = FIRST_LLSN
        self._begin = FIRST_LLSN
        self._disk = disk
        self._path = directory / ROWS_NAME
        self._topic = topic
        self._log_stream = log_stream
        self._index = RowIndex(array("q"), array("q"))
        self._unsynced: list[CommitRow] = []
        self._file_rows = 0
        self._mark_synced = True
        self._file: OpenFile | None = OpenFile(disk.open(self._path))

    @classmethod
    def create(cls, disk: Disk, directory: Path, topic: TopicID, log_stream: LogStreamID) -> CommitStore:
        """Create an empty store."""
        content = encode_row_file(topic, log_stream, np.zeros(0, ROW_TYPE))
        disk.replace_file(directory / ROWS_NAME, content)
        return cls(disk, directory, topic, log_stream)

    def restore(self, found: FoundRows, kept: int, last_row: CommitRow | None) -> None:
        """Use the first `kept` rows of the file; remove the others, and any torn write after them."""
        self._index = RowIndex.of(found.llsns[:kept], found.glsns[:kept])
        self._file_rows = kept
        self._begin = self.committed_end = found.begin
        file = self._open_file().file
        dirty = found.torn or kept < len(found)
        if dirty:
            file.truncate(ROW_BYTES * (kept + 1))
        # What a killed process wrote can be read back without being on disk, and after a failed sync a second one does nothing.
        # So rows that nothing proves durable are written again: only then does a sync count.
        if found.proven < kept:
            at = ROW_BYTES * (found.proven + 1)
            file.write_at([file.read_at(ROW_BYTES * (kept - found.proven), at)], at)
        file.sync()
        if dirty or not found.marked:
            self._write_end_mark()
        if last_row is not None:
            self._stand_at(last_row)
        self.rows_synced_end = self.committed_end

    @property
    def size_bytes(self) -> int:
        return ROW_BYTES * (self._file_rows + 1)

    @property
    def unsynced(self) -> tuple[CommitRow, ...]:
        """The rows that are only in memory, or whose sync failed."""
        return tuple(self._unsynced)

    # --- event loop ------------------------------------------------------------------------------------------------------

    def commit(self, row: CommitRow, low_llsn: LLSN) -> None:
        """Add the next row. Entries below `low_llsn` are trimmed: their runs may be dropped."""
        invariant(row.llsn_begin == self.committed_end, "rows are committed back to back (law 4)",
                  row=row, committed_end=self.committed_end)  # fmt: skip
        invariant(row.glsn_begin > self.high_watermark, "the order of a stream never goes back (law 3)",
                  row=row, high_watermark=self.high_watermark)  # fmt: skip
        if len(self._index) >= 2 * _FORGET_ROWS_MIN:
            self._forget(low_llsn)
        self._index.append(row.llsn_begin, row.glsn_begin)
        self._unsynced.append(row)
        self._stand_at(row)

    def find(self, glsn: GLSN) -> LLSN | None:
        """The LLSN that is ordered at `glsn` here, if one is."""
        llsn = self.llsn_from(glsn)
        return llsn if llsn < self.committed_end and self.glsn_of(llsn) == glsn else None

    def glsn_of(self, llsn: LLSN) -> GLSN:
        """Where the committed entry `llsn` is in the topic's order."""
        index = self._index
        invariant(index.begins_by(llsn) and llsn < self.committed_end, "only committed entries have a GLSN",
                  llsn=llsn, committed_end=self.committed_end)  # fmt: skip
        return index.glsn_of(llsn)

    def rows_between(self, begin: LLSN, end: LLSN) -> tuple[tuple[LLSN, GLSN, int], ...]:
        """(llsn, glsn, count) of the runs in [begin, end), cut to it."""
        return self._index.between(begin, min(end, self.committed_end))

    def llsn_from(self, glsn: GLSN) -> LLSN:
        """The first LLSN whose GLSN is at least `glsn`; the committed end if there is none. Also called by the worker."""
        # The end first, then the runs: in the other order, a commit in between would extend the run before it.
        end = self.committed_end
        return self._index.llsn_from(glsn, end)

    def _forget(self, low_llsn: LLSN) -> None:
        trimmed = bisect_right(self._index.llsns, low_llsn) - 1
        if trimmed >= _FORGET_ROWS_MIN and 2 * trimmed >= len(self._index):
            self._index = self._index.without(low_llsn)

    def _stand_at(self, row: CommitRow) -> None:
        self.last_row = row
        self.high_watermark = GLSN(row.glsn_end - 1)
        self.committed_end = row.llsn_end

    # --- worker ----------------------------------------------------------------------------------------------------------

    def sync(self) -> LLSN:
        """Write and sync the rows that are only in memory. After an OSError all of them are written again: a lost page does not
        come back by itself."""
        # The loop appends meanwhile: write the present rows, and delete exactly those.
        taken = len(self._unsynced)
        if taken:
            rows = self._unsynced[:taken]
            merged = merge_adjacent(rows)
            file = self._open_file().file
            file.write_at(
                [b"".join(encode_row(row, self._file_rows) for row in merged)],
                ROW_BYTES * (self._file_rows + 1),
            )
            file.sync()
            # All of this before anything else can fail: a retry must not write the rows a second time.
            self._file_rows += len(merged)
            del self._unsynced[:taken]
            self.rows_synced_end = rows[-1].llsn_end
            self._write_end_mark()
        return self.rows_synced_end

    def settle(self) -> LLSN:
        """Before a clean stop: sync the rows and the end mark behind them, which proves them durable. Without it the next start
        could take a damaged newest row for a torn write, and cut it."""
        synced_end = self.sync()
        if not self._mark_synced:
            self._open_file().file.sync()
            self._mark_synced = True
        return synced_end

    def compact(self, low_llsn: LLSN, disk_space: DiskSpace) -> None:
        """Rewrite the file without trimmed rows and with adjacent ones merged, if that makes it much smaller. An OSError is final:
        which of the two files has the name is not known then."""
        index = self._index
        needed = len(index) - max(0, bisect_right(index.llsns, low_llsn) - 1)
        if self._file_rows < max(_COMPACT_ROWS_MIN, 2 * needed) or not disk_space.can_spare(self.size_bytes):
            return
        rows = self._rows_from(low_llsn)
        # Compaction would give bad rows valid checksums; `scrub_metadata` repairs them first.
        if good_rows(rows).all():
            self._replace_file(merge_rows(rows))

    def scrub_metadata(
        self, low_llsn: LLSN, epoch_of: Callable[[LLSN], Epoch | None], *, rewrite: bool
    ) -> str:
        """Check the file and repair it; returns what was wrong, or ''. CorruptReplica: it cannot be repaired. `rewrite`: what can
        be read may not be on the disk, so all of it is written again."""
        header = encode_row_header(self._topic, self._log_stream, self._begin)
        memory = RowsInMemory(
            header, self._file_rows, low_llsn, self.rows_synced_end, self.last_row, self._run_of, epoch_of
        )
        opened = self._open_file()
        file = opened.file
        # Copies, because the loop commits meanwhile.
        runs = self._index.llsns[:], self._index.glsns[:]
        content = file.read_at(max(file.size() - ROW_BYTES, 0), ROW_BYTES)
        rows = np.frombuffer(content[: len(content) - len(content) % ROW_BYTES], ROW_TYPE)
        if is_old(rows, memory, runs):
            return self._write_again(rows, memory, runs)
        return scrub_rows(file, memory, rewrite=rewrite)

    def relink(self) -> str:
        """If the file was deleted or replaced, write it under its name again; returns a note, or ''."""
        fresh = relinked(self._disk, self._open_file(), self.size_bytes)
        if fresh is None:
            return ""
        self._file = fresh
        self._write_end_mark()
        return unlinked(self._path)

    def _write_again(self, rows: RowArray, memory: RowsInMemory, runs: Runs) -> str:
        """Replace a file that is intact but old by what memory knows, including the rows that are not synced yet."""
        last = self.last_row
        taken = len(self._unsynced)
        if taken:
            last = self._unsynced[taken - 1]
        end = last.llsn_end if last is not None else memory.end
        memory = replace(memory, last=last, end=end)
        same = rows[: agreeing(rows, memory, runs)]
        same_end = LLSN(int(same["llsn"][-1] + same["count"][-1])) if len(same) else FIRST_LLSN
        fresh: list[CommitRow] = []
        if same_end < end:
            newest = LLSN(max(last.llsn_begin, same_end)) if last is not None else end
            between = self._index.between(same_end, newest)
            fresh = rows_again(same, memory, between, self._path)
        encoded = b"".join(encode_row(row, 0) for row in fresh)
        self._replace_file(np.concatenate((same, np.frombuffer(encoded, ROW_TYPE))))
        del self._unsynced[:taken]
        self.rows_synced_end = end
        there = f"rows up to LLSN {same_end}"
        return lost_write(self._path, there, f"those up to {memory.end}")

    def _run_of(self, llsn: LLSN) -> tuple[LLSN, GLSN] | None:
        index = self._index
        run = bisect_right(index.llsns, llsn) - 1
        return (LLSN(index.llsns[run]), GLSN(index.glsns[run])) if run >= 0 else None

    def begin_at(self, llsn: LLSN) -> None:
        """Drop every row: from now on, the ordered entries begin at `llsn`. The loop must not commit meanwhile."""
        self._begin = llsn
        self._unsynced.clear()
        self._replace_file(np.zeros(0, ROW_TYPE))
        self._index = RowIndex(array("q"), array("q"))
        self.last_row = None
        self.committed_end = self.rows_synced_end = llsn

    def _replace_file(self, rows: RowArray) -> None:
        content = encode_row_file(self._topic, self._log_stream, rows, self._begin)
        self._disk.replace_file(self._path, content)
        self._file = OpenFile(self._disk.open(self._path))
        self._file_rows = len(rows)
        self._mark_synced = True

    def rows_from(self, llsn: LLSN, rows_max: int) -> list[CommitRow]:
        """Synced rows, whole contexts, from the one that orders `llsn` on. Called by any worker."""
        return find_rows(self._open_file().file, llsn, rows_max)

    def _rows_from(self, low_llsn: LLSN) -> RowArray:
        """The rows of the file that order something at or above `low_llsn`; at least the last one."""
        content = self._open_file().file.read_at(ROW_BYTES * self._file_rows, ROW_BYTES)
        rows = np.frombuffer(content, ROW_TYPE)
        first = int(np.searchsorted(rows["llsn"] + rows["count"], low_llsn, side="right"))
        return rows[min(first, len(rows) - 1) :]

    def _write_end_mark(self) -> None:
        self._mark_synced = False
        self._open_file().file.write_at([encode_end_mark(self._file_rows)], ROW_BYTES * (self._file_rows + 1))

    def _open_file(self) -> OpenFile:
        invariant(self._file is not None, "a closed store is not used any more", path=str(self._path))
        return self._file  # type: ignore[return-value]

    def close(self) -> None:
        self._file = None
