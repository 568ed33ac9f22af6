"""ingest(): files, or any DataFrame, into a topic, each row exactly once.

Files: the write is named after the files, so that running the same again completes what is missing, or finds it done. A folder
that grows, with a checkpoint: each new file once, as a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sql

from varlog.model.cluster import NamedWriter
from varlog.spark.connection import connection_to
from varlog.spark.failure import spark_failure
from varlog.spark.jobs.ingest_rules import (
    FORMATS,
    PINNED_SPLITS,
    UNTYPED,
    FileFormat,
    IngestError,
    SourceFile,
    check_entry_type,
    entry_expression,
    literal_path,
    writer_name,
)
from varlog.spark.jobs.progress import Progress, silent, watching
from varlog.spark.jobs.spark_sql import checked, settings
from varlog.spark.options import LogLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SAMPLES = 3
BATCH = 0  # the only batch of a write that is one job


@dataclass(frozen=True)
class IngestReport:
    """What was written. `found_done`: an earlier run had done it all. `begin`: the new entries are above this position.

    `rows` are those that this run read; a run that completes another one also counts what was there already.
    """

    topic: str
    entry: str
    writer: str
    files: int = 0
    bytes: int = 0
    rows: int = 0
    begin: int = 0
    found_done: bool = False
    dry_run: bool = False
    sample: tuple[str, ...] = ()


def ingest(
    spark: SparkSession,
    source: str | DataFrame,
    address: str,
    topic: str,
    *,
    format: str = "text",
    options: Mapping[str, str] | None = None,
    schema: str | None = None,
    column: str | None = None,
    expression: str | None = None,
    writer: str | None = None,
    checkpoint: str | None = None,
    follow: bool = False,
    progress: Progress = silent,
    dry_run: bool = False,
) -> IngestReport:
    """Write every row of `source` to the topic, as one entry each: the SQL `expression` or the `column` if there is one, else a
    row's only column, else the row as JSON.

    `options` and `schema` are those of Spark's reader of that format. A DataFrame needs a `writer`: the name by which a second
    run recognises the first; its partitions must be the same in both. With `checkpoint`, `source` is a folder whose new files
    are written: the present ones, or with `follow` also new ones.
    """
    reading = FileFormat(
        format, tuple(sorted((options or {}).items())), schema or "", column or "", expression or ""
    )
    job = _Ingest(spark, address, topic, reading, progress, dry_run)
    connection_to(LogLocation(address)).log(topic)  # an unknown topic is reported before anything is read
    if isinstance(source, DataFrame):
        if not writer:
            raise IngestError(
                "a DataFrame needs option 'writer': the name by which a second run recognises it"
            )
        if checkpoint:
            raise IngestError("option 'checkpoint' is for folders of files, not for a DataFrame")
        return job.frame(source, writer)
    if checkpoint:
        return job.folder(source, checkpoint, writer or "", follow=follow)
    if follow:
        raise IngestError("option 'follow' needs option 'checkpoint': where to note which files are done")
    return job.files(source, writer or "")


@dataclass(frozen=True)
class _Ingest:
    spark: SparkSession
    address: str
    topic: str
    reading: FileFormat
    progress: Progress
    dry_run: bool

    def files(self, source: str, writer: str) -> IngestReport:
        self.progress("listing files", 0, 0)
        files = list_files(self.spark, source, self.reading)
        name = writer or writer_name(self.topic, self.reading, files)
        with pinned_splits(self.spark):
            report = self.frame(frame_of(self.spark, source, self.reading, files), name)
        return replace(report, files=len(files), bytes=_bytes(files))

    def frame(self, rows: DataFrame, writer: str) -> IngestReport:
        entries, entry = self._entries(rows)
        report = IngestReport(self.topic, entry, writer, dry_run=self.dry_run)
        if self._finished(writer):
            return replace(report, found_done=True)
        if self.dry_run:
            return replace(report, sample=_sample(entries))
        counted = Observation()
        observed = entries.observe(counted, sql.count(sql.lit(1)).alias("rows"))
        with watching(self.spark, f"writing to {self.topic}", self.progress):
            observed.write.format("varlog").mode("append").options(**self._to(writer), batch=BATCH).save()
        record = self._record(writer)
        return replace(report, rows=int(counted.get["rows"]), begin=int(record.begin) if record else 0)

    def folder(self, source: str, checkpoint: str, writer: str, *, follow: bool) -> IngestReport:
        entries, entry = self._entries(self._stream(source))
        report = IngestReport(self.topic, entry, writer, dry_run=self.dry_run)
        if self.dry_run:
            files = list_files(self.spark, source, self.reading)
            return replace(report, files=len(files), bytes=_bytes(files))
        out = entries.writeStream.format("varlog").options(**self._to(writer), checkpointLocation=checkpoint)
        with pinned_splits(self.spark):  # a query keeps the settings it was started with
            query = (out if follow else out.trigger(availableNow=True)).start()
        return replace(report, rows=_follow(query, f"writing to {self.topic}", self.progress))

    def _stream(self, source: str) -> DataFrame:
        reader = self.spark.readStream.format(FORMATS[self.reading.format]).options(
            **dict(self.reading.options)
        )
        schema: object = self.reading.schema
        if not schema and self.reading.format in UNTYPED:
            raise IngestError(
                f"a folder of {self.reading.format} files that grows needs option 'schema' (\"id bigint, name string\"): later "
                "files may look different"
            )
        if not schema and self.reading.format == "parquet":
            files = list_files(self.spark, source, self.reading)
            schema = frame_of(self.spark, source, self.reading, files).schema
        return (reader.schema(schema) if schema else reader).load(source)  # type: ignore[arg-type]

    def _entries(self, rows: DataFrame) -> tuple[DataFrame, str]:
        """One column, `data`, and the SQL of it."""
        fields = [(field.name, field.dataType.simpleString()) for field in rows.schema.fields]
        entry = entry_expression(fields, self.reading)
        data, kind = checked(rows, "expression" if self.reading.expression else "column", entry)
        check_entry_type(kind.simpleString(), self.reading)
        return rows.select(data.alias("data")), entry

    def _to(self, writer: str) -> dict[str, str]:
        named = {"writer": writer} if writer else {}
        return {"address": self.address, "topic": self.topic, **named}

    def _finished(self, writer: str) -> bool:
        record = self._record(writer)
        return record is not None and record.finished and record.batch == BATCH

    def _record(self, writer: str) -> NamedWriter | None:
        connection = connection_to(LogLocation(self.address))
        writers = connection.run(connection.log(self.topic).connector.writers())
        return next((found for found in writers if found.name == writer), None)


def _bytes(files: tuple[SourceFile, ...]) -> int:
    return sum(file.size for file in files)


def _sample(entries: DataFrame) -> tuple[str, ...]:
    """The first few, as text, to check them before they are in a log."""
    return tuple(
        bytes(row[0] or b"").decode("utf-8", "backslashreplace")
        for row in entries.selectExpr("cast(data as binary) AS data").limit(SAMPLES).collect()
    )


def _follow(query: StreamingQuery, what: str, progress: Progress) -> int:
    """Wait until the query ends, by itself or by Ctrl-C; the rows it has written."""
    rows: dict[int, int] = {}
    try:
        while True:
            ended = query.awaitTermination(1)
            rows |= {batch.batchId: batch.numInputRows for batch in query.recentProgress}
            progress(what, sum(rows.values()), 0)
            if ended:
                return sum(rows.values())
    except KeyboardInterrupt:
        query.stop()
        return sum(rows.values())


# --- source files: a DataFrame of them whose partitions are the same in every run -------------------------------------------
#
# Spark cuts files into pieces of at most `spark.sql.files.maxPartitionBytes`, but into smaller ones where it has more cores,
# sorts
# the pieces by size, and fills partitions with them in turn. The settings that matter are pinned (PINNED_SPLITS), and the files
# are listed individually and sorted: so partition n has the same rows in every run, as a repeated exactly-once write needs.

# Options that select files, not their content.
_CHOOSING = ("pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "basepath")


def list_files(spark: SparkSession, source: str, reading: FileFormat) -> tuple[SourceFile, ...]:
    """All files of `source` (a file, a directory, a pattern), as Spark itself finds them on any file system."""
    chosen = {key: value for key, value in reading.options if key.lower() in _CHOOSING}
    try:
        found = spark.read.format("binaryFile").options(**chosen).load(source)
        rows = found.selectExpr("path", "length", "unix_micros(modificationTime)").collect()
    except AnalysisException as error:
        raise IngestError(f"option 'source' is {source!r}: {spark_failure(error).message}") from None
    if not rows:
        raise IngestError(f"option 'source' is {source!r}: there are no files")
    return tuple(sorted(SourceFile(str(row[0]), int(row[1]), int(row[2])) for row in rows))


def frame_of(spark: SparkSession, source: str, reading: FileFormat, files: Sequence[SourceFile]) -> DataFrame:
    """The rows of these files; to be used inside `pinned_splits`."""
    reader = spark.read.format(FORMATS[reading.format])
    if reading.schema:
        reader = reader.schema(reading.schema)
    options = dict(reading.options)
    if not any(key.lower() == "basepath" for key in options) and literal_path(source) == source:
        options["basePath"] = _folder_of(source, files)
    return reader.options(**options).load([literal_path(file.path) for file in files])


def _folder_of(source: str, files: Sequence[SourceFile]) -> str:
    """Where directories that are columns (`day=2026-01-01/`) begin: the source itself, unless it is a file."""
    above, _, name = files[0].path.rpartition("/")
    is_file = len(files) == 1 and name == source.rpartition("/")[2]
    return above if is_file else source


def pinned_splits(spark: SparkSession) -> AbstractContextManager[None]:
    """Inside, Spark plans the same partitions everywhere."""
    return settings(spark, PINNED_SPLITS)
