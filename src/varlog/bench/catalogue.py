"""The workloads by name, in the order they run. Each has the target that docs/benchmarks.md states for it."""

from __future__ import annotations

from collections.abc import Sequence

from varlog.bench.kill import Kill, backup, judge_node, judge_repository, leader, primary
from varlog.bench.log_workloads import (
    LARGE_BYTES,
    LARGE_COUNT,
    SMALL_BYTES,
    SMALL_COUNT,
    Appenders,
    Subscribe,
    append_batches,
    append_embedded,
    idle_cluster,
    load_beside_stalled_subscriber,
    read_arrow,
    read_entries,
    read_lists,
)
from varlog.bench.ordering_catalogue import ORDERING_FAULTS, ORDERINGS, SEQUENCED_FAULTS, UNITS
from varlog.bench.replica_workloads import open_replica, sync_replica
from varlog.bench.settings import Measure
from varlog.bench.spark_read import ReadAgainstParquet, audit_against_reading, memory_of_workers
from varlog.bench.spark_stream import streaming_latency
from varlog.bench.spark_targets import ReadJudge, judge_audit, judge_stream, judge_worker_memory, judge_write
from varlog.bench.spark_write import WriteAgainstParquet
from varlog.bench.workload import (
    Place,
    Workload,
    appends_judge,
    bandwidth_judge,
    entries_judge,
    judge_batches,
    judge_idle,
    judge_latency,
    judge_memory,
    judge_open,
    judge_sync,
)

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "append-1",
        "1 appender, 1 KiB",
        "p50 within 6 times the raw 1 KiB write+fdatasync p50",
        Place.LOG,
        Appenders(1),
        judge_latency,
        beside_raw=True,
    ),
    Workload(
        "append-64",
        "64 appenders, 1 KiB, one entry a call",
        "10 000 appends/s",
        Place.LOG,
        Appenders(64),
        appends_judge(10_000),
    ),
    Workload(
        "append-256",
        "256 appenders, 1 KiB, one entry a call",
        "16 000 appends/s",
        Place.LOG,
        Appenders(256),
        appends_judge(16_000),
    ),
    Workload(
        "batch-1000",
        "batches of 1000 x 1 KiB",
        "copies x MB/s at least 0.7 of the raw sequential write+fdatasync bandwidth",
        Place.LOG,
        append_batches,
        judge_batches,
        beside_raw=True,
    ),
    Workload(
        "subscribe",
        "subscribe from the start, 100 B, into Python",
        "500 000 entries/s",
        Place.LOG,
        Subscribe(read_entries, SMALL_BYTES, SMALL_COUNT),
        entries_judge(500_000),
    ),
    Workload(
        "subscribe-lists",
        "the same, in lists (log.subscribe_lists)",
        "500 000 entries/s",
        Place.LOG,
        Subscribe(read_lists, SMALL_BYTES, SMALL_COUNT),
        entries_judge(500_000),
    ),
    Workload(
        "subscribe-arrow",
        "subscribe from the start, 100 B, log.arrow",
        "2 000 000 entries/s",
        Place.LOG,
        Subscribe(read_arrow, SMALL_BYTES, SMALL_COUNT),
        entries_judge(2_000_000),
    ),
    Workload(
        "subscribe-4k",
        "subscribe from the start, 4 KiB, into Python",
        "400 MB/s",
        Place.LOG,
        Subscribe(read_entries, LARGE_BYTES, LARGE_COUNT),
        bandwidth_judge(400e6),
    ),
    Workload(
        "idle",
        "idle cluster",
        "no disk writes, under 1 % of a core a process",
        Place.CLUSTER,
        idle_cluster,
        judge_idle,
    ),
    Workload(
        "memory",
        "storage node under full load, one stalled subscriber",
        "memory flat, under 300 MB",
        Place.CLUSTER,
        load_beside_stalled_subscriber,
        judge_memory,
    ),
    Workload(
        "embedded",
        "embedded, batches of 1000 x 100 B, sync off",
        "500 000 entries/s",
        Place.DISK,
        append_embedded,
        entries_judge(500_000),
    ),
    Workload(
        "open",
        "open a replica of 2 GiB",
        "under 1 s, memory under 100 MB",
        Place.DISK,
        open_replica,
        judge_open,
    ),
    Workload(
        "sync",
        "fill an empty replica from a sealed one of 512 MiB",
        "MB/s at least 0.5 of the raw sequential write+fdatasync bandwidth",
        Place.DISK,
        sync_replica,
        judge_sync,
        beside_raw=True,
    ),
)

_NODE_TARGET = (
    "under 2 s without an append, no append fails that may take 10 s, under 50 ms for sealing and unsealing"
)

# Each has a cluster of its own, with the defaults of `varlog up` and two log streams.
FAULTS: tuple[Workload, ...] = (
    Workload("kill-backup", "a backup killed", _NODE_TARGET, Place.DISK, Kill(backup), judge_node),
    Workload("kill-primary", "a primary killed", _NODE_TARGET, Place.DISK, Kill(primary), judge_node),
    Workload(
        "kill-apart",
        "a primary killed, four nodes, two copies: the other stream is not hurt",
        _NODE_TARGET,
        Place.DISK,
        Kill(primary, apart=True),
        judge_node,
    ),
    Workload(
        "kill-leader",
        "the leading metadata repository killed (three of them)",
        "no append fails that may take 10 s",
        Place.DISK,
        Kill(leader, replicated=True),
        judge_repository,
    ),
)

_WRITE_TARGET = "at least 0.8 of the lower of two: Spark writing the same rows to Parquet, and the log's own batch appends"

# On one cluster with two log streams a topic; each topic is filled once, by the first that needs it.
SPARK: tuple[Workload, ...] = (
    Workload(
        "spark-read-100",
        "Spark reads a topic, 100 B",
        "at least 0.4 of Parquet's rows/s",
        Place.SPARK,
        ReadAgainstParquet(100),
        ReadJudge(0.4),
    ),
    Workload(
        "spark-read-1k",
        "Spark reads a topic, 1 KiB",
        "at least 0.7 of Parquet's rows/s",
        Place.SPARK,
        ReadAgainstParquet(1024),
        ReadJudge(0.7),
    ),
    Workload(
        "spark-audit",
        "audit of every replica, 1 KiB",
        "at least the speed of reading",
        Place.SPARK,
        audit_against_reading,
        judge_audit,
    ),
    Workload(
        "spark-memory",
        "memory of Spark's Python workers that read",
        "flat, whatever the size of the topic",
        Place.SPARK,
        memory_of_workers,
        judge_worker_memory,
    ),
    Workload(
        "spark-read-4k",
        "Spark reads a topic, 4 KiB",
        "at least 0.8 of Parquet's rows/s",
        Place.SPARK,
        ReadAgainstParquet(4096),
        ReadJudge(0.8),
    ),
    Workload(
        "spark-write-100",
        "Spark writes to a topic, 100 B",
        _WRITE_TARGET,
        Place.SPARK,
        WriteAgainstParquet(100),
        judge_write,
    ),
    Workload(
        "spark-write-1k",
        "Spark writes to a topic, 1 KiB",
        _WRITE_TARGET,
        Place.SPARK,
        WriteAgainstParquet(1024),
        judge_write,
    ),
    Workload(
        "spark-stream",
        "an append until it is seen in foreachBatch",
        "at most 100 ms more than a source that does nothing",
        Place.SPARK,
        streaming_latency,
        judge_stream,
    ),
)


# All of them; the faults of the sequenced ordering are among those that are compared.
EVERYTHING: tuple[Workload, ...] = (*WORKLOADS, *FAULTS, *ORDERINGS, *UNITS, *ORDERING_FAULTS, *SPARK)
# Of a committed replica, by itself: there is no other kind of them to measure.
_COMMITTED_ONLY = ("open", "sync")


def chosen(
    names: Sequence[str], *, faults: bool = False, spark: bool = False, measure: Measure = Measure.COMMITTED
) -> list[Workload]:
    """Those named, in the order of the tables; without a name all of the ordering's table, or all faults, or all of Spark's."""
    known = {workload.name for workload in EVERYTHING}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no workload is called {unknown[0]}: there are {', '.join(sorted(known))}")
    if faults and spark:
        raise ValueError("--faults and --spark exclude each other: measure one of them")
    if spark and measure is not Measure.COMMITTED:
        raise ValueError(
            "--spark measures committed topics, the only ones that Spark writes to: leave --ordering out"
        )
    if not names:
        return list(SPARK if spark else _faults(measure) if faults else _table(measure))
    return [workload for workload in EVERYTHING if workload.name in names]


def _faults(measure: Measure) -> Sequence[Workload]:
    return {
        Measure.COMMITTED: FAULTS,
        Measure.SEQUENCED: SEQUENCED_FAULTS,
        Measure.BOTH: ORDERING_FAULTS,
    }[measure]


def _table(measure: Measure) -> Sequence[Workload]:
    if measure is Measure.BOTH:
        return (*ORDERINGS, *UNITS)
    if measure is Measure.COMMITTED:
        return WORKLOADS
    return [*(workload for workload in WORKLOADS if workload.name not in _COMMITTED_ONLY), *UNITS]
