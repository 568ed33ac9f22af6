"""A process that follows a topic and says "reading" at its first entry: `python -m varlog.bench.follower`."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from varlog.bench.context import connected
from varlog.model.lsn import FIRST_GLSN


async def follow(address: str, topic: str) -> None:
    """Read for ever, from the start."""
    async with connected(address, topic) as log:
        said = False
        async for _ in log.subscribe(FIRST_GLSN):
            if not said:
                print("reading", flush=True)
                said = True


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(follow(sys.argv[1], sys.argv[2]))
