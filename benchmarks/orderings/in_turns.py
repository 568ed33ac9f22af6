"""InTurns: the same load on a committed and a sequenced topic, slice by slice."""

from __future__ import annotations

import os
import random
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

from varlog.bench.context import BenchContext
from varlog.bench.figures import median, percentile
from varlog.bench.log_workloads import (
    BATCH_APPENDERS,
    BATCH_ENTRIES,
    ENTRY_BYTES,
    QUICK_FRACTION,
    SMALL_BYTES,
    SMALL_COUNT,
    fill_topic,
    read_entries,
)
from varlog.bench.workload import Measured, Meter, metered
from varlog.model.cluster import Ordering
from varlog.model.limits import KIB, MIB
from varlog.model.lsn import FIRST_GLSN, GLSN

if TYPE_CHECKING:
    from varlog.client.log import Log

ORDERINGS = (Ordering.COMMITTED, Ordering.SEQUENCED)
# Turns of each side; what else the machine does falls on both alike.
TURNS, QUICK_TURNS = 5, 2
READ_ENTRIES = 10_000


class Load(Protocol):
    """What is done to a log of either ordering."""

    async def prepare(self, context: BenchContext, log: Log) -> None:
        """What must be there first; not measured."""
        ...

    async def turn(self, context: BenchContext, log: Log, seconds: float) -> Measured:
        """One turn of about `seconds`."""
        ...


class InTurns:
    """One load on both orderings. `alone`: with one replica instead of the settings' number."""

    def __init__(self, load: Load, *, alone: bool = False) -> None:
        self._load = load
        self._alone = alone

    async def __call__(self, context: BenchContext) -> Measured:
        settings, load = context.settings, self._load
        replicas = 1 if self._alone else settings.replicas
        turns = QUICK_TURNS if settings.quick else TURNS
        found: dict[Ordering, list[Measured]] = {ordering: [] for ordering in ORDERINGS}
        async with AsyncExitStack() as stack:
            logs = {
                ordering: await stack.enter_async_context(context.ordered_log(ordering, replicas))
                for ordering in ORDERINGS
            }
            for log in logs.values():
                await load.prepare(context, log)
                await load.turn(context, log, settings.warm_up_s)
            for number in range(turns):
                # Each begins as often as the other.
                for ordering in ORDERINGS if number % 2 == 0 else reversed(ORDERINGS):
                    found[ordering].append(await load.turn(context, logs[ordering], settings.seconds / turns))
                    context.display.advance((number + 0.5) / turns, ordering)
        return side_by_side(found) | {"replicas": float(replicas)}


def side_by_side(found: dict[Ordering, list[Measured]]) -> Measured:
    """The median of each figure over the turns of its side: `committed_p50_s`, `sequenced_p50_s`, …"""
    return {
        f"{ordering}_{name}": median([turn[name] for turn in turns])
        for ordering, turns in found.items()
        for name in turns[0]
    }


class Appending:
    """`appenders` tasks, each with one call of `batch` entries in flight."""

    def __init__(self, appenders: int, batch: int = 1) -> None:
        self._appenders = appenders
        self._batch = batch

    async def prepare(self, context: BenchContext, log: Log) -> None:
        return None

    async def turn(self, context: BenchContext, log: Log, seconds: float) -> Measured:
        settings = context.settings
        entry_bytes = settings.entry_bytes or ENTRY_BYTES
        batch = (settings.batch or self._batch) if self._batch > 1 else 1
        entries = [os.urandom(entry_bytes) for _ in range(batch)]
        meter = Meter(0.0, seconds)
        await metered(
            meter,
            context.display,
            settings.appenders or self._appenders,
            (lambda: log.append(entries[0])) if batch == 1 else (lambda: log.append_batch(entries)),
            each=batch,
        )
        return meter.measured(entries=batch, entry_bytes=entry_bytes)


class Reading:
    """One reader of single entries, at random positions of a topic that is in the page cache."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    async def prepare(self, context: BenchContext, log: Log) -> None:
        entry_bytes = context.settings.entry_bytes or ENTRY_BYTES
        await fill_topic(context, log, READ_ENTRIES, entry_bytes, max(1, 64 * KIB // entry_bytes))

    async def turn(self, context: BenchContext, log: Log, seconds: float) -> Measured:
        newest, latencies = await log.tail(), list[float]()
        until = time.perf_counter() + seconds
        while not latencies or time.perf_counter() < until:
            glsn, started = self._random.randint(FIRST_GLSN, newest), time.perf_counter()
            await log.read(glsn)
            latencies.append(time.perf_counter() - started)
        return {
            "entries_per_s": len(latencies) / sum(latencies),
            "p50_s": percentile(latencies, 50),
            "p99_s": percentile(latencies, 99),
        }


class Subscribing:
    """Passes over a topic from its start, into Python."""

    async def prepare(self, context: BenchContext, log: Log) -> None:
        count = SMALL_COUNT // QUICK_FRACTION if context.settings.quick else SMALL_COUNT
        await fill_topic(context, log, count, SMALL_BYTES, MIB // SMALL_BYTES // 2)

    async def turn(self, context: BenchContext, log: Log, seconds: float) -> Measured:
        end, rates = GLSN(await log.tail() + 1), list[float]()
        until = time.perf_counter() + seconds
        while not rates or time.perf_counter() < until:
            started = time.perf_counter()
            rates.append(await read_entries(log, end) / (time.perf_counter() - started))
        rate = median(rates)
        return {"entries_per_s": rate, "bytes_per_s": rate * SMALL_BYTES}


BATCHES = Appending(BATCH_APPENDERS, BATCH_ENTRIES)
