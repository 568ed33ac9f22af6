"""Memory workload: storage nodes under full load while one subscriber has stopped reading: does their memory grow?"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from varlog.cli.bench.append import BATCH_APPENDERS, BATCH_ENTRIES, ENTRY_BYTES
from varlog.cli.bench.bench_context import BenchContext
from varlog.cli.bench.figures import growth
from varlog.cli.bench.meter import Meter, metered
from varlog.cli.bench.processes import usage_of
from varlog.cli.bench.workload import Measured

LOAD_TIMES = 4  # the load lasts so many times --seconds: growth needs time to show
SAMPLE_S = 0.25
STARTED_S_MAX = 30.0


async def load_beside_stalled_subscriber(stage: BenchContext) -> Measured:
    """Resident memory of every storage node, sampled while batches are appended as fast as they are taken."""
    settings = stage.settings
    entries = [
        os.urandom(settings.entry_bytes or ENTRY_BYTES) for _ in range(settings.batch or BATCH_ENTRIES)
    ]
    nodes = {name: pid for name, pid in stage.processes().items() if name.startswith("vsn")}
    samples: dict[str, list[float]] = {name: [] for name in nodes}
    async with stage.log() as log:
        await log.append_batch(entries)
        async with stalled_subscriber(stage.address, stage.topic):
            meter = Meter(settings.warm_up_s, settings.seconds * LOAD_TIMES)
            sampling = asyncio.create_task(_sample(nodes, samples, meter), name="bench/sampling")
            try:
                await metered(
                    meter,
                    stage.display,
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
        sys.executable, "-m", "varlog.cli.bench.follower", address, topic, stdout=asyncio.subprocess.PIPE
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
