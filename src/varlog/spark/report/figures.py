"""Figures of a topic, added up by Spark from one read of the log.

What reaches the driver is some rows a bucket, a stream and a class of sizes, however long the log is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from varlog.spark.jobs.progress import Progress, watching
from varlog.spark.report.report_rules import (
    GAPS_MAX,
    Bucket,
    Busy,
    Silence,
    StreamFigures,
    TopicReport,
    ValueClass,
    between,
    bucket_width_us,
    class_of,
    class_sql,
    longest,
    merged_classes,
    quantiles,
    skew,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


@contextmanager
def arrivals_of(rows: DataFrame, spark: SparkSession, what: str, progress: Progress) -> Iterator[DataFrame]:
    """What arrived in each stream at each time, by classes of size: all that the rest needs, far smaller than the log."""
    lean = rows.select(
        "glsn", "log_stream", sql.unix_micros("timestamp").alias("at"), sql.length("data").alias("size")
    )
    arrivals = (
        lean.withColumn("class", sql.expr(class_sql("size")))
        .groupBy("log_stream", "at", "class")
        .agg(
            sql.count(sql.lit(1)).alias("entries"),
            sql.sum("size").alias("bytes"),
            sql.min("size").alias("low"),
            sql.max("size").alias("high"),
            sql.min("glsn").alias("first_glsn"),
            sql.max("glsn").alias("last_glsn"),
        )
        .persist()
    )
    try:
        with watching(spark, what, progress):
            arrivals.count()
        with watching(spark, "adding up", progress):
            yield arrivals
    finally:
        arrivals.unpersist()


class Figures:
    """All figures, from the arrivals."""

    def __init__(self, arrivals: DataFrame, streams: tuple[int, ...], buckets: int) -> None:
        self._arrivals = arrivals
        self._streams = streams
        self._buckets = buckets

    def of(self, empty: TopicReport) -> TopicReport:
        rows = self._by_class()
        if not rows:
            return empty
        streams = self._by_stream(rows)
        sizes = merged_classes((row["class"], _class(row)) for row in rows)
        first = min(one.first_us for one in streams if one.entries)
        last = max(one.last_us for one in streams if one.entries)
        width = bucket_width_us(first, last, self._buckets)
        begin = first - first % width
        entries, size = sum(one.entries for one in streams), sum(one.bytes for one in streams)
        seconds = max((last - first) / 1e6, 1.0)  # what came within less is a burst, not a rate
        peak = self._peak()
        waits, silences, arrivals = self._waits(begin, width)
        return TopicReport(
            empty.topic,
            empty.cluster,
            min(row["first_glsn"] for row in rows),
            max(row["last_glsn"] for row in rows) + 1,
            entries,
            size,
            first,
            last,
            entries / seconds,
            size / seconds,
            int(peak["entries"]),
            int(peak["bytes"]),
            int(peak["entries"]) / (entries / seconds),
            quantiles(sizes, size),
            tuple(sizes),
            arrivals,
            quantiles(waits, last - first),
            tuple(waits),
            silences,
            skew([one.entries for one in streams]),
            skew([one.bytes for one in streams]),
            streams,
            width,
            begin,
            self._over_time(begin, width),
            empty.page,
        )

    def _by_class(self) -> list[Row]:
        return (
            self._arrivals.groupBy("log_stream", "class")
            .agg(
                sql.sum("entries").alias("entries"),
                sql.sum("bytes").alias("bytes"),
                sql.min("low").alias("low"),
                sql.max("high").alias("high"),
                sql.min("at").alias("first"),
                sql.max("at").alias("last"),
                sql.min("first_glsn").alias("first_glsn"),
                sql.max("last_glsn").alias("last_glsn"),
            )
            .collect()
        )

    def _by_stream(self, rows: list[Row]) -> tuple[StreamFigures, ...]:
        total = sum(row["entries"] for row in rows), sum(row["bytes"] for row in rows)
        ids = sorted({*self._streams, *(row["log_stream"] for row in rows)})
        return tuple(
            _figures_of(one, [row for row in rows if row["log_stream"] == one], *total) for one in ids
        )

    def _peak(self) -> Row:
        """The fullest second."""
        seconds = self._arrivals.groupBy(sql.expr("at div 1000000")).agg(
            sql.sum("entries").alias("entries"), sql.sum("bytes").alias("bytes")
        )
        return seconds.agg(sql.max("entries").alias("entries"), sql.max("bytes").alias("bytes")).collect()[0]

    def _over_time(self, begin: int, width: int) -> tuple[Bucket, ...]:
        number = sql.expr(f"CAST((at - {begin}) div {width} AS INT)").alias("number")
        rows = self._arrivals.groupBy(number, "log_stream").agg(sql.sum("entries"), sql.sum("bytes"))
        return tuple(sorted((Bucket(*row) for row in rows.collect()), key=lambda b: (b.number, b.log_stream)))

    def _waits(self, begin: int, width: int) -> tuple[list[ValueClass], tuple[Silence, ...], int]:
        """Times between arrivals: inside buckets by Spark, each bucket for itself; across their borders here."""
        times = self._arrivals.select("at").distinct()
        bucket = sql.expr(f"(at - {begin}) div {width}")
        window = Window.partitionBy(bucket).orderBy("at")
        steps = times.select("at", bucket.alias("bucket"), sql.lag("at").over(window).alias("before"))
        steps = steps.withColumn("wait", sql.col("at") - sql.col("before")).persist()
        try:
            busy = steps.groupBy("bucket").agg(sql.min("at"), sql.max("at"), sql.count("*")).collect()
            inside = steps.where("wait IS NOT NULL")
            classes = (
                inside.groupBy(sql.expr(class_sql("wait")).alias("class"))
                .agg(
                    sql.min("wait").alias("low"),
                    sql.max("wait").alias("high"),
                    sql.count("*").alias("entries"),
                )
                .collect()
            )
            top = inside.orderBy(sql.desc("wait"), "at").limit(GAPS_MAX).select("before", "at").collect()
        finally:
            steps.unpersist()
        borders = list(between([Busy(row[1], row[2]) for row in busy]))
        lengths = [gap.length_us for gap in borders]
        waits = merged_classes(
            [
                *((row["class"], _class(row)) for row in classes),
                *((class_of(length), ValueClass(length, length, 1)) for length in lengths),
            ]
        )
        silences = longest([*borders, *(Silence(row[0], row[1]) for row in top)])
        return waits, silences, sum(row[3] for row in busy)


def _figures_of(log_stream: int, rows: list[Row], entries: int, size: int) -> StreamFigures:
    """Of one stream, from its classes of sizes; `entries` and `size` are the topic's."""
    own_entries, own_size = sum(row["entries"] for row in rows), sum(row["bytes"] for row in rows)
    return StreamFigures(
        log_stream,
        own_entries,
        own_size,
        own_entries / max(entries, 1),
        own_size / max(size, 1),
        min((row["first"] for row in rows), default=0),
        max((row["last"] for row in rows), default=0),
        quantiles([_class(row) for row in rows], own_size),
    )


def _class(row: Row) -> ValueClass:
    return ValueClass(row["low"], row["high"], row["entries"])
