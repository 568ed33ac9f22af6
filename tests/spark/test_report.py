"""The report of a topic: what it says is what was appended."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.logs import LiveTopic
from varlog.spark.jobs.report import report
from varlog.testing.tcp_cluster import TcpCluster


def test_a_report_shows_what_was_appended(spark: SparkSession, cluster: TcpCluster, tmp_path: Path) -> None:
    topic = LiveTopic(cluster.repository.address, "measured", streams=3)
    streams = [int(stream.log_stream) for stream in topic.log.streams]
    for number in range(20):
        topic.log.append_batch([b"x" * 100] * 9 + [b"y" * 1000], log_stream=streams[0])
        if number % 4 == 0:
            topic.log.append(b"", log_stream=streams[1])
    entries = topic.entries()
    times = sorted({entry.time_us for entry in entries})
    page = tmp_path / "page.html"
    seen: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        seen.append(what)

    found = report(spark, topic.address, topic.name, html=str(page), buckets=20, progress=progress)

    assert (found.entries, found.bytes, found.begin, found.end) == (205, 20 * 1900, 1, 206)
    assert (found.first_us, found.last_us, found.arrivals) == (times[0], times[-1], len(times))
    waits = sorted(after - before for before, after in pairwise(times))
    assert (found.between_arrivals_us.min, found.between_arrivals_us.max) == (waits[0], waits[-1])
    assert found.silences[0].length_us == waits[-1]
    assert sum(one.count for one in found.waits) == len(waits)
    assert (found.size.min, found.size.p50, found.size.p90, found.size.p99, found.size.max) == (
        0,
        100,
        100,
        1000,
        1000,
    )
    assert [(one.entries, one.bytes) for one in found.streams] == [(200, 38_000), (5, 0), (0, 0)]
    assert (round(found.entries_skew.largest, 2), found.bytes_skew.largest) == (2.93, 3.0)
    assert sum(bucket.entries for bucket in found.buckets) == 205
    assert max(bucket.number for bucket in found.buckets) < 20
    assert found.peak_entries <= 205 and seen[:1] == ["reading measured"]
    text = page.read_text("utf-8")
    assert (
        text.count("<svg") == 5
        and "Topic measured" in text
        and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    )
    topic.log.trim(205)
    assert report(spark, topic.address, topic.name).entries == 0
    topic.log.close()


def test_a_report_may_be_of_a_part(spark: SparkSession, cluster: TcpCluster) -> None:
    topic = LiveTopic(cluster.repository.address, "part")
    topic.append(50)
    found = report(spark, topic.address, topic.name, options={"startingOffsets": "11", "endingOffsets": "31"})
    assert (found.entries, found.begin, found.end) == (20, 11, 31)
    topic.log.close()
