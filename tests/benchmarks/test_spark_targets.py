"""benchmarks.spark: how its figures are assessed. Its workloads run in tests/spark/test_bench.py."""

from __future__ import annotations

import pytest

from benchmarks.spark.targets import ReadJudge, judge_audit, judge_stream, judge_worker_memory, judge_write
from varlog.bench.machine import RawLimits

RAW = RawLimits(sync_p50_s=0.0002, sync_p99_s=0.001, write_bytes_per_s=400e6, loopback_bytes_per_s=2e9)


def test_a_read_is_judged_by_its_ratio_to_parquet() -> None:
    measured = {"rows_per_s": 300_000.0, "bytes_per_s": 3e8, "parquet_rows_per_s": 1_000_000.0}
    result = ReadJudge(0.4)(measured, RAW)
    assert (result.met, result.ratio, result.against) == (False, 0.3, "Parquet's 1 000 000 rows/s")
    assert ReadJudge(0.3)(measured, RAW).met


@pytest.mark.parametrize(
    ("parquet", "append", "ratio", "against"),
    [
        (100_000.0, 200_000.0, 0.9, "Parquet's 100 000 rows/s"),
        (200_000.0, 120_000.0, 0.75, "the log's own 120 000 rows/s"),
    ],
)
def test_a_write_is_judged_by_the_slower_of_the_two_it_is_compared_with(
    parquet: float, append: float, ratio: float, against: str
) -> None:
    measured = {
        "rows_per_s": 90_000.0,
        "bytes_per_s": 9e6,
        "parquet_rows_per_s": parquet,
        "append_rows_per_s": append,
    }
    result = judge_write(measured, RAW)
    assert (result.met, result.ratio, result.against) == (ratio >= 0.8, ratio, against)


def test_a_stream_may_take_a_tenth_of_a_second_longer_than_spark_alone() -> None:
    measured = {"p50_s": 0.24, "p90_s": 0.3, "floor_p50_s": 0.15, "floor_p90_s": 0.2}
    assert judge_stream(measured, RAW).met
    slow = judge_stream(measured | {"p50_s": 0.26}, RAW)
    assert not slow.met
    assert slow.summary == "p50 260 ms, p90 300 ms: +110 ms"


def test_an_audit_is_judged_by_the_speed_of_reading_and_workers_by_their_growth() -> None:
    measured = {"bytes_per_s": 5e8, "read_bytes_per_s": 4e8, "replicas_bytes": 1e9}
    assert judge_audit(measured, RAW).met
    assert not judge_audit(measured | {"bytes_per_s": 3e8}, RAW).met
    workers = {"growth_bytes": 5e6, "resident_max_bytes": 2e8, "part": 0.0625}
    assert judge_worker_memory(workers, RAW).met
    assert not judge_worker_memory(workers | {"growth_bytes": 9e7}, RAW).met
