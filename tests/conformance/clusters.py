"""The clusters on which the contract of a log is checked.

An embedded cluster, and three storage nodes over TCP; topics of either ordering.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from varlog import aio
from varlog.client.admin import Admin
from varlog.client.log import Log
from varlog.embedded import EmbeddedCluster
from varlog.model.cluster import Ordering
from varlog.runtime.environment import system_environment
from varlog.testing.tcp_cluster import TcpCluster

# Few positions per turn of a stripe: short tests go round all of them.
UNIT = 8
TIMEOUT_S = 60.0


class Cluster(Protocol):
    """A cluster on which logs can be opened."""

    nodes: int

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def restart(self) -> None:
        """Stop all of it, at once."""
        ...

    async def connect(self, topic: str) -> Log: ...

    async def admin(self) -> Admin: ...


class Embedded:
    """One node, one process, no sockets."""

    nodes = 1

    def __init__(self, path: Path) -> None:
        self._path = path / "embedded"
        self._running: EmbeddedCluster

    async def start(self) -> None:
        self._running = EmbeddedCluster(self._path, system_environment(synced=False), sync=False)
        await self._running.start()

    async def stop(self) -> None:
        await self._running.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def connect(self, topic: str) -> Log:
        return await self._running.connect(topic, create=False, timeout_s=TIMEOUT_S)

    async def admin(self) -> Admin:
        return await self._running.admin()


class Tcp:
    """Three nodes, three replicas."""

    nodes = 3

    def __init__(self, path: Path) -> None:
        self.running = TcpCluster(path)

    async def start(self) -> None:
        await self.running.start(auto_create_topics=False)
        await self.running.wait_nodes()

    async def stop(self) -> None:
        await self.running.stop()

    async def restart(self) -> None:
        await self.running.restart()
        await self.running.wait_nodes()

    async def connect(self, topic: str) -> Log:
        return await aio.connect(self.running.repository.address, topic, create=False, timeout_s=TIMEOUT_S)

    async def admin(self) -> Admin:
        return await aio.admin(self.running.repository.address)


KINDS: dict[str, type[Embedded | Tcp]] = {"embedded": Embedded, "tcp": Tcp}


class Topics:
    """New topics of one ordering, with this many log streams, on one cluster; deleted when a test is done with them."""

    def __init__(self, cluster: Cluster, ordering: Ordering, streams: int) -> None:
        self.cluster = cluster
        self.ordering = ordering
        self.streams = streams

    @property
    def sequenced(self) -> bool:
        return self.ordering is Ordering.SEQUENCED

    async def create(self, *, first: int = 1) -> str:
        name = f"t{next(_numbers)}"
        async with await self.cluster.admin() as admin:
            await admin.create_topic(
                name, streams=self.streams, first=first, ordering=self.ordering, stripe_size=UNIT
            )
        return name

    @asynccontextmanager
    async def log(self, *, first: int = 1) -> AsyncIterator[Log]:
        """A new, empty topic."""
        async with self.logs(1, first=first) as (log,):
            yield log

    @asynccontextmanager
    async def logs(self, clients: int, *, first: int = 1) -> AsyncIterator[list[Log]]:
        """Several clients of a new, empty topic."""
        topic = await self.create(first=first)
        logs = [await self.cluster.connect(topic) for _ in range(clients)]
        try:
            await logs[0].connector.wait_running()
            yield logs
        finally:
            for log in logs:
                await log.close()
            async with await self.cluster.admin() as admin:
                await admin.delete_topic(topic)


_numbers = count(1)
