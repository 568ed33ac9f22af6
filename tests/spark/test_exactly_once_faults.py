"""The same on real processes: kill -9 of servers while Spark writes, and of Spark's worker beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import varlog
from tests.spark.busy_topic import busy_topic
from tests.spark.driver import Job, run_batch
from tests.spark.faulty import WAIT_S, FaultySource, wait_for
from tests.spark.test_exactly_once import ROWS, WANTED, beside, fault
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import ensure_topic
from varlog.runtime.loop_thread import LoopThread
from varlog.testing.cluster_under_load import plan_for, process_of

pytestmark = [pytest.mark.process, pytest.mark.faults]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Supervisor, LoopThread]]:
    thread, supervisor = (
        LoopThread("servers"),
        Supervisor(plan_for(tmp_path / "servers", replicas=3), say=print),
    )
    try:
        thread.run(supervisor.start())
        thread.run(ensure_topic(supervisor.plan, "busy"))  # when all nodes are registered
        yield supervisor, thread
    finally:
        thread.run(supervisor.stop())
        thread.close()


@pytest.mark.parametrize("what", ["half-way", "kill-worker"])
@pytest.mark.parametrize("victim", ["primary", "backup", "repository"])
def test_a_server_that_is_killed_while_spark_writes_doubles_and_loses_nothing(
    spark: SparkSession, servers: tuple[Supervisor, LoopThread], tmp_path: Path, victim: str, what: str
) -> None:
    """R-USE-4. With `kill-worker` the task dies at the same time, and a second attempt of it meets the failover."""
    supervisor, thread = servers
    spark.dataSource.register(FaultySource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")

    async def kill() -> None:
        supervisor.kill(name)

    def hurt() -> None:
        wait_for(tmp_path / "half-way")
        thread.run(kill())
        (tmp_path / "half-way-over").touch()
        thread.run(supervisor.wait_restarted(name))

    with busy_topic(supervisor.address, "busy") as topic:
        name = _process(supervisor.address, victim)
        with beside(hurt):
            run_batch(spark, Job(batch=fault(topic, tmp_path, what), rows=ROWS))
        topic.check(WANTED)


def _process(address: str, victim: str) -> str:
    with varlog.connect(address, "busy", create=False, timeout_s=WAIT_S) as log:
        replicas = log.streams[0].replicas
    return "vmr" if victim == "repository" else process_of(replicas[victim == "backup"])
