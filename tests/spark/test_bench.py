"""The workloads of benchmarks.spark run, small, on the tests' session and cluster. What they measure is never asserted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import varlog.spark
from benchmarks.spark import session
from benchmarks.spark.catalogue import SPARK
from varlog.bench.context import BenchContext, BenchSettings, ClusterTarget, QuietDisplay
from varlog.bench.machine import RawLimits
from varlog.bench.workload import Measured, Workload, judged
from varlog.testing.tcp_cluster import TcpCluster

RAW = RawLimits(sync_p50_s=0.0002, sync_p99_s=0.001, write_bytes_per_s=400e6, loopback_bytes_per_s=2e9)
# One of each kind: the others differ in the size of their entries.
KINDS = ("spark-read-1k", "spark-audit", "spark-memory", "spark-write-1k", "spark-stream")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one run: what one workload has filled or written the next one finds."""
    return tmp_path_factory.mktemp("bench")


@pytest.mark.parametrize("workload", [one for one in SPARK if one.name in KINDS], ids=lambda one: one.name)
def test_every_kind_of_workload_measures_something_that_its_judge_understands(
    workload: Workload,
    spark: SparkSession,
    cluster: TcpCluster,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "QUICK_BYTES", 128 * 1024)
    monkeypatch.setattr(varlog.spark, "session", lambda *_: spark)
    settings = BenchSettings(data=data, streams=2, seconds=0.01, warm_up_s=0.0, quick=True)
    bench_target = ClusterTarget(cluster.repository.address, 2)
    context = BenchContext(settings, QuietDisplay(), tmp_path, f"bench-{workload.name}", bench_target)

    async def run() -> Measured:
        return await workload.run(context)

    measured = asyncio.run(run())
    result = judged(workload, measured, RAW, applies=False)
    assert result.summary
    assert all(value >= 0 for name, value in measured.items() if not name.startswith("growth"))
