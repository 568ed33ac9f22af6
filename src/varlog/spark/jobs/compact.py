"""compact(): the newest value of each key of a topic, as a snapshot.

From the beginning of the log, or from an older snapshot on.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as sql

from varlog.model.cluster import Topic
from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.files import HadoopFiles, absolute
from varlog.spark.columns import READ_SCHEMA
from varlog.spark.connection import connection_to
from varlog.spark.jobs.progress import Progress, silent, watching
from varlog.spark.jobs.spark_sql import checked, settings
from varlog.spark.options import LogLocation, OptionError
from varlog.spark.read.origin import settled_mark
from varlog.spark.snapshot import (
    DESCRIPTION,
    FORMAT,
    VERSION,
    SnapshotFile,
    SnapshotTopic,
    TopicSnapshot,
    check_files,
    decode_topic_snapshot,
    encode_topic_snapshot,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_KEYS = ("map", "variant")  # which Spark cannot compare


@dataclass(frozen=True)
class CompactReport:
    """`entries` were read, at positions `begin` to `position`; `skipped` of them have no key. The snapshot has `rows` keys;
    `deleted` others were deleted by what was read."""

    topic: str
    path: str
    key: str
    begin: int
    position: int
    since: int = 0
    entries: int = 0
    skipped: int = 0
    deleted: int = 0
    rows: int = 0
    bytes: int = 0
    dry_run: bool = False


def compact(
    spark: SparkSession,
    address: str,
    topic: str,
    path: str,
    *,
    key: str,
    value: str | None = None,
    delete: str | None = None,
    since: str | None = None,
    archive: str | None = None,
    progress: Progress = silent,
    dry_run: bool = False,
) -> CompactReport:
    """Write a snapshot of the topic, as it is now, to the new directory `path`.

    `key`, `value` and `delete` are SQL over the columns topic, glsn, llsn, log_stream, timestamp and data, such as
    `get_json_object(data::string, '$.id')`. Value is data if it is not said. Entries whose key is null are left out. A key whose
    newest entry has a true `delete` is not in the snapshot. `since`: an older snapshot, whose entries are not read again.
    `archive`: where entries are that were trimmed.
    """
    target = SnapshotPlace(spark, path, "path")
    target.check_free()
    older = SnapshotPlace(spark, since, "since") if since else None
    previous = older.read() if older else None
    log = _Source(spark, address, topic, archive or "")
    rules = _Rules(key, value or "data", delete or "")
    begin, position = log.range(previous, rules)
    entries = rules.applied(log.rows(begin, position))
    report = CompactReport(
        topic, target.path, key, begin, position, previous.position if previous else 0, position - begin + 1
    )
    if dry_run:
        return replace(report, dry_run=True)
    read, left = Observation(), Observation()
    # Counted, not computed from the positions: a sequenced topic has junk positions.
    counts = sql.count(sql.lit(1)).alias("entries"), sql.count_if(sql.expr("key IS NULL")).alias("skipped")
    entries = entries.observe(read, *counts)
    known = older.rows(previous) if older and previous else None
    newest = _newest(entries, known).observe(left, sql.count_if(sql.col("deleted")).alias("deleted"))
    kept = newest.where("NOT deleted").drop("deleted")

    def describe(files: tuple[SnapshotFile, ...], rows: int) -> TopicSnapshot:
        return TopicSnapshot(
            FORMAT,
            VERSION,
            log.identity,
            previous.begin if previous else begin,
            position,
            report.since,
            rows,
            rules.key,
            rules.value,
            rules.delete,
            ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in kept.schema.fields),
            files,
        )

    with watching(spark, f"compacting {topic}", progress):
        about = target.store(kept, describe)
    return replace(
        report,
        entries=int(read.get["entries"] or 0),
        skipped=int(read.get["skipped"] or 0),
        deleted=int(left.get["deleted"] or 0),
        rows=about.rows,
        bytes=sum(file.bytes for file in about.files),
    )


@dataclass(frozen=True)
class _Rules:
    """Key, value and deletion of an entry."""

    key: str
    value: str
    delete: str

    def applied(self, rows: DataFrame) -> DataFrame:
        """Columns key, value, glsn, timestamp, deleted."""
        key, kind = checked(rows, "key", self.key)
        if kind.simpleString().startswith(_NO_KEYS):
            raise OptionError(
                f"option 'key' is {self.key!r}, which is {kind.simpleString()}: it cannot be a key"
            )
        value, _ = checked(rows, "value", self.value)
        deleted = sql.lit(False)
        if self.delete:
            deleted, truth = checked(rows, "delete", self.delete)
            if truth.simpleString() != "boolean":
                raise OptionError(
                    f"option 'delete' is {self.delete!r}, which is {truth.simpleString()}: it must be true or false"
                )
        return rows.select(
            key.alias("key"),
            value.alias("value"),
            "glsn",
            "timestamp",
            sql.coalesce(deleted, sql.lit(False)).alias("deleted"),
        )


def _newest(entries: DataFrame, known: DataFrame | None) -> DataFrame:
    """One row per key, the one with the highest position. Columns key, value, glsn, timestamp, deleted."""
    rows = entries.where("key IS NOT NULL")
    if known is not None:
        rows = rows.unionByName(known.withColumn("deleted", sql.lit(False)))
    newest = sql.max_by(sql.struct("value", "glsn", "timestamp", "deleted"), "glsn")
    return rows.groupBy("key").agg(newest.alias("newest")).select("key", "newest.*")


class _Source:
    """The topic."""

    def __init__(self, spark: SparkSession, address: str, topic: str, archive: str) -> None:
        self._spark = spark
        self._options = {"address": address, "topic": topic, **({"archive": archive} if archive else {})}
        self._archived = bool(archive)
        connection = connection_to(LogLocation(address))
        log = connection.fresh_log(topic)
        self._topic: Topic = log.topic
        mark = connection.run(settled_mark(log))
        self._tail = max(int(mark.high_watermark), int(self._topic.first) - 1)
        self._oldest = max(int(mark.trimmed) + 1, int(self._topic.first))
        cluster = int(connection.run(log.connector.view()).cluster)
        self.identity = SnapshotTopic(cluster, int(self._topic.topic), topic)

    def range(self, previous: TopicSnapshot | None, rules: _Rules) -> tuple[int, int]:
        """The first and the last position to read; the first is behind the last if there is nothing new."""
        begin = int(self._topic.first)
        if previous is not None:
            self._check(previous, rules)
            begin = previous.position + 1
        if begin < self._oldest and not self._archived:
            raise PreconditionFailed(
                f"positions {begin} to {self._oldest - 1} of topic {self._topic.name!r} are trimmed: give option 'archive' (where "
                f"they are), or 'since' (a snapshot that is good for {self._oldest - 1} or later)"
            )
        return begin, self._tail

    def _check(self, previous: TopicSnapshot, rules: _Rules) -> None:
        if (previous.topic.cluster, previous.topic.id) != (self.identity.cluster, self.identity.id):
            raise PreconditionFailed(
                f"option 'since' is a snapshot of topic {previous.topic.name!r} (number {previous.topic.id}) of cluster "
                f"{previous.topic.cluster}, and this is {self.identity.name!r} (number {self.identity.id}) of cluster "
                f"{self.identity.cluster}"
            )
        for option in ("key", "value", "delete"):
            if getattr(previous, option) != getattr(rules, option):
                raise OptionError(
                    f"option '{option}' is {getattr(rules, option)!r}, and the snapshot that 'since' names was made with "
                    f"{getattr(previous, option)!r}: give the same, or start over without 'since'"
                )
        if previous.position > self._tail:
            raise PreconditionFailed(
                f"option 'since' is a snapshot that is good for position {previous.position}, and the log ends at {self._tail}: it "
                "is of another log"
            )

    def rows(self, begin: int, position: int) -> DataFrame:
        if begin > position:
            return self._spark.createDataFrame([], READ_SCHEMA)
        places = {"startingOffsets": str(begin), "endingOffsets": str(position + 1)}
        return self._spark.read.format("varlog").options(**self._options, **places).load()


# --- the place of a snapshot, on any file system that Spark supports -------------------------------------------------------

# Times as every reader of Parquet understands them.
_WRITTEN = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
# Columns of the written files and their row counts.
Describe = Callable[[tuple[SnapshotFile, ...], int], TopicSnapshot]


class SnapshotPlace:
    """`option`: the option that named the path."""

    def __init__(self, spark: SparkSession, path: str, option: str) -> None:
        self.path = absolute(path)
        above, _, self._name = self.path.rpartition("/")
        if not self._name or above.endswith(("/", ":")):
            raise OptionError(f"option '{option}' is {path!r}: it must be a directory below another one")
        self._spark = spark
        self._files = HadoopFiles(spark, above or "/")

    def check_free(self) -> None:
        """Check before the work, not after it."""
        if self._name in self._files.names(""):
            raise PreconditionFailed(f"{self.path} is there already: name a new directory for the snapshot")

    def read(self) -> TopicSnapshot:
        if DESCRIPTION not in self._files.names(self._name):
            raise PreconditionFailed(
                f"{self.path} is no snapshot: there is no {DESCRIPTION}, which is written last"
            )
        place = f"{self._name}/{DESCRIPTION}"
        about = decode_topic_snapshot(self._files.read(place), self._files.uri(place))
        check_files(about, self._files.sizes(self._name), self.path)
        return about

    def rows(self, about: TopicSnapshot) -> DataFrame:
        if not about.files:
            return self._spark.createDataFrame([], about.columns)
        files = [self._files.uri(f"{self._name}/{file.name}") for file in about.files]
        return self._spark.read.schema(about.columns).parquet(*files)

    def store(self, rows: DataFrame, describe: Describe) -> TopicSnapshot:
        """Written to a temporary directory, made durable and described, then renamed. What is left of a failure is removed."""
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

    def _described(self, aside: str, describe: Describe) -> TopicSnapshot:
        sizes = {name: size for name, size in self._files.sizes(aside).items() if name.endswith(".parquet")}
        self._files.sync(aside, sizes)
        files = tuple(SnapshotFile(name, sizes[name]) for name in sorted(sizes))
        # Counted in the files: Spark's own counters include tasks that ran twice.
        count = self._spark.read.parquet(self._files.uri(aside)).count() if files else 0
        about = describe(files, count)
        self._files.write_new(f"{aside}/{DESCRIPTION}", encode_topic_snapshot(about))
        return about
