"""BenchTarget: where the log under test is: a cluster started for this run, a running cluster, or this process itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import varlog.aio
from varlog.cli.bench.settings import Settings
from varlog.cli.cluster_plan import ClusterPlan
from varlog.cli.ports import free_ports
from varlog.cli.supervisor import Supervisor
from varlog.cli.up import wait_nodes
from varlog.client.log import Log
from varlog.model.cluster import Ordering

# A loaded cluster on a slow disk may take long for one batch; a benchmark measures that instead of failing.
TIMEOUT_S = 60.0


class BenchTarget(Protocol):
    """Hands out logs by topic; makes the topic if there is none of that name."""

    @property
    def address(self) -> str: ...

    def log(self, topic: str, ordering: Ordering, replicas: int = 0) -> AbstractAsyncContextManager[Log]: ...

    def processes(self) -> dict[str, int]:
        """Process ids by name, of a cluster that this run has started; empty otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster behind an address; `supervisor` only if this run has started it."""

    address: str
    streams: int
    supervisor: Supervisor | None = None

    def log(self, topic: str, ordering: Ordering, replicas: int = 0) -> AbstractAsyncContextManager[Log]:
        return connected(self.address, topic, streams=self.streams, ordering=ordering, replicas=replicas)

    def processes(self) -> dict[str, int]:
        return self.supervisor.pids() if self.supervisor is not None else {}


@dataclass(frozen=True, slots=True)
class Embedded:
    """A directory, opened by this process."""

    path: Path

    @property
    def address(self) -> str:
        raise ValueError("an embedded log has no address")

    def log(self, topic: str, ordering: Ordering, replicas: int = 0) -> AbstractAsyncContextManager[Log]:
        return embedded(self.path, topic, ordering, synced=True)

    def processes(self) -> dict[str, int]:
        return {}


@asynccontextmanager
async def ground_for(settings: Settings) -> AsyncIterator[BenchTarget]:
    """What the settings ask for; a cluster that is started here is stopped at the end."""
    if settings.embedded:
        yield Embedded(settings.data / "log")
    elif settings.cluster:
        yield Cluster(settings.cluster, settings.streams)
    else:
        plan = ClusterPlan(
            data=settings.data / "cluster",
            ports=free_ports(settings.nodes + 2),
            replicas=settings.replicas,
            streams=settings.streams,
        )
        supervisor = Supervisor(plan)
        await supervisor.start()
        try:
            await wait_nodes(plan)
            yield Cluster(supervisor.address, settings.streams, supervisor)
        finally:
            await supervisor.stop()


@asynccontextmanager
async def connected(
    address: str,
    topic: str,
    *,
    streams: int = 0,
    ordering: Ordering = Ordering.COMMITTED,
    replicas: int = 0,
) -> AsyncIterator[Log]:
    """A topic of a cluster; made if it is missing."""
    async with varlog.aio.admin(address) as admin:
        if (await admin.view()).topic_named(topic) is None:
            await admin.create_topic(topic, streams=streams, replicas=replicas, ordering=ordering)
    async with varlog.aio.connect(address, topic, create=False, timeout_s=TIMEOUT_S) as log:
        yield log


@asynccontextmanager
async def embedded(path: Path, topic: str, ordering: Ordering, *, synced: bool) -> AsyncIterator[Log]:
    """A topic of a log in this process."""
    async with varlog.aio.open(path, topic, sync=synced, ordering=ordering, timeout_s=TIMEOUT_S) as log:
        yield log
