"""The workloads by name, in the order they run. Each has the target that docs/benchmarks.md states for it."""

from __future__ import annotations

from collections.abc import Sequence

from varlog.cli.bench.append import Appenders, append_batches, append_embedded
from varlog.cli.bench.faults import Kill, backup, judge_node, judge_repository, leader, primary
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
from varlog.cli.bench.sync import sync_replica
from varlog.cli.bench.verdicts import (
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


def chosen(names: Sequence[str], *, faults: bool = False) -> list[Workload]:
    """Those named, in the order of the tables; without a name all of the table, or all faults."""
    everything = (*WORKLOADS, *FAULTS)
    known = {workload.name for workload in everything}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no workload is called {unknown[0]}: there are {', '.join(sorted(known))}")
    if not names:
        return list(FAULTS if faults else WORKLOADS)
    return [workload for workload in everything if workload.name in names]
