"""Follower: a process that follows a topic: `python -m varlog.bench.follower`.

It prints "reading" at its first entry.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from varlog.bench.context import open_cluster_log
from varlog.model.lsn import FIRST_GLSN


async def follow_topic(address: str, topic: str) -> None:
    """Read forever, from the start."""
    async with open_cluster_log(address, topic) as log:
        said = False
        async for _ in log.subscribe(FIRST_GLSN):
            if not said:
                print("reading", flush=True)
                said = True


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(follow_topic(sys.argv[1], sys.argv[2]))
