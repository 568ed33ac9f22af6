"""ArchiveWriter: brings a range of a topic into its archive exactly once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from varlog.model.cluster import Topic
from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.archive_rules import (
    FORMAT_VERSION,
    HOLES_VERSION,
    ArchiveCommit,
    ArchivedFile,
    Contents,
    RowRun,
    check_same_topic,
    files_of_runs,
    leftovers,
    range_name,
    range_text,
)
from varlog.spark.archive.files import HadoopFiles
from varlog.spark.archive.manifest import commit_name, data_of, encode_archive_commit, more_contents
from varlog.spark.archive.rows import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


class ArchiveWriter:
    """The only code that changes an archive. Several writers at once, in any processes, do not conflict."""

    def __init__(self, spark: SparkSession, files: HadoopFiles, cluster: int, topic: Topic) -> None:
        self.files = files
        self.contents = Contents()
        self.written: list[ArchiveCommit] = []
        self._spark = spark
        self._cluster = cluster
        self._topic = topic
        self.refresh()

    def refresh(self) -> None:
        """Read new commits. Refuses an archive of another topic."""
        self.contents = more_contents(self.files, self._topic.name, self.contents)
        check_same_topic(self.contents, self._cluster, self._topic.topic, self._topic.name)

    def add(
        self, rows: DataFrame, begin: int, end: int, parts: int, last_checksum: int, explain: Explain
    ) -> None:
        """Add positions [begin, end), which `rows` has, at the archive's end, unless another writer was faster. `explain` is called
        with those that have no row."""
        directory = f"{data_of(self._topic.name)}/{range_name(begin, end, uuid.uuid4().hex[:16])}"
        try:
            write_range(rows, self.files, directory, begin, end, parts)
            files = check_range(self._spark, self.files, directory, begin, end, explain)
            self.files.sync(directory, [file.path.rpartition("/")[2] for file in files])
        except Exception:
            with suppress(Exception):  # the first error is the one to report; a later run cleans up
                self.files.delete(directory)
            raise
        # From here on the files may belong to the archive, whatever fails: delete them only if they certainly do not.
        if not self._commit(self._commit_of(files, begin, end, last_checksum)):
            self.files.delete(directory)

    def _commit_of(
        self, files: tuple[ArchivedFile, ...], begin: int, end: int, last_checksum: int
    ) -> ArchiveCommit:
        return ArchiveCommit(
            self._cluster,
            self._topic.topic,
            self._topic.name,
            begin,
            end,
            sum(file.bytes for file in files),
            min(file.first_us for file in files),
            max(file.last_us for file in files),
            last_checksum,
            files,
            version=FORMAT_VERSION if all(file.missing == 0 for file in files) else HOLES_VERSION,
        )

    def _commit(self, commit: ArchiveCommit) -> bool:
        """False if another writer has committed this number: what it wrote is the archive."""
        name = commit_name(self._topic.name, self.contents.next_number)
        committed = self.files.write_new(name, encode_archive_commit(commit))
        if committed:
            self.written.append(commit)
        self.refresh()
        return committed

    def clean(self) -> None:
        """Remove the directories of failed attempts."""
        directory = data_of(self._topic.name)
        for name in leftovers(self.files.names(directory), self.contents):
            self.files.delete(f"{directory}/{name}")


# --- ranges as Parquet files: written by Spark, then read back and checked before a commit names them ----------------------

# Called with the positions that have no row; raises PreconditionFailed if there should be one.
Explain = Callable[[Sequence[tuple[int, int]]], None]

# What a reader keeps of a file in memory.
ROW_GROUP_BYTES = 16 << 20


def archive_session(spark: SparkSession) -> SparkSession:
    """A session of the same application that writes Parquet as an archive needs it, whatever the user's settings."""
    from varlog.spark import register

    session = spark.newSession()
    register(session)
    for key, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.files.maxRecordsPerFile": "0",
        "spark.sql.python.filterPushdown.enabled": "true",
    }.items():
        session.conf.set(key, value)
    return session


def write_range(
    rows: DataFrame, files: HadoopFiles, directory: str, begin: int, end: int, parts: int
) -> None:
    """Positions [begin, end) into `parts` files of a new directory, sorted.

    Tasks that are retried or run twice are the business of Spark's committer: what it commits is there once.
    """
    from pyspark.sql import functions as F

    # By arithmetic: a range partitioner would read the log twice, first for a sample.
    part = F.floor((F.col("glsn") - begin) * parts / (end - begin)).cast("int")
    spread = rows.select(*COLUMNS).repartitionById(parts, part).sortWithinPartitions("glsn")
    spread.write.mode("error").option("compression", "zstd").option(
        "parquet.block.size", ROW_GROUP_BYTES
    ).parquet(files.uri(directory))


def check_range(
    spark: SparkSession, files: HadoopFiles, directory: str, begin: int, end: int, explain: Explain
) -> tuple[ArchivedFile, ...]:
    """Read back what was written: positions rise from row to row, and the files are contiguous from `begin` to `end`. So none is
    duplicated or out of order; `explain` raises if a missing one should exist."""
    from pyspark.sql import functions as F

    glsn, time_us = F.col("glsn"), F.unix_micros("timestamp")
    # The same for all rows of a run: both are consecutive.
    offset = glsn - F.col("_metadata.row_index")
    found = (
        spark.read.parquet(files.uri(directory))
        .groupBy(F.col("_metadata.file_name").alias("name"), offset.alias("offset"))
        .agg(
            F.count("*").alias("rows"),
            F.min(glsn).alias("begin"),
            F.min(time_us).alias("first_us"),
            F.max(time_us).alias("last_us"),
        )
        .collect()
    )
    try:
        made, gaps = files_of_runs(
            [_run(row) for row in found], directory, files.sizes(directory), begin, end
        )
        if gaps:
            explain(gaps)
    except PreconditionFailed as refused:
        raise PreconditionFailed(
            f"{files.uri(directory)} does not hold {range_text(begin, end)}, each once: it was not taken into the "
            f"archive: {refused}"
        ) from refused
    return made


def _run(row: Row) -> RowRun:
    return RowRun(row["name"], int(row["begin"]), int(row["rows"]), row["first_us"], row["last_us"])
