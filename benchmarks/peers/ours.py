"""varlog itself: a cluster of real processes with its defaults, and a log embedded in the client's process; always synced."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import varlog.aio
from benchmarks.peers.contract import Journal, Keep
from varlog.bench.context import open_cluster_log, open_embedded_log
from varlog.client.log import Log
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.ports import free_ports
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import wait_nodes
from varlog.model.cluster import Ordering
from varlog.model.lsn import FIRST_GLSN, GLSN

NODES = 3


class OurCluster:
    """Three storage nodes, one metadata repository, one sequencer, one manager: what `varlog up` starts."""

    def __init__(self, directory: Path) -> None:
        plan = ClusterPlan(data=directory, ports=free_ports(NODES + 2), replicas=NODES, streams=1)
        self._supervisor = Supervisor(plan)

    async def start(self) -> None:
        await self._supervisor.start()
        await wait_nodes(self._supervisor.plan)

    async def stop(self) -> None:
        await self._supervisor.stop()

    def pids(self) -> list[int]:
        return list(self._supervisor.pids().values())

    @asynccontextmanager
    async def journal(self, system: str, topic: str, *, streams: int, callers: int) -> AsyncIterator[Journal]:
        ordering = Ordering.SEQUENCED if "sequenced" in system else Ordering.COMMITTED
        replicas = 1 if system.endswith("-1") else NODES
        address = self._supervisor.address
        async with open_cluster_log(
            address, topic, streams=streams, ordering=ordering, replicas=replicas
        ) as log:
            yield OurJournal(log)
        async with varlog.aio.admin(address) as admin:
            await admin.delete_topic(topic)


class OurProcess:
    """No servers: the log is a directory that this process opens."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)

    async def stop(self) -> None:
        return None

    def pids(self) -> list[int]:
        return []

    @asynccontextmanager
    async def journal(self, system: str, topic: str, *, streams: int, callers: int) -> AsyncIterator[Journal]:
        path = self._directory / topic
        async with open_embedded_log(path, topic, Ordering.COMMITTED, synced=True) as log:
            yield OurJournal(log)
        shutil.rmtree(path)


class OurJournal:
    """One log; which of its streams an entry goes to is the client's own choice."""

    batch_ways = ("append_batch",)
    read_ways = ("entries", "lists", "arrow")

    def __init__(self, log: Log) -> None:
        self._log = log

    def append(self, caller: int, payload: bytes) -> Awaitable[object]:
        return self._log.append(payload)

    def append_batch(self, caller: int, payloads: Sequence[bytes], way: str) -> Awaitable[object]:
        return self._log.append_batch(payloads)

    async def read(self, count: int, way: str, keep: Keep | None = None) -> int:
        # All there is: a sequenced topic may have positions that nobody used.
        end = GLSN(await self._log.tail() + 1)
        read = {"entries": self._entries, "lists": self._lists, "arrow": self._arrow}[way]
        return await read(end, keep)

    async def _entries(self, end: GLSN, keep: Keep | None) -> int:
        got = 0
        async for entry in self._log.subscribe(FIRST_GLSN, end):
            got += 1
            if keep is not None:
                keep([entry.data])
        return got

    async def _lists(self, end: GLSN, keep: Keep | None) -> int:
        got = 0
        async for entries in self._log.subscribe_lists(FIRST_GLSN, end):
            got += len(entries)
            if keep is not None:
                keep([entry.data for entry in entries])
        return got

    async def _arrow(self, end: GLSN, keep: Keep | None) -> int:
        got = 0
        async for batch in self._log.arrow(FIRST_GLSN, end):
            got += batch.num_rows
            if keep is not None:
                keep([value.as_py() for value in batch.column("data")])
        return got
