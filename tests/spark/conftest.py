"""One Spark session for all tests of this folder, and a cluster for each module that asks for one. Nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import varlog.spark
from varlog.runtime.loop_thread import LoopThread
from varlog.spark.connection import close_connections
from varlog.testing.tcp_cluster import TcpCluster, running

if TYPE_CHECKING:  # without Spark this file is loaded, and the tests are skipped
    from pyspark.sql import SparkSession

# Fast to start, slow to run: right for tests, wrong for benchmarks.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2,4]: two cores, and a task may fail four times, as on a real cluster."""
    pytest.importorskip("pyspark", reason="NOT TESTED: pip install -e '.[test-spark]'")
    path = tmp_path_factory.mktemp("spark")
    places = {"spark.local.dir": str(path), "spark.sql.warehouse.dir": str(path / "warehouse")}
    session = varlog.spark.session("tests", "local[2,4]", {**QUICK, **places})
    yield session
    session.stop()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TcpCluster, LoopThread]]:
    """A cluster, and the thread that it lives in."""
    with running(tmp_path_factory.mktemp("cluster"), auto_create_topics=True) as found:
        yield found
        close_connections()  # those of tests that do in this process what Spark does in others


@pytest.fixture(scope="module")
def cluster(services: tuple[TcpCluster, LoopThread]) -> TcpCluster:
    """Three storage nodes, a repository and a manager; topics are made by the tests."""
    return services[0]


@pytest.fixture
def restart_node(services: tuple[TcpCluster, LoopThread]) -> Iterator[Callable[[int], None]]:
    """Stop a storage node, by its index, and start it again. The next test finds all of them alive."""
    cluster, thread = services
    yield lambda index: thread.run(cluster.restart_node(index))
    thread.run(cluster.wait_nodes())
