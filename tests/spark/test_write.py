"""Writing a DataFrame: what is taken, where it goes, and what is refused before anything is written."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import varlog
from varlog.model.limits import ENTRY_BYTES_MAX
from varlog.testing.tcp_cluster import WAIT_S, TcpCluster


class Topic:
    """A topic of the test's own, and what is in it."""

    def __init__(self, cluster: TcpCluster, name: str, streams: int, first: int = 1) -> None:
        self.first = first
        self.options = {"address": cluster.repository.address, "topic": name}
        with varlog.admin(self.options["address"], timeout_s=WAIT_S) as admin:
            admin.create_topic(name, streams=streams, first=first)

    def write(self, rows: DataFrame, mode: str = "append", **options: str) -> None:
        rows.write.format("varlog").options(**self.options | options).mode(mode).save()

    def entries(self) -> list[varlog.Entry]:
        with varlog.connect(
            self.options["address"], self.options["topic"], create=False, timeout_s=WAIT_S
        ) as log:
            return [entry for part in log.subscribe_lists(self.first, log.tail() + 1) for entry in part]

    def data(self) -> list[bytes]:
        return [entry.data for entry in self.entries()]


@pytest.fixture
def topic(cluster: TcpCluster, request: pytest.FixtureRequest) -> Topic:
    name: str = request.node.name
    return Topic(cluster, re.sub("[^a-z0-9_]", "-", name)[:90], streams=2)


@pytest.mark.parametrize("column", ["data", "value", "line"])
def test_text_is_written_as_utf_8(spark: SparkSession, topic: Topic, column: str) -> None:
    topic.write(spark.createDataFrame([("a €uro",), ("",)], f"{column} string"))
    assert Counter(topic.data()) == Counter(["a €uro".encode(), b""])


def test_bytes_are_written_as_they_are_and_large_offsets_too(spark: SparkSession, topic: Topic) -> None:
    rows = [(bytes([n]) * n,) for n in range(100)]
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        topic.write(spark.createDataFrame(rows, "data binary"))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert Counter(topic.data()) == Counter(row[0] for row in rows)


def test_rows_are_spread_over_the_streams_and_nothing_is_written_for_no_rows(
    spark: SparkSession, topic: Topic
) -> None:
    topic.write(spark.range(0).selectExpr("CAST(id AS STRING) AS data"))
    assert topic.data() == []
    topic.write(spark.range(0, 1000, 1, 2).selectExpr("CAST(id AS STRING) AS data"))
    counts = Counter(entry.position.log_stream for entry in topic.entries())
    assert sorted(counts.values()) == [500, 500]


def test_positions_follow_the_column_of_order_by(spark: SparkSession, topic: Topic) -> None:
    rows = spark.range(0, 3000, 1, 1).selectExpr("CAST(id AS STRING) AS data", "(id * 7919) % 3000 AS at")
    topic.write(rows, orderBy="AT")
    found = [int(data) for data in topic.data()]
    assert found == sorted(range(3000), key=lambda number: number * 7919 % 3000)


def test_rows_with_equal_keys_share_a_stream(spark: SparkSession, topic: Topic) -> None:
    columns = ("concat('k', id % 20) AS customer", "concat(id % 20, ' ', id) AS data")
    topic.write(spark.range(0, 1000, 1, 3).selectExpr(*columns), log_stream="customer")
    streams: dict[bytes, set[int]] = {}
    for entry in topic.entries():
        streams.setdefault(entry.data.split()[0], set()).add(entry.log_stream)
    assert len(topic.data()) == 1000
    assert all(len(found) == 1 for found in streams.values())
    assert len(set.union(*streams.values())) == 2


def test_a_log_stream_can_be_named_by_its_id(spark: SparkSession, topic: Topic) -> None:
    with varlog.connect(topic.options["address"], topic.options["topic"], timeout_s=WAIT_S) as log:
        chosen = log.streams[1].log_stream
    topic.write(spark.range(100).selectExpr("CAST(id AS STRING) AS data"), log_stream=str(chosen))
    assert {entry.log_stream for entry in topic.entries()} == {chosen}


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        (["id", "id AS b"], {}, r"columns are \(id bigint, b bigint\).*one binary or string column.*to_json"),
        (["id"], {}, "column 'id' is bigint.*CAST"),
        (["'x' AS data", "id"], {}, "'id' would be lost"),
        (["'x' AS data"], {"orderBy": "at"}, "option 'orderBy' names 'at'"),
        (["'x' AS data"], {"log_stream": "999999"}, r"option 'log_stream' is 999999.*it has \["),
        (["'x' AS data"], {"positions": "keep"}, "needs a column 'glsn'"),
        (["'x' AS data", "id AS glsn"], {"positions": "keep"}, "one log stream, and .* has 2"),
        (["'x' AS data"], {"wrter": "w"}, "did you mean 'writer'"),
        (["'x' AS data"], {"topic": "nowhere"}, "option 'topic': there is no topic 'nowhere'"),
        (
            ["'x' AS data"],
            {"address": "127.0.0.1:1", "timeout": "1"},
            "option 'address' is '127.0.0.1:1'.*did not answer",
        ),
        (["'x' AS data"], {"address": "here"}, "option 'address' is 'here'.*not an address"),
        (["'x' AS data"], {"writer": "a/b"}, "writer's name"),
        (
            ["CAST(null AS STRING) AS data"],
            {},
            r"2 of 2 rows have no value \(null\) in column 'data'.*IS NOT NULL",
        ),
        ([f"repeat('x', {ENTRY_BYTES_MAX + 1}) AS data"], {}, "a row of column 'data' has 8388609 bytes"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_remedy_and_nothing_is_written(
    spark: SparkSession, topic: Topic, select: list[str], options: dict[str, str], message: str
) -> None:
    rows = spark.range(0, 2, 1, 1).selectExpr(*select)
    with pytest.raises(Exception, match=message):
        topic.write(rows, **options)
    assert topic.data() == []


def test_overwriting_is_refused_with_the_mode_that_is_right(spark: SparkSession, topic: Topic) -> None:
    with pytest.raises(PySparkException, match=r'never overwritten.*mode\("append"\)'):
        topic.write(spark.createDataFrame([("x",)], "data string"), mode="overwrite")
    assert topic.data() == []


def test_a_failed_write_names_what_is_in_the_log_and_how_to_complete_it(
    spark: SparkSession, topic: Topic
) -> None:
    rows = spark.range(0, 4, 1, 1).selectExpr("IF(id < 3, 'x', null) AS data")
    with pytest.raises(Exception, match=r"(?s)rows have no value.*stays in the log.*writer 'w', batch 5"):
        topic.write(rows, writer="w", batch="5")
    topic.write(rows.where("data IS NOT NULL"), writer="w", batch="5")
    assert topic.data() == [b"x"] * 3
    with pytest.raises(PySparkException, match=r"option 'batch' is 4: writer 'w' .* is at batch 5"):
        topic.write(rows, writer="w", batch="4")


def test_rows_keep_their_positions_through_spark(spark: SparkSession, cluster: TcpCluster) -> None:
    copy = Topic(cluster, "copy", streams=1, first=101)
    columns = ("id AS glsn", "timestamp_micros(id * 1000) AS timestamp", "CAST(id AS STRING) AS data")
    rows = spark.range(101, 1101, 1, 4).selectExpr(*columns)
    for _ in range(2):
        sorted_rows = rows.repartitionByRange(3, "glsn").sortWithinPartitions("glsn")
        copy.write(sorted_rows, positions="keep")
    found = [(entry.glsn, entry.time_us, entry.data) for entry in copy.entries()]
    assert found == [(glsn, glsn * 1000, b"%d" % glsn) for glsn in range(101, 1101)]


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        ("CAST(value AS INT) AS data", {}, "column 'data' is int"),
        ("value", {"topic": "nowhere"}, "there is no topic 'nowhere'"),
        ("value", {"writer": "a/b"}, "option 'writer'"),
        ("CAST(null AS STRING) AS value", {}, r"rows have no value \(null\) in column 'value'"),
    ],
)
def test_a_stream_that_cannot_be_written_ends_with_a_remedy(
    spark: SparkSession, topic: Topic, tmp_path: Path, select: str, options: dict[str, str], message: str
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("1", encoding="utf-8")
    lines = spark.readStream.text(str(tmp_path / "files")).selectExpr(select)
    options = topic.options | options | {"checkpointLocation": str(tmp_path / "checkpoint")}
    query = lines.writeStream.format("varlog").options(**options).trigger(availableNow=True)
    with pytest.raises(Exception, match=message):
        query.start().awaitTermination()
    assert topic.data() == []
