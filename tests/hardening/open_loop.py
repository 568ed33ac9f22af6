"""An open loop: appends at a steady rate, whatever the replies, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

from varlog.aio import Log
from varlog.model.errors import OutcomeUnknown, Overloaded


async def offer_appends(
    logs: Sequence[Log], data: bytes, per_s: float, *, timeout_s: float, seconds: float
) -> tuple[Counter[str], list[float]]:
    """Poisson arrivals over all of these clients. Returns counts of the outcomes, and the time after which each refusal
    came."""
    loop, rng, ended = asyncio.get_running_loop(), Random(1), Counter[str]()
    refused_after: list[float] = []

    async def append(log: Log) -> None:
        began = loop.time()
        try:
            await log.append(data, timeout_s=timeout_s)
            ended["acknowledged"] += 1
        except Overloaded as refused:
            ended["refused" if refused.retry_after_s > 0 else "refused without a hint"] += 1
            refused_after.append(loop.time() - began)
        except OutcomeUnknown:
            ended["unknown"] += 1

    tasks, end = [], loop.time() + seconds
    while loop.time() < end:
        tasks.append(asyncio.create_task(append(rng.choice(logs))))
        await asyncio.sleep(rng.expovariate(per_s))
    await asyncio.gather(*tasks)
    return ended, refused_after
