"""restore(): copies an archive back into a topic with one log stream.

The same positions, bytes and times. After a crash, a new run continues. The new topic has one log stream of its own: log_stream
and llsn of the archived entries are not restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

import varlog
from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.archive_rules import ArchivedFile, Contents, files_between
from varlog.spark.archive.files import HadoopFiles
from varlog.spark.archive.manifest import read_contents, topics_in
from varlog.spark.archive.writer import archive_session
from varlog.spark.jobs.copy_target import check_last, create_target, find_target, write_copy
from varlog.spark.jobs.progress import Progress, silent

# Small files are copied together, about this many bytes at a time.
GROUP_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was restored (or, in a dry run, would be): positions [begin, end) of the archive; `rows_found` of them existed before
    this run."""

    topic: str
    path: str
    source_topic: str
    begin: int
    end: int
    rows_written: int
    rows_found: int
    dry_run: bool


def restore(
    spark: SparkSession,
    path: str,
    address: str,
    topic: str,
    *,
    source_topic: str | None = None,
    progress: Progress = silent,
    dry_run: bool = False,
) -> RestoreReport:
    """Restore the archive at `path` as `topic`, which is created with one log stream, or was begun by an earlier run.

    `source_topic`: the archive's topic, if it has several and none of them has the name `topic`.
    """
    files = HadoopFiles(spark, path)
    source = _source(files, source_topic, topic)
    contents = read_contents(files, source)
    if not contents:
        raise PreconditionFailed(f"there is no archive of topic {source!r} at {files.path}")
    if not contents.dense:
        raise PreconditionFailed(
            f"the archive of topic {source!r} at {files.path} is of a sequenced topic, some positions of which hold no entry: a "
            "topic that is restored has one at each. Read it with option archive, and write its rows to a topic of their own"
        )
    make = find_target if dry_run else create_target
    if make(address, topic, contents.begin) is None:
        found = contents.begin
    else:
        with varlog.connect(address, topic, create=False) as log:
            found = _Restoring(spark, files, contents, log).next_position()
            if not dry_run:
                _Restoring(spark, files, contents, log).copy(address, progress)
    return RestoreReport(
        topic,
        files.path,
        source,
        contents.begin,
        contents.end,
        contents.end - found,
        found - contents.begin,
        dry_run,
    )


def _source(files: HadoopFiles, source_topic: str | None, topic: str) -> str:
    if source_topic is not None:
        return source_topic
    archived = topics_in(files)
    if topic in archived or not archived:
        return topic
    if len(archived) > 1:
        raise PreconditionFailed(
            f"the archive at {files.path} has the topics {', '.join(archived)}: choose one with source_topic"
        )
    return archived[0]


class _Restoring:
    """One run: an archive that is copied into a topic."""

    def __init__(self, spark: SparkSession, files: HadoopFiles, contents: Contents, log: varlog.Log) -> None:
        self._spark = archive_session(spark)
        # A file is one task: its rows are in order.
        self._spark.conf.set("spark.sql.files.maxPartitionBytes", str(1 << 40))
        self._files = files
        self._contents = contents
        self._log = log

    def next_position(self) -> int:
        """Where to continue. Refuses a topic whose entries differ from the archive."""
        begin = self._log.tail() + 1
        if begin > self._contents.end:
            raise PreconditionFailed(
                f"topic {self._log.topic.name!r} goes up to position {begin - 1}, and the archive to {self._contents.end - 1}: "
                "others have written to it; restore into a topic that does not exist yet"
            )
        if begin < self._contents.begin:
            raise PreconditionFailed(
                f"topic {self._log.topic.name!r} continues at position {begin}, and the archive begins at {self._contents.begin}: "
                "restore into a topic that does not exist yet"
            )
        if begin > self._contents.begin:
            check_last(self._log, *self._archived(begin - 1))
        return begin

    def _archived(self, position: int) -> tuple[bytes, int]:
        from pyspark.sql import functions as F

        file = files_between(self._contents.files, position, position + 1)[0]
        rows = self._spark.read.parquet(self._files.uri(file.path)).where(F.col("glsn") == position)
        found = rows.select("data", F.unix_micros("timestamp").alias("time_us")).collect()[0]
        return bytes(found["data"]), int(found["time_us"])

    def copy(self, address: str, progress: Progress) -> None:
        from pyspark.sql import functions as F

        what, rows = f"restoring {self._log.topic.name}", self._contents.rows
        begin = self._log.tail() + 1
        for group in groups(files_between(self._contents.files, begin, self._contents.end), GROUP_BYTES):
            progress(what, group[0].begin - self._contents.begin, rows)
            read = self._spark.read.parquet(*(self._files.uri(file.path) for file in group))
            write_copy(read.where(F.col("glsn") >= begin).coalesce(1), address, self._log.topic.name)
        progress(what, rows, rows)
        end = self._log.tail() + 1
        if end != self._contents.end:
            raise PreconditionFailed(
                f"topic {self._log.topic.name!r} ends at position {end - 1} after the restore, not at {self._contents.end - 1}: "
                "another process writes to it"
            )


def groups(files: list[ArchivedFile], bytes_max: int) -> Iterator[list[ArchivedFile]]:
    """Consecutive files, grouped up to a size."""
    group: list[ArchivedFile] = []
    for file in files:
        if group and sum(found.bytes for found in group) + file.bytes > bytes_max:
            yield group
            group = []
        group.append(file)
    if group:
        yield group
