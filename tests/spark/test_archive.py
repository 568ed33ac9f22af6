"""The job archive, and reading archive and log as one: nothing is lost, nothing comes twice, whatever happens to a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.logs import LiveTopic, as_rows, run_command
from varlog.client import blocking
from varlog.client.blocking import BlockingConnector
from varlog.model.errors import PreconditionFailed
from varlog.spark.archive import files as archive_files
from varlog.spark.archive import writer as archive_writer
from varlog.spark.archive.files import ArrowFiles
from varlog.spark.archive.manifest import commit_name, data_of, encode_archive_commit, read_contents
from varlog.spark.archive.rows import rows_of
from varlog.spark.jobs.archive import archive
from varlog.testing.tcp_cluster import TcpCluster

Rows = list[tuple[int, int, bytes]]


@pytest.fixture
def topic(cluster: TcpCluster, request: pytest.FixtureRequest) -> Iterator[LiveTopic]:
    name: str = request.node.name
    safe = "".join(letter if letter.isalnum() else "-" for letter in name)
    made = LiveTopic(cluster.repository.address, safe[:90])
    yield made
    made.log.close()


def archived_rows(path: Path, topic: str) -> Rows:
    """What the archive holds, by its manifest, without Spark."""
    files = ArrowFiles(str(path))
    found = [
        row
        for file in read_contents(files, topic).files
        for batch in rows_of(files, file, file.begin, file.end)
        for row in batch.to_pylist()
    ]
    return [(row["glsn"], round(row["timestamp"].timestamp() * 1_000_000), row["data"]) for row in found]


def read(spark: SparkSession, topic: LiveTopic, path: Path, **options: str) -> DataFrame:
    return spark.read.format("varlog").options(**topic.source, archive=str(path), **options).load()


def rows_in(frame: DataFrame) -> Rows:
    """In the order of positions; each row as often as it is there."""
    found = frame.select("glsn", F.unix_micros("timestamp"), "data").orderBy("glsn").collect()
    return [(row[0], row[1], bytes(row[2])) for row in found]


def directories(path: Path, topic: str) -> set[str]:
    return {found.name for found in (path / data_of(topic)).iterdir()}


def named_directories(path: Path, topic: str) -> set[str]:
    return {file.path.split("/")[1] for file in read_contents(ArrowFiles(str(path)), topic).files}


def test_archive_and_log_are_one_gapless_table_while_appends_continue(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path
) -> None:
    """R-USE-4: the job archive."""
    over, stop = threading.Event(), threading.Event()

    def append() -> None:
        while not over.is_set() and topic.appended < 4000:
            topic.append(100)

    def watch(what: str, done: int, total: int) -> None:
        if done >= 900:
            stop.set()

    topic.append(500)
    appender = threading.Thread(target=append, name="appender")
    appender.start()
    try:
        report = archive(
            spark,
            topic.address,
            topic.name,
            str(tmp_path),
            range_records=300,
            continuous=True,
            trim=True,
            stop=stop,
            progress=watch,
        )
    finally:
        over.set()
        appender.join()
    assert (report.begin, report.rows_written % 300, report.end % 300) == (1, 0, 1)
    assert report.trimmed == report.end - 1 == topic.log.trimmed()
    found = rows_in(read(spark, topic, tmp_path))
    assert [glsn for glsn, _, _ in found] == list(range(1, topic.appended + 1))
    assert [data for _, _, data in found] == [b"entry %d" % number for number in range(topic.appended)]
    assert found[report.end - 1 :] == as_rows(topic.entries())


def test_a_second_run_continues_behind_the_first(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path
) -> None:
    topic.append(55)
    first = archive(spark, topic.address, topic.name, str(tmp_path), range_records=20)
    assert (first.ranges_written, first.rows_written, first.end, first.behind) == (3, 55, 56, 0)
    again = archive(spark, topic.address, topic.name, str(tmp_path), range_records=20)
    assert (again.ranges_written, again.begin, again.end) == (0, 1, 56)
    topic.append(10)
    assert archive(spark, topic.address, topic.name, str(tmp_path), dry_run=True).rows_written == 10
    assert archived_rows(tmp_path, topic.name) == as_rows(topic.entries())[:55]
    archive(spark, topic.address, topic.name, str(tmp_path))
    assert archived_rows(tmp_path, topic.name) == as_rows(topic.entries())
    (reader,) = topic.log.readers()
    assert (reader.name, reader.position) == (first.reader, 65)


class Killed(BaseException):
    """Nothing in the job may survive it, or clean up behind it."""


STEPS: dict[str, tuple[object, str]] = {
    "write": (archive_writer, "write_range"),
    "check": (archive_writer, "check_range"),
    "commit": (archive_files.HadoopFiles, "write_new"),
    "reader": (blocking.Log, "set_reader"),
    "trim": (blocking.Log, "trim"),
}


# What follows a step immediately is "before" the next one.
@pytest.mark.parametrize(("step", "when"), [*((step, "before") for step in STEPS), ("trim", "after")])
def test_a_run_that_was_killed_is_followed_by_one_that_completes_it(
    spark: SparkSession,
    topic: LiveTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    when: str,
) -> None:
    """R-USE-4: the job archive, killed before and after each of its steps."""
    topic.append(30)
    before = as_rows(topic.entries())
    owner, name = STEPS[step]
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def kill(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2 and when == "before":
            raise Killed
        result = real(*given, **named)
        if calls == 2:
            raise Killed
        return result

    def run() -> None:
        archive(spark, topic.address, topic.name, str(tmp_path), range_records=15, trim=True, keep_records=5)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, kill)
        with pytest.raises(Killed):
            run()
    trimmed = topic.log.trimmed()
    assert trimmed <= len(archived_rows(tmp_path, topic.name)), "nothing is trimmed that is not archived"
    run()
    assert archived_rows(tmp_path, topic.name) == before
    assert topic.log.trimmed() == 25
    assert directories(tmp_path, topic.name) == named_directories(tmp_path, topic.name)


OVERTAKEN: dict[str, tuple[object, str]] = {
    "planning": (BlockingConnector, "measure"),
    "writing": (archive_writer, "check_range"),
}


@pytest.mark.parametrize("when", OVERTAKEN)
def test_of_two_archivers_the_slower_takes_up_what_the_other_did(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    topic.append(30)
    owner, name = OVERTAKEN[when]
    real: Callable[..., Any] = getattr(owner, name)

    def overtaken(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        other = archive(spark, topic.address, topic.name, str(tmp_path), range_records=10, trim=True)
        assert other.ranges_written == 3
        return real(*given, **named)

    monkeypatch.setattr(owner, name, overtaken)
    report = archive(spark, topic.address, topic.name, str(tmp_path), range_records=20)
    assert (report.ranges_written, report.end) == (0, 31)
    assert [glsn for glsn, _, _ in archived_rows(tmp_path, topic.name)] == list(range(1, 31))
    assert directories(tmp_path, topic.name) == named_directories(tmp_path, topic.name)


def test_a_trim_spares_what_readers_have_not_read_and_what_is_kept(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path
) -> None:
    topic.append(50)
    topic.log.set_reader("slow", 12)
    spared = archive(spark, topic.address, topic.name, str(tmp_path), trim=True, keep_records=20)
    assert spared.trimmed == 12
    kept = archive(
        spark, topic.address, topic.name, str(tmp_path), trim=True, keep_records=20, respect_readers=False
    )
    assert kept.trimmed == 30


def test_an_archive_of_another_log_is_refused(spark: SparkSession, topic: LiveTopic, tmp_path: Path) -> None:
    topic.append(10)
    archive(spark, topic.address, topic.name, str(tmp_path))
    (commit,) = read_contents(ArrowFiles(str(tmp_path)), topic.name).commits
    manifest = tmp_path / commit_name(topic.name, 1)
    for planted, message in [
        (replace(commit, cluster=commit.cluster + 1), "of cluster"),
        (replace(commit, topic=commit.topic + 1), "deleted and recreated"),
        (replace(commit, last_checksum=commit.last_checksum ^ 1), "another entry at position 10"),
    ]:
        manifest.write_bytes(encode_archive_commit(planted))
        with pytest.raises(PreconditionFailed, match=message):
            archive(spark, topic.address, topic.name, str(tmp_path))
    manifest.write_bytes(encode_archive_commit(replace(commit, topic=commit.topic + 1)))
    with pytest.raises(PySparkException, match="deleted and recreated"):
        read(spark, topic, tmp_path).collect()


def test_what_was_trimmed_before_it_was_archived_is_reported(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path
) -> None:
    topic.append(20)
    archive(spark, topic.address, topic.name, str(tmp_path))
    topic.append(20)
    topic.log.trim(25)
    with pytest.raises(
        PreconditionFailed, match=r"positions 21 to 25 .* were trimmed before they were archived"
    ):
        archive(spark, topic.address, topic.name, str(tmp_path))
    with pytest.raises(PySparkException, match="positions 21 to 25"):
        read(spark, topic, tmp_path).collect()
    left = [glsn for glsn, _, _ in rows_in(read(spark, topic, tmp_path, failOnDataLoss="false"))]
    assert left == [*range(1, 21), *range(26, 41)]
    past = rows_in(read(spark, topic, tmp_path, endingOffsets="21"))
    assert [glsn for glsn, _, _ in past] == list(range(1, 21))


def test_only_the_files_that_a_filter_needs_are_read(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path
) -> None:
    topic.append(100, batch=1)
    entries = topic.entries()
    before = as_rows(entries)
    archive(spark, topic.address, topic.name, str(tmp_path), range_records=25, trim=True, keep_records=40)
    contents = read_contents(ArrowFiles(str(tmp_path)), topic.name)
    (tmp_path / contents.files[0].path).unlink()
    found = read(spark, topic, tmp_path)
    assert rows_in(found.where("glsn > 25 AND glsn <= 60")) == before[25:60]
    log_stream = topic.log.streams[0].log_stream
    of_stream = {entry.glsn for entry in entries if entry.log_stream == log_stream and entry.glsn > 25}
    assert {row[0] for row in rows_in(found.where(f"glsn > 25 AND log_stream = {log_stream}"))} == of_stream
    between = (F.unix_micros("timestamp") >= 0) & F.col("timestamp").between(
        F.timestamp_micros(F.lit(before[40][1])), F.timestamp_micros(F.lit(before[79][1]))
    )
    assert rows_in(found.where(between)) == before[40:80]
    with pytest.raises(PySparkException, match="which holds positions 1 to 25, is missing"):
        found.where("glsn = 20").collect()


def test_a_path_without_an_archive_of_the_topic_is_reported(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path
) -> None:
    topic.append(10)
    topic.log.trim(4)
    with pytest.raises(PySparkException, match=r"option 'archive' is .*: there is no archive of topic"):
        read(spark, topic, tmp_path).collect()
    assert len(rows_in(read(spark, topic, tmp_path, failOnDataLoss="false"))) == 6


def test_the_command_archives_and_trims(
    spark: SparkSession, topic: LiveTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append(20)
    where = ["--cluster", topic.address, topic.name, str(tmp_path)]
    report = run_command(spark, monkeypatch, "archive", *where, "--trim", "--keep-records", "5")
    assert (report["rows_written"], report["end"], report["trimmed"]) == (20, 21, 15)
    assert len(archived_rows(tmp_path, topic.name)) == 20
