"""Read workloads: a topic is filled, read once to warm the caches, then read from the start again and again."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from varlog.cli.bench.bench_context import BenchContext
from varlog.cli.bench.figures import format_count
from varlog.cli.bench.workload import Measured
from varlog.model.limits import KIB, MIB
from varlog.model.lsn import FIRST_GLSN, GLSN

if TYPE_CHECKING:
    from varlog.client.log import Log

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

    async def __call__(self, stage: BenchContext) -> Measured:
        settings = stage.settings
        entry_bytes = settings.entry_bytes or self._entry_bytes
        total = max(1, self._count * self._entry_bytes // entry_bytes)
        count = total // QUICK_FRACTION if settings.quick else total
        async with stage.log() as log:
            await fill(stage, log, count, entry_bytes, settings.batch or max(1, MIB // entry_bytes // 2))
            end = GLSN(await log.tail() + 1)
            rates = await self._passes(stage, log, end)
        rate = sum(rates) / len(rates)
        return {
            "entries_per_s": rate,
            "bytes_per_s": rate * entry_bytes,
            "entries": float(end - FIRST_GLSN),
            "passes": float(len(rates)),
        }

    async def _passes(self, stage: BenchContext, log: Log, end: GLSN) -> list[float]:
        rates: list[float] = []
        await self._one_pass(log, end)
        begin = time.perf_counter()
        while not rates or time.perf_counter() < begin + stage.settings.seconds:
            started = time.perf_counter()
            count = await self._one_pass(log, end)
            ended = time.perf_counter()
            if count != end - FIRST_GLSN and not log.topic.sequenced:  # which passes over junk
                raise ValueError(
                    f"a reader of positions 1 to {end - 1} got {count} entries: the log is not dense (law 4)"
                )
            rates.append(count / (ended - started))
            stage.display.advance(
                (ended - begin) / stage.settings.seconds, f"{format_count(rates[-1])} entries/s"
            )
        return rates


async def fill(stage: BenchContext, log: Log, count: int, entry_bytes: int, batch: int) -> None:
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
            stage.display.advance(1 - left / count, "filling")

    async with asyncio.TaskGroup() as tasks:
        for number in range(_FILLERS):
            tasks.create_task(filler(), name=f"bench/filler={number}")
