"""Idle workload: what the processes of a cluster do when nobody asks them for anything."""

from __future__ import annotations

import asyncio
import time

from varlog.cli.bench.bench_context import BenchContext
from varlog.cli.bench.processes import usage_of
from varlog.cli.bench.workload import Measured

WATCHED_S = 10.0
QUICK_WATCHED_S = 3.0
# After the last append commit rows are still synced and connections closed: that is the end of work, not idleness.
SETTLE_S = 2.0


async def idle_cluster(stage: BenchContext) -> Measured:
    """Processor time and disk writes of each process, over a while, after the cluster had something to do."""
    async with stage.log() as log:
        await log.append(b"the last append for a while")
    await asyncio.sleep(SETTLE_S)
    seconds = QUICK_WATCHED_S if stage.settings.quick else WATCHED_S
    processes = stage.processes()
    before = {name: usage_of(pid) for name, pid in processes.items()}
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        stage.display.advance(elapsed / seconds, "watching")
        await asyncio.sleep(min(0.5, seconds - elapsed))
    after = {name: usage_of(pid) for name, pid in processes.items()}
    measured: Measured = {"seconds": elapsed}
    for name in processes:
        measured[f"core/{name}"] = (after[name].cpu_s - before[name].cpu_s) / elapsed
        measured[f"written_bytes/{name}"] = float(after[name].written_bytes - before[name].written_bytes)
    measured["core_max"] = max(measured[f"core/{name}"] for name in processes)
    measured["written_bytes"] = sum(measured[f"written_bytes/{name}"] for name in processes)
    return measured
