"""Append workloads: one appender, many appenders, batches; the client side of all of them in this one process."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence

from varlog.cli.bench.bench_context import BenchContext
from varlog.cli.bench.meter import Meter, metered
from varlog.cli.bench.workload import Measured
from varlog.model.limits import KIB

ENTRY_BYTES = 1 * KIB
BATCH_ENTRIES = 1000
BATCH_APPENDERS = 8
EMBEDDED_ENTRY_BYTES = 100

AppendBatch = Callable[[Sequence[bytes]], Awaitable[object]]


class Appenders:
    """`appenders` tasks, each appending one entry a call."""

    def __init__(self, appenders: int) -> None:
        self._appenders = appenders

    async def __call__(self, stage: BenchContext) -> Measured:
        settings = stage.settings
        appenders = settings.appenders or self._appenders
        entry_bytes = settings.entry_bytes or ENTRY_BYTES
        data = os.urandom(entry_bytes)
        async with stage.log() as log:
            meter = Meter(settings.warm_up_s, settings.seconds)
            await metered(meter, stage.display, appenders, lambda: log.append(data), each=1)
        return meter.measured(entries=1, entry_bytes=entry_bytes) | {"appenders": float(appenders)}


async def append_batches(stage: BenchContext) -> Measured:
    """A few appenders of batches, each with one batch under way: several are in flight."""
    settings = stage.settings
    async with stage.log() as log:
        copies = len(log.streams[0].replicas)
        measured = await _batches(
            stage,
            log.append_batch,
            appenders=settings.appenders or BATCH_APPENDERS,
            entry_bytes=settings.entry_bytes or ENTRY_BYTES,
        )
    return measured | {"copies": float(copies)}


async def append_embedded(stage: BenchContext) -> Measured:
    """Batches into a log in this process that does not wait for the disk."""
    settings = stage.settings
    async with stage.embedded_log(synced=False) as log:
        return await _batches(
            stage,
            log.append_batch,
            appenders=settings.appenders or BATCH_APPENDERS,
            entry_bytes=settings.entry_bytes or EMBEDDED_ENTRY_BYTES,
        )


async def _batches(
    stage: BenchContext, append_batch: AppendBatch, *, appenders: int, entry_bytes: int
) -> Measured:
    batch = stage.settings.batch or BATCH_ENTRIES
    # Every entry is an object of its own, as an application's would be; the bytes do not matter to anyone.
    entries = [os.urandom(entry_bytes) for _ in range(batch)]
    meter = Meter(stage.settings.warm_up_s, stage.settings.seconds)
    await metered(meter, stage.display, appenders, lambda: append_batch(entries), each=batch)
    return meter.measured(entries=batch, entry_bytes=entry_bytes) | {
        "appenders": float(appenders),
        "batch": float(batch),
    }
