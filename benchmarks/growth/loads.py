"""The six loads: each grows along one dimension and is measured at every step of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.growth.cluster import Cores, GrowthCluster, growth_cluster
from benchmarks.growth.reader_processes import ReaderProcesses
from benchmarks.growth.sweeps import Point, Sweep
from varlog.bench.context import QuietDisplay
from varlog.bench.figures import percentile
from varlog.bench.machine import write_bandwidth
from varlog.bench.workload import Meter, metered
from varlog.client.log import Log
from varlog.model.limits import GIB, KIB, MIB
from varlog.model.lsn import FIRST_GLSN

ENTRY_BYTES = 1 * KIB
APPENDERS = 256
ENTRY_APPENDERS = 64
BATCH_CALLERS, CALL_ENTRIES = 32, 100
SINGLE = ("appends_per_s", "p50_s", "p99_s")
BATCH_ENTRIES = 1000
FILLERS = 4
MAKERS = 8
READ_BYTES = 64 * MIB
LIVE_PER_S = 100
SIZE_STEP = 4
# More reader processes than cores gain nothing, and fewer than this leave readers waiting for each other's Python.
READER_PROCESSES_MAX = 4


@dataclass(frozen=True, slots=True)
class Pace:
    """How long and how much is measured."""

    seconds: float = 3.0
    warm_up_s: float = 1.0
    log_bytes_max: int = 4 * GIB
    quick: bool = False

    def loads(self, sweep: Sweep) -> tuple[int, ...]:
        """Its steps; a log grows as far as it may, in the same steps."""
        loads = sweep.quick_loads if self.quick else sweep.loads
        if sweep.name != "size":
            return loads
        grown = loads[-1]
        while not self.quick and (grown := grown * SIZE_STEP) <= self.log_bytes_max:
            loads += (grown,)
        return tuple(load for load in loads if load <= self.log_bytes_max)


Load = Callable[[GrowthCluster, Sweep, Pace], AsyncIterator[Point]]


class LostEntries(Exception):
    """Appends were acknowledged that are not in the log. Nothing that was measured counts."""


async def measure(
    sweep: Sweep, pace: Pace, directory: Path, on_point: Callable[[Sweep, Point], None]
) -> list[Point]:
    """Every point of a sweep, on a cluster of its own."""
    points = []
    async with growth_cluster(directory) as cluster:
        async for point in LOADS[sweep.name](cluster, sweep, pace):
            on_point(sweep, point)
            points.append(point)
    return points


# --- appends ----------------------------------------------------------------------------------------------------------


async def _streams(cluster: GrowthCluster, sweep: Sweep, pace: Pace) -> AsyncIterator[Point]:
    for streams in pace.loads(sweep):
        began = time.perf_counter()
        log = await cluster.log(f"streams-{streams}", streams)
        made_s = time.perf_counter() - began
        point = await _appended(cluster, pace, streams, [log], APPENDERS, ENTRY_BYTES)
        yield Point(point.load, point.figures | {"made_s": made_s}, point.busy)
        await cluster.delete_topic(f"streams-{streams}")


async def _topics(cluster: GrowthCluster, sweep: Sweep, pace: Pace) -> AsyncIterator[Point]:
    logs: list[Log] = []
    for topics in pace.loads(sweep):
        names = iter([f"topic-{number}" for number in range(len(logs), topics)])
        fresh, began = topics - len(logs), time.perf_counter()

        await asyncio.gather(*(_make(cluster, names, logs) for _ in range(MAKERS)))
        made_per_s = fresh / (time.perf_counter() - began)
        batches = await _appended(cluster, pace, topics, logs, BATCH_CALLERS, ENTRY_BYTES, CALL_ENTRIES)
        single = await _appended(cluster, pace, topics, logs, APPENDERS, ENTRY_BYTES)
        figures = {
            "topics_made_per_s": made_per_s,
            "entries_per_s": batches.figures["entries_per_s"],
            "bytes_per_s": batches.figures["bytes_per_s"],
            "batch_p50_s": batches.figures["p50_s"],
            "batch_p99_s": batches.figures["p99_s"],
        }
        yield Point(topics, {name: single.figures[name] for name in SINGLE} | figures, batches.busy)


async def _make(cluster: GrowthCluster, names: Iterator[str], logs: list[Log]) -> None:
    for name in names:
        logs.append(await cluster.log(name))


async def _appenders(cluster: GrowthCluster, sweep: Sweep, pace: Pace) -> AsyncIterator[Point]:
    log = await cluster.log("appenders")
    for appenders in pace.loads(sweep):
        yield await _appended(cluster, pace, appenders, [log], appenders, ENTRY_BYTES)


async def _entry(cluster: GrowthCluster, sweep: Sweep, pace: Pace) -> AsyncIterator[Point]:
    for entry_bytes in pace.loads(sweep):
        log = await cluster.log(f"entry-{entry_bytes}")
        yield await _appended(cluster, pace, entry_bytes, [log], ENTRY_APPENDERS, entry_bytes)
        await cluster.delete_topic(f"entry-{entry_bytes}")


async def _appended(
    cluster: GrowthCluster,
    pace: Pace,
    load: int,
    logs: Sequence[Log],
    appenders: int,
    entry_bytes: int,
    entries: int = 1,
) -> Point:
    """`appenders` tasks, going round `logs`, with so many entries a call; then everything that was acknowledged must be there."""
    before = await _tails(logs)
    batch, turn, acknowledged = [os.urandom(entry_bytes)] * entries, itertools.cycle(logs), 0

    async def append() -> None:
        nonlocal acknowledged
        log = next(turn)
        await (log.append(batch[0]) if entries == 1 else log.append_batch(batch))
        acknowledged += entries

    cores, meter = Cores(cluster.supervisor.pids()), Meter(pace.warm_up_s, pace.seconds)
    cores.begin()
    await metered(meter, QuietDisplay(), appenders, append, each=entries)
    busy = cores.end()
    check(acknowledged, await _tails(logs) - before)
    return Point(load, meter.measured(entries=entries, entry_bytes=entry_bytes), busy)


async def _tails(logs: Sequence[Log]) -> int:
    """Entries in all of them: positions have no gaps (law 4)."""
    return sum(await asyncio.gather(*(log.tail() for log in logs)))


def check(acknowledged: int, found: int) -> None:
    if found < acknowledged:
        raise LostEntries(f"{acknowledged} appends were acknowledged and {found} are in the log: report this")


# --- a log that grows ----------------------------------------------------------------------------------------------------


async def _size(cluster: GrowthCluster, sweep: Sweep, pace: Pace) -> AsyncIterator[Point]:
    log = await cluster.log("size")
    chance = random.Random(1)
    for restarts, size in enumerate(pace.loads(sweep), 1):
        cores = Cores(cluster.supervisor.pids())
        cores.begin()
        began, before = time.perf_counter(), await log.tail()
        await _fill(log, size // ENTRY_BYTES - before)
        filled_s, busy = time.perf_counter() - began, cores.end()
        raw = write_bandwidth(cluster.data, pace.seconds / 4)  # blocks the loop, on purpose
        appended = await _appended(cluster, pace, size, [log], 1, ENTRY_BYTES)
        reads = await _read_anywhere(log, pace.seconds, chance)
        figures = {
            "bytes_per_s": (size - before * ENTRY_BYTES) / filled_s,
            "raw_bytes_per_s": raw,
            "p50_s": appended.figures["p50_s"],
            "p99_s": appended.figures["p99_s"],
            "read_p50_s": percentile(reads, 50),
            "read_p99_s": percentile(reads, 99),
            "reopen_s": await _reopened_s(cluster, log, restarts),
        }
        yield Point(size, figures, busy)


async def _fill(log: Log, count: int) -> None:
    """Batches, a few at a time, until `count` entries more are there."""
    entries, left = [os.urandom(ENTRY_BYTES) for _ in range(BATCH_ENTRIES)], count

    async def filler() -> None:
        nonlocal left
        while left > 0:
            now = min(BATCH_ENTRIES, left)
            left -= now
            await log.append_batch(entries[:now])

    before = await log.tail()
    await asyncio.gather(*(filler() for _ in range(FILLERS)))
    check(max(count, 0), await log.tail() - before)


async def _read_anywhere(log: Log, seconds: float, chance: random.Random) -> list[float]:
    """Seconds of each read of one entry, at positions that have nothing to do with each other."""
    tail, latencies = await log.tail(), []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await log.read(chance.randint(FIRST_GLSN, tail))
        latencies.append(time.perf_counter() - began)
    return latencies


async def _reopened_s(cluster: GrowthCluster, log: Log, restarts: int) -> float:
    """From kill -9 of a storage node to the next append that every copy has: noticed, started, opened, sealed, unsealed."""
    began = time.perf_counter()
    cluster.supervisor.kill("vsn-1")
    await cluster.supervisor.wait_restarted("vsn-1", restarts)
    await log.append(os.urandom(ENTRY_BYTES))
    return time.perf_counter() - began


# --- readers -------------------------------------------------------------------------------------------------------------


async def _readers(cluster: GrowthCluster, sweep: Sweep, pace: Pace) -> AsyncIterator[Point]:
    log = await cluster.log("read")
    live = await cluster.log("live")
    await _fill(log, READ_BYTES // ENTRY_BYTES // (8 if pace.quick else 1))
    for readers in pace.loads(sweep):
        processes = min(readers, READER_PROCESSES_MAX)
        async with ReaderProcesses(cluster.address, processes, readers) as those:
            cores = Cores(cluster.supervisor.pids(), those.pids)
            await those.prepare("read", "live")
            cores.begin()
            entries_per_s = await those.read_from_start(pace.seconds, int(await log.tail()))
            busy = cores.end()
            deliveries, latencies = await _followed(live, those, readers, pace)
        figures = {
            "entries_per_s": entries_per_s,
            "live_per_s": deliveries / pace.seconds,
            "live_p50_s": percentile(latencies, 50),
            "live_p99_s": percentile(latencies, 99),
        }
        yield Point(readers, figures, busy)


async def _followed(
    log: Log, readers: ReaderProcesses, count: int, pace: Pace
) -> tuple[int, Sequence[float]]:
    """Entries appended at a fixed pace, each with the time at which it was: how much later each reader has it."""
    entries = max(1, int(LIVE_PER_S * pace.seconds))
    following = await readers.follow(int(await log.tail()) + 1, entries)
    began = time.perf_counter()
    appends = []
    async with asyncio.TaskGroup() as tasks:
        for number in range(entries):
            await asyncio.sleep(max(0.0, began + number / LIVE_PER_S - time.perf_counter()))
            stamp = time.monotonic_ns().to_bytes(8, "little")
            appends.append(tasks.create_task(_append(log, stamp), name=f"growth/live={number}"))
    latencies = await following
    check(entries * count, len(latencies))
    return len(latencies), latencies


async def _append(log: Log, stamp: bytes) -> None:
    await log.append(stamp + bytes(ENTRY_BYTES - len(stamp)))


LOADS: dict[str, Load] = {
    "streams": _streams,
    "topics": _topics,
    "appenders": _appenders,
    "entry": _entry,
    "size": _size,
    "readers": _readers,
}
