"""The workloads by name, in the order they run. Each has the target that docs/benchmarks.md states for it."""

from __future__ import annotations

from collections.abc import Sequence

from varlog.cli.bench.append import Appenders, append_batches, append_embedded
from varlog.cli.bench.idle import idle_cluster
from varlog.cli.bench.memory import load_beside_stalled_subscriber
from varlog.cli.bench.replica_open import open_replica
from varlog.cli.bench.subscribe import (
    LARGE_BYTES,
    LARGE_COUNT,
    SMALL_BYTES,
    SMALL_COUNT,
    Subscribe,
    read_arrow,
    read_entries,
    read_lists,
)
from varlog.cli.bench.verdicts import (
    appends_judge,
    bandwidth_judge,
    entries_judge,
    judge_batches,
    judge_idle,
    judge_latency,
    judge_memory,
    judge_open,
)
from varlog.cli.bench.workload import Place, Workload

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
)


def chosen(names: Sequence[str]) -> list[Workload]:
    """Those named, in the order of the table; all if none is named."""
    known = {workload.name for workload in WORKLOADS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no workload is called {unknown[0]}: there are {', '.join(sorted(known))}")
    return [workload for workload in WORKLOADS if not names or workload.name in names]
