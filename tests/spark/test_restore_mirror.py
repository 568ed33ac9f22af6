"""Copies that keep positions, by restore and mirror: equal in positions, bytes and times, also after a crash."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import varlog
from tests.spark.logs import LiveTopic, as_rows, entries_of, run_command
from varlog.model.errors import PreconditionFailed
from varlog.spark.jobs import mirror as mirror_job
from varlog.spark.jobs import restore as restore_job
from varlog.spark.jobs.archive import archive
from varlog.spark.jobs.mirror import MirrorReport, mirror
from varlog.spark.jobs.restore import restore
from varlog.testing.tcp_cluster import WAIT_S, TcpCluster, running

Rows = list[tuple[int, int, bytes]]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a second cluster."""
    with running(tmp_path_factory.mktemp("other"), auto_create_topics=True) as (found, _):
        yield found.repository.address


@pytest.fixture
def topic(cluster: TcpCluster, request: pytest.FixtureRequest) -> Iterator[LiveTopic]:
    """Its beginning is trimmed."""
    safe = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    made = LiveTopic(cluster.repository.address, safe[:90])
    made.append(60, batch=7)
    made.log.trim(10)
    yield made
    made.log.close()


def rows_at(address: str, topic: str, begin: int = 11) -> Rows:
    with varlog.connect(address, topic, create=False, timeout_s=WAIT_S) as log:
        return as_rows(entries_of(log, begin))


def append_to(address: str, topic: str) -> None:
    with varlog.connect(address, topic, create=False, timeout_s=WAIT_S) as log:
        log.append(b"not a copy")


def failing(real: Callable[..., Any], call: int) -> Callable[..., Any]:
    """`real`, but one call dies after its work."""
    calls = 0

    def fail(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        result = real(*given, **named)
        if calls == call:
            raise OSError("planted")
        return result

    return fail


# --- restore --------------------------------------------------------------------------------------------------------------


def test_a_restored_topic_is_the_archived_one(
    spark: SparkSession, topic: LiveTopic, other: str, tmp_path: Path
) -> None:
    archive(spark, topic.address, topic.name, str(tmp_path), range_records=20)
    planned = restore(spark, str(tmp_path), other, "restored", dry_run=True)
    assert (planned.begin, planned.end, planned.rows_written) == (11, 61, 50)
    with varlog.admin(other, timeout_s=WAIT_S) as admin:
        assert admin.view().topic_named("restored") is None, "a dry run makes nothing"
    report = restore(spark, str(tmp_path), other, "restored")
    assert (report.source_topic, report.rows_written, report.rows_found) == (topic.name, 50, 0)
    assert rows_at(other, "restored") == as_rows(topic.entries())
    again = restore(spark, str(tmp_path), other, "restored")
    assert (again.rows_written, again.rows_found) == (0, 50)
    with varlog.connect(other, "restored", timeout_s=WAIT_S) as log:
        assert log.append(b"continues").glsn == 61


def test_a_restore_that_died_is_completed_by_the_next(
    spark: SparkSession,
    topic: LiveTopic,
    other: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive(spark, topic.address, topic.name, str(tmp_path), range_records=20)
    monkeypatch.setattr(restore_job, "GROUP_BYTES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(restore_job, "write_copy", failing(vars(restore_job)["write_copy"], 2))
        with pytest.raises(OSError, match="planted"):
            restore(spark, str(tmp_path), other, topic.name)
    report = restore(spark, str(tmp_path), other, topic.name)
    assert (report.rows_found, report.rows_written) == (40, 10)
    assert rows_at(other, topic.name) == as_rows(topic.entries())


def test_a_topic_with_something_else_in_it_is_not_restored_into(
    spark: SparkSession, topic: LiveTopic, other: str, tmp_path: Path
) -> None:
    archive(spark, topic.address, topic.name, str(tmp_path))
    with varlog.admin(other, timeout_s=WAIT_S) as admin:
        admin.create_topic("two-streams", streams=2)
        admin.create_topic("begins-at-1", streams=1)
        admin.create_topic("foreign", streams=1, first=11)
        admin.create_topic("longer", streams=1, first=60)
    append_to(other, "foreign")
    for name, message in [
        ("two-streams", "has 2 log streams"),
        ("begins-at-1", "continues at position 1, and the archive begins at 11"),
        ("foreign", "differs at position 11"),
        ("longer", "the first position of topic 'longer'"),
    ]:
        with pytest.raises(PreconditionFailed, match=message):
            restore(spark, str(tmp_path), other, name)
    with pytest.raises(PreconditionFailed, match="there is no archive of topic 'x'"):
        restore(spark, str(tmp_path / "empty"), other, "x")


# --- mirror ---------------------------------------------------------------------------------------------------------------


def mirror_until(spark: SparkSession, topic: LiveTopic, to: str, newest: int, **options: Any) -> MirrorReport:
    """Mirrors continuously, until the mirror has this position."""
    stop = threading.Event()

    def watch(what: str, done: int, total: int) -> None:
        if done >= newest:
            stop.set()

    return mirror(spark, topic.address, topic.name, to, topic.name, stop=stop, progress=watch, **options)


def test_a_mirror_follows_its_topic_and_continues_with_or_without_its_checkpoint(
    spark: SparkSession, topic: LiveTopic, other: str, tmp_path: Path
) -> None:
    """R-USE-4: the job mirror."""
    appender = threading.Thread(target=topic.append, args=(200,), name="appender")
    appender.start()
    report = mirror_until(spark, topic, other, 260, checkpoint=str(tmp_path / "a"), batch_records=40)
    appender.join()
    assert (report.begin, report.end, report.behind, report.rows_written) == (11, 261, 0, 250)
    (reader,) = topic.log.readers()
    assert (reader.name, reader.position) == (report.reader, 260)
    for checkpoint in (str(tmp_path / "a"), ""):
        topic.append(30)
        once = mirror(
            spark, topic.address, topic.name, other, topic.name, checkpoint=checkpoint, continuous=False
        )
        assert (once.rows_written, once.behind) == (30, 0)
    assert rows_at(other, topic.name) == as_rows(topic.entries())


def test_a_mirror_that_died_within_a_batch_repeats_it_without_a_trace(
    spark: SparkSession,
    topic: LiveTopic,
    other: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-USE-4: the job mirror."""

    def run() -> None:
        mirror(
            spark,
            topic.address,
            topic.name,
            other,
            topic.name,
            checkpoint=str(tmp_path),
            continuous=False,
            batch_records=20,
        )

    with monkeypatch.context() as patch:
        patch.setattr(mirror_job, "write_copy", failing(vars(mirror_job)["write_copy"], 2))
        with pytest.raises(PySparkException, match="planted"):
            run()
    run()
    assert rows_at(other, topic.name) == as_rows(topic.entries())


def test_a_mirror_that_others_write_to_is_refused(spark: SparkSession, topic: LiveTopic, other: str) -> None:
    def run(**options: Any) -> MirrorReport:
        return mirror(spark, topic.address, topic.name, other, topic.name, continuous=False, **options)

    assert run(dry_run=True).rows_written == 50
    run()
    append_to(other, topic.name)
    with pytest.raises(PreconditionFailed, match=r"goes up to position 61, and .* only to 60"):
        run()
    topic.append(5)
    with pytest.raises(PreconditionFailed, match="differs at position 61"):
        run()


def test_a_checkpoint_of_another_mirror_is_refused(
    spark: SparkSession, topic: LiveTopic, other: str, tmp_path: Path
) -> None:
    def run(to_topic: str) -> None:
        mirror(spark, topic.address, topic.name, other, to_topic, checkpoint=str(tmp_path), continuous=False)

    run("mirror-one")
    topic.append(5)
    with pytest.raises(
        PySparkException, match="the checkpoint is at position 61, and topic 'mirror-two' at 11"
    ):
        run("mirror-two")


def test_what_was_trimmed_before_it_was_mirrored_is_reported(
    spark: SparkSession, topic: LiveTopic, other: str
) -> None:
    with varlog.admin(other, timeout_s=WAIT_S) as admin:
        admin.create_topic(topic.name, streams=1, first=5)
    with pytest.raises(
        PreconditionFailed, match=r"positions 5 to 10 .* were trimmed before they were mirrored"
    ):
        mirror(spark, topic.address, topic.name, other, topic.name, continuous=False)


def test_the_commands_restore_and_mirror(
    spark: SparkSession, topic: LiveTopic, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(spark, topic.address, topic.name, str(tmp_path))
    restored = run_command(spark, monkeypatch, "restore", "--cluster", other, str(tmp_path), "by-command")
    mirrored = run_command(
        spark,
        monkeypatch,
        *(
            "mirror",
            "--cluster",
            topic.address,
            topic.name,
            other,
            "--once",
            "--to-topic",
            "mirrored-by-command",
        ),
    )
    assert (restored["rows_written"], mirrored["rows_written"]) == (50, 50)
    copied = [rows_at(other, name) for name in ("by-command", "mirrored-by-command")]
    assert copied == [as_rows(topic.entries())] * 2
