"""Catalogue: the workloads of `varlog bench` by name, with their targets.

They run in this order. docs/benchmarks.md states the same targets.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from varlog.bench.replica_workloads import open_replica, sync_replica, sync_unit
from varlog.bench.workload import (
    Workload,
    WorkloadPlace,
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
from varlog.model.cluster import Ordering

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "append-1",
        "1 appender, 1 KiB",
        "p50 within 6 times the raw 1 KiB write+fdatasync p50",
        WorkloadPlace.LOG,
        Appenders(1),
        judge_latency,
        beside_raw=True,
    ),
    Workload(
        "append-64",
        "64 appenders, 1 KiB, one entry per call",
        "10 000 appends/s",
        WorkloadPlace.LOG,
        Appenders(64),
        appends_judge(10_000),
    ),
    Workload(
        "append-256",
        "256 appenders, 1 KiB, one entry per call",
        "16 000 appends/s",
        WorkloadPlace.LOG,
        Appenders(256),
        appends_judge(16_000),
    ),
    Workload(
        "batch-1000",
        "batches of 1000 x 1 KiB",
        "copies x MB/s at least 0.7 of the raw sequential write+fdatasync bandwidth",
        WorkloadPlace.LOG,
        append_batches,
        judge_batches,
        beside_raw=True,
    ),
    Workload(
        "subscribe",
        "subscribe from the start, 100 B, into Python",
        "500 000 entries/s",
        WorkloadPlace.LOG,
        Subscribe(read_entries, SMALL_BYTES, SMALL_COUNT),
        entries_judge(500_000),
    ),
    Workload(
        "subscribe-lists",
        "the same, in lists (log.subscribe_lists)",
        "500 000 entries/s",
        WorkloadPlace.LOG,
        Subscribe(read_lists, SMALL_BYTES, SMALL_COUNT),
        entries_judge(500_000),
    ),
    Workload(
        "subscribe-arrow",
        "subscribe from the start, 100 B, log.arrow",
        "2 000 000 entries/s",
        WorkloadPlace.LOG,
        Subscribe(read_arrow, SMALL_BYTES, SMALL_COUNT),
        entries_judge(2_000_000),
    ),
    Workload(
        "subscribe-4k",
        "subscribe from the start, 4 KiB, into Python",
        "400 MB/s",
        WorkloadPlace.LOG,
        Subscribe(read_entries, LARGE_BYTES, LARGE_COUNT),
        bandwidth_judge(400e6),
    ),
    Workload(
        "idle",
        "idle cluster",
        "no disk writes, under 1 % of a core per process",
        WorkloadPlace.CLUSTER,
        idle_cluster,
        judge_idle,
    ),
    Workload(
        "memory",
        "storage node under full load, one stalled subscriber",
        "memory flat, under 300 MB",
        WorkloadPlace.CLUSTER,
        load_beside_stalled_subscriber,
        judge_memory,
    ),
    Workload(
        "embedded",
        "embedded, batches of 1000 x 100 B, sync off",
        "500 000 entries/s",
        WorkloadPlace.DISK,
        append_embedded,
        entries_judge(500_000),
    ),
    Workload(
        "open",
        "open a replica of 2 GiB",
        "under 1 s, memory under 100 MB",
        WorkloadPlace.DISK,
        open_replica,
        judge_open,
        quick_note="quick: a smaller replica than the target's",
    ),
    Workload(
        "sync",
        "fill an empty replica from a sealed one of 512 MiB",
        "MB/s at least 0.5 of the raw sequential write+fdatasync bandwidth",
        WorkloadPlace.DISK,
        sync_replica,
        judge_sync,
        beside_raw=True,
    ),
)

# On a log unit, without a cluster: measured with `--ordering sequenced`.
UNITS: tuple[Workload, ...] = (
    Workload(
        "unit-sync",
        "fill an empty log unit from one of 512 MiB",
        "MB/s at least 0.5 of the raw sequential write+fdatasync bandwidth",
        WorkloadPlace.DISK,
        sync_unit,
        judge_sync,
        beside_raw=True,
    ),
)

EVERYTHING: tuple[Workload, ...] = (*WORKLOADS, *UNITS)
# On a committed replica, without a cluster; the sequenced ordering has UNITS instead.
_COMMITTED_ONLY = ("open", "sync")


def chosen_workloads(names: Sequence[str], ordering: Ordering = Ordering.COMMITTED) -> list[Workload]:
    """The named workloads; without a name, all of this ordering."""
    if names:
        return workloads_named(names, EVERYTHING)
    if ordering is Ordering.COMMITTED:
        return list(WORKLOADS)
    return [*(workload for workload in WORKLOADS if workload.name not in _COMMITTED_ONLY), *UNITS]


def workloads_named(names: Sequence[str], table: Sequence[Workload]) -> list[Workload]:
    """The workloads of a table with these names, in the table's order. ValueError for a name it does not have."""
    known = {workload.name for workload in table}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no workload is called {unknown[0]}: there are {', '.join(sorted(known))}")
    return [workload for workload in table if workload.name in names]
