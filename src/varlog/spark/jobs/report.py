"""report(): rates, sizes, arrivals and skew of a topic, as values and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from varlog.spark.connection import connection_to
from varlog.spark.jobs.progress import Progress, silent
from varlog.spark.options import LogLocation
from varlog.spark.read.origin import settled_mark
from varlog.spark.report.figures import Figures, arrivals_of
from varlog.spark.report.report_rules import TopicReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS = 96


def report(
    spark: SparkSession,
    address: str,
    topic: str,
    *,
    html: str | None = None,
    buckets: int = BUCKETS,
    options: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> TopicReport:
    """Report on the present entries. `html`: a file for the page. `options`: of the read, such as startingTimestamp."""
    connection = connection_to(LogLocation(address))
    log = connection.log(topic)
    view = connection.run(log.connector.view())
    mark = connection.run(settled_mark(log))
    begin, end = int(mark.trimmed) + 1, int(mark.high_watermark) + 1
    streams = tuple(int(stream.log_stream) for stream in log.streams)
    empty = TopicReport(topic, int(view.cluster), begin, end, page=html or "")
    if begin >= end:
        found = empty
    else:
        rows = (
            spark.read.format("varlog")
            .options(address=address, topic=topic, endingOffsets=str(end))
            .options(**(options or {}))
            .load()
        )
        with arrivals_of(rows, spark, f"reading {topic}", progress) as arrivals:
            found = Figures(arrivals, streams, buckets).of(empty)
    if html:
        from varlog.spark.report.page import page

        Path(html).write_text(page(found), encoding="utf-8")
    return found
