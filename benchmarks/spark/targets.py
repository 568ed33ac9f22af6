"""Targets of the Spark workloads, as pure functions from figures."""

from __future__ import annotations

from varlog.bench.figures import format_count, format_mb, format_mb_s, format_ms
from varlog.bench.machine import RawLimits
from varlog.bench.workload import BenchResult, Measured

WRITE_RATIO_MIN = 0.8
STREAM_EXTRA_S_MAX = 0.1
AUDIT_RATIO_MIN = 1.0
# Python's allocator and Arrow's pools keep what they once had: a growth below this is breath.
FLAT_BYTES_MAX = 32_000_000


class ReadJudge:
    """Rows a second against Parquet's."""

    def __init__(self, at_least: float) -> None:
        self._at_least = at_least

    def __call__(self, measured: Measured, raw: RawLimits) -> BenchResult:
        rate, parquet = measured["rows_per_s"], measured["parquet_rows_per_s"]
        summary = f"{format_count(rate)} rows/s, {format_mb_s(measured['bytes_per_s'])}"
        return BenchResult(summary, rate / parquet >= self._at_least, rate / parquet, _parquet(parquet))


def judge_write(measured: Measured, raw: RawLimits) -> BenchResult:
    """Rows a second against the slower of the two that do less: Parquet is no log, and appends are no DataFrame."""
    rate, parquet, append = (
        measured[name] for name in ("rows_per_s", "parquet_rows_per_s", "append_rows_per_s")
    )
    lower, against = min(
        (parquet, _parquet(parquet)), (append, f"the log's own {format_count(append)} rows/s")
    )
    other = f"{rate / max(parquet, append):.2f} of the other"
    summary = f"{format_count(rate)} rows/s, {format_mb_s(measured['bytes_per_s'])}; {other}"
    return BenchResult(summary, rate / lower >= WRITE_RATIO_MIN, rate / lower, against)


def judge_stream(measured: Measured, raw: RawLimits) -> BenchResult:
    """Append to `foreachBatch`, over what Spark takes with a source that does nothing."""
    latency, floor = measured["p50_s"], measured["floor_p50_s"]
    summary = (
        f"p50 {format_ms(latency)}, p90 {format_ms(measured['p90_s'])}: {(latency - floor) * 1000:+.0f} ms"
    )
    met = latency - floor <= STREAM_EXTRA_S_MAX
    return BenchResult(summary, met, latency / floor, f"Spark's own floor, p50 {format_ms(floor)}")


def judge_audit(measured: Measured, raw: RawLimits) -> BenchResult:
    """Bytes of all replicas a second, against reading one of each."""
    rate, read = measured["bytes_per_s"], measured["read_bytes_per_s"]
    summary = f"{format_mb_s(rate)}, {format_mb(measured['replicas_bytes'])} of replicas"
    return BenchResult(summary, rate / read >= AUDIT_RATIO_MIN, rate / read, f"reading, {format_mb_s(read)}")


def judge_worker_memory(measured: Measured, raw: RawLimits) -> BenchResult:
    """The largest worker: how large, and does it grow with what it reads."""
    growth = measured["growth_bytes"]
    summary = (
        f"at most {format_mb(measured['resident_max_bytes'])} a worker, {growth / 1e6:+.0f} MB from a topic of "
        f"{measured['part']:g} of the size to the whole"
    )
    return BenchResult(summary, growth <= FLAT_BYTES_MAX)


def _parquet(rate: float) -> str:
    return f"Parquet's {format_count(rate)} rows/s"
