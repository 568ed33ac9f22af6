"""[Q5] PageStore: one log unit on disk; appends of sequenced topics end here.

A page is a batch at the LLSNs that its client chose; it is written once (law 8). `append` writes and syncs pages in the order of
their arrival, group by group, to segments numbered 1, 2, 3 …; an index in memory finds them by LLSN. Which positions are free is
for the caller to know: nothing here is ever overwritten.

    lsid=<log stream>/
        unit                        state: epoch, trim point (unit_state.py)
        synced                      how far the newest segment is certainly on disk (sync_watermark.py)
        00000000000000000001.seg    pages in the order of their arrival; the newest one is reserved ahead
        00000000000000000001.idx    the pages of a closed segment (sidecar.py)

Threads. `append`, `confirm_sync`, `set_epoch`, `trim`, `scrub_metadata`, `reopened` and `close` run in the unit's worker, one at a
time; disk reads run in any worker; everything else runs in the event loop. One lock, held briefly, guards the index and the runs;
the tuple of segments and the state are replaced, never changed. Readers see a page once the loop has called `publish`, after
`append` has made it durable (law 1). A segment that a trim removes stays open until its last reader releases it.

A write or sync that fails makes the store fail for good (R-SEAL-6): every later append raises the same error, because what is on
disk is unknown, and a sync that failed once succeeds the second time without having written anything. Reads continue. Only opening
it again (`reopened`), which reads the disk and rewrites what was not proven, makes the unit usable. A lack of space that is noticed
before the first byte is no failure: the same append may be repeated.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.batch import HEADER_BYTES, Buffer, parse_header
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, CorruptReplica, Trimmed, Unavailable
from varlog.model.ids import NO_UUID, ClusterUUID, LogStreamID, TopicID
from varlog.model.invariant import invariant
from varlog.model.limits import MIB, SEGMENT_BYTES
from varlog.model.lsn import LLSN
from varlog.runtime.disk import Disk
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.worker import new_guard
from varlog.storage.cluster_file import write_cluster
from varlog.storage.corruption import Corruption
from varlog.storage.disk_space import DiskSpace, is_disk_full
from varlog.storage.metadata_files import lost_write
from varlog.storage.open_file import OpenFile
from varlog.storage.segment_file import MISSING, RangeBytes, index_path
from varlog.storage.sequenced.page_index import (
    LlsnRuns,
    PageIndex,
    PageRef,
    check_page_header,
    check_pages,
    find_page_time,
    joined,
    measure_pages,
    page_ranges,
)
from varlog.storage.sequenced.page_recovery import scan_pages, survey_unit
from varlog.storage.sequenced.page_segment import PageGroup, PageHeader, PageSegment, page_headers
from varlog.storage.sequenced.sidecar import decode_sidecar, encode_pages, encode_sidecar
from varlog.storage.sequenced.sync_watermark import SYNCED_NAME, Synced, SyncWatermark, read_mark
from varlog.storage.sequenced.unit_state import FIRST_SEGMENT, UNIT_NAME, UnitStateFile, read_unit, write_unit

__all__ = ["PageRef", "PageStore"]

_log = get_logger("storage")

# Closed segments that stay open for reading.
_OPEN_SEGMENTS_MAX: Final = 16
_REWRITE_BYTES: Final = 4 * MIB


class PageStore:
    """One log unit on disk."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        state: UnitStateFile,
        index: PageIndex,
        runs: LlsnRuns,
        segments: tuple[PageSegment, ...],
        mark: SyncWatermark,
        segment_bytes: int,
        disk_space: DiskSpace,
    ) -> None:
        self.path = path
        self.disk_space = disk_space
        # Acknowledged pages that were found damaged when the store was opened: the unit has them examined.
        self.corrupt_ranges: tuple[tuple[LLSN, LLSN], ...] = ()
        self._disk = disk
        self._state = state
        self._segments = segments
        self._mark = mark
        self._segment_bytes = segment_bytes
        self._lock = new_guard()
        self._index = index
        self._runs = runs
        self._end = index.end
        self._kept_open: deque[PageSegment] = deque()
        self._failure: OSError | None = None
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
        disk_space: DiskSpace | None = None,
        cluster: ClusterUUID = NO_UUID,
    ) -> PageStore:
        """Worker: create an empty unit in a directory that must not exist. The state is written last: with it, the unit exists."""
        if disk.exists(path):
            raise FileExistsError(f"{path} exists already")
        disk.make_directory(path)
        write_cluster(disk, path, cluster)
        mark = SyncWatermark.open(disk, path)
        segment = PageSegment.create(disk, path, FIRST_SEGMENT)
        state = UnitStateFile(topic, log_stream)
        write_unit(disk, path, state)
        return cls(
            disk,
            path,
            state,
            PageIndex(),
            LlsnRuns(),
            (segment,),
            mark,
            segment_bytes,
            disk_space or DiskSpace(disk, path),
        )

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        disk_space: DiskSpace | None = None,
    ) -> PageStore:
        """Worker: open the unit in `path` after a stop or a crash. Raises CorruptReplica if its files contradict each other; then
        nothing is changed."""
        disk_space = disk_space or DiskSpace(disk, path)
        found = survey_unit(disk, path)
        index, runs = found.pages()
        for note in found.notes:
            _log.log(logging.INFO, logfmt("recovery", path=path, note=note))
        for gone in found.remove:
            disk.remove(gone)
        # Names that a killed process made may not be durable yet.
        disk.sync_directory(path)
        newest = found.segments[-1]
        segments = tuple(
            PageSegment(
                disk,
                kept.path,
                kept.number,
                kept.size,
                kept.end_llsn,
                kept.rows.tobytes() if kept is newest else b"",
            )
            for kept in found.segments
        )
        for kept in found.segments[:-1]:
            content = (
                encode_sidecar(kept.number, kept.size, kept.rows.tobytes()) if kept.sidecar_lost else b""
            )
            if content and disk_space.can_spare(len(content)):  # it can be created at the next start as well
                disk.replace_file(index_path(kept.path), content)
        _settle_tail(segments[-1], newest.file_bytes, found.synced)
        mark = SyncWatermark.open(disk, path)
        mark.move(Synced(newest.number, newest.size), sure=True)
        opened = cls(disk, path, found.state, index, runs, segments, mark, segment_bytes, disk_space)
        opened.corrupt_ranges = found.corrupt_ranges
        return opened

    # --- state -----------------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> TopicID:
        return self._state.topic

    @property
    def log_stream(self) -> LogStreamID:
        return self._state.log_stream

    @property
    def epoch(self) -> Epoch:
        """The newest epoch it was sealed for, durably (law 7)."""
        return self._state.epoch

    @property
    def low(self) -> LLSN:
        """The LLSN below which nothing exists any more (law 9)."""
        return self._state.low

    @property
    def newest(self) -> LLSN:
        """The largest LLSN that is, or was before a trim, written; `low` - 1 if none is."""
        return LLSN(max(self._end, self.low) - 1)

    @property
    def dense_end(self) -> LLSN:
        """The first LLSN from `low` on that is not written."""
        return self.gap_from(self.low)

    @property
    def bytes(self) -> int:
        """Bytes of all pages on disk."""
        return sum(segment.size for segment in self._segments)

    @property
    def failure(self) -> OSError | None:
        """Why it accepts no writes, if a write or sync failed: then it must be opened again."""
        return self._failure

    # --- event loop: which pages there are ---------------------------------------------------------------------------------

    def publish(self, pages: Sequence[PageRef]) -> None:
        """Make visible what `append` made durable."""
        with self._lock:
            low = self.low
            for page in pages:
                if page.end_llsn > low:
                    self._index.add(page)
                    self._runs.add(page.first_llsn, page.end_llsn)
            self._end = max(self._end, *(page.end_llsn for page in pages)) if pages else self._end

    def page(self, llsn: LLSN) -> PageRef | None:
        """The page that holds `llsn`; None if it is not written, or trimmed."""
        with self._lock:
            return self._index.holding(llsn) if llsn >= self.low else None

    def overlaps(self, first: LLSN, count: int) -> PageRef | None:
        """The first page that holds one of `count` LLSNs from `first` on."""
        with self._lock:
            return self._index.overlapping(first, LLSN(first + count))

    def pages_from(
        self, llsn: LLSN, limit: int, *, end: LLSN | None = None, bytes_max: int | None = None
    ) -> list[PageRef]:
        """The pages from the one with `llsn`, or the next one, on, skipping holes: at most `limit`; with `end` none that begins
        there or behind; with `bytes_max` about that many bytes, but at least one page."""
        return self._walk(llsn, limit, end, bytes_max, dense=False)

    def run(self, llsn: LLSN, bytes_max: int) -> list[PageRef]:
        """The pages without a gap from the one holding `llsn` on: about `bytes_max`, at least one; none if it is not written."""
        return self._walk(llsn, None, None, bytes_max, dense=True)

    def gap_from(self, llsn: LLSN) -> LLSN:
        """The first LLSN from `llsn` on that is not written."""
        with self._lock:
            return self._runs.gap_from(llsn)

    def covers(self, begin: LLSN, end: LLSN) -> bool:
        """True if every LLSN of [begin, end) is written."""
        return begin >= end or self.gap_from(begin) >= end

    def _walk(
        self, llsn: LLSN, limit: int | None, end: LLSN | None, bytes_max: int | None, *, dense: bool
    ) -> list[PageRef]:
        pages: list[PageRef] = []
        size, expected = 0, max(llsn, self.low)
        with self._lock:
            for page in self._index.walk(expected):
                if (end is not None and page.first_llsn >= end) or (
                    limit is not None and len(pages) >= limit
                ):
                    break
                if dense and page.first_llsn > expected:
                    break
                size += page.size
                if pages and bytes_max is not None and size > bytes_max:
                    break
                pages.append(page)
                expected = page.end_llsn
        return pages if not dense or llsn >= self.low else []

    # --- any worker: reading -----------------------------------------------------------------------------------------------

    def read_cached(self, pages: Sequence[PageRef]) -> Buffer | None:
        """Event loop: the pages' bytes if they can be had without waiting for the disk, else None."""
        parts: list[Buffer] = []
        for page_range in page_ranges(pages):
            segment = self._segment(page_range.first)
            opened = segment.opened() if segment is not None else None
            data = (
                opened.file.read_cached(page_range.size, page_range.first.offset)
                if opened is not None
                else None
            )
            if segment is None or data is None:
                return None
            check_page_header(page_range.first, data, 0, str(segment.path))
            parts.append(data)
        return joined(parts)

    def read(self, pages: Sequence[PageRef]) -> Buffer:
        """The pages' bytes, back to back in this order. Trimmed if a trim has removed one since. Bodies are not checked: the reader
        does. CorruptBatch: something else is there."""
        return joined([self._read(page_range.first, page_range.size) for page_range in page_ranges(pages)])

    def header(self, page: PageRef) -> Buffer:
        """The 64 bytes of the page's header: two batches are the same if these are. Errors as of `read`."""
        return self._read(page, HEADER_BYTES)

    def measure(self, begin: LLSN, end: LLSN, points_max: int) -> RangeBytes:
        """The size on disk of the pages of [begin, end), from memory."""
        with self._lock:
            firsts, sizes = self._index.sizes_between(max(begin, self.low), end)
        return measure_pages(firsts, sizes, begin, end, points_max)

    def find_time(self, time_us: int) -> LLSN:
        """The first entry appended at or after `time_us`, or the one behind the newest. Errors as of `read`."""
        return find_page_time(
            self.low,
            LLSN(self.newest + 1),
            time_us,
            self._data_from,
            lambda page: parse_header(self.header(page)).time_us,
        )

    def examine(self, pages: Sequence[PageRef]) -> list[Corruption]:
        """Which of the pages are damaged on disk, and how. Trimmed if a trim has removed one since."""
        corrupt: list[Corruption] = []
        for page_range in page_ranges(pages):
            try:
                path, opened = self._borrowed(page_range.first)
            except CorruptBatch as missing:
                corrupt += [
                    Corruption(page.first_llsn, page.end_llsn, missing.what) for page in page_range.pages
                ]
                continue
            try:
                check_pages(
                    page_range.pages, opened.file.read_at(page_range.size, page_range.first.offset), path
                )
                continue
            except (CorruptBatch, OSError):
                pass  # which page of it is damaged is found out below
            for page in page_range.pages:
                try:
                    check_pages([page], opened.file.read_at(page.size, page.offset), path)
                except CorruptBatch as problem:
                    corrupt.append(Corruption(page.first_llsn, page.end_llsn, problem.what))
                except OSError as error:
                    corrupt.append(Corruption(page.first_llsn, page.end_llsn, f"it cannot be read: {error}"))
        return corrupt

    # --- worker: writing -------------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Buffer]) -> list[PageRef]:
        """[Q5] Write placed batches, whose headers and bodies have been checked, as one group, and sync; the pages are durable, and
        `publish` shows them. Each buffer holds one batch, or several back to back. OSError: nothing of the group may be trusted,
        unless there was no space for the first of it (`failure` is None then): nothing was written."""
        self._check_usable()
        placed = [page_headers(buffer) for buffer in batches]
        self._check_new([header for headers in placed for header in headers])
        group = PageGroup(self._segments[-1])
        pages: list[PageRef] = []
        try:
            for buffer, headers in zip(batches, placed, strict=True):
                if group.end + len(buffer) > self._segment_bytes and group.end:
                    pages += self._write(group)
                    group.tried = True
                    group = PageGroup(self._roll(group.segment))
                group.add(buffer, headers)
            pages += self._write(group)
        except OSError as error:
            if is_disk_full(error):
                self.disk_space.mark_full()
                if not group.tried and not pages:
                    raise
            self._failure = error
            group.segment.truncate_unsynced()
            raise
        return pages

    def confirm_sync(self) -> None:
        """Make the sync watermark itself survive a power loss: to be called when nothing has been written for a while."""
        self._check_usable()
        try:
            if not self._mark.is_sure:
                self._mark.move(self._synced(), sure=True)
        except OSError as error:
            self._failure = error
            raise

    def set_epoch(self, epoch: Epoch) -> None:
        """Enter a newer epoch, durably (R-SEQ-9)."""
        invariant(epoch >= self.epoch, "an epoch never goes back (law 7)", asked=epoch, here=self.epoch)
        self._set_state(msgspec.structs.replace(self._state, epoch=epoch))

    def trim(self, low: LLSN) -> None:
        """Trim everything below `low`, then remove whole segments of it, the oldest first."""
        if low <= self.low:
            return
        segments = self._segments
        gone = 0
        while gone + 1 < len(segments) and segments[gone].end_llsn <= low:
            gone += 1
        # The state first: what is half removed after a crash must be known to be trimmed (law 9).
        self._set_state(msgspec.structs.replace(self._state, low=low, first_segment=segments[gone].number))
        with self._lock:
            self._index.drop_below(low)
            self._runs.drop_below(low)
        self._segments = segments[gone:]
        try:
            self._remove(segments[:gone])
        except OSError as error:
            self._failure = error
            raise

    def relink(self) -> str:
        """Write open files that were deleted or replaced under their names again; returns which, or ''."""
        self._check_usable()
        try:
            found = [segment.relink() for segment in self._segments]
            found.append(self.disk_space.persist(lambda: self._mark.relink(self._disk)))
        except OSError as error:
            if not is_disk_full(error):  # then it can be done later: the open descriptor still has everything
                self._failure = error
            raise
        return "; ".join(filter(None, found))

    def scrub_metadata(self) -> str:
        """Check the state and the sync watermark for damage and lost writes, and rewrite them from memory; returns what was wrong,
        or ''."""
        self._check_usable()
        state, wrong = self._state, ""
        try:
            found = read_unit(self._disk, self.path)
            if found != state:
                wrong = lost_write(self.path / UNIT_NAME, found, state)
        except CorruptReplica as damaged:
            wrong = str(damaged)
        if wrong:
            self.disk_space.persist(lambda: write_unit(self._disk, self.path, state))
        synced = read_mark(self._disk, self.path)
        if synced is None or synced < self._mark.newest:
            wrong = lost_write(self.path / SYNCED_NAME, synced, self._mark.newest)
            try:
                self._mark.write_again()
            except OSError as error:
                self._failure = error
                raise
        return "; ".join(filter(None, (wrong, *map(self._scrub_sidecar, self._segments[:-1]))))

    def _scrub_sidecar(self, segment: PageSegment) -> str:
        """Rewrite the sidecar of a closed segment if it is damaged or missing: nothing else shows how long the segment was."""
        path, excess = index_path(segment.path), segment.cut_excess()
        content = self._disk.read_file(path) if self._disk.exists(path) else b""
        if decode_sidecar(content, segment.number, segment.size) is not None:
            return excess
        try:
            opened = segment.borrow()
            found = scan_pages(opened.file.read_at, segment.size, segment.size, segment.number)
        except FileNotFoundError:  # found when its pages are examined
            return ""
        same = all(self.page(page.first_llsn) == page for page in found.pages if page.first_llsn >= self.low)
        rebuilt = encode_sidecar(segment.number, segment.size, encode_pages(found.pages))
        if found.size != segment.size or not same or not self.disk_space.can_spare(len(rebuilt)):
            return ""
        self._disk.replace_file(path, rebuilt)
        return f"{path} is damaged or missing"

    def reopened(self) -> PageStore:
        """What is on disk now, repaired and proven by syncs that count: a new store in place of this one, which writes no more and
        may serve reads until then. OSError: the disk still fails. CorruptReplica: it lost pages."""
        self._failure = self._failure or OSError(errno.EIO, "it is being opened again")
        # What was deleted or replaced is only in the open descriptor.
        for segment in self._segments:
            segment.relink()
        self.disk_space.persist(lambda: self._mark.relink(self._disk))
        return PageStore.open(
            self._disk, self.path, segment_bytes=self._segment_bytes, disk_space=self.disk_space
        )

    def close(self) -> None:
        """Close all files."""
        if self._closed:
            return
        self._closed = True
        if self._failure is None:
            # Only makes the next start cheaper.
            with contextlib.suppress(OSError):
                self.confirm_sync()
        for segment in self._segments:
            segment.release()
        self._mark.close()

    # --- inside ----------------------------------------------------------------------------------------------------------

    def _segment(self, page: PageRef) -> PageSegment | None:
        """The segment with the page; None if a trim has removed it."""
        segments = self._segments
        number = page.segment - segments[0].number
        return segments[number] if number >= 0 else None

    def _read(self, page: PageRef, size: int) -> Buffer:
        """Bytes that begin with the page."""
        if self._closed:
            raise Unavailable(f"{self.path} is closed")
        segment = self._segment(page)
        if segment is None:
            raise Trimmed(page.first_llsn, self.low)
        opened = segment.opened()
        if opened is None:
            try:
                opened = segment.open()
            except FileNotFoundError:
                self._check_not_missing(page, segment)
                raise Trimmed(page.first_llsn, self.low) from None
            self._bound_open_files(segment)
        data = opened.file.read_at(size, page.offset)
        check_page_header(page, data, 0, str(segment.path))
        if len(data) != size:
            raise CorruptBatch("the body is cut off", page.offset, str(segment.path))
        return data

    def _borrowed(self, page: PageRef) -> tuple[str, OpenFile]:
        """The path and the file of the page's segment, for one use."""
        if self._closed:
            raise Unavailable(f"{self.path} is closed")
        segment = self._segment(page)
        try:
            if segment is not None:
                return str(segment.path), segment.borrow()
        except FileNotFoundError:
            if segment is not None:
                self._check_not_missing(page, segment)
        raise Trimmed(page.first_llsn, self.low)

    def _check_not_missing(self, page: PageRef, segment: PageSegment) -> None:
        """A trim persists its point before it removes a file: what is not trimmed and missing is damage (law 9)."""
        if page.end_llsn > self.low:
            raise CorruptBatch(MISSING, page.offset, str(segment.path))

    def _data_from(self, llsn: LLSN) -> PageRef | None:
        """The page with `llsn`, or the next one, that is not junk."""
        with self._lock:
            return next((page for page in self._index.walk(llsn) if not page.is_junk), None)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _check_new(self, headers: Sequence[PageHeader]) -> None:
        """The caller keeps law 8; it is checked here before a byte is written."""
        with self._lock:
            for placed in headers:
                found = self._index.overlapping(placed.first_llsn, placed.end_llsn)
                invariant(found is None, "a page is written once (law 8)", page=placed, there=found)
        ordered = sorted(headers)
        for one, other in pairwise(ordered):
            invariant(
                one.end_llsn <= other.first_llsn, "a page is written once (law 8)", page=one, there=other
            )

    def _write(self, group: PageGroup) -> list[PageRef]:
        if not group.buffers:
            return []
        segment = group.segment
        segment.reserve(group.size, self._segment_bytes, self.disk_space)
        group.tried = True
        segment.write(group.buffers, group.size, self._segment_bytes, self.disk_space)
        pages = group.pages()
        segment.add(pages)
        self._mark.move(self._synced())
        return pages

    def _roll(self, segment: PageSegment) -> PageSegment:
        """Close the newest segment and begin the next. All of the old one is durable before the new one's name is."""
        segment.seal_off()
        fresh = PageSegment.create(self._disk, self.path, segment.number + 1)
        self._segments = (*self._segments, fresh)
        segment.forget_rows()
        self._bound_open_files(segment)
        return fresh

    def _synced(self) -> Synced:
        newest = self._segments[-1]
        return Synced(newest.number, newest.size)

    def _remove(self, segments: Sequence[PageSegment]) -> None:
        for segment in segments:
            segment.release()
            sidecar = index_path(segment.path)
            if self._disk.exists(sidecar):
                self._disk.remove(sidecar)
            self._disk.remove(segment.path)
        if segments:
            self._disk.sync_directory(self.path)

    def _bound_open_files(self, segment: PageSegment) -> None:
        """Bound the open files: the one that was opened first is released, and closes after its last reader."""
        with self._lock:
            self._kept_open.append(segment)
            while len(self._kept_open) > _OPEN_SEGMENTS_MAX:
                oldest = self._kept_open.popleft()
                if oldest is not self._segments[-1]:
                    oldest.release()

    def _set_state(self, state: UnitStateFile) -> None:
        if state != self._state:
            self.disk_space.persist(lambda: write_unit(self._disk, self.path, state))
            self._state = state


def _settle_tail(segment: PageSegment, file_bytes: int, synced: int) -> None:
    """Make the newest segment on disk what was found: cut behind the last good page, and truly durable.

    What is not proven is written again. A process that was killed between write and sync, or whose sync failed, leaves bytes that
    can be read back but may never have reached the disk; they do not count as written before a sync that counts (law 1).
    """
    file = segment.open().file
    if file_bytes > segment.size:
        file.truncate(segment.size)
    for offset in range(synced, segment.size, _REWRITE_BYTES):
        file.write_at([file.read_at(min(_REWRITE_BYTES, segment.size - offset), offset)], offset)
    file.sync()
