"""archive(): copies a topic into Parquet files exactly once; optionally trims it.

Once, or continuously. A range is written into a directory of its own, read back and checked, then committed by one new file of
the manifest; only what the manifest names is trimmed. A run that is killed anywhere is followed by one that goes on behind the
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

# A continuous archive looks for new entries so often, and writes what is less than a range after so long.
LOOK_EVERY_S = 1.0
REST_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What a run did (or, as a dry run, would do), and how things are now. `begin` and `end`: the positions in the archive, the end
    exclusive; `trimmed`: the newest position that is gone from the log; `behind`: how many positions are not archived."""

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
    look_every_s: float = LOOK_EVERY_S

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

    With `trim`, what is archived is trimmed from the log, but for the newest `keep_records`, and (unless told otherwise) what a
    named reader has still to read. The archive is a named reader itself: its lag is in `varlog status`.
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
        self.keeper = ArchiveWriter(self._spark, files, int(log.connector.view().cluster), self.topic)
        self.path = files.path
        self.reader = reader_name(files.path)
        self._log = log
        self._source = {"address": address, "topic": self.topic.name}
        self._settings = settings
        self._progress = progress
        self._check_identity()

    # --- What is there ------------------------------------------------------------------------------------------------

    @property
    def contents(self) -> Contents:
        return self.keeper.contents

    def _check_identity(self) -> None:
        """Two clusters can have the same id, and each a topic of this name and id: where log and archive overlap, they agree."""
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
        """The next position to archive. Refuses a gap: the archive would never be whole again."""
        oldest = self._log.trimmed() + 1
        if not self.contents or oldest > self.contents.end:
            self.keeper.look()  # another archiver may have written, and trimmed
        if not self.contents:
            return max(oldest, self.topic.first)
        if oldest > self.contents.end:
            raise PreconditionFailed(
                f"{range_text(self.contents.end, oldest)} of topic {self.topic.name!r} were trimmed before they were "
                "archived: begin "
                f"a new archive in another path than {self.path}"
            )
        return self.contents.end

    # --- The run ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Say where the archive stands before anything else: from now on a trim that respects readers spares the rest."""
        self.keeper.clean()
        self._tell_reader()

    def run_once(self) -> None:
        """All that is in the log now: an archive of a log that grows all the time must end too."""
        newest = self._log.tail()
        while self._step(newest, rest=True):
            self._trim()
        self._trim()

    def run_until(self, stop: threading.Event) -> None:
        """Range after range, until it is told to stop; a KeyboardInterrupt is that too."""
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
                    stop.wait(self._settings.look_every_s)
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
            self.keeper.look()
            if not self.contents or self.contents.end <= begin:
                raise
            # Another archiver was faster, and has trimmed and cleaned up behind it: our trouble with that is of no interest.
        self.keeper.clean()
        self._tell_reader()
        self._progress(f"archiving {self.topic.name}", end - 1, newest)
        return True

    def _add(self, begin: int, end: int) -> None:
        parts = files_of_range(begin, end, self._bytes(begin, end), self._settings.file_bytes)
        last = self._log.read(end - 1)
        self.keeper.add(self._rows(begin, end), begin, end, parts, zlib.crc32(last.data), self._explain)

    def _end_with_an_entry(self, begin: int, end: int, newest: int) -> int:
        """The last position of a range holds an entry, so that its checksum can tell the log again: given-up ones at the end are
        left for the next range. `begin`: none of those up to `newest` holds one."""
        while True:
            for last in range(end - 1, begin - 1, -1):
                with suppress(JunkPosition):
                    self._log.read(last)
                    return last + 1
            if end > newest:
                return begin
            end = min(end + self._settings.range_records, newest + 1)

    def _explain(self, gaps: Sequence[tuple[int, int]]) -> None:
        """Positions without a row: of a sequenced topic those that the log itself passes over, of another none."""
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

    def _tell_reader(self) -> None:
        self._log.set_reader(self.reader, GLSN(self.archived_end() - 1), back=True)

    # --- The trim -----------------------------------------------------------------------------------------------------

    def _trim(self) -> None:
        point = self._trim_point() if self._settings.trim else None
        if point is None:
            return
        try:
            self._log.trim(GLSN(point), respect_readers=self._settings.respect_readers)
        except ReaderBehind:
            return  # it has come since we looked: next time

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

    # --- What it says -------------------------------------------------------------------------------------------------

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
            len(self.keeper.written),
            sum(commit.rows for commit in self.keeper.written),
            sum(commit.bytes for commit in self.keeper.written),
            self.contents.begin if self.contents else end,
            end,
            self._log.trimmed(),
            self._log.tail() + 1 - end,
            False,
        )


def reader_name(path: str) -> str:
    """How the archive at a path is called among the topic's readers: names have no slashes."""
    last = "".join(letter for letter in path.rpartition("/")[2] if letter.isprintable())[:100]
    return f"archive:{last}:{zlib.crc32(path.encode()):08x}"
