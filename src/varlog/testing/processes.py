"""Real clusters for tests: processes on free ports, kill -9, SIGSTOP, restart; always cleaned up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from varlog.cli.cluster_plan import ClusterPlan, free_ports
from varlog.cli.demo import History, all_run, append_until
from varlog.cli.output import wait_until
from varlog.cli.supervisor import Supervisor
from varlog.cli.up import make_topic

TOPIC = "orders"
HEAL_TIMEOUT_S = 60.0


class ProcessCluster:
    """A running cluster, and what its clients were told so far."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self.supervisor = Supervisor(plan, say=print)
        self.history = History()
        self._enough = asyncio.Event()
        self._clients: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        return self.plan.repository

    async def start(self) -> None:
        await self.supervisor.start()
        await make_topic(self.plan, TOPIC)

    async def stop(self) -> None:
        await self.stop_clients()
        await self.supervisor.stop()

    async def start_clients(self, count: int = 4) -> None:
        """Clients that append until they are stopped; their answers are in `history`."""
        self._enough.clear()
        first = len(self.history.clients) + 1
        for number in range(first, first + count):
            self.history.clients.append(number)
            work = append_until(self.address, TOPIC, number, self.history, self._enough)
            self._clients.append(asyncio.get_running_loop().create_task(work, name=f"client {number}"))

    async def stop_clients(self) -> None:
        self._enough.set()
        clients, self._clients = self._clients, []
        await asyncio.gather(*clients)

    async def wait_acknowledged(self, more: int) -> None:
        """Until so many more appends are acknowledged than now."""
        wanted = len(self.history.acknowledged) + more
        async with asyncio.timeout(HEAL_TIMEOUT_S):
            await wait_until(
                lambda: (
                    len(self.history.acknowledged) >= wanted or any(client.done() for client in self._clients)
                )
            )

    async def wait_healed(self) -> None:
        """Until every replica of every stream runs."""
        from varlog import aio

        async with asyncio.timeout(HEAL_TIMEOUT_S), aio.admin(self.address) as admin:
            await all_run(admin)

    def kill_all(self) -> None:
        """As a power cut of the machine's processes: all of them at once, none restarted."""
        for name in self.supervisor.pids():
            self.supervisor.kill(name, restart=False)


@asynccontextmanager
async def process_cluster(
    directory: Path, *, nodes: int = 3, replicas: int = 3, streams: int = 2
) -> AsyncIterator[ProcessCluster]:
    """A cluster of real processes; none of them is left, however the body ends."""
    plan = ClusterPlan(directory, free_ports(nodes + 2), replicas=replicas, streams=streams, heartbeat_s=0.1)
    cluster = ProcessCluster(plan)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


def command(
    module: str, arguments: Sequence[str], *, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run `python -m varlog.cli…` to its end."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
    )


def children_of(pid: int) -> list[psutil.Process]:
    """The processes that this one has started."""
    return psutil.Process(pid).children(recursive=True)


def living(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended: neither gone nor waiting to be buried."""
    return [found for found in processes if found.is_running() and _status(found) != psutil.STATUS_ZOMBIE]


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE
