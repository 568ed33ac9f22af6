"""Streams on Spark: every entry once, within the limits, over restarts and failovers; and what the user sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import varlog
from tests.spark.logs import LiveTopic
from varlog.spark.stream.offsets import Offset
from varlog.testing.tcp_cluster import WAIT_S, TcpCluster


@pytest.fixture
def topic(cluster: TcpCluster, request: pytest.FixtureRequest) -> Iterator[LiveTopic]:
    """A topic of two streams for this test alone."""
    made = LiveTopic(cluster.repository.address, request.node.originalname.removeprefix("test_")[:90])
    yield made
    made.log.close()


class Reading:
    """A query over topics, and what came with each of its micro-batches. `during` is called inside each, once it was read."""

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Path,
        options: dict[str, str],
        *,
        available_now: bool = False,
        during: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.batches: list[list[tuple[int, bytes]]] = []
        self._during = during
        stream = spark.readStream.format("varlog").options(**options).load()
        writing = stream.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        if available_now:
            writing = writing.trigger(availableNow=True)
        self.query: StreamingQuery = writing.start()

    def _take(self, rows: DataFrame, number: int) -> None:
        found = rows.select("glsn", "data").collect()
        self.batches.append(sorted((row.glsn, bytes(row.data)) for row in found))
        self._during(number)

    @property
    def rows(self) -> list[tuple[int, bytes]]:
        return sorted(row for batch in self.batches for row in batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.query.stop()


def entries(topic: LiveTopic, begin: int = 1) -> list[tuple[int, bytes]]:
    return [(entry.glsn, entry.data) for entry in topic.entries(begin)]


def lag(query: StreamingQuery, topic: LiveTopic) -> list[tuple[int, ...]]:
    """Of each micro-batch: up to where it read, and up to where there was something, as the query's progress reports it."""
    sources = [one["sources"][0] for one in query.recentProgress if one["numInputRows"]]
    names = ("endOffset", "latestOffset")
    places = [[Offset.of_json(json.loads(one[name])).places[topic.name] for name in names] for one in sources]
    return [tuple(place.glsn for place in batch) for batch in places]


def test_a_query_reads_every_entry_once_over_restarts_and_reports_its_progress(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path
) -> None:
    """R-USE-4: streaming, from the log to Spark, exactly once."""
    topic.append(100)
    options = {**topic.source, "maxRecordsPerTrigger": "40", "reader": "billing", "minPartitions": "3"}
    with Reading(spark, tmp_path, options) as reading:
        reading.query.processAllAvailable()
        assert [len(batch) for batch in reading.batches] == [40, 40, 20]
        assert reading.rows == entries(topic)
        assert [found.position for found in topic.log.readers()] == [100]
        assert lag(reading.query, topic) == [(41, 101), (81, 101), (101, 101)]
    with varlog.admin(topic.address, timeout_s=WAIT_S) as admin:
        admin.add_stream(topic.name)
    topic.append(50)
    with Reading(spark, tmp_path, options) as reading:
        reading.query.processAllAvailable()
        topic.append(5)
        reading.query.processAllAvailable()
        assert reading.rows == entries(topic, 101)
    assert [found.position for found in topic.log.readers()] == [155]


def test_available_now_takes_nothing_that_came_since_and_its_checkpoint_is_for_its_topic_alone(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path
) -> None:
    topic.append(60)
    options = {
        **topic.source,
        "maxRecordsPerTrigger": "25",
        "minRecordsPerTrigger": "20",
        "reader": "nightly",
    }
    with Reading(
        spark, tmp_path, options, available_now=True, during=lambda number: topic.append(7)
    ) as reading:
        assert reading.query.awaitTermination(240)
    assert [len(batch) for batch in reading.batches] == [25, 25, 10]
    assert reading.rows == entries(topic)[:60]
    assert [found.position for found in topic.log.readers()] == [60]
    other = LiveTopic(topic.address, "another")
    other.append(1)
    other.log.close()
    with Reading(spark, tmp_path, other.source, available_now=True) as wrong:
        with pytest.raises(StreamingQueryException, match="which option topic leaves out"):
            wrong.query.awaitTermination(240)
        assert wrong.batches == []


def test_a_query_reads_on_over_failovers(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path, restart_node: Callable[[int], None]
) -> None:
    topic.append(90)

    def fail_over(number: int) -> None:
        restart_node(number % 3)
        topic.append(10)

    options = {**topic.source, "maxRecordsPerTrigger": "30"}
    with Reading(spark, tmp_path, options, available_now=True, during=fail_over) as reading:
        assert reading.query.awaitTermination(240)
    with Reading(spark, tmp_path, options) as later:
        later.query.processAllAvailable()
    assert [len(batch) for batch in (*reading.batches, *later.batches)] == [30, 30, 30, 30]
    assert reading.rows + later.rows == entries(topic)


def test_a_pattern_finds_topics_that_come_later(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path
) -> None:
    topic.append(3)
    options = {"address": topic.address, "topicPattern": f"{topic.name}.*"}
    with Reading(spark, tmp_path, options) as reading:
        reading.query.processAllAvailable()
        later = LiveTopic(topic.address, f"{topic.name}-2")
        later.append(4)
        while len(reading.rows) < 7:
            reading.query.processAllAvailable()
        later.log.close()
    assert reading.rows == sorted(entries(topic) + [(1 + i, f"entry {i}".encode()) for i in range(4)])
