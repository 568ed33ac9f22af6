"""The demo's step on Spark, in the session of the tests: it reads what is there, and writes once what it writes twice."""

from __future__ import annotations

from pyspark.sql import SparkSession

import varlog
from varlog.cli.spark_demo import ROWS, SparkTask, read_and_write
from varlog.testing.tcp_cluster import WAIT_S, TcpCluster


def test_spark_reads_every_position_and_writes_its_rows_once(
    spark: SparkSession, cluster: TcpCluster
) -> None:
    address = cluster.repository.address
    with varlog.connect(address, "demo", create=True, streams=2, timeout_s=WAIT_S) as log:
        for number in range(50):
            log.append(b"client 1 entry %d" % number)
        newest = log.tail()
        seen = read_and_write(spark, SparkTask(address, "demo", newest, "demo", newest))
        assert seen.violations(newest, newest) == ([], [])
        assert log.tail() == newest + ROWS
