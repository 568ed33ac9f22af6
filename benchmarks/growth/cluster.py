"""GrowthCluster: the cluster of one sweep, with three copies of everything; Cores: who used how much of the processor meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import varlog.aio
from varlog.bench.context import TIMEOUT_S
from varlog.bench.machine import busy_s, usage_of
from varlog.client.admin import Admin
from varlog.client.log import Log
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.ports import free_ports
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import wait_nodes

NODES = 3
CLIENT, MACHINE = "client", "machine"


class GrowthCluster:
    """A running cluster, and this process as its client."""

    def __init__(self, supervisor: Supervisor, admin: Admin, logs: AsyncExitStack) -> None:
        self.supervisor = supervisor
        self.address = supervisor.address
        self.data = supervisor.plan.data
        self._admin = admin
        self._logs = logs

    async def log(self, topic: str, streams: int = 1) -> Log:
        """A topic that is made now; closed with the cluster."""
        await self.create_topic(topic, streams)
        return await self.open(topic)

    async def create_topic(self, topic: str, streams: int = 1) -> None:
        await self._admin.create_topic(topic, streams=streams)

    async def open(self, topic: str) -> Log:
        return await self._logs.enter_async_context(
            varlog.aio.connect(self.address, topic, create=False, timeout_s=TIMEOUT_S)
        )

    async def delete_topic(self, topic: str) -> None:
        await self._admin.delete_topic(topic)


@asynccontextmanager
async def growth_cluster(directory: Path) -> AsyncIterator[GrowthCluster]:
    """Started now, stopped at the end; its data stay in `directory`."""
    plan = ClusterPlan(data=directory, ports=free_ports(NODES + 2), replicas=NODES, streams=1)
    supervisor = Supervisor(plan)
    await supervisor.start()
    try:
        await wait_nodes(plan)
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(varlog.aio.admin(supervisor.address, timeout_s=TIMEOUT_S))
            logs = await stack.enter_async_context(AsyncExitStack())
            yield GrowthCluster(supervisor, admin, logs)
    finally:
        await supervisor.stop()


class Cores:
    """Who had how much of the cores between `begin` and `end`: each server, the client (this process, its helpers), the machine."""

    def __init__(self, servers: Mapping[str, int], helpers: tuple[int, ...] = ()) -> None:
        self._pids = {name: (pid,) for name, pid in servers.items()} | {CLIENT: (os.getpid(), *helpers)}
        self._before: dict[str, float] = {}
        self._began = 0.0

    def begin(self) -> None:
        self._before, self._began = self._used(), time.perf_counter()

    def end(self) -> dict[str, float]:
        """Cores a process, on average."""
        elapsed, after = time.perf_counter() - self._began, self._used()
        return {name: (after[name] - before) / elapsed for name, before in self._before.items()}

    def _used(self) -> dict[str, float]:
        used = {name: sum(usage_of(pid).cpu_s for pid in pids) for name, pids in self._pids.items()}
        return used | {MACHINE: busy_s(Path("/proc/stat").read_text("utf-8"))}
