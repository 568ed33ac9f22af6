"""Batch reads on real Spark: every row once and right, only what was asked for, and errors that say what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import varlog
from varlog.model.entry import Entry
from varlog.spark.columns import READ_SCHEMA
from varlog.spark.failure import spark_failure
from varlog.testing.tcp_cluster import WAIT_S, TcpCluster

ROWS = 3000


@pytest.fixture(scope="module")
def orders(cluster: TcpCluster) -> Iterator[varlog.Log]:
    """A topic of two streams, with batches of one entry and of hundreds, empty entries and some of 100 KB."""
    random = Random(4)
    with varlog.connect(
        cluster.repository.address, "orders", streams=2, create=True, timeout_s=WAIT_S
    ) as log:
        while log.tail() < ROWS:
            count = min(ROWS - log.tail(), random.choice([1, 1, 1, 7, 300]))
            size = random.choice([0, 10, 10, 200]) if count > 1 else random.choice([0, 100, 100_000])
            log.append_batch(
                [random.randbytes(size) for _ in range(count)], log_stream=1 + random.randrange(2)
            )
        yield log


def read(spark: SparkSession, cluster: TcpCluster, topic: str = "orders", **options: object) -> DataFrame:
    reader = spark.read.format("varlog").option("address", cluster.repository.address).option("topic", topic)
    return reader.options(**options).load()  # type: ignore[arg-type]


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    """Without the time zone of a session: (topic, glsn, llsn, log_stream, microseconds, data), in order."""
    found = frame.selectExpr(
        "topic", "glsn", "llsn", "log_stream", "unix_micros(timestamp)", "data"
    ).collect()
    return sorted((*row[:5], bytes(row[5])) for row in found)


def expected(log: varlog.Log, begin: int, end: int, topic: str = "orders") -> list[tuple[object, ...]]:
    return [row_of(entry, topic) for entry in log.subscribe(begin, end)]


def row_of(entry: Entry, topic: str) -> tuple[object, ...]:
    return topic, entry.glsn, entry.llsn, entry.log_stream, entry.time_us, entry.data


def test_a_topic_is_read_whole_with_every_column_right(
    spark: SparkSession, cluster: TcpCluster, orders: varlog.Log
) -> None:
    """R-USE-4: batch, from the log to Spark."""
    frame = read(spark, cluster)
    assert frame.schema == spark.createDataFrame([], READ_SCHEMA).schema
    assert rows(frame) == expected(orders, 1, ROWS + 1)
    assert frame.count() == ROWS


def partitions(frame: DataFrame) -> int:
    """How many tasks the read has."""
    return frame.rdd.getNumPartitions()


def test_positions_bound_what_is_read(spark: SparkSession, cluster: TcpCluster, orders: varlog.Log) -> None:
    frame = read(spark, cluster, startingOffsets=700, endingOffsets=1900)
    assert rows(frame) == expected(orders, 700, 1900)
    both = '{"orders": %d}'
    assert rows(read(spark, cluster, startingOffsets=both % 2990, endingOffsets=both % 2993)) == expected(
        orders, 2990, 2993
    )
    assert read(spark, cluster, startingOffsets="latest").count() == 0


def test_a_read_is_split_by_its_options_and_into_few_tasks_otherwise(
    spark: SparkSession, cluster: TcpCluster, orders: varlog.Log
) -> None:
    assert partitions(read(spark, cluster)) <= 8
    many = read(spark, cluster, minPartitions=11)
    assert partitions(many) >= 11
    assert rows(many) == expected(orders, 1, ROWS + 1)
    small = read(spark, cluster, maxRecordsPerPartition=100)
    sizes = small.rdd.mapPartitions(lambda part: [sum(1 for _ in part)]).collect()
    assert max(sizes) <= 100
    assert sum(sizes) == ROWS


def test_filters_are_pushed_down_and_exact(
    spark: SparkSession, cluster: TcpCluster, orders: varlog.Log
) -> None:
    everything = expected(orders, 1, ROWS + 1)
    time_us = orders.read(1500).time_us
    cases = {
        "glsn = 17": [row for row in everything if row[1] == 17],
        "glsn in (1, 2000, 5000)": [row for row in everything if row[1] in (1, 2000)],
        "glsn > 10 and glsn <= 20": [row for row in everything if 10 < int(str(row[1])) <= 20],
        "glsn <=> 9 and log_stream is not null": [row for row in everything if row[1] == 9],
        "log_stream = 2 and glsn < 500": [row for row in everything[:499] if row[3] == 2],
        "topic = 'orders' and glsn >= 2999": everything[2998:],
        "topic = 'payments'": [],
        f"timestamp >= timestamp_micros({time_us})": [
            row for row in everything if int(str(row[4])) >= time_us
        ],
        f"timestamp < timestamp_micros({time_us})": [row for row in everything if int(str(row[4])) < time_us],
        f"timestamp = timestamp_micros({time_us})": [row for row in everything if row[4] == time_us],
        "glsn % 2 = 0 and glsn < 9 or glsn = 10": [row for row in everything if row[1] in (2, 4, 6, 8, 10)],
        "llsn = 5": [row for row in everything if row[2] == 5],
    }
    for condition, wanted in cases.items():
        frame = read(spark, cluster).where(condition)
        assert rows(frame) == wanted, condition
    one = read(spark, cluster).where("glsn = 17")
    assert partitions(one) == 1
    assert "Filter (" not in plan(one), "Spark has nothing left to filter"
    assert "Filter (" in plan(read(spark, cluster).where("llsn = 5"))


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_a_session_without_pushdown_reads_the_same_rows(
    spark: SparkSession, cluster: TcpCluster, orders: varlog.Log
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = read(spark, cluster).where("glsn > 10 and glsn <= 20")
        assert rows(frame) == expected(orders, 11, 21)
        assert "Filter (" in plan(frame)
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_times_bound_what_is_read(spark: SparkSession, cluster: TcpCluster, orders: varlog.Log) -> None:
    low, high = orders.read(1000).time_us, orders.read(2000).time_us
    found = rows(read(spark, cluster, startingTimestamp=low, endingTimestamp=high, timestampSlack=0))
    wanted = [row for row in expected(orders, 1, ROWS + 1) if low <= int(str(row[4])) < high]
    assert wanted
    assert found == wanted
    far = "2100-01-01T00:00:00+00:00"
    assert read(spark, cluster, startingTimestamp=far).count() == 0
    assert read(spark, cluster, endingTimestamp="2000-01-01T00:00:00").count() == 0


def test_several_topics_and_patterns_are_one_frame(
    spark: SparkSession, cluster: TcpCluster, orders: varlog.Log
) -> None:
    with (
        varlog.connect(cluster.repository.address, "many-1", create=True, timeout_s=WAIT_S) as one,
        varlog.connect(cluster.repository.address, "many-2", create=True, streams=3, timeout_s=WAIT_S) as two,
        varlog.connect(cluster.repository.address, "many-empty", create=True, timeout_s=WAIT_S),
    ):
        one.append_batch([b"a", b"b"])
        two.append_batch([b"c"])
        wanted = expected(one, 1, 3, "many-1") + expected(two, 1, 2, "many-2")
        assert rows(read(spark, cluster, topic="many-1, many-2")) == wanted
        pattern = spark.read.format("varlog").option("address", cluster.repository.address)
        assert rows(pattern.option("topicPattern", "many-.*").load()) == wanted
        assert rows(pattern.option("topicPattern", "many-.*").load().where("topic = 'many-2'")) == wanted[2:]
        begins = '{"many-1": 2, "many-2": "latest"}'
        assert rows(read(spark, cluster, topic="many-1,many-2", startingOffsets=begins)) == wanted[1:2]
        assert read(spark, cluster, topic="many-empty").count() == 0


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"topic": "order"}, "OptionError", r"option 'topic': there is no topic 'order'.*orders"),
        ({"startingOffsets": 9000}, "MissingOffsets", r"option 'startingOffsets' is 9000.*newest is 3000"),
        ({"endingOffsets": 9000}, "MissingOffsets", r"option 'endingOffsets' is 9000.*newest is 3000"),
        (
            {"startingOffsets": '{"paymets": 4}'},
            "OptionError",
            r"'startingOffsets' has a position for topic 'paymets'",
        ),
        (
            {"startingOffset": 4},
            "OptionError",
            r"'startingoffset' is not known: did you mean 'startingOffsets'",
        ),
        ({"timeout": 2, "address": "127.0.0.1:1"}, "Unavailable", r"127.0.0.1:1"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(
    spark: SparkSession,
    cluster: TcpCluster,
    orders: varlog.Log,
    options: dict[str, object],
    kind: str,
    message: str,
) -> None:
    with pytest.raises(PySparkException) as raised:
        read(spark, cluster, **{"topic": "orders", **options}).count()  # type: ignore[arg-type]
    failure = spark_failure(raised.value)
    assert failure.kind == kind
    assert re.search(message, failure.message), failure.message


def test_what_is_trimmed_is_distinguished_and_can_be_left_out(
    spark: SparkSession, cluster: TcpCluster
) -> None:
    with varlog.connect(
        cluster.repository.address, "trimmed", create=True, streams=2, timeout_s=WAIT_S
    ) as log:
        for number in range(40):
            log.append_batch([b"%d" % number] * 5, log_stream=log.streams[number % 2].log_stream)
        before = read(spark, cluster, topic="trimmed", minPartitions=4)
        plan(before)
        log.trim(120)
        with pytest.raises(PySparkException) as raised:
            read(spark, cluster, topic="trimmed", startingOffsets=100).count()
        failure = spark_failure(raised.value)
        assert failure.kind == "TrimmedOffsets"
        assert "trimmed up to position 120" in failure.message
        assert "failOnDataLoss=false" in failure.message
        lenient = read(spark, cluster, topic="trimmed", startingOffsets=100, failOnDataLoss=False)
        assert rows(lenient) == expected(log, 121, 201, "trimmed")
        assert read(spark, cluster, topic="trimmed").count() == 80


def test_a_reader_that_stops_early_leaves_the_worker_fit_for_the_next(
    spark: SparkSession, cluster: TcpCluster, orders: varlog.Log
) -> None:
    frame = read(spark, cluster, minPartitions=8)
    for _ in range(3):
        assert len(frame.limit(3).collect()) == 3
    assert frame.count() == ROWS


def test_an_embedded_directory_is_read_closed_and_while_it_is_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    with varlog.open(path, "orders", streams=2) as log:
        for number in range(60):
            log.append_batch([b"%d" % number] * (number + 1), log_stream=log.streams[number % 2].log_stream)
        log.trim(10)
        wanted = expected(log, 11, log.tail() + 1)
        frame = spark.read.format("varlog").option("topic", "orders")
        assert rows(frame.option("minPartitions", 4).load(str(path))) == wanted
    assert rows(frame.option("minPartitions", 4).load(str(path))) == wanted
    assert rows(frame.load(str(path)).where("glsn < 20")) == wanted[:9]
    with pytest.raises(PySparkException) as raised:
        frame.load(str(tmp_path)).count()
    assert "is no embedded directory" in spark_failure(raised.value).message
