"""Files into a topic: what becomes an entry, and that each row is there once however often the job is run, or killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.logs import LiveTopic
from varlog.model.errors import UnknownTopic
from varlog.spark.failure import spark_failure
from varlog.spark.jobs.ingest import IngestReport, frame_of, ingest, list_files, pinned_splits
from varlog.spark.jobs.ingest_rules import FileFormat, IngestError
from varlog.spark.options import OptionError, write_options
from varlog.spark.write.exactly_once_rules import Write
from varlog.spark.write.input_rules import InputColumns
from varlog.spark.write.task import WriteTask
from varlog.testing.tcp_cluster import TcpCluster


@pytest.fixture
def topic(cluster: TcpCluster, request: pytest.FixtureRequest) -> Iterator[LiveTopic]:
    name = request.node.name.partition("[")[0].removeprefix("test_")[-40:].lstrip("_")
    live = LiveTopic(cluster.repository.address, name)
    yield live
    live.log.close()


@pytest.fixture
def run(spark: SparkSession, topic: LiveTopic) -> Callable[..., IngestReport]:
    return lambda source, **options: ingest(spark, str(source), topic.address, topic.name, **options)


def entries(topic: LiveTopic) -> list[bytes]:
    return sorted(entry.data for entry in topic.entries())


def lines(path: Path, names: list[str], count: int) -> list[bytes]:
    """Files with lines that say which they are."""
    path.mkdir(exist_ok=True)
    for name in names:
        (path / name).write_text("".join(f"{name} {number}\n" for number in range(count)))
    return sorted(f"{name} {number}".encode() for name in names for number in range(count))


def test_running_the_same_again_adds_nothing(
    run: Callable[..., IngestReport], topic: LiveTopic, tmp_path: Path
) -> None:
    """R-USE-4: the job ingest."""
    wanted = lines(tmp_path / "in", ["a.txt", "with space [1].txt"], 50)
    tried = run(tmp_path / "in", dry_run=True)
    assert (tried.files, tried.rows, len(tried.sample), entries(topic)) == (2, 0, 3, [])
    first = run(tmp_path / "in")
    assert (first.rows, first.found_done, entries(topic)) == (100, False, wanted)
    again = run(tmp_path / "in")
    assert (again.rows, again.found_done, again.writer, entries(topic)) == (0, True, first.writer, wanted)
    lines(tmp_path / "in", ["b.txt"], 1)
    assert run(tmp_path / "in").writer != first.writer


def test_a_run_that_was_cut_off_is_completed_by_the_next(
    spark: SparkSession, run: Callable[..., IngestReport], topic: LiveTopic, tmp_path: Path
) -> None:
    """R-USE-4: a run wrote one of its two partitions, and then its driver was gone."""
    wanted = lines(tmp_path / "in", [f"{number}.txt" for number in range(9)], 40)
    name = run(tmp_path / "in", dry_run=True).writer
    reading = FileFormat("text")
    with pinned_splits(spark):
        files = list_files(spark, str(tmp_path / "in"), reading)
        parts = frame_of(spark, str(tmp_path / "in"), reading, files).rdd.glom().collect()
    assert len(parts) == 2
    rows = pa.record_batch({"data": [row[0].encode() for row in parts[1]]})
    task = WriteTask(write_options({**topic.source, "writer": name}), InputColumns("data"))
    task.run(Write(name, 0, kept=True), 1, iter([rows]))
    assert 0 < len(entries(topic)) == len(parts[1]) < len(wanted)
    report = run(tmp_path / "in")
    assert (report.writer, report.rows, report.found_done, entries(topic)) == (name, 360, False, wanted)
    assert run(tmp_path / "in").found_done


def test_a_write_that_fails_names_the_reason_and_how_to_complete_it(
    run: Callable[..., IngestReport], topic: LiveTopic, tmp_path: Path
) -> None:
    lines(tmp_path / "in", ["a.txt"], 5)
    with pytest.raises(Exception, match="Writing job failed") as failed:
        run(tmp_path / "in", expression="nullif(value, 'a.txt 3')")
    message = spark_failure(failed.value).message
    assert message.startswith("1 of 5 rows have no value (null)") and "run the same job again" in message
    assert entries(topic) == []


def test_partitions_are_the_same_on_any_number_of_cores(spark: SparkSession, tmp_path: Path) -> None:
    """And behind the block the session is as it was."""
    lines(tmp_path / "in", [f"{number}.txt" for number in range(7)], 30)
    reading = FileFormat("text")

    def cut(cores: str) -> list[list[str]]:
        spark.conf.set("spark.sql.leafNodeDefaultParallelism", cores)
        try:
            files = list_files(spark, str(tmp_path / "in"), reading)
            with pinned_splits(spark):
                frame = frame_of(spark, str(tmp_path / "in"), reading, files)
                return [[row[0] for row in part] for part in frame.rdd.glom().collect()]
        finally:
            spark.conf.unset("spark.sql.leafNodeDefaultParallelism")

    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    assert cut("1") == cut("64")
    assert spark.conf.get("spark.sql.files.maxPartitionBytes") == before


def test_rows_become_json_by_default(
    spark: SparkSession, run: Callable[..., IngestReport], topic: LiveTopic, tmp_path: Path
) -> None:
    path = tmp_path / "rows"
    spark.range(3).selectExpr("id", "concat('name ', id) AS name").coalesce(1).write.parquet(str(path))
    assert run(path, format="parquet").entry == "to_json(struct(*))"
    assert [json.loads(data) for data in entries(topic)] == [{"id": n, "name": f"name {n}"} for n in range(3)]
    assert run(path, format="parquet", column="NAME").rows == 3
    assert run(path, format="parquet", expression="cast(id * 2 as string)").rows == 3
    assert entries(topic)[:3] == [b"0", b"2", b"4"] and entries(topic)[3:6] == [
        b"name 0",
        b"name 1",
        b"name 2",
    ]
    (tmp_path / "rows.csv").write_text("id,who\n7,eve\n")
    options = {"header": "true"}
    run(tmp_path / "rows.csv", format="csv", options=options, expression="concat(who, '/', id)")
    assert b"eve/7" in entries(topic)
    assert run(tmp_path / "rows.csv", format="binary").rows == 1
    assert b"id,who\n7,eve\n" in entries(topic)


def test_a_folder_that_grows_is_followed_file_by_file(
    run: Callable[..., IngestReport], topic: LiveTopic, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    wanted = lines(tmp_path / "in", ["a.txt"], 20)
    assert run(tmp_path / "in", checkpoint=checkpoint).rows == 20
    wanted += lines(tmp_path / "in", ["b.txt"], 10)
    assert run(tmp_path / "in", checkpoint=checkpoint).rows == 10
    assert entries(topic) == sorted(wanted)


def test_any_dataframe_is_written_once_under_its_name(spark: SparkSession, topic: LiveTopic) -> None:
    frame = spark.range(20).selectExpr("cast(id as string) AS value")
    with pytest.raises(IngestError, match="option 'writer'"):
        ingest(spark, frame, topic.address, topic.name)
    for _ in range(2):
        ingest(spark, frame, topic.address, topic.name, writer="numbers")
    assert entries(topic) == sorted(str(number).encode() for number in range(20))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"format": "xml"}, "option 'format' is 'xml'"),
        ({"column": "value", "expression": "value"}, "either option 'column'"),
        ({"column": "nobody"}, "option 'column' is 'nobody': the columns are value"),
        ({"expression": "nobody + 1"}, "option 'expression' is 'nobody \\+ 1': .*nobody"),
        ({"expression": "((("}, "option 'expression'"),
        ({"expression": "length(value)"}, "which is int: an entry is string or binary"),
        ({"follow": True}, "needs option 'checkpoint'"),
        ({"format": "json", "checkpoint": "here"}, "needs option 'schema'"),
        ({"options": {"pathGlobFilter": "*.gz"}}, "there are no files"),
    ],
)
def test_what_cannot_be_ingested_is_named_and_nothing_is_written(
    run: Callable[..., IngestReport],
    topic: LiveTopic,
    tmp_path: Path,
    options: dict[str, object],
    named: str,
) -> None:
    lines(tmp_path / "in", ["a.txt"], 3)
    with pytest.raises((IngestError, OptionError), match=named):
        run(tmp_path / "in", **options)
    assert entries(topic) == []


def test_a_missing_topic_or_path_is_named(
    spark: SparkSession, cluster: TcpCluster, run: Callable[..., IngestReport], tmp_path: Path
) -> None:
    with pytest.raises(IngestError, match=r"option 'source' .*Path does not exist"):
        run(tmp_path / "nowhere")
    with pytest.raises(UnknownTopic, match="there is no topic 'nobodys'"):
        ingest(spark, str(tmp_path), cluster.repository.address, "nobodys")
