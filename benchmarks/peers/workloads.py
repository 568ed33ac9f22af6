"""The workloads: appenders of single entries, batches, reads from the start. The client side is this one process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.contract import Journal, ServerGroup
from benchmarks.peers.systems import CURVE, MAIN, READ, SIZES, STREAMS, System
from varlog.bench.figures import median
from varlog.bench.machine import usage_of
from varlog.bench.workload import Meter
from varlog.model.limits import KIB, MIB

BATCH_ENTRIES = 1000
BATCHES_IN_FLIGHT = 8
FILL_BYTES = MIB // 2
# A filler of what is read is bounded: etcd would take minutes for what the others read in a blink.
FILL_S_MAX = 8.0
LET_OTHERS_CALLS = 32

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long: `seconds` a measurement after `warm_up_s`; a read goes over `read_bytes` of entries, again and again."""

    seconds: float = 1.0
    warm_up_s: float = 0.3
    read_bytes: int = 20 * MIB


@dataclass(frozen=True, slots=True)
class Workload:
    """`batch` above 0: batches of so many entries, `appenders` of them under way. `read`: reads what was appended before."""

    name: str
    title: str
    kind: str
    appenders: int = 1
    entry_bytes: int = KIB
    batch: int = 0
    streams: int = 1
    read: bool = False

    def runs_on(self, system: System) -> bool:
        return self.kind in system.kinds

    async def __call__(
        self, group: ServerGroup, system: System, topic: str, timing: Timing
    ) -> dict[str, Figures]:
        """Figures by the workload's name, and `name/way` for every way but the first."""
        callers = BATCHES_IN_FLIGHT if self.read else self.appenders
        async with group.journal(system.name, topic, streams=self.streams, callers=callers) as journal:
            usage = _Usage(group)
            if self.read:
                return await self._read(journal, usage, timing)
            if self.batch:
                return await self._batches(journal, usage, timing)
            payload = os.urandom(self.entry_bytes)
            found = await self._metered(lambda caller: journal.append(caller, payload), 1, usage, timing)
            return {self.name: found}

    async def _batches(self, journal: Journal, usage: _Usage, timing: Timing) -> dict[str, Figures]:
        # Every entry is an object of its own, as an application's would be; the bytes do not matter to anyone.
        payloads = [os.urandom(self.entry_bytes) for _ in range(self.batch)]
        found = {}
        for way in journal.batch_ways:
            call = partial(journal.append_batch, payloads=payloads, way=way)
            found[self._of(way, journal.batch_ways)] = await self._metered(call, self.batch, usage, timing)
        return found

    async def _metered(
        self, call: Callable[[int], Awaitable[object]], each: int, usage: _Usage, timing: Timing
    ) -> Figures:
        """A window in which not one call ends says nothing: then a longer one is measured."""
        seconds, found = timing.seconds, None
        while found is None:
            found = await self._window(call, each, usage, timing.warm_up_s, seconds)
            seconds *= 2
        return found

    async def _window(
        self,
        call: Callable[[int], Awaitable[object]],
        each: int,
        usage: _Usage,
        warm_up_s: float,
        seconds: float,
    ) -> Figures | None:
        meter = Meter(warm_up_s, seconds)

        async def again(caller: int) -> None:
            clock, calls = time.perf_counter, 0
            while meter.open:
                started = clock()
                await call(caller)
                meter.record(started, clock())
                calls += 1
                if calls % LET_OTHERS_CALLS == 0:
                    await asyncio.sleep(0)  # a client that blocks would let nobody look at the clock

        async with asyncio.TaskGroup() as tasks:
            spent = tasks.create_task(usage.between(meter.begin, meter.end), name="peers/usage")
            for caller in range(self.appenders):
                tasks.create_task(again(caller), name=f"peers/caller={caller}")
        if not meter.latencies:
            return None
        figures = meter.measured(entries=each, entry_bytes=self.entry_bytes)
        return figures | spent.result().by_entry(figures["entries_per_s"] * seconds)

    async def _read(self, journal: Journal, usage: _Usage, timing: Timing) -> dict[str, Figures]:
        count = await filled(journal, timing.read_bytes, self.entry_bytes)
        found = {}
        for way in journal.read_ways:
            found[self._of(way, journal.read_ways)] = await self._passes(journal, way, count, usage, timing)
        return found

    async def _passes(self, journal: Journal, way: str, count: int, usage: _Usage, timing: Timing) -> Figures:
        """The first pass warms the caches; the others are counted, one at least."""
        await journal.read(count, way)
        rates: list[float] = []
        begin, before = time.perf_counter(), usage.now()
        while not rates or time.perf_counter() < begin + timing.seconds:
            started = time.perf_counter()
            got = await journal.read(count, way)
            if got != count:
                raise ValueError(f"{self.name}: {count} entries were appended, {got} were read")
            rates.append(count / (time.perf_counter() - started))
        rate = median(rates)
        spent = usage.now() - before
        return {
            "entries_per_s": rate,
            "bytes_per_s": rate * self.entry_bytes,
            "passes": float(len(rates)),
            "entries": float(count),
        } | spent.by_entry(count * len(rates))

    def _of(self, way: str, ways: Sequence[str]) -> str:
        return self.name if way == ways[0] else f"{self.name}/{way}"


async def filled(journal: Journal, fill_bytes: int, entry_bytes: int) -> int:
    """Append about `fill_bytes`, in batches, a few at a time; the number of entries."""
    each = max(1, min(BATCH_ENTRIES, FILL_BYTES // entry_bytes))
    payloads, way = [os.urandom(entry_bytes) for _ in range(each)], journal.batch_ways[0]
    left, count, until = max(1, fill_bytes // entry_bytes // each), 0, time.perf_counter() + FILL_S_MAX

    async def filler(caller: int) -> None:
        nonlocal left, count
        while left > 0 and time.perf_counter() < until:
            left -= 1
            await journal.append_batch(caller, payloads, way)
            count += each

    async with asyncio.TaskGroup() as tasks:
        for caller in range(BATCHES_IN_FLIGHT):
            tasks.create_task(filler(caller), name=f"peers/filler={caller}")
    return count


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor seconds."""

    servers_s: float
    client_s: float

    def __sub__(self, earlier: Spent) -> Spent:
        return Spent(self.servers_s - earlier.servers_s, self.client_s - earlier.client_s)

    def by_entry(self, entries: float) -> Figures:
        return {
            "server_cpu_s_per_entry": self.servers_s / entries,
            "client_cpu_s_per_entry": self.client_s / entries,
        }


class _Usage:
    """Processor time of a system's servers and of this process."""

    def __init__(self, group: ServerGroup) -> None:
        self._group = group

    def now(self) -> Spent:
        return Spent(sum(usage_of(pid).cpu_s for pid in self._group.pids()), time.process_time())

    async def between(self, begin: float, end: float) -> Spent:
        """Of a window of time.perf_counter."""
        await asyncio.sleep(begin - time.perf_counter())
        before = self.now()
        await asyncio.sleep(end - time.perf_counter())
        return self.now() - before


def _appenders(count: int, kind: str) -> Workload:
    return Workload(f"append-{count}", f"{count} appender{'s' if count > 1 else ''}, 1 KiB", kind, count)


def _sized(size: int, title: str) -> Workload:
    return Workload(f"size-{size}", f"64 appenders, {title}", SIZES, 64, size)


WORKLOADS: tuple[Workload, ...] = (
    _appenders(1, MAIN),
    _appenders(4, CURVE),
    _appenders(16, CURVE),
    _appenders(64, MAIN),
    _appenders(256, CURVE),
    Workload(
        "batch-1000", "batches of 1000 x 1 KiB, 8 under way", MAIN, BATCHES_IN_FLIGHT, KIB, BATCH_ENTRIES
    ),
    _sized(100, "100 B"),
    _sized(4 * KIB, "4 KiB"),
    _sized(16 * KIB, "16 KiB"),
    _sized(64 * KIB, "64 KiB"),
    Workload("streams-4", "64 appenders, 1 KiB, 4 streams", STREAMS, 64, streams=4),
    Workload("streams-16", "64 appenders, 1 KiB, 16 streams", STREAMS, 64, streams=16),
    Workload("read-100", "read from the start, 100 B", READ, entry_bytes=100, read=True),
    Workload("read-1024", "read from the start, 1 KiB", READ, entry_bytes=KIB, read=True),
)


def chosen_workloads(names: Sequence[str]) -> list[Workload]:
    """Those named, in the order of the tables; all without a name."""
    known = {workload.name for workload in WORKLOADS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no workload is called {unknown[0]}: there are {', '.join(sorted(known))}")
    return [workload for workload in WORKLOADS if not names or workload.name in names]
