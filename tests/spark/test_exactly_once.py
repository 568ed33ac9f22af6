"""Every row is in the log once, whatever is killed, retried or run twice, in a topic that others append to all the time."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import varlog
from tests.spark.busy_topic import BusyTopic, busy_topic
from tests.spark.driver import Job, driver_of, rows_of, run_batch, run_query
from tests.spark.faulty import WAIT_S, FaultySource, wait_for, wait_until
from tests.spark.standalone import standalone
from varlog.runtime.loop_thread import LoopThread
from varlog.testing.tcp_cluster import TcpCluster, running

ROWS = 8000  # of about a KiB each: with two tasks, each has several batches of the log
WANTED = Counter(b"row-%d %s" % (n, b"x" * 1000) for n in range(ROWS))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TcpCluster, LoopThread]]:
    with running(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def topic(world: tuple[TcpCluster, LoopThread], request: pytest.FixtureRequest) -> Iterator[BusyTopic]:
    """One of the test's own, with two log streams."""
    name: str = request.node.name
    with busy_topic(world[0].repository.address, name.replace("[", "-").replace("]", "")) as found:
        yield found


@pytest.fixture
def faulty(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with small record batches and the source that fails on demand."""
    spark.dataSource.register(FaultySource)
    small = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(small)
    spark.conf.set(small, "500")
    yield spark
    spark.conf.set(small, str(before))


def fault(topic: BusyTopic, marks: Path, what: str, at: int = 0, **more: str) -> dict[str, str]:
    return topic.options | {"fault": what, "at": str(at), "marks": str(marks)} | more


@pytest.mark.parametrize("what", ["fail-after", "other-order"])
def test_a_task_that_is_run_again_writes_nothing_twice(
    faulty: SparkSession, topic: BusyTopic, tmp_path: Path, what: str
) -> None:
    """R-USE-4: it failed when all its rows were in the log; then they come in the same order again, or in
    another one."""
    run_batch(faulty, Job(batch=fault(topic, tmp_path, what), rows=ROWS))
    topic.check(WANTED)
    [found] = tmp_path.glob("found-*")
    assert found.name != "found-0", "the second attempt found what the first one had written"


def test_a_worker_that_is_killed_in_the_middle_of_its_task_doubles_nothing(
    faulty: SparkSession, topic: BusyTopic, tmp_path: Path
) -> None:
    def kill_after_the_first_entry() -> None:
        wait_for(tmp_path / "half-way")
        wait_until(lambda: any(int(row[4:].split()[0]) < ROWS // 2 for row in topic.rows()))
        (tmp_path / "half-way-over").touch()

    with beside(kill_after_the_first_entry):
        run_batch(faulty, Job(batch=fault(topic, tmp_path, "kill-worker"), rows=ROWS))
    topic.check(WANTED)
    assert list(tmp_path.glob("found-*")), "there was a second attempt"


def test_a_primary_that_stops_while_tasks_write_doubles_nothing(
    faulty: SparkSession, world: tuple[TcpCluster, LoopThread], topic: BusyTopic, tmp_path: Path
) -> None:
    cluster, thread = world

    def hurt() -> None:
        wait_for(tmp_path / "half-way")
        thread.run(cluster.stop_node(primary))
        (tmp_path / "half-way-over").touch()
        thread.run(cluster.start_node(primary))

    primary = _primary(topic)
    with beside(hurt):
        run_batch(faulty, Job(batch=fault(topic, tmp_path, "half-way"), rows=ROWS))
    topic.check(WANTED)


def test_a_finished_write_that_is_requested_again_writes_nothing(
    faulty: SparkSession, topic: BusyTopic
) -> None:
    options = topic.options | {"writer": "nightly", "batch": "3"}
    for _ in range(2):
        rows_of(faulty, 100).write.format("varlog").options(**options).mode("append").save()
    assert len(topic.rows()) == 100
    rows_of(faulty, 100).write.format("varlog").options(**options | {"batch": "4"}).mode("append").save()
    assert len(topic.rows()) == 200


def test_a_micro_batch_whose_commit_spark_forgot_is_not_written_again(
    faulty: SparkSession, topic: BusyTopic, tmp_path: Path
) -> None:
    job = _query_job(topic, tmp_path, "")
    run_query(faulty, job)
    commits = sorted(Path(job.checkpoint, "commits").glob("[0-9]*"))
    for lost in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        lost.unlink(missing_ok=True)
    run_query(faulty, job)
    topic.check(LINES)


@pytest.mark.process
def test_a_driver_that_is_killed_at_every_stage_of_a_micro_batch_doubles_and_loses_nothing(
    faulty: SparkSession, topic: BusyTopic, tmp_path: Path
) -> None:
    """R-USE-4: before the write, after it, and after the commit that Spark has not noted yet: three drivers die, a fourth one
    continues. The first one also has a batch job in progress, which is run again."""
    job = _query_job(topic, tmp_path, "before-write")
    batch = fault(topic, tmp_path, "half-way", writer="nightly")
    with driver_of(_with(job, batch=batch, rows=ROWS), tmp_path) as driver:
        reached(driver, tmp_path / "before-write")
        reached(driver, tmp_path / "half-way")
    for stage, at in (("before-commit", 1), ("after-commit", 2)):
        with driver_of(_with(job, query=fault(topic, tmp_path, stage, at)), tmp_path) as driver:
            reached(driver, tmp_path / stage)
    run_query(faulty, _with(job, query=fault(topic, tmp_path, "")))
    run_batch(faulty, Job(batch=fault(topic, tmp_path, "", writer="nightly"), rows=ROWS))
    topic.check(WANTED + LINES)


@pytest.mark.process
def test_two_attempts_at_once_write_each_row_once(topic: BusyTopic, tmp_path: Path) -> None:
    """R-USE-4: speculative execution, on two executors: the slow attempt continues once the second one has
    started."""
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "50ms",
        "spark.speculation.efficiency.enabled": "false",
    }
    with standalone(tmp_path) as master:
        batch = fault(topic, tmp_path, "fall-behind", at=1)
        with driver_of(Job(batch=batch, rows=ROWS, master=master, conf=conf), tmp_path) as driver:
            assert driver.wait(2 * WAIT_S) == 0
    assert (tmp_path / "fall-behind-over").exists(), "there was a second attempt"
    topic.check(WANTED)


LINES = Counter(b"line %d of file %d" % (line, name) for name in range(6) for line in range(200))


def reached(driver: subprocess.Popen[bytes], mark: Path) -> None:
    """The driver has got so far; one that ended never will."""
    wait_until(lambda: mark.exists() or driver.poll() is not None, f"{mark.name} is there")
    assert mark.exists(), "the driver ended: see above what it said"


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """`work` in a thread meanwhile; over at the end."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result()


def _query_job(topic: BusyTopic, path: Path, stage: str, at: int = 0) -> Job:
    files = path / "files"
    files.mkdir()
    for name in range(6):
        lines = [f"line {line} of file {name}" for line in range(200)]
        (files / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    query = fault(topic, path, stage, at)
    return Job(query=query, files=str(files), checkpoint=str(path / "checkpoint"))


def _with(job: Job, **changes: object) -> Job:
    changed: Callable[..., Job] = replace
    return changed(job, **changes)


def _primary(topic: BusyTopic) -> int:
    """The index of the node that is the first stream's primary."""
    with varlog.connect(topic.address, topic.topic, create=False, timeout_s=WAIT_S) as log:
        return log.streams[0].primary - 1
