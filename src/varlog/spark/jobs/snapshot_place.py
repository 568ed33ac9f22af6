"""SnapshotPlace: where a snapshot is, or is to be, on any file system of Spark. It gets its name when it is whole, not before."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.files import HadoopFiles, absolute
from varlog.spark.jobs.settings import settings
from varlog.spark.options import OptionError
from varlog.spark.snapshot import (
    DESCRIPTION,
    Snapshot,
    SnapshotFile,
    check_files,
    decode_snapshot,
    encode_snapshot,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Times as every reader of Parquet understands them.
_WRITTEN = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
# Of the files that were written, and how many rows are in them.
Describe = Callable[[tuple[SnapshotFile, ...], int], Snapshot]


class SnapshotPlace:
    """`option` is what the path was given as."""

    def __init__(self, spark: SparkSession, path: str, option: str) -> None:
        self.path = absolute(path)
        above, _, self._name = self.path.rpartition("/")
        if not self._name or above.endswith(("/", ":")):
            raise OptionError(f"option '{option}' is {path!r}: it must be a directory below another one")
        self._spark = spark
        self._files = HadoopFiles(spark, above or "/")

    def check_free(self) -> None:
        """Before the work, not behind it."""
        if self._name in self._files.names(""):
            raise PreconditionFailed(f"{self.path} is there already: name a new directory for the snapshot")

    def read(self) -> Snapshot:
        if DESCRIPTION not in self._files.names(self._name):
            raise PreconditionFailed(
                f"{self.path} is no snapshot: there is no {DESCRIPTION}, which is written last"
            )
        place = f"{self._name}/{DESCRIPTION}"
        about = decode_snapshot(self._files.read(place), self._files.uri(place))
        check_files(about, self._files.sizes(self._name), self.path)
        return about

    def rows(self, about: Snapshot) -> DataFrame:
        if not about.files:
            return self._spark.createDataFrame([], about.columns)
        files = [self._files.uri(f"{self._name}/{file.name}") for file in about.files]
        return self._spark.read.schema(about.columns).parquet(*files)

    def store(self, rows: DataFrame, describe: Describe) -> Snapshot:
        """Aside first, on the disk, described; then it gets its name. What is left of a failure has none, and is removed."""
        aside = f".{self._name}.{uuid.uuid4().hex}.tmp"
        try:
            with settings(self._spark, _WRITTEN):
                rows.write.parquet(self._files.uri(aside))
            about = self._described(aside, describe)
            self._files.rename_new(aside, self._name)
        except BaseException:
            with suppress(Exception):
                self._files.delete(aside)
            raise
        return about

    def _described(self, aside: str, describe: Describe) -> Snapshot:
        sizes = {name: size for name, size in self._files.sizes(aside).items() if name.endswith(".parquet")}
        self._files.sync(aside, sizes)
        files = tuple(SnapshotFile(name, sizes[name]) for name in sorted(sizes))
        # Counted in the files: what Spark counts on the way may have been done twice, by a task that was run again.
        count = self._spark.read.parquet(self._files.uri(aside)).count() if files else 0
        about = describe(files, count)
        self._files.write_new(f"{aside}/{DESCRIPTION}", encode_snapshot(about))
        return about
