"""[A5 R5] One replica's store: segments, sparse index, commit rows and state behind one API.

Threads. `append`, `cut`, `trim`, `set_epoch`, `open_epoch`, `sync_rows` and `close` run in the replica's worker, one at a
time. `read` runs in any worker. The rest runs in the event loop, at the same time, without a lock, because

- the loop looks only below `committed_end`, which it moves itself, and only after the worker has moved `written_end` past it: what
  lies there is written and synced, and no cut reaches it;
- each field has one writer, and what is published last (`written_end`, the tuple of segments) is published by one assignment;
- segments and their files are replaced, not changed, where a reader may hold them: a trimmed segment stays open until the
  last reader lets go, and one that a reader has yet to open says Trimmed.

A write or sync in place that fails poisons the store (R-SEAL-6): every later append and cut raises the same error, because
what is on disk is unknown, and a sync that failed once succeeds the second time without having written anything. Reads go on.
Only opening it again, which looks at the disk, makes it usable.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.batch import HEADER_BYTES, Buffer
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import NotWritten, StaleEpoch, Trimmed, Unavailable
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.invariant import invariant
from varlog.model.limits import MIB, SEGMENT_BYTES
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN
from varlog.runtime.disk import Disk
from varlog.runtime.logs import get_logger, told
from varlog.storage.commit_store import CommitStore
from varlog.storage.extent import Chunk, Extent, find_extent
from varlog.storage.recovery import Recovery, survey
from varlog.storage.segment import Segment, index_path
from varlog.storage.state_file import ReplicaStateFile, write_state

__all__ = ["Chunk", "Extent", "LogStore"]

_log = get_logger("storage")

# So many closed segments stay open for reading.
_OPEN_SEGMENTS_MAX: Final = 16
_REWRITE_BYTES: Final = 4 * MIB

_PLACED = struct.Struct("<IIQ")  # epoch, count, first LLSN: bytes 8 to 23 of a batch
_BODY_BYTES = struct.Struct("<I")  # bytes 48 to 51


class LogStore:
    """One replica on disk."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        state: ReplicaStateFile,
        commits: CommitStore,
        segments: tuple[Segment, ...],
        segment_bytes: int,
    ) -> None:
        self.path = path
        self.topic: TopicID = state.topic
        self.log_stream: LogStreamID = state.log_stream
        self.written_end: LLSN = segments[-1].end_llsn
        self._disk = disk
        self._state = state
        self._commits = commits
        self._segments = segments
        self._segment_bytes = segment_bytes
        # The low LLSN has two causes, each with its own writer: a trim (worker), and the late commit of entries that were
        # trimmed before they were ordered here (loop).
        self._low_by_trim = max(
            state.low_llsn, commits.llsn_from(GLSN(state.trimmed + 1)) if commits.last_row else FIRST_LLSN
        )
        self._low_by_commit = FIRST_LLSN
        self._shelf: deque[Segment] = deque()
        self._failure: OSError | None = None
        self._rows_failure: OSError | None = None
        self._closed = False

    @classmethod
    def create(
        cls,
        disk: Disk,
        path: Path,
        *,
        topic: TopicID,
        log_stream: LogStreamID,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> LogStore:
        """A new, empty replica in a directory that must not exist. The state comes last: with it the replica exists."""
        if disk.exists(path):
            raise FileExistsError(f"{path} exists already")
        disk.make_directory(path)
        commits = CommitStore.create(disk, path, topic, log_stream)
        segment = Segment.create(disk, path, FIRST_LLSN)
        state = ReplicaStateFile(topic, log_stream)
        write_state(disk, path, state)
        return cls(disk, path, state, commits, (segment,), segment_bytes)

    @classmethod
    def open(cls, disk: Disk, path: Path, *, segment_bytes: int = SEGMENT_BYTES) -> LogStore:
        """The replica in `path` after a stop or a crash. Damaged if its files contradict each other; then nothing is touched."""
        found = survey(disk, path)
        lost = found.rows_kept < len(found.rows)
        for note in found.notes:
            _log.log(logging.WARNING if lost else logging.INFO, told("recovery", path=path, note=note))
        for gone in found.remove:
            disk.remove(gone)
            disk.sync_directory(path)  # one after the other: what is left must be a chain
        # Names that a killed process made may not be durable yet.
        disk.sync_directory(path)
        segments = [Segment(disk, kept.path, kept.index, kept.size, kept.end_llsn) for kept in found.segments]
        for kept, segment in zip(found.segments[:-1], segments[:-1], strict=True):
            if kept.index_lost:
                disk.replace_file(index_path(kept.path), segment.index.encode(segment.end_llsn, segment.size))
        _settle_tail(segments[-1], found)
        commits = CommitStore(disk, path, found.state.topic, found.state.log_stream)
        commits.restore(found.rows, found.rows_kept, found.last_row)
        return cls(disk, path, found.state, commits, tuple(segments), segment_bytes)

    # --- where it stands -------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        """The newest epoch seen (law 7)."""
        return self._state.epoch

    @property
    def opened(self) -> bool:
        """True if the epoch was opened by an unseal, and not only entered by a seal."""
        return self._state.opened

    @property
    def sealed_end(self) -> LLSN:
        """One past the last entry that was ordered before the newest seal."""
        return self._state.sealed_end

    @property
    def trimmed(self) -> GLSN:
        """The newest trimmed position of the topic that was applied here."""
        return self._state.trimmed

    @property
    def low_llsn(self) -> LLSN:
        """The first LLSN that may be read."""
        return max(self._low_by_trim, self._low_by_commit)

    @property
    def committed_end(self) -> LLSN:
        """One past the last committed entry."""
        return self._commits.committed_end

    @property
    def high_watermark(self) -> GLSN:
        """The GLSN of the last committed entry; 0 if there is none."""
        return self._commits.high_watermark

    @property
    def last_row(self) -> CommitRow | None:
        """The newest commit context."""
        return self._commits.last_row

    @property
    def rows_synced_end(self) -> LLSN:
        """Entries below are covered by commit rows that survive a power loss."""
        return self._commits.rows_synced_end

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches and rows."""
        return sum(segment.size for segment in self._segments) + self._commits.size_bytes

    # --- worker: writing -------------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Buffer]) -> None:
        """[A5] Write placed and checked batches behind the last one, as one group, and sync; `written_end` moves once they are
        durable (law 1). Each buffer holds one batch, or several back to back. OSError: nothing of the group may be believed."""
        self._check_sound()
        placed, end = self._placed(batches)
        segment = self._segments[-1]
        group: list[Buffer] = []
        noted: list[tuple[LLSN, int]] = []
        size = 0
        try:
            for batch, runs in zip(batches, placed, strict=True):
                if segment.size + size + len(batch) > self._segment_bytes and segment.size + size:
                    self._write(segment, group, size, noted, runs[0][0])
                    segment = self._roll(segment)
                    group, noted, size = [], [], 0
                group.append(batch)
                noted += runs
                size += len(batch)
            self._write(segment, group, size, noted, end)
        except OSError as error:
            self._failure = error
            segment.discard_doubtful()
            raise
        self.written_end = end

    def sync_rows(self) -> LLSN:
        """Write and sync the commit rows that are only in memory; returns the new `rows_synced_end`."""
        if self._rows_failure is not None:
            raise self._rows_failure
        try:
            # Only what is trimmed on disk may leave the disk: after a crash the low LLSN is the state's, and the rows of entries
            # that were trimmed before they were ordered here (`_low_by_commit`) must still say so.
            return self._commits.sync(self._state.low_llsn)
        except OSError as error:
            self._failure = self._rows_failure = error
            raise

    def set_epoch(self, epoch: Epoch, sealed_end: LLSN) -> None:
        """Enter a newer epoch that was sealed at `sealed_end`, durably; the tail stays until the replica has everything."""
        self._set_state(self._seal(epoch, sealed_end))

    def open_epoch(self, epoch: Epoch) -> None:
        """The epoch is opened by an unseal, durably: from now on only a newer one can seal."""
        invariant(
            epoch == self.epoch,
            "an epoch is entered by a seal before it is opened (law 7)",
            asked=epoch,
            here=self.epoch,
        )
        self._set_state(msgspec.structs.replace(self._state, opened=True))

    def cut(self, epoch: Epoch, end: LLSN) -> None:
        """Enter `epoch`, sealed at `end`, then remove every batch at or above `end` from the disk (law 6). Twice is harmless."""
        invariant(end >= self.committed_end, "a cut never reaches what is committed (law 6)",
                  end=end, committed_end=self.committed_end)  # fmt: skip
        self._check_sound()
        # From here on the rows alone say what is committed: an entry below the seal that turns out bad is damage, not a tail.
        self.sync_rows()
        # The state first: a crash in between leaves a tail of an older epoch behind the seal, which recovery cuts again.
        self._set_state(self._seal(epoch, end))
        if end >= self.written_end:
            return
        try:
            self._cut_segments(end)
        except OSError as error:
            self._failure = error
            raise
        self.written_end = end

    def trim(self, glsn: GLSN) -> None:
        """[R-TRIM-1] Everything at or below `glsn` may no longer be read; then whole segments of it are removed."""
        if glsn <= self.trimmed:
            return
        low = max(self._low_by_trim, self._commits.llsn_from(GLSN(glsn + 1)))
        # The rows that say where the trim point is must not be lost with a power loss that the trim survives.
        self.sync_rows()
        # The state first: what is half removed after a crash must be known to be trimmed (law 9).
        self._set_state(msgspec.structs.replace(self._state, trimmed=glsn, low_llsn=low))
        # Again, now that a commit in the loop sees the new trim point: rows that came in between count, too.
        self._low_by_trim = max(low, self._commits.llsn_from(GLSN(glsn + 1)))
        self._remove_trimmed()
        self._commits.compact(self._state.low_llsn)

    def close(self) -> None:
        """Let go of all files. What was not synced is not: call `sync_rows` before a clean stop."""
        self._closed = True
        for segment in self._segments:
            segment.let_go()
        self._commits.close()

    # --- event loop: order -----------------------------------------------------------------------------------------------

    def commit(self, row: CommitRow) -> None:
        """[A9] Take in the next commit row, in memory; `sync_rows` writes it later."""
        invariant(row.llsn_end <= self.written_end, "nothing is committed before it is written (law 1)",
                  row=row, written_end=self.written_end)  # fmt: skip
        self._commits.commit(row, self.low_llsn)
        trimmed = self.trimmed
        if row.glsn_begin <= trimmed:
            self._low_by_commit = LLSN(row.llsn_begin + min(row.count, trimmed + 1 - row.glsn_begin))

    def find(self, glsn: GLSN) -> LLSN | None:
        """[R5] The LLSN that is ordered at `glsn` here; None if there is none, or if it is trimmed."""
        llsn = self._commits.find(glsn)
        return llsn if llsn is not None and llsn >= self.low_llsn else None

    def llsn_from(self, glsn: GLSN) -> LLSN:
        """The first readable LLSN whose GLSN is at least `glsn`; `committed_end` if there is none."""
        return min(self.committed_end, max(self.low_llsn, self._commits.llsn_from(glsn)))

    def glsn_of(self, llsn: LLSN) -> GLSN:
        """Where the committed entry `llsn` is in the topic's order."""
        self._check_readable(llsn)
        return self._commits.glsn_of(llsn)

    def rows_between(self, begin: LLSN, end: LLSN) -> tuple[tuple[LLSN, GLSN, int], ...]:
        """(llsn, glsn, count) of the committed runs in [begin, end); adjacent ones are one."""
        return self._commits.rows_between(begin, end)

    # --- event loop: places; any worker: reading ---------------------------------------------------------------------------

    def extent(self, llsn: LLSN, bytes_max: int) -> Extent:
        """[R6] The bytes that hold whole committed batches from the one with `llsn` on: up to `bytes_max`, at least one batch."""
        self._check_readable(llsn)
        segments = self._segments
        number = bisect_right(segments, llsn, key=_first_llsn) - 1
        if number < 0:  # a trim has removed it since the check
            raise Trimmed(llsn, self.low_llsn)
        segment = segments[number]
        end = segments[number + 1].first_llsn if number + 1 < len(segments) else self.committed_end
        return find_extent(segment, llsn, min(end, self.committed_end), bytes_max)

    def read_cached(self, extent: Extent) -> Chunk | None:
        """The chunk if it can be had without waiting for the disk, else None."""
        opened = extent.segment.opened()
        data = opened.file.read_cached(extent.size, extent.offset) if opened is not None else None
        return extent.chunk(data) if data is not None else None

    def read(self, extent: Extent) -> Chunk:
        """Read the chunk from disk. Trimmed if a trim has removed it since."""
        if self._closed:
            raise Unavailable(f"{self.path} is closed")
        segment = extent.segment
        opened = segment.opened()
        if opened is None:
            try:
                opened = segment.open()
            except FileNotFoundError:
                raise Trimmed(extent.llsn, self.low_llsn) from None
            self._put_on_shelf(segment)
        return extent.chunk(opened.file.read_at(extent.size, extent.offset))

    # --- inside ----------------------------------------------------------------------------------------------------------

    def _check_sound(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _check_readable(self, llsn: LLSN) -> None:
        if llsn < self.low_llsn:
            raise Trimmed(llsn, self.low_llsn)
        if llsn >= self.committed_end:
            raise NotWritten(llsn, self.committed_end - 1)

    def _placed(self, batches: Sequence[Buffer]) -> tuple[list[list[tuple[LLSN, int]]], LLSN]:
        """(first LLSN, size) of the batches in each buffer, and the end LLSN; checked before anything is written."""
        placed = []
        epoch_min, sealed_end = self.epoch, self.sealed_end
        llsn: int = self.written_end
        for buffer in batches:
            runs, at, size = [], 0, len(buffer)
            while at < size:
                epoch, count, first = _PLACED.unpack_from(buffer, at + 8)
                (body_bytes,) = _BODY_BYTES.unpack_from(buffer, at + 48)
                invariant(
                    first == llsn, "batches are written back to back (law 4)", batch=first, expected=llsn
                )
                runs.append((first, HEADER_BYTES + body_bytes))
                llsn += count
                if epoch < epoch_min and llsn > sealed_end:
                    raise StaleEpoch(self.log_stream, epoch, epoch_min)
                at += HEADER_BYTES + body_bytes
            invariant(at == size and size > 0, "a buffer holds whole batches", bytes=size, batches_bytes=at)
            placed.append(runs)
        return placed, LLSN(llsn)

    def _write(
        self, segment: Segment, group: list[Buffer], size: int, noted: list[tuple[LLSN, int]], end: LLSN
    ) -> None:
        if not group:
            return
        segment.write(group, size, self._segment_bytes)
        offset = segment.size
        for llsn, batch_bytes in noted:
            segment.index.add(llsn, offset, batch_bytes)
            offset += batch_bytes
        segment.size, segment.end_llsn = offset, end

    def _roll(self, segment: Segment) -> Segment:
        """Close the newest segment and begin the next. All of the old one is durable before the new one's name is."""
        segment.seal_off()
        fresh = Segment.create(self._disk, self.path, segment.end_llsn)
        self._segments = (*self._segments, fresh)
        self._put_on_shelf(segment)
        return fresh

    def _cut_segments(self, end: LLSN) -> None:
        segments = self._segments
        keep = max(1, bisect_right(segments, end - 1, key=_first_llsn))
        for gone in reversed(segments[keep:]):
            gone.let_go()
            _remove_segment(self._disk, gone)
            self._disk.sync_directory(self.path)  # one after the other: what is left must be a chain
        last = segments[keep - 1]
        kept = last.cut_at(end) if end < last.end_llsn else last
        self._segments = (*segments[: keep - 1], kept)

    def _remove_trimmed(self) -> None:
        low, segments = self._state.low_llsn, self._segments
        first = min(len(segments) - 1, sum(1 for segment in segments if segment.end_llsn <= low))
        if first == 0:
            return
        self._segments = segments[first:]
        for segment in segments[:first]:
            segment.let_go()
            _remove_segment(self._disk, segment)
        self._disk.sync_directory(self.path)

    def _put_on_shelf(self, segment: Segment) -> None:
        """Bound the open files: the one that was opened first is let go, and closes behind its last reader."""
        self._shelf.append(segment)
        while len(self._shelf) > _OPEN_SEGMENTS_MAX:
            oldest = self._shelf.popleft()
            if oldest is not self._segments[-1]:
                oldest.let_go()

    def _seal(self, epoch: Epoch, sealed_end: LLSN) -> ReplicaStateFile:
        invariant(epoch >= self.epoch, "an epoch never goes back (law 7)", asked=epoch, here=self.epoch)
        return msgspec.structs.replace(self._state, epoch=epoch, opened=False, sealed_end=sealed_end)

    def _set_state(self, state: ReplicaStateFile) -> None:
        if state != self._state:
            write_state(self._disk, self.path, state)
            self._state = state


def _first_llsn(segment: Segment) -> LLSN:
    return segment.first_llsn


def _remove_segment(disk: Disk, segment: Segment) -> None:
    disk.remove(segment.path)
    sidecar = index_path(segment.path)
    if disk.exists(sidecar):
        disk.remove(sidecar)


def _settle_tail(segment: Segment, found: Recovery) -> None:
    """Make the newest segment on disk what was found: cut behind the last good batch, and truly durable.

    What is not committed is written once more. A process that was killed between write and sync, or whose sync failed, leaves
    bytes that can be read back but may never have reached the disk; nobody may report them before a sync that counts (law 1).
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
