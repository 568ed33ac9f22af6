"""Ranges of the log as Parquet files: written by Spark, then read back and checked row by row, before a commit names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.archive_rules import ArchivedFile, RowRun, files_of_runs, range_text
from varlog.spark.archive.files import HadoopFiles
from varlog.spark.archive.rows import COLUMNS

# Told which positions have no row; raises PreconditionFailed if there should be one.
Explain = Callable[[Sequence[tuple[int, int]]], None]

# What a reader holds of a file at a time.
ROW_GROUP_BYTES = 16 << 20


def archive_session(spark: SparkSession) -> SparkSession:
    """A session of the same application in which Parquet is written as an archive needs it, whatever the user's own says."""
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
    """Positions [begin, end) into `parts` files of a directory that is not there yet, sorted.

    Tasks that are retried or run twice are the business of Spark's committer: what it commits is there once.
    """
    from pyspark.sql import functions as F

    # By arithmetic: a range partitioner would read the log twice, the first time for a sample.
    part = F.floor((F.col("glsn") - begin) * parts / (end - begin)).cast("int")
    spread = rows.select(*COLUMNS).repartitionById(parts, part).sortWithinPartitions("glsn")
    spread.write.mode("error").option("compression", "zstd").option(
        "parquet.block.size", ROW_GROUP_BYTES
    ).parquet(files.uri(directory))


def check_range(
    spark: SparkSession, files: HadoopFiles, directory: str, begin: int, end: int, explain: Explain
) -> tuple[ArchivedFile, ...]:
    """What was written, read back: positions rise from row to row, and the files follow each other from `begin` to `end`. So none
    is doubled or out of order; `explain` raises if one that is missing should be there."""
    from pyspark.sql import functions as F

    glsn, time_us = F.col("glsn"), F.unix_micros("timestamp")
    # The same for all rows of a run: both count one by one.
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
