"""[A5 R5] LogStore: one replica on disk; appends of committed topics end here.

Segments, sparse index, commit rows and state behind one API. `append` writes and syncs a group of batches (A5).

Threads. `append`, `cut`, `trim`, `repair`, `set_epoch`, `open_epoch`, `sync_rows`, `settle_rows` and `close` run in the replica's
worker, one at a time. `read` and `examine` run in any worker. The rest runs in the event loop, at the same time, without a lock,
because

- the loop reads only below `committed_end`, which it moves itself, and only after the worker has moved `written_end` past it: what
  is there is written and synced, and no cut reaches it;
- each field has one writer, and what is published last (`written_end`, the tuple of segments) is published by one assignment;
- segments and their files are replaced, not changed, where a reader may use them: a trimmed segment stays open until its last
  reader releases it, and opening it later raises Trimmed.

A write or sync in place that fails poisons the store (R-SEAL-6): every later append and cut raises the same error, because
what is on disk is unknown, and a sync that failed once succeeds the second time without having written anything. Reads continue.
Only opening it again (`reopened`, `resume`), which reads the disk and rewrites what was not proven, makes it usable.
"""

from __future__ import annotations

import errno
import logging
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.batch import HEADER_BYTES, Buffer
from varlog.model.commit import CommitRow
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import CorruptBatch, CorruptReplica, NotWritten, StaleEpoch, Trimmed, Unavailable
from varlog.model.ids import NO_UUID, ClusterUUID, LogStreamID, ProducerID, TopicID
from varlog.model.invariant import invariant
from varlog.model.limits import SEGMENT_BYTES
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN
from varlog.runtime.disk import Disk
from varlog.runtime.logging import get_logger, logfmt
from varlog.storage.cluster_file import write_cluster
from varlog.storage.committed.commit_store import CommitStore
from varlog.storage.committed.extent import BatchChunk, Extent, find_extent, find_time, measure
from varlog.storage.committed.headers import (
    BatchKey,
    BatchPlace,
    HeaderRange,
    find_in,
    header_ranges_back,
    of_producers,
)
from varlog.storage.committed.recovery import keep_evidence, settle_tail, survey
from varlog.storage.committed.row_file import ROWS_NAME
from varlog.storage.committed.segment import Segment, index_path
from varlog.storage.committed.state_file import ReplicaStateFile, write_state
from varlog.storage.corruption import (
    BlockRange,
    Corruption,
    examine_block_range,
    fill_block_range,
    find_block_range,
    repair,
)
from varlog.storage.disk_space import DiskSpace, is_disk_full
from varlog.storage.metadata_files import scrub_sidecar, scrub_state
from varlog.storage.open_file import OpenFile
from varlog.storage.segment_file import MISSING, RangeBytes

__all__ = ["BatchChunk", "Extent", "LogStore"]

_log = get_logger("storage")

# Closed segments that stay open for reading.
_OPEN_SEGMENTS_MAX: Final = 16
_ROWS_AT_ONCE: Final = 4096

_PLACED = struct.Struct("<IIQ")  # epoch, count, first LLSN: bytes 8 to 23 of a batch
_EPOCH = struct.Struct("<I")  # bytes 8 to 11
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
        disk_space: DiskSpace,
    ) -> None:
        self.path = path
        self.disk_space = disk_space
        self.topic: TopicID = state.topic
        self.log_stream: LogStreamID = state.log_stream
        self.written_end: LLSN = segments[-1].end_llsn
        # The epoch of the batches after `committed_end`. It is one epoch: a seal cuts the tail before the next epoch writes, and
        # a sync has its rows on disk before it writes batches of another.
        self.tail_epoch: Epoch = _tail_epoch(segments, commits.committed_end)
        # Ordered entries that were found damaged when the store was opened: the replica has them examined.
        self.corrupt_ranges: tuple[tuple[LLSN, LLSN], ...] = ()
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
        self._trim_floor = state.trimmed
        self._kept_open: deque[Segment] = deque()
        self._failure: OSError | None = None
        self._rows_failure: OSError | None = None
        self._closed = False
        self._scrub_failed = False

    @classmethod
    def create(
        cls,
        disk: Disk,
        path: Path,
        *,
        topic: TopicID,
        log_stream: LogStreamID,
        segment_bytes: int = SEGMENT_BYTES,
        disk_space: DiskSpace | None = None,
        cluster: ClusterUUID = NO_UUID,
    ) -> LogStore:
        """Create an empty replica in a directory that must not exist. The state is written last: with it, the replica exists."""
        if disk.exists(path):
            raise FileExistsError(f"{path} exists already")
        disk.make_directory(path)
        write_cluster(disk, path, cluster)
        commits = CommitStore.create(disk, path, topic, log_stream)
        segment = Segment.create(disk, path, FIRST_LLSN)
        state = ReplicaStateFile(topic, log_stream)
        write_state(disk, path, state)
        return cls(disk, path, state, commits, (segment,), segment_bytes, disk_space or DiskSpace(disk, path))

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        disk_space: DiskSpace | None = None,
    ) -> LogStore:
        """Open the replica in `path` after a stop or a crash. Raises CorruptReplica if its files contradict each other; then
        nothing is changed."""
        disk_space = disk_space or DiskSpace(disk, path)
        try:
            found = survey(disk, path)
        except CorruptReplica:
            keep_evidence(disk, path / ROWS_NAME)
            raise
        lost = found.rows_kept < len(found.rows)
        for note in found.notes:
            _log.log(logging.WARNING if lost else logging.INFO, logfmt("recovery", path=path, note=note))
        begun = () if found.segments else (Segment.create(disk, path, found.rows.begin),)
        for gone in found.remove:
            disk.remove(gone)
            disk.sync_directory(path)  # one after the other: what is left must be consecutive
        # Names that a killed process made may not be durable yet.
        disk.sync_directory(path)
        segments = [Segment(disk, kept.path, kept.index, kept.size, kept.end_llsn) for kept in found.segments]
        for kept, segment in zip(found.segments[:-1], segments[:-1], strict=True):
            content = segment.index.encode(segment.end_llsn, segment.size) if kept.index_lost else b""
            if content and disk_space.can_spare(len(content)):  # it can be created at the next start as well
                disk.replace_file(index_path(kept.path), content)
        if begun:
            segments += begun
        else:
            settle_tail(segments[-1], found)
        commits = CommitStore(disk, path, found.state.topic, found.state.log_stream)
        disk_space.persist(lambda: commits.restore(found.rows, found.rows_kept, found.last_row))
        opened = cls(disk, path, found.state, commits, tuple(segments), segment_bytes, disk_space)
        opened.corrupt_ranges = found.corrupt_ranges
        return opened

    # --- state -----------------------------------------------------------------------------------------------------------

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
    def trim_floor(self) -> GLSN:
        """The newest trimmed position of the topic that is known: the disk may not have it yet, but nothing at or below it is
        read."""
        return self._trim_floor

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
    def oldest_llsn(self) -> LLSN:
        """The first LLSN on disk; it may be trimmed already."""
        return self._segments[0].first_llsn

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches and rows."""
        return sum(segment.size for segment in self._segments) + self._commits.size_bytes

    @property
    def failure(self) -> OSError | None:
        """Why it accepts no writes, if a write or sync failed: then it must be opened again."""
        return self._failure or self._rows_failure

    # --- after a failure ---------------------------------------------------------------------------------------------------

    def reopened(self) -> LogStore:
        """Worker: what is on disk now, repaired and proven by syncs that count. This store writes no more, but serves reads and
        accepts commits until `resume` is called. OSError: the disk still fails. CorruptReplica: it lost entries."""
        self._failure = self._rows_failure = self.failure or OSError(errno.EIO, "it is being opened again")
        # What was deleted or replaced is only in the open descriptor. Not the rows, which a failed compaction may have replaced.
        for segment in self._segments:
            segment.relink()
        return LogStore.open(
            self._disk, self.path, segment_bytes=self._segment_bytes, disk_space=self.disk_space
        )

    def resume(self, fresh: LogStore) -> None:
        """Event loop: continue with what `reopened` found. Rows that were only in memory are still true: the repository ordered
        them. CorruptReplica if entries are gone that were durable once, and nothing is changed."""
        rows, floor = self._commits.unsynced, self._trim_floor
        if fresh.written_end < self.committed_end:
            raise CorruptReplica(
                str(self.path),
                f"entries end at LLSN {fresh.written_end}, and were durable up to {self.committed_end}",
            )
        if fresh.committed_end < self._commits.rows_synced_end:
            raise CorruptReplica(
                str(self.path),
                f"its commit rows end at LLSN {fresh.committed_end}, and were durable up to {self._commits.rows_synced_end}",
            )
        for row in rows:
            if row.llsn_end > fresh.committed_end:
                fresh.commit(row.rest(fresh.committed_end - row.llsn_begin))
        fresh._raise_trim_floor(floor)
        self._state, self._commits, self._segments = fresh._state, fresh._commits, fresh._segments
        self._low_by_trim, self._low_by_commit = fresh._low_by_trim, fresh._low_by_commit
        self._kept_open = deque()
        self.tail_epoch, self.written_end = fresh.tail_epoch, fresh.written_end
        self._failure = self._rows_failure = None

    # --- worker: writing -------------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Buffer]) -> None:
        """[A5] Write placed and checked batches behind the last one, as one group, and sync; `written_end` moves once they are
        durable (law 1). Each buffer holds one batch, or several back to back. OSError: nothing of the group may be trusted."""
        self._check_usable()
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
            if is_disk_full(error):
                self.disk_space.mark_full()
            segment.truncate_unsynced()
            raise
        self.tail_epoch = _EPOCH.unpack_from(batches[0], 8)[0] if batches else self.tail_epoch
        self.written_end = end

    def sync_rows(self) -> LLSN:
        """Write and sync the commit rows that are only in memory; returns the new `rows_synced_end`."""
        return self._sync_rows(self._commits.sync)

    def settle_rows(self) -> LLSN:
        """The same before a clean stop: the end mark that proves the rows durable is synced as well."""
        return self._sync_rows(self._commits.settle)

    def _sync_rows(self, sync: Callable[[], LLSN]) -> LLSN:
        if self._rows_failure is not None:
            raise self._rows_failure
        try:
            synced_end = self.disk_space.persist(sync)
            # Only what is trimmed on disk may leave the disk: after a crash the low LLSN is the state's, and the rows of entries
            # that were trimmed before they were ordered here (`_low_by_commit`) must still show that.
            self._commits.compact(self._state.low_llsn, self.disk_space)
            return synced_end
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
        """Enter `epoch`, sealed at `end`, then remove every batch at or above `end` from the disk (law 6). Twice is harmless.
        CorruptBatch: damage below `end` hides where that is; nothing was removed."""
        invariant(end >= self.committed_end, "a cut never reaches what is committed (law 6)",
                  end=end, committed_end=self.committed_end)  # fmt: skip
        self._check_usable()
        # From here on the rows alone define what is committed: a bad entry below the seal is damage, not a tail.
        self.sync_rows()
        # The state first: a crash in between leaves a tail of an older epoch behind the seal, which recovery cuts again.
        self._set_state(self._seal(epoch, end))
        self._cut_down(end)

    def cut_tail(self) -> None:
        """Remove every batch that is not committed from the disk; the seal stays. What a sync brings may be other batches."""
        self._check_usable()
        self.sync_rows()
        self._cut_down(self.committed_end)

    def begin_at(self, llsn: LLSN) -> None:
        """[R-SYNC-3] Everything here is trimmed, or there is nothing: restart as a replica whose first entry will be `llsn` (law
        9)."""
        invariant(llsn > self.committed_end, "a replica restarts behind what it has",
                  llsn=llsn, committed_end=self.committed_end)  # fmt: skip
        self.cut_tail()
        self._low_by_trim = max(self._low_by_trim, llsn)
        self._state = msgspec.structs.replace(self._state, low_llsn=self._low_by_trim)
        try:
            # The rows first: a crash from here on is finished by recovery, which trusts them.
            self._commits.begin_at(llsn)
            old, self._segments = self._segments, (Segment.create(self._disk, self.path, llsn),)
            self._remove_segments(old)
        except OSError as error:
            self._failure = error
            raise
        self.written_end = llsn

    def trim(self, glsn: GLSN) -> None:
        """[R-TRIM-1] Everything at or below `glsn` may no longer be read; then whole segments of it are removed."""
        if glsn <= self.trimmed:
            return
        # In memory first: if the disk refuses the trim now, trimmed entries are not read all the same (law 9).
        low = self._raise_trim_floor(glsn)
        # The rows that locate the trim point must not be lost in a power loss that the trim survives.
        self.sync_rows()
        # The state first: what is half removed after a crash must be known to be trimmed (law 9).
        self._set_state(msgspec.structs.replace(self._state, trimmed=glsn, low_llsn=low))
        try:
            self._remove_trimmed()
            self._commits.compact(self._state.low_llsn, self.disk_space)
        except OSError as error:
            self._failure = error
            raise

    def repair(self, begin: LLSN, end: LLSN, copy: Buffer) -> None:
        """Overwrite the damaged range of entries [begin, end) with another replica's bytes of it, durably. Twice is harmless.
        CorruptBatch: the copy is bad, and nothing was written; Trimmed: it is not needed any more."""
        self._check_usable()
        self._check_readable(LLSN(end - 1))
        segment, limit, _ = self._segment_of(LLSN(end - 1))
        invariant(end <= limit, "only what is committed is the same everywhere (law 3)", end=end, limit=limit)
        try:
            repair(segment, begin, end, copy, self.low_llsn)
        except OSError as error:
            self._failure = error
            raise

    def fill(self, begin: LLSN, end: LLSN) -> None:
        """Overwrite the damaged range of entries [begin, end), all of them trimmed, with a filler batch. CorruptBatch: where they
        end is not known yet, and nothing was written."""
        self._check_usable()
        invariant(
            end <= self.low_llsn, "only what is trimmed is filled up (law 9)", end=end, low=self.low_llsn
        )
        segment, _, _ = self._segment_of(LLSN(end - 1))
        try:
            fill_block_range(segment, begin, end, self.epoch)
        except OSError as error:
            self._failure = error
            raise

    def relink(self) -> str:
        """Write open files that were deleted or replaced under their names again; returns which, or ''."""
        self._check_usable()
        try:
            found = [segment.relink() for segment in self._segments]
            found.append(self.disk_space.persist(self._commits.relink))
        except OSError as error:
            if not is_disk_full(error):  # then it can be done later: the open descriptor still has everything
                self._failure = self._rows_failure = error
            raise
        return "; ".join(filter(None, found))

    def scrub_metadata(self) -> str:
        """Check state and commit rows and repair them from memory; returns what was wrong, or ''. CorruptReplica: they cannot be
        repaired."""
        self._check_usable()
        state, rewrite = self._state, self._scrub_failed
        # After a failed write or sync what can be read back proves nothing: the next scrub rewrites everything.
        self._scrub_failed = True
        try:
            wrong = self.disk_space.persist(
                lambda: scrub_state(self._disk, self.path, state, rewrite=rewrite)
            )
            wrong = self._commits.scrub_metadata(state.low_llsn, self._epoch_of, rewrite=rewrite) or wrong
        except OSError as error:
            self._failure = self._rows_failure = error
            raise
        self._scrub_failed = False
        return wrong

    def scrub_sidecar(self, blocks: BlockRange) -> str:
        """The same for the sidecar of a closed segment. It can always be rebuilt."""
        if blocks.segment in self._segments[:-1]:
            return scrub_sidecar(self._disk, blocks.segment)
        return ""

    def _epoch_of(self, llsn: LLSN) -> Epoch | None:
        return self._segment_of(llsn)[0].batch_at(llsn)[1].epoch if llsn >= self.low_llsn else None

    def close(self) -> None:
        """Close all files without a sync: call `settle_rows` before a clean stop."""
        self._closed = True
        for segment in self._segments:
            segment.release()
        self._commits.close()

    # --- event loop: order -----------------------------------------------------------------------------------------------

    def commit(self, row: CommitRow) -> None:
        """[A9] Add the next commit row, in memory; `sync_rows` writes it later."""
        invariant(row.llsn_end <= self.written_end, "nothing is committed before it is written (law 1)",
                  row=row, written_end=self.written_end)  # fmt: skip
        self._commits.commit(row, self.low_llsn)
        trimmed = self._trim_floor
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
        """The GLSN of the committed entry `llsn`."""
        self._check_readable(llsn)
        return self._commits.glsn_of(llsn)

    def rows_between(self, begin: LLSN, end: LLSN) -> tuple[tuple[LLSN, GLSN, int], ...]:
        """(llsn, glsn, count) of the committed runs in [begin, end); adjacent ones are one."""
        return self._commits.rows_between(begin, end)

    # --- event loop: extents; any worker: reading ---------------------------------------------------------------------------

    def extent(self, llsn: LLSN, bytes_max: int, limit: LLSN | None = None) -> Extent:
        """[R6] The bytes that hold whole committed batches from the one with `llsn` on: up to `bytes_max`, at least one batch.
        With `limit`, where a batch ends, none from there on."""
        self._check_readable(llsn)
        segment, end, _ = self._segment_of(llsn)
        return find_extent(segment, llsn, min(end, limit or end), bytes_max)

    def rows_from(self, llsn: LLSN, rows_max: int) -> list[CommitRow]:
        """The commit contexts that are on disk, from the one that orders `llsn` on, read there by any worker."""
        if self._closed:
            raise Unavailable(f"{self.path} is closed")
        return self._commits.rows_from(llsn, rows_max)

    @property
    def unsynced_rows(self) -> tuple[CommitRow, ...]:
        """Event loop: the commit contexts that are only in memory."""
        return self._commits.unsynced

    def block_range(self, llsn: LLSN, bytes_max: int = 0) -> BlockRange:
        """What to examine around and behind `llsn`: whole ranges up to `bytes_max`, at least one. Trimmed entries count as long
        as their segment exists: readable entries are reached over them, and they are checked when the replica is opened."""
        segment, limit, whole = self._segment_of(llsn)
        return find_block_range(segment, llsn, limit, bytes_max, whole=whole)

    def examine(self, blocks: BlockRange) -> list[Corruption]:
        """Find damage in the range, on disk, in any worker. Trimmed if a trim has removed it since."""
        if self._closed:
            raise Unavailable(f"{self.path} is closed")
        try:
            return examine_block_range(blocks, self.ordered(blocks))
        except FileNotFoundError:
            if blocks.end > self.low_llsn:
                return [Corruption(blocks.begin, blocks.end, MISSING)]
            raise Trimmed(blocks.begin, self.low_llsn) from None

    def ordered(self, blocks: BlockRange) -> list[tuple[LLSN, LLSN, Epoch]]:
        """In which epochs the entries of the range that are not trimmed were ordered, by the rows on disk. Empty if these are
        bad: that is found elsewhere."""
        begin = max(blocks.begin, self.low_llsn)
        found: list[tuple[LLSN, LLSN, Epoch]] = []
        try:
            while begin < blocks.end and (rows := self._commits.rows_from(begin, _ROWS_AT_ONCE)):
                for row in rows:
                    if found and found[-1][1:] == (row.llsn_begin, row.epoch):
                        found[-1] = found[-1][0], row.llsn_end, row.epoch
                    else:
                        found.append((max(row.llsn_begin, begin), row.llsn_end, row.epoch))
                begin = rows[-1].llsn_end
        except (CorruptBatch, OSError):
            return []
        return found

    def read_cached(self, extent: Extent) -> BatchChunk | None:
        """The chunk if it can be had without waiting for the disk, else None."""
        opened = extent.segment.opened()
        data = opened.file.read_cached(extent.size, extent.offset) if opened is not None else None
        return extent.chunk(data) if data is not None else None

    def read(self, extent: Extent) -> BatchChunk:
        """Read the chunk from disk. Trimmed if a trim has removed it since."""
        opened = self._opened(extent.segment, extent.llsn)
        return extent.chunk(opened.file.read_at(extent.size, extent.offset))

    def header_ranges(self, begin: LLSN, end: LLSN, bytes_max: int) -> list[HeaderRange]:
        """What to search for batches with LLSNs [begin, end), which are committed: the newest first, as far back as `bytes_max`
        allows, never below `low_llsn`."""
        return header_ranges_back(self._segments, max(begin, self.low_llsn), end, bytes_max)

    def find_batches(self, header_range: HeaderRange, wanted: Container[BatchKey]) -> dict[BatchKey, LLSN]:
        """The first LLSNs of the wanted batches in the range, read from disk. Trimmed if a trim has removed it since."""
        opened = self._opened(
            header_range.segment, header_range.first_llsn
        )  # held while it is read: see OpenFile
        return find_in(opened.file, header_range, wanted)

    def batches_of(self, header_range: HeaderRange, producers: Container[ProducerID]) -> list[BatchPlace]:
        """The batches of these producers in the range, in order, read from disk. Trimmed if a trim has removed it since."""
        opened = self._opened(header_range.segment, header_range.first_llsn)
        return of_producers(opened.file, header_range, producers)

    def measure(self, begin: LLSN, end: LLSN, points_max: int) -> RangeBytes:
        """The size on disk of the committed entries [begin, end), from memory."""
        return measure(self._segments, begin, end, points_max)

    def find_time(self, time_us: int) -> LLSN:
        """The first readable entry appended at or after `time_us`, or the committed end, found on disk in any worker. Trimmed if a
        trim removes what is being read."""
        end, begin = self.committed_end, self.low_llsn
        return find_time(
            self._segments, begin, end, time_us, lambda segment: self._opened(segment, segment.first_llsn)
        )

    # --- inside ----------------------------------------------------------------------------------------------------------

    def _segment_of(self, llsn: LLSN) -> tuple[Segment, LLSN, bool]:
        """The segment with the entry `llsn`, up to where its entries are committed, and whether that is all of it."""
        segments, limit = self._segments, self.committed_end
        number = bisect_right(segments, llsn, key=_first_llsn) - 1
        if number < 0:  # a trim has removed it
            raise Trimmed(llsn, self.low_llsn)
        if llsn >= limit:
            raise NotWritten(llsn, limit - 1)
        if number + 1 == len(segments):
            return segments[number], limit, False
        end = segments[number + 1].first_llsn
        return segments[number], min(end, limit), end <= limit

    def _opened(self, segment: Segment, llsn: LLSN) -> OpenFile:
        """The segment's file, to be read from by any worker."""
        if self._closed:
            raise Unavailable(f"{self.path} is closed")
        opened = segment.opened()
        if opened is None:
            try:
                opened = segment.open()
            except FileNotFoundError:
                # A trim persists its point before it removes a file: what is not trimmed and missing is damage (law 9).
                if llsn >= self.low_llsn:
                    raise CorruptBatch(MISSING, 0, str(segment.path)) from None
                raise Trimmed(llsn, self.low_llsn) from None
            self._bound_open_files(segment)
        return opened

    def _check_usable(self) -> None:
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
        segment.write(group, size, self._segment_bytes, self.disk_space)
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
        self._bound_open_files(segment)
        return fresh

    def _cut_down(self, end: LLSN) -> None:
        if end >= self.written_end:
            return
        try:
            self._cut_segments(end)
        except OSError as error:
            self._failure = error
            raise
        self.written_end = end

    def _cut_segments(self, end: LLSN) -> None:
        segments = self._segments
        keep = max(1, bisect_right(segments, end - 1, key=_first_llsn))
        last = segments[keep - 1]
        try:
            # Before anything is removed: damage that hides the offset must be repaired first, and the cut is then repeated.
            offset = last.start_of(end) if end < last.end_llsn else last.size
        except CorruptBatch:
            if end != self._state.low_llsn:
                raise
            # No replica can repair what is trimmed, and it is not needed: all of it is removed. Until then recovery knows it as
            # trimmed.
            self._remove_from(keep)
            self._segments = (Segment.create(self._disk, self.path, end),)
            self._remove_segments(segments[:keep])
            return
        self._remove_from(keep)
        kept = last.cut_at(end, offset) if end < last.end_llsn else last
        self._segments = (*segments[: keep - 1], kept)

    def _remove_trimmed(self) -> None:
        low, segments = self._state.low_llsn, self._segments
        first = min(len(segments) - 1, sum(1 for segment in segments if segment.end_llsn <= low))
        if first == 0:
            return
        self._segments = segments[first:]
        self._remove_segments(segments[:first])

    def _remove_from(self, number: int) -> None:
        """Remove segments `number` and later, the newest first."""
        for gone in reversed(self._segments[number:]):
            gone.release()
            _remove_segment(self._disk, gone)
            self._disk.sync_directory(self.path)  # one after the other: what is left must be consecutive

    def _remove_segments(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.release()
            _remove_segment(self._disk, segment)
        self._disk.sync_directory(self.path)

    def _bound_open_files(self, segment: Segment) -> None:
        """Bound the open files: the one that was opened first is released, and closes after its last reader."""
        self._kept_open.append(segment)
        while len(self._kept_open) > _OPEN_SEGMENTS_MAX:
            oldest = self._kept_open.popleft()
            if oldest is not self._segments[-1]:
                oldest.release()

    def _seal(self, epoch: Epoch, sealed_end: LLSN) -> ReplicaStateFile:
        invariant(epoch >= self.epoch, "an epoch never goes back (law 7)", asked=epoch, here=self.epoch)
        return msgspec.structs.replace(self._state, epoch=epoch, opened=False, sealed_end=sealed_end)

    def _set_state(self, state: ReplicaStateFile) -> None:
        if state != self._state:
            self.disk_space.persist(lambda: write_state(self._disk, self.path, state))
            self._state = state

    def _raise_trim_floor(self, glsn: GLSN) -> LLSN:
        """Nothing at or below `glsn` is read any more. A commit in the loop sees the trim point first: rows that arrive meanwhile
        count as well. Returns the low LLSN by the rows that are here."""
        self._trim_floor = max(self._trim_floor, glsn)
        self._low_by_trim = max(self._low_by_trim, self._commits.llsn_from(GLSN(self._trim_floor + 1)))
        return self._low_by_trim


def _first_llsn(segment: Segment) -> LLSN:
    return segment.first_llsn


def _tail_epoch(segments: Sequence[Segment], committed_end: LLSN) -> Epoch:
    """The epoch of the first batch that is not committed."""
    if committed_end >= segments[-1].end_llsn:
        return NO_EPOCH
    segment = segments[bisect_right(segments, committed_end, key=_first_llsn) - 1]
    try:
        _, header = segment.batch_at(committed_end)
    except CorruptBatch as problem:
        raise CorruptReplica(str(segment.path), f"at byte {problem.at}: {problem.what}") from None
    if segment is not segments[-1]:
        segment.release()
    return header.epoch


def _remove_segment(disk: Disk, segment: Segment) -> None:
    disk.remove(segment.path)
    sidecar = index_path(segment.path)
    if disk.exists(sidecar):
        disk.remove(sidecar)
