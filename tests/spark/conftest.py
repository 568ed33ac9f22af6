"""One Spark session for all tests of this folder, and a cluster for each module that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import varlog.spark
from varlog.testing.tcp_cluster import TcpCluster, running

# Fast to start, slow to run: right for tests, wrong for benchmarks.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": "/nowhere",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """local[2,4]: two cores, and a task may fail four times, as on a real cluster."""
    session = varlog.spark.session("tests", "local[2,4]", QUICK)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    """Three storage nodes, a repository and a manager; topics are made by the tests."""
    with running(tmp_path_factory.mktemp("cluster"), auto_create_topics=True) as (found, _):
        yield found
