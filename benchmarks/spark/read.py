"""Spark reads: a topic against the same rows in Parquet, an audit against reading, and the memory of the workers that read."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.spark.session import as_parquet, drain, filled, in_turns, medians, read_log, start, timed
from varlog.bench.context import BenchContext
from varlog.bench.machine import usage_of
from varlog.bench.workload import Measured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AUDIT_BYTES = 1024
SAMPLE_S = 0.02
# Topics of these parts of the whole are read one after the other.
PARTS = (1 / 16, 1 / 4, 1.0)


class ReadAgainstParquet:
    """Every row of a topic of entries of `entry_bytes`, and the same rows from Parquet files."""

    def __init__(self, entry_bytes: int) -> None:
        self._entry_bytes = entry_bytes

    async def __call__(self, context: BenchContext) -> Measured:
        spark = await asyncio.to_thread(start, context)
        topic, rows = await filled(context, self._entry_bytes)
        path = str(await as_parquet(spark, context, topic))

        async def log_pass() -> float:
            return rows / await timed(lambda: drain(read_log(spark, context, topic)))

        async def parquet_pass() -> float:
            return rows / await timed(lambda: drain(spark.read.parquet(path)))

        rates = await in_turns(context, [log_pass, parquet_pass])
        log_rate, parquet_rate = medians(rates)
        return {
            "rows_per_s": log_rate,
            "bytes_per_s": log_rate * self._entry_bytes,
            "parquet_rows_per_s": parquet_rate,
            "rows": float(rows),
            "passes": float(len(rates[0])),
        }


async def audit_against_reading(context: BenchContext) -> Measured:
    """All replicas of a topic audited, and the same topic read: bytes a second of each."""
    from varlog.spark.jobs.audit import audit

    spark = await asyncio.to_thread(start, context)
    topic, rows = await filled(context, AUDIT_BYTES)
    replicas_bytes = 0

    def audit_once() -> None:
        nonlocal replicas_bytes
        report = audit(spark, context.address, topic)
        if not report.clean:
            raise OSError(f"the audit of a sound topic has findings: {report.findings[:3]}")
        replicas_bytes = report.bytes

    async def audit_pass() -> float:
        seconds = await timed(audit_once)
        return replicas_bytes / seconds

    async def read_pass() -> float:
        return rows * AUDIT_BYTES / await timed(lambda: drain(read_log(spark, context, topic)))

    rates = await in_turns(context, [audit_pass, read_pass])
    audit_rate, read_rate = medians(rates)
    return {
        "bytes_per_s": audit_rate,
        "read_bytes_per_s": read_rate,
        "replicas_bytes": float(replicas_bytes),
        "passes": float(len(rates[0])),
    }


async def memory_of_workers(context: BenchContext) -> Measured:
    """Resident memory of Spark's Python workers while they read more and more of a topic."""
    spark = await asyncio.to_thread(start, context)
    topic, rows = await filled(context, AUDIT_BYTES)
    measured: Measured = {"rows": float(rows)}
    peaks: list[float] = []
    for part in (PARTS[0], *PARTS):  # the first is read twice: workers that have just started still grow
        end = max(2, int(rows * part) + 1)
        peaks.append(await _peak_while_reading(spark, context, topic, end))
        measured[f"resident_bytes/{part:g}"] = peaks[-1]
        context.display.advance(part, "reading")
    measured["resident_max_bytes"] = max(peaks)
    measured["growth_bytes"] = peaks[-1] - peaks[1]
    measured["part"] = PARTS[0]
    return measured


async def _peak_while_reading(spark: SparkSession, context: BenchContext, topic: str, end: int) -> float:
    """The largest worker at its largest."""
    reading = asyncio.ensure_future(timed(lambda: drain(read_log(spark, context, topic, endingOffsets=end))))
    peak = 0.0
    while not reading.done():
        peak = max([peak, *await asyncio.to_thread(_resident)])
        await asyncio.sleep(SAMPLE_S)
    await reading
    if not peak:
        raise OSError("no Python worker of Spark was seen while it read")
    return peak


def _resident() -> list[float]:
    """Of every Python worker below this process: Spark forks them from a daemon of its own."""
    found = []
    for pid in _below(os.getpid()):
        with contextlib.suppress(OSError):
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(float(usage_of(pid).resident_bytes))
    return found


def _below(pid: int) -> list[int]:
    """The processes that descend from one."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text("ascii").split():
                found += [int(child), *_below(int(child))]
    return found
