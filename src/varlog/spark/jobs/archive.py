"""archive(): copies a topic into Parquet files exactly once; optionally trims it.

Once, or continuously. A range is written into a directory of its own, read back and checked, then committed by one new file of
the manifest; only what the manifest names is trimmed. After a crash at any point, the next run continues at the
manifest's end.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

import varlog
from varlog.model.errors import JunkPosition, NotWritten, PreconditionFailed, ReaderBehind, Trimmed
from varlog.model.lsn import GLSN
from varlog.spark.archive.archive_rules import (
    FILE_BYTES,
    RANGE_RECORDS,
    Contents,
    files_of_range,
    next_range,
    range_text,
    trim_point,
)
from varlog.spark.archive.files import HadoopFiles
from varlog.spark.archive.writer import ArchiveWriter, archive_session
from varlog.spark.jobs.progress import Progress, java_ended, silent

# How often a continuous archive checks for new entries, and when it writes a partial range.
POLL_S = 1.0
REST_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What a run did (or, in a dry run, would do), and the state after it. `begin` and `end`: the positions in the archive, the end
    exclusive; `trimmed`: the newest trimmed position of the log; `behind`: how many positions are not archived."""

    topic: str
    path: str
    reader: str
    ranges_written: int
    rows_written: int
    bytes_written: int
    begin: int
    end: int
    trimmed: int
    behind: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """How a topic is archived."""

    range_records: int = RANGE_RECORDS
    file_bytes: int = FILE_BYTES
    trim: bool = False
    keep_records: int = 0
    respect_readers: bool = True
    rest_after_s: float = REST_AFTER_S
    poll_s: float = POLL_S

    def __post_init__(self) -> None:
        if self.range_records < 1 or self.file_bytes < 1 or self.keep_records < 0:
            raise PreconditionFailed(
                "records of a range and bytes of a file are 1 or more, records to keep 0 or more"
            )


def archive(
    spark: SparkSession,
    address: str,
    topic: str,
    path: str,
    *,
    range_records: int = RANGE_RECORDS,
    file_bytes: int = FILE_BYTES,
    continuous: bool = False,
    trim: bool = False,
    keep_records: int = 0,
    respect_readers: bool = True,
    rest_after_s: float = REST_AFTER_S,
    stop: threading.Event | None = None,
    progress: Progress = silent,
    dry_run: bool = False,
) -> ArchiveReport:
    """Archive a topic below `path`: everything that is in the log now, or with `continuous` until `stop` is set (or Ctrl-C).

    With `trim`, what is archived is trimmed from the log, except the newest `keep_records` and (with `respect_readers`) what a
    named reader has not read yet. The archive is a named reader itself: its lag is in `varlog status`.
    """
    settings = ArchiveSettings(range_records, file_bytes, trim, keep_records, respect_readers, rest_after_s)
    with varlog.connect(address, topic, create=False) as log:
        run = Archiver(spark, log, address, path, settings, progress)
        if dry_run:
            return run.plan()
        run.begin()
        if continuous:
            run.run_until(stop or threading.Event())
        else:
            run.run_once()
        return run.report()


class Archiver:
    """One run of the job: the log, the archive as far as it is known, and what this run has written."""

    def __init__(
        self,
        spark: SparkSession,
        log: varlog.Log,
        address: str,
        path: str,
        settings: ArchiveSettings,
        progress: Progress = silent,
    ) -> None:
        self.topic = log.topic
        self._spark = archive_session(spark)
        files = HadoopFiles(spark, path)
        self.writer = ArchiveWriter(self._spark, files, int(log.connector.view().cluster), self.topic)
        self.path = files.path
        self.reader = archive_reader(files.path)
        self._log = log
        self._source = {"address": address, "topic": self.topic.name}
        self._settings = settings
        self._progress = progress
        self._check_identity()

    # --- the archive --------------------------------------------------------------------------------------------------

    @property
    def contents(self) -> Contents:
        return self.writer.contents

    def _check_identity(self) -> None:
        """Two clusters can have the same id, and each a topic of this name and id: where log and archive overlap, they must
        agree."""
        if not self.contents:
            return
        last = self.contents.commits[-1]
        try:
            entry = self._log.read(last.end - 1)
        except Trimmed:
            return
        except NotWritten as beyond:
            raise PreconditionFailed(
                f"archive {self.path} goes up to position {last.end - 1}, and the log only to {beyond.newest}: it is of "
                "another log"
            ) from beyond
        if zlib.crc32(entry.data) != last.last_checksum:
            raise PreconditionFailed(
                f"archive {self.path} has another entry at position {last.end - 1} than the log: it is of another log"
            )

    def archived_end(self) -> int:
        """The next position to archive. Refuses a gap: the archive would never be complete again."""
        oldest = self._log.trimmed() + 1
        if not self.contents or oldest > self.contents.end:
            self.writer.refresh()  # another archiver may have written, and trimmed
        if not self.contents:
            return max(oldest, self.topic.first)
        if oldest > self.contents.end:
            raise PreconditionFailed(
                f"{range_text(self.contents.end, oldest)} of topic {self.topic.name!r} were trimmed before they were "
                "archived: begin "
                f"a new archive in another path than {self.path}"
            )
        return self.contents.end

    # --- the run ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Report the archive's position first: from now on a trim that respects readers spares the rest."""
        self.writer.clean()
        self._move_reader()

    def run_once(self) -> None:
        """Everything that is in the log now: a run must end although the log grows."""
        newest = self._log.tail()
        while self._step(newest, rest=True):
            self._trim()
        self._trim()

    def run_until(self, stop: threading.Event) -> None:
        """Range after range, until `stop` is set or KeyboardInterrupt."""
        waiting_since = time.monotonic()
        try:
            while not stop.is_set():
                newest = self._log.tail()
                if newest < self.archived_end():
                    waiting_since = time.monotonic()
                rest = time.monotonic() - waiting_since >= self._settings.rest_after_s
                if self._step(newest, rest=rest):
                    waiting_since = time.monotonic()
                    self._trim()
                else:
                    stop.wait(self._settings.poll_s)
            self._trim()
        except KeyboardInterrupt:
            return
        except Exception:
            if not (stop.is_set() and java_ended(self._spark)):
                raise

    def _step(self, newest: int, *, rest: bool) -> bool:
        """One range, by us or by another archiver; false if there is none to write."""
        found = next_range(self.archived_end(), newest, self._settings.range_records, rest=rest)
        if found is None:
            return False
        begin, end = found
        self._progress(f"archiving {self.topic.name}", begin - 1, newest)
        try:
            if self.topic.sequenced:
                end = self._end_with_an_entry(begin, end, newest)
            if end == begin:
                return False
            self._add(begin, end)
        except Exception:
            self.writer.refresh()
            if not self.contents or self.contents.end <= begin:
                raise
            # Another archiver was faster, and has trimmed and cleaned up behind it: the error does not matter.
        self.writer.clean()
        self._move_reader()
        self._progress(f"archiving {self.topic.name}", end - 1, newest)
        return True

    def _add(self, begin: int, end: int) -> None:
        parts = files_of_range(begin, end, self._bytes(begin, end), self._settings.file_bytes)
        last = self._log.read(end - 1)
        self.writer.add(self._rows(begin, end), begin, end, parts, zlib.crc32(last.data), self._explain)

    def _end_with_an_entry(self, begin: int, end: int, newest: int) -> int:
        """The last position of a range holds an entry, whose checksum identifies the log later: junk positions at the end are
        left for the next range. Returns `begin` if no position up to `newest` holds an entry."""
        while True:
            for last in range(end - 1, begin - 1, -1):
                with suppress(JunkPosition):
                    self._log.read(last)
                    return last + 1
            if end > newest:
                return begin
            end = min(end + self._settings.range_records, newest + 1)

    def _explain(self, gaps: Sequence[tuple[int, int]]) -> None:
        """Positions without a row: junk positions of a sequenced topic; a committed topic has none."""
        for begin, end in gaps:
            entry = (
                next(iter(self._log.subscribe(GLSN(begin), GLSN(end))), None)
                if self.topic.sequenced
                else begin
            )
            if entry is not None:
                raise PreconditionFailed(
                    f"{range_text(begin, end)} have no row, and the log has an entry there"
                )

    def _rows(self, begin: int, end: int) -> DataFrame:
        place = {"startingOffsets": str(begin), "endingOffsets": str(end)}
        return self._spark.read.format("varlog").options(**self._source, **place).load()

    def _bytes(self, begin: int, end: int) -> int:
        measured = (
            self._log.connector.measure(stream.log_stream, GLSN(begin), GLSN(end), points_max=1)
            for stream in self._log.connector.view().streams_of(self.topic.topic)
        )
        return sum(found.bytes for found in measured)

    def _move_reader(self) -> None:
        self._log.set_reader(self.reader, GLSN(self.archived_end() - 1), back=True)

    # --- trimming -----------------------------------------------------------------------------------------------------

    def _trim(self) -> None:
        point = self._trim_point() if self._settings.trim else None
        if point is None:
            return
        try:
            self._log.trim(GLSN(point), respect_readers=self._settings.respect_readers)
        except ReaderBehind:
            return  # the reader appeared in the meantime: next time

    def _trim_point(self) -> int | None:
        if not self.contents:
            return None
        readers: list[int] = []
        if self._settings.respect_readers:
            readers = [reader.position for reader in self._log.readers() if reader.name != self.reader]
        return trim_point(
            self.contents.end,
            self._log.tail(),
            self._settings.keep_records,
            readers,
            self._log.trimmed(),
        )

    # --- reports ------------------------------------------------------------------------------------------------------

    def plan(self) -> ArchiveReport:
        """What `run_once` would do now, without doing it."""
        newest, begin = self._log.tail(), self.archived_end()
        records = self._settings.range_records
        end = max(begin, newest + 1)
        first = self.contents.begin if self.contents else begin
        report = self.report()
        return ArchiveReport(
            report.topic,
            report.path,
            report.reader,
            -(-(end - begin) // records),
            end - begin,
            self._bytes(begin, end) if end > begin else 0,
            first,
            end,
            report.trimmed,
            0,
            True,
        )

    def report(self) -> ArchiveReport:
        end = self.archived_end()
        return ArchiveReport(
            self.topic.name,
            self.path,
            self.reader,
            len(self.writer.written),
            sum(commit.rows for commit in self.writer.written),
            sum(commit.bytes for commit in self.writer.written),
            self.contents.begin if self.contents else end,
            end,
            self._log.trimmed(),
            self._log.tail() + 1 - end,
            False,
        )


def archive_reader(path: str) -> str:
    """The archive's name among the topic's readers: names have no slashes."""
    last = "".join(letter for letter in path.rpartition("/")[2] if letter.isprintable())[:100]
    return f"archive:{last}:{zlib.crc32(path.encode()):08x}"
