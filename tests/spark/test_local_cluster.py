"""Executors in processes of their own: what the driver plans is read and written elsewhere, exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.spark.logs import LiveTopic
from varlog.testing.tcp_cluster import TcpCluster

ROOT = Path(__file__).parents[2]


def spark_home(path: Path) -> Path:
    """Spark as it is installed, with a place of its own for what executors leave behind."""
    home = path / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":
            (home / part.name).symlink_to(part)
    return home


@pytest.mark.process
def test_two_executors_read_and_write_a_topic_exactly(cluster: TcpCluster, tmp_path: Path) -> None:
    """R-USE-4: from the log to Spark and back, over a topic of several streams."""
    address = cluster.repository.address
    source, target = LiveTopic(address, "source"), LiveTopic(address, "target")
    source.append(2000, batch=50)
    environment = {**os.environ, "SPARK_HOME": str(spark_home(tmp_path)), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.two_executors", address, source.name, target.name],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert " WARN " not in done.stderr
    assert json.loads(done.stdout) == {"rows": 2000, "executors": 2}
    assert sorted(entry.data for entry in target.entries()) == sorted(
        entry.data for entry in source.entries()
    )
    assert [path.name for path in tmp_path.iterdir()] == ["spark"]
    source.log.close()
    target.log.close()
