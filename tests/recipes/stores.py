"""Key/value stores of several processes, so to speak: replicas in one loop, each with its own log of one embedded cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from varlog.embedded import EmbeddedCluster
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.kv.key_value import KeyValue
from varlog.runtime.environment import system_environment

DEADLINE_S = 60


class Stores:
    """Opens replicas of stores, all of one topic."""

    def __init__(self, cluster: EmbeddedCluster, stack: AsyncExitStack) -> None:
        self._cluster = cluster
        self._stack = stack

    async def open(self, name: str = "kv", snapshots: Snapshots | None = None) -> KeyValue:
        log = await self._stack.enter_async_context(await self._cluster.connect("stores", streams=2))
        return await self._stack.enter_async_context(KeyValue.open(log, name=name, snapshots=snapshots))


@asynccontextmanager
async def stores_in(path: Path) -> AsyncIterator[Stores]:
    cluster = EmbeddedCluster(path, system_environment(synced=False), sync=False)
    async with AsyncExitStack() as stack:
        await cluster.start()
        stack.push_async_callback(cluster.stop)
        yield Stores(cluster, stack)


def run_stores(path: Path, body: Callable[[Stores], Awaitable[None]]) -> None:
    """Run a test's body, with an end."""

    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), stores_in(path) as stores:
            await body(stores)

    asyncio.run(run())
