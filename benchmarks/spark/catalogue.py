"""Catalogue: the Spark workloads by name, with their targets."""

from __future__ import annotations

from benchmarks.spark.read import ReadAgainstParquet, audit_against_reading, memory_of_workers
from benchmarks.spark.stream import streaming_latency
from benchmarks.spark.targets import ReadJudge, judge_audit, judge_stream, judge_worker_memory, judge_write
from benchmarks.spark.write import WriteAgainstParquet
from varlog.bench.workload import Judge, Runner, Workload, WorkloadPlace

_WRITE_TARGET = "at least 0.8 of the lower of two: Spark writing the same rows to Parquet, and the log's own batch appends"


def _workload(name: str, title: str, target: str, run: Runner, judge: Judge) -> Workload:
    quick_note = "quick: the start of the tasks is most of it"
    return Workload(name, title, target, WorkloadPlace.IN_TURNS, run, judge, quick_note=quick_note)


# On one cluster with two log streams per topic; each topic is filled once, by the first workload that needs it.
SPARK: tuple[Workload, ...] = (
    _workload(
        "spark-read-100",
        "Spark reads a topic, 100 B",
        "at least 0.4 of Parquet's rows/s",
        ReadAgainstParquet(100),
        ReadJudge(0.4),
    ),
    _workload(
        "spark-read-1k",
        "Spark reads a topic, 1 KiB",
        "at least 0.7 of Parquet's rows/s",
        ReadAgainstParquet(1024),
        ReadJudge(0.7),
    ),
    _workload(
        "spark-audit",
        "audit of every replica, 1 KiB",
        "at least the speed of reading",
        audit_against_reading,
        judge_audit,
    ),
    _workload(
        "spark-memory",
        "memory of Spark's Python workers that read",
        "flat, whatever the size of the topic",
        memory_of_workers,
        judge_worker_memory,
    ),
    _workload(
        "spark-read-4k",
        "Spark reads a topic, 4 KiB",
        "at least 0.8 of Parquet's rows/s",
        ReadAgainstParquet(4096),
        ReadJudge(0.8),
    ),
    _workload(
        "spark-write-100",
        "Spark writes to a topic, 100 B",
        _WRITE_TARGET,
        WriteAgainstParquet(100),
        judge_write,
    ),
    _workload(
        "spark-write-1k",
        "Spark writes to a topic, 1 KiB",
        _WRITE_TARGET,
        WriteAgainstParquet(1024),
        judge_write,
    ),
    _workload(
        "spark-stream",
        "an append until it is seen in foreachBatch",
        "at most 100 ms more than a source that does nothing",
        streaming_latency,
        judge_stream,
    ),
)
