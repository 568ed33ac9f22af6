"""Workloads on a log: appends, reads, an idle cluster, a stalled subscriber."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from varlog.bench.context import BenchContext
from varlog.bench.figures import format_count, growth
from varlog.bench.machine import usage_of
from varlog.bench.workload import Measured, Meter, metered
from varlog.model.limits import KIB, MIB
from varlog.model.lsn import FIRST_GLSN, GLSN

if TYPE_CHECKING:
    from varlog.client.log import Log

ENTRY_BYTES = 1 * KIB
BATCH_ENTRIES = 1000
BATCH_APPENDERS = 8
EMBEDDED_ENTRY_BYTES = 100

AppendBatch = Callable[[Sequence[bytes]], Awaitable[object]]


class Appenders:
    """`appenders` tasks, each appending one entry a call."""

    def __init__(self, appenders: int) -> None:
        self._appenders = appenders

    async def __call__(self, context: BenchContext) -> Measured:
        settings = context.settings
        appenders = settings.appenders or self._appenders
        entry_bytes = settings.entry_bytes or ENTRY_BYTES
        data = os.urandom(entry_bytes)
        async with context.log() as log:
            meter = Meter(settings.warm_up_s, settings.seconds)
            await metered(meter, context.display, appenders, lambda: log.append(data), each=1)
        return meter.measured(entries=1, entry_bytes=entry_bytes) | {"appenders": float(appenders)}


async def append_batches(context: BenchContext) -> Measured:
    """A few appenders of batches, each with one batch in flight."""
    settings = context.settings
    async with context.log() as log:
        copies = len(log.streams[0].replicas)
        measured = await _batches(
            context,
            log.append_batch,
            appenders=settings.appenders or BATCH_APPENDERS,
            entry_bytes=settings.entry_bytes or ENTRY_BYTES,
        )
    return measured | {"copies": float(copies)}


async def append_embedded(context: BenchContext) -> Measured:
    """Batches into a log in this process that does not wait for the disk."""
    settings = context.settings
    async with context.embedded_log(synced=False) as log:
        return await _batches(
            context,
            log.append_batch,
            appenders=settings.appenders or BATCH_APPENDERS,
            entry_bytes=settings.entry_bytes or EMBEDDED_ENTRY_BYTES,
        )


async def _batches(
    context: BenchContext, append_batch: AppendBatch, *, appenders: int, entry_bytes: int
) -> Measured:
    batch = context.settings.batch or BATCH_ENTRIES
    # Every entry is an object of its own, as an application's would be; the bytes do not matter to anyone.
    entries = [os.urandom(entry_bytes) for _ in range(batch)]
    meter = Meter(context.settings.warm_up_s, context.settings.seconds)
    await metered(meter, context.display, appenders, lambda: append_batch(entries), each=batch)
    return meter.measured(entries=batch, entry_bytes=entry_bytes) | {
        "appenders": float(appenders),
        "batch": float(batch),
    }


# Read workloads: a topic is filled, read once to warm the caches, then read from the start again and again.

SMALL_BYTES = 100
SMALL_COUNT = 1_000_000
LARGE_BYTES = 4 * KIB
LARGE_COUNT = 60_000
QUICK_FRACTION = 5
_FILLERS = 4

# Reads all positions in [1, end) and returns how many entries came.
Pass = Callable[["Log", GLSN], Awaitable[int]]


async def read_entries(log: Log, end: GLSN) -> int:
    """Every entry as a Python object."""
    count = 0
    async for _ in log.subscribe(FIRST_GLSN, end):
        count += 1
    return count


async def read_lists(log: Log, end: GLSN) -> int:
    """Every entry as a Python object, in lists of whatever has arrived."""
    count = 0
    async for entries in log.subscribe_lists(FIRST_GLSN, end):
        count += len(entries)
    return count


async def read_arrow(log: Log, end: GLSN) -> int:
    """Every entry inside Arrow record batches."""
    count = 0
    async for batch in log.arrow(FIRST_GLSN, end):
        count += batch.num_rows
    return count


class Subscribe:
    """Reads a topic of `count` entries of `entry_bytes` from the start, by `one_pass`."""

    def __init__(self, one_pass: Pass, entry_bytes: int, count: int) -> None:
        self._one_pass = one_pass
        self._entry_bytes = entry_bytes
        self._count = count

    async def __call__(self, context: BenchContext) -> Measured:
        settings = context.settings
        entry_bytes = settings.entry_bytes or self._entry_bytes
        total = max(1, self._count * self._entry_bytes // entry_bytes)
        count = total // QUICK_FRACTION if settings.quick else total
        async with context.log() as log:
            await fill_topic(
                context, log, count, entry_bytes, settings.batch or max(1, MIB // entry_bytes // 2)
            )
            end = GLSN(await log.tail() + 1)
            rates = await self._passes(context, log, end)
        rate = sum(rates) / len(rates)
        return {
            "entries_per_s": rate,
            "bytes_per_s": rate * entry_bytes,
            "entries": float(end - FIRST_GLSN),
            "passes": float(len(rates)),
        }

    async def _passes(self, context: BenchContext, log: Log, end: GLSN) -> list[float]:
        rates: list[float] = []
        await self._one_pass(log, end)
        begin = time.perf_counter()
        while not rates or time.perf_counter() < begin + context.settings.seconds:
            started = time.perf_counter()
            count = await self._one_pass(log, end)
            ended = time.perf_counter()
            if count != end - FIRST_GLSN and not log.topic.sequenced:  # which passes over junk
                raise ValueError(
                    f"a reader of positions 1 to {end - 1} got {count} entries: the log is not dense (law 4)"
                )
            rates.append(count / (ended - started))
            context.display.advance(
                (ended - begin) / context.settings.seconds, f"{format_count(rates[-1])} entries/s"
            )
        return rates


async def fill_topic(context: BenchContext, log: Log, count: int, entry_bytes: int, batch: int) -> None:
    """Append `count` entries, in batches, a few at a time."""
    if log.topic.sequenced and len(log.streams) > 1:
        batch = min(batch, log.topic.stripe_size)  # a batch lies within one turn of a stripe
    entries = [os.urandom(entry_bytes) for _ in range(batch)]
    left = count

    async def filler() -> None:
        nonlocal left
        while left > 0:
            now = min(batch, left)
            left -= now
            await log.append_batch(entries[:now])
            context.display.advance(1 - left / count, "filling")

    async with asyncio.TaskGroup() as tasks:
        for number in range(_FILLERS):
            tasks.create_task(filler(), name=f"bench/filler={number}")


# Idle workload: what the processes of a cluster do when nobody asks them for anything.

WATCHED_S = 10.0
QUICK_WATCHED_S = 3.0
# After the last append commit rows are still synced and connections closed: that is the end of work, not idleness.
SETTLE_S = 2.0


async def idle_cluster(context: BenchContext) -> Measured:
    """Processor time and disk writes of each process, over a while, after the cluster had something to do."""
    async with context.log() as log:
        await log.append(b"the last append for a while")
    await asyncio.sleep(SETTLE_S)
    seconds = QUICK_WATCHED_S if context.settings.quick else WATCHED_S
    processes = context.processes()
    before = {name: usage_of(pid) for name, pid in processes.items()}
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        context.display.advance(elapsed / seconds, "watching")
        await asyncio.sleep(min(0.5, seconds - elapsed))
    after = {name: usage_of(pid) for name, pid in processes.items()}
    measured: Measured = {"seconds": elapsed}
    for name in processes:
        measured[f"core/{name}"] = (after[name].cpu_s - before[name].cpu_s) / elapsed
        measured[f"written_bytes/{name}"] = float(after[name].written_bytes - before[name].written_bytes)
    measured["core_max"] = max(measured[f"core/{name}"] for name in processes)
    measured["written_bytes"] = sum(measured[f"written_bytes/{name}"] for name in processes)
    return measured


# Memory workload: storage nodes under full load while one subscriber has stopped reading: does their memory grow?

LOAD_TIMES = 4  # the load lasts this many times --seconds: growth needs time to show
SAMPLE_S = 0.25
STARTED_S_MAX = 30.0


async def load_beside_stalled_subscriber(context: BenchContext) -> Measured:
    """Resident memory of every storage node, sampled while batches are appended as fast as they are taken."""
    settings = context.settings
    entries = [
        os.urandom(settings.entry_bytes or ENTRY_BYTES) for _ in range(settings.batch or BATCH_ENTRIES)
    ]
    nodes = {name: pid for name, pid in context.processes().items() if name.startswith("vsn")}
    samples: dict[str, list[float]] = {name: [] for name in nodes}
    async with context.log() as log:
        await log.append_batch(entries)
        async with stalled_subscriber(context.address, context.topic):
            meter = Meter(settings.warm_up_s, settings.seconds * LOAD_TIMES)
            sampling = asyncio.create_task(_sample(nodes, samples, meter), name="bench/sampling")
            try:
                await metered(
                    meter,
                    context.display,
                    settings.appenders or BATCH_APPENDERS,
                    lambda: log.append_batch(entries),
                    each=len(entries),
                )
            finally:
                await sampling
    measured = meter.measured(entries=len(entries), entry_bytes=len(entries[0]))
    for name, series in samples.items():
        measured[f"resident_first_bytes/{name}"] = series[0]
        measured[f"resident_last_bytes/{name}"] = series[-1]
        measured[f"growth_bytes/{name}"] = growth(series)
    measured["seconds"] = meter.seconds
    measured["resident_max_bytes"] = max(max(series) for series in samples.values())
    measured["growth_bytes"] = max(growth(series) for series in samples.values())
    return measured


async def _sample(nodes: dict[str, int], samples: dict[str, list[float]], meter: Meter) -> None:
    while meter.open:
        for name, pid in nodes.items():
            samples[name].append(float(usage_of(pid).resident_bytes))
        await asyncio.sleep(SAMPLE_S)


@asynccontextmanager
async def stalled_subscriber(address: str, topic: str) -> AsyncIterator[None]:
    """A client process that subscribes, follows the log for a moment, and is then stopped (SIGSTOP): its connection
    stays open, and nobody reads from it. This is what a hung consumer looks like from the storage node."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "varlog.bench.follower", address, topic, stdout=asyncio.subprocess.PIPE
    )
    try:
        if process.stdout is None:
            raise OSError("the subscriber's output cannot be read")
        async with asyncio.timeout(STARTED_S_MAX):
            if not await process.stdout.readline():
                raise OSError("the subscriber that was to be stalled did not start")
        process.send_signal(signal.SIGSTOP)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
