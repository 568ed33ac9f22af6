"""Source files of an ingest: which there are, and a DataFrame of them whose partitions are the same in every run.

Spark cuts files into pieces of at most `spark.sql.files.maxPartitionBytes`, but into smaller ones where it has more cores, sorts
the pieces by size, and fills partitions with them in turn. The settings that matter are pinned (PINNED_SPLITS), and the files
are named one by one, sorted: so partition n holds the same rows whoever runs it, as an exactly-once write of a job that is run
again needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from varlog.spark.failure import failure_of
from varlog.spark.jobs.ingest_rules import (
    FORMATS,
    PINNED_SPLITS,
    IngestError,
    Reading,
    SourceFile,
    literal_path,
)
from varlog.spark.jobs.settings import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Options that say which files are meant, not what is in them.
_CHOOSING = ("pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "basepath")


def list_files(spark: SparkSession, source: str, reading: Reading) -> tuple[SourceFile, ...]:
    """All files that `source` (a file, a folder, a pattern) means, as Spark itself finds them on any file system."""
    chosen = {key: value for key, value in reading.options if key.lower() in _CHOOSING}
    try:
        found = spark.read.format("binaryFile").options(**chosen).load(source)
        rows = found.selectExpr("path", "length", "unix_micros(modificationTime)").collect()
    except AnalysisException as error:
        raise IngestError(f"option 'source' is {source!r}: {failure_of(error).message}") from None
    if not rows:
        raise IngestError(f"option 'source' is {source!r}: there are no files")
    return tuple(sorted(SourceFile(str(row[0]), int(row[1]), int(row[2])) for row in rows))


def frame_of(spark: SparkSession, source: str, reading: Reading, files: Sequence[SourceFile]) -> DataFrame:
    """The rows of these files; to be used inside `pinned_splits`."""
    reader = spark.read.format(FORMATS[reading.format])
    if reading.schema:
        reader = reader.schema(reading.schema)
    options = dict(reading.options)
    if not any(key.lower() == "basepath" for key in options) and literal_path(source) == source:
        options["basePath"] = _folder_of(source, files)
    return reader.options(**options).load([literal_path(file.path) for file in files])


def _folder_of(source: str, files: Sequence[SourceFile]) -> str:
    """Where folders that are columns (`day=2026-01-01/`) begin: the source itself, unless it is a file."""
    above, _, name = files[0].path.rpartition("/")
    is_file = len(files) == 1 and name == source.rpartition("/")[2]
    return above if is_file else source


def pinned_splits(spark: SparkSession) -> AbstractContextManager[None]:
    """Inside, what Spark plans is cut the same everywhere."""
    return settings(spark, PINNED_SPLITS)
