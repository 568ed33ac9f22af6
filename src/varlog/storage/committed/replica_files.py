"""ReplicaFiles: a replica read from its files alone, without its lock.

Nothing is changed, even if another process has the replica open. It shows the replica as it was when it was read: segments and rows
only grow at their ends, or are replaced whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

from varlog.model.commit import CommitRow
from varlog.model.errors import NotWritten, Trimmed
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import Disk
from varlog.storage.committed.commit_store import RowIndex
from varlog.storage.committed.extent import BatchChunk, find_extent, find_time, measure
from varlog.storage.committed.recovery import ReplicaRecovery, survey
from varlog.storage.committed.segment import Segment
from varlog.storage.open_file import OpenFile
from varlog.storage.segment_file import RangeBytes


class ReplicaFiles:
    """A snapshot of a replica. `rows` are those that the metadata repository has of it, in order: what it has ordered counts, even
    if the replica has not written it yet."""

    def __init__(self, disk: Disk, path: Path, rows: Sequence[CommitRow] = ()) -> None:
        found = survey(disk, path)
        self.path = path
        self.log_stream = found.state.log_stream
        self.low_llsn = found.state.low_llsn
        self.committed_end = found.committed_end
        self.written_end = found.written_end
        self._disk = disk
        self._index = _index(found)
        self._segments = tuple(
            Segment(disk, kept.path, kept.index, kept.size, kept.end_llsn) for kept in found.segments
        )
        for row in rows:
            self._commit(row)

    def _commit(self, row: CommitRow) -> None:
        known = self.committed_end - row.llsn_begin
        if 0 <= known < row.count and row.llsn_end <= self.written_end:
            rest = row.rest(known) if known else row
            self._index.append(rest.llsn_begin, rest.glsn_begin)
            self.committed_end = rest.llsn_end

    @property
    def runs(self) -> tuple[tuple[LLSN, GLSN, int], ...]:
        """(llsn, glsn, count) of everything that is ordered and readable."""
        return self.rows_between(self.low_llsn, self.committed_end)

    def rows_between(self, begin: LLSN, end: LLSN) -> tuple[tuple[LLSN, GLSN, int], ...]:
        """(llsn, glsn, count) of the committed runs in [begin, end)."""
        return self._index.between(begin, min(end, self.committed_end))

    def llsn_from(self, glsn: GLSN) -> LLSN:
        """The first readable LLSN whose GLSN is at least `glsn`; the committed end if there is none."""
        return min(self.committed_end, max(self.low_llsn, self._index.llsn_from(glsn, self.committed_end)))

    def glsn_of(self, llsn: LLSN) -> GLSN:
        return self._index.glsn_of(llsn)

    def measure(self, begin: LLSN, end: LLSN, points_max: int) -> RangeBytes:
        return measure(self._segments, begin, end, points_max)

    def find_time(self, time_us: int) -> LLSN:
        """The first readable entry appended at or after `time_us`, or the committed end."""
        return find_time(self._segments, self.low_llsn, self.committed_end, time_us, self._opened)

    def read(self, llsn: LLSN, bytes_max: int) -> BatchChunk:
        """Whole committed batches from the one with `llsn` on. Bodies are not checked: the reader does."""
        if llsn < self.low_llsn:
            raise Trimmed(llsn, self.low_llsn)
        if llsn >= self.committed_end:
            raise NotWritten(llsn, self.committed_end - 1)
        number = max(n for n, segment in enumerate(self._segments) if segment.first_llsn <= llsn)
        segment = self._segments[number]
        extent = find_extent(segment, llsn, min(segment.end_llsn, self.committed_end), bytes_max)
        opened = self._opened(segment)
        return extent.chunk(opened.file.read_at(extent.size, extent.offset))

    def _opened(self, segment: Segment) -> OpenFile:
        try:
            return segment.borrow()
        except FileNotFoundError:
            raise Trimmed(segment.first_llsn, segment.end_llsn) from None


def _index(found: ReplicaRecovery) -> RowIndex:
    kept = found.rows_kept
    return (
        RowIndex.of(found.rows.llsns[:kept], found.rows.glsns[:kept])
        if kept
        else RowIndex(array("q"), array("q"))
    )
