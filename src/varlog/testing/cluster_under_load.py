"""ClusterUnderLoad: real processes under load, a fault, and a checked history.

Clients are processes of their own. At the end everything is read back, and the history is checked.

The checkers are those of the simulator: what differs is that time, disks, processes and the network are real.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from varlog import aio
from varlog.localcluster.plan import REPLICATED_PORTS, ClusterPlan
from varlog.localcluster.ports import free_ports
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import ensure_topic, wait_all_running, wait_until
from varlog.model.cluster import ClusterView, LogStream, Ordering, StreamState
from varlog.model.errors import VarlogError
from varlog.model.ids import ClusterID, NodeID
from varlog.model.limits import SEGMENT_BYTES
from varlog.model.projection import Chain
from varlog.model.status import ClusterStatus
from varlog.rpc.tcp import TcpTransport
from varlog.runtime.disk import OsDisk
from varlog.runtime.environment import system_environment
from varlog.storage.committed.log_store import LogStore
from varlog.storage.disk_space import DiskSpace
from varlog.storage.sequenced.page_store import PageStore
from varlog.testing.history_file import RealHistory, merged_history
from varlog.testing.load_client import STOP_TIMEOUT_S, ClientLoad, LoadClient
from varlog.testing.sim.ending import EndingCheck, stored_entries
from varlog.testing.sim.sequenced.ending import write_down
from varlog.testing.workload import Mix
from varlog.verify.checkers import check_history

TOPIC = "orders"
CLIENTS = 3
ENTRY_BYTES_MAX = 300
BEFORE, AFTER = 200, 200
WAIT_TIMEOUT_S = 90.0
# Of a sequenced topic: small, so that a short story is about all of its log streams; as large as the largest batch.
STRIPE_SIZE = Mix().batch_max
# Lines of a server's log that no fault explains: our own bug.
_BUG = re.compile(r"Traceback|InvariantBroken|never retrieved|was never awaited")


class ClusterUnderLoad:
    """A cluster and its clients. A story hurts it; `judged` says what came of it."""

    def __init__(
        self,
        plan: ClusterPlan,
        *,
        ordering: Ordering = Ordering.COMMITTED,
        client_prefix: tuple[str, ...] = (),
    ) -> None:
        self.plan = plan
        self.ordering = ordering
        self.supervisor = Supervisor(plan, say=print)
        self.clients: list[LoadClient] = []
        # Processes that a story takes memory, descriptors or room from: they may end, and log where they were.
        self.may_fail: set[str] = set()
        self._client_prefix = client_prefix

    @property
    def address(self) -> str:
        return self.supervisor.address

    # --- the cluster ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.supervisor.start()
        await ensure_topic(self.plan, TOPIC, ordering=self.ordering, stripe_size=STRIPE_SIZE)

    async def stop(self) -> None:
        """Whatever happened: no process is left."""
        try:
            await self.stop_clients()
        finally:
            await self.supervisor.stop()

    async def view(self) -> ClusterView:
        async with aio.admin(self.address, timeout_s=WAIT_TIMEOUT_S) as admin:
            return await admin.view()

    async def streams(self) -> tuple[LogStream, ...]:
        return (await self.view()).streams

    async def wait_status(self, there: Callable[[ClusterStatus], bool]) -> ClusterStatus:
        """Until what the manager says of the cluster is as it should be."""
        async with asyncio.timeout(WAIT_TIMEOUT_S), aio.admin(self.address) as admin:
            while True:
                try:
                    seen = await admin.status()
                    if there(seen):
                        return seen
                except VarlogError as error:
                    print(f"the manager does not say: {error}")
                await asyncio.sleep(0.05)

    async def wait_sealed(self, log_stream: int) -> None:
        """Until the repository has sealed the stream: from then on appends to it go elsewhere."""

        def sealed(seen: ClusterStatus) -> bool:
            found = [one for one in seen.view.streams if one.log_stream == log_stream]
            return all(one.state is StreamState.SEALED for one in found)

        await self.wait_status(sealed)

    async def chain(self) -> Chain:
        """Of the first log stream of a sequenced topic, as it is now."""
        return (await self.view()).projections[0].chains[0]

    async def wait_without(self, *nodes: NodeID) -> None:
        """Until no chain of a sequenced topic needs any of these nodes: from then on appends continue without them."""

        def without(seen: ClusterStatus) -> bool:
            chains = [chain for projection in seen.view.projections for chain in projection.chains]
            return bool(chains) and not any(node in chain.nodes for chain in chains for node in nodes)

        await self.wait_status(without)

    async def wait_healed(self) -> None:
        """Until every replica of every stream runs."""
        async with asyncio.timeout(WAIT_TIMEOUT_S), aio.admin(self.address) as admin:
            await wait_all_running(admin)

    # --- the clients ------------------------------------------------------------------------------------------

    def start_clients(
        self, count: int = CLIENTS, *, trims: bool = False, entry_bytes_max: int = ENTRY_BYTES_MAX
    ) -> None:
        for number in range(len(self.clients) + 1, len(self.clients) + count + 1):
            load = ClientLoad(
                name=f"client-{number}",
                cluster=self.address,
                topic=TOPIC,
                history=str(self.plan.data / f"client-{number}.history"),
                seed=number,
                trims=trims,
                entry_bytes_max=entry_bytes_max,
            )
            self.clients.append(LoadClient(load, prefix=self._client_prefix))
            self.clients[-1].start()

    async def stop_clients(self) -> None:
        """Each finishes what it has begun."""
        for client in self.clients:
            client.ask_to_stop()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await wait_until(lambda: all(client.ended() for client in self.clients))
        finally:
            codes = [client.wait(0.0) for client in self.clients]
        if any(codes):
            raise RuntimeError(f"client processes ended with {codes}: see above what they said")

    def acknowledged(self) -> int:
        """Appends that were answered with a position so far, by all clients."""
        for client in self.clients:
            client.written.refresh()
        return sum(client.written.acknowledged for client in self.clients)

    async def wait_acknowledged(self, more: int) -> None:
        """Until this many more appends are acknowledged than now."""
        wanted = self.acknowledged() + more
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await wait_until(lambda: self.acknowledged() >= wanted, every_s=0.05)

    # --- the end ----------------------------------------------------------------------------------------------

    async def judged(self) -> list[str]:
        """What was broken, in words; nothing if every law held. Stops clients and cluster."""
        await self.stop_clients()
        history = merged_history(client.written for client in self.clients)
        if self.ordering is Ordering.SEQUENCED:
            history.sequenced.add(TOPIC)
        await self._read_back(history)
        # Only then is it known where all of it lies: on a busy machine a node may be slow to answer once.
        seen = await self.wait_status(_all_reported_status)
        await self.supervisor.stop()
        _examine(_registered(seen), history)
        _examine_units(seen, history)
        history.complaints += self._bugs()
        print(
            f"{len(history.operations)} operations, {sum(len(one.entries) for one in history.endings)} entries"
        )
        return [
            f"{checker.name} ({checker.law}): {violation}" for checker, violation in check_history(history)
        ]

    async def _read_back(self, history: RealHistory) -> None:
        cluster = ClusterID(self.plan.cluster)
        copies = self.plan.replicas
        judge = EndingCheck(
            system_environment(), TcpTransport(cluster), self.address, [TOPIC], copies, history
        )
        if await judge.heal():
            history.healed = history.event()
            await judge.read_back()

    def _bugs(self) -> list[str]:
        return [
            f"{path.name}: {line.strip()}"
            for path in sorted((self.plan.data / "logs").glob("*.log"))
            for line in path.read_text("utf-8", "replace").splitlines()
            if (found := _BUG.search(line)) and not (found[0] == "Traceback" and path.stem in self.may_fail)
        ]


Story = Callable[[ClusterUnderLoad], Awaitable[None]]


@asynccontextmanager
async def running_cluster(cluster: ClusterUnderLoad) -> AsyncIterator[ClusterUnderLoad]:
    """Started, and without clients; no process is left, however the body ends."""
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


async def run_story(
    plan: ClusterPlan,
    story: Story,
    *,
    ordering: Ordering = Ordering.COMMITTED,
    trims: bool = False,
    entry_bytes_max: int = ENTRY_BYTES_MAX,
) -> list[str]:
    """The whole: start, load, the story's faults, heal, more load, and the checks."""
    async with running_cluster(ClusterUnderLoad(plan, ordering=ordering)) as cluster:
        cluster.start_clients(trims=trims, entry_bytes_max=entry_bytes_max)
        await cluster.wait_acknowledged(BEFORE)
        await story(cluster)
        await cluster.wait_healed()
        await cluster.wait_acknowledged(AFTER)
        return await cluster.judged()


def plan_for(
    directory: Path,
    *,
    nodes: int = 3,
    replicas: int = 2,
    streams: int = 2,
    replicated: bool = False,
    replace_after_s: float = 30.0,
    zombie_grace_s: float = 60.0,
) -> ClusterPlan:
    """Few nodes, a quick heartbeat: a test should not wait for what a default gives a busy network."""
    ports = free_ports(nodes + 2 + REPLICATED_PORTS)
    return ClusterPlan(
        directory,
        ports[: nodes + 2],
        replicas=replicas,
        streams=streams,
        heartbeat_s=0.1,
        replicated_ports=ports[nodes + 2 :] if replicated else (),
        replace_after_s=replace_after_s,
        zombie_grace_s=zombie_grace_s,
    )


def process_of(node: NodeID) -> str:
    """The name of a storage node's process."""
    return f"vsn-{node}"


def _all_reported_status(seen: ClusterStatus) -> bool:
    """Every node that has something of a stream says what."""
    reporting = {health.node for health in seen.nodes if health.status is not None}
    return all(node in reporting for stream in seen.view.streams for node in stream.replicas)


def _registered(seen: ClusterStatus) -> list[tuple[int, NodeID, Path]]:
    """Stream, node and directory of each replica that the repository knows."""
    statuses = {health.node: health.status for health in seen.nodes if health.status is not None}
    return [
        (stream.log_stream, node, Path(replica.path))
        for stream in seen.view.streams
        for node in stream.replicas
        for replica in statuses[node].replicas
        if replica.log_stream == stream.log_stream
    ]


def _examine_units(seen: ClusterStatus, history: RealHistory) -> None:
    """What each log unit holds on disk."""
    endings = {ending.topic: ending for ending in history.endings}
    for health in seen.nodes:
        for unit in health.status.units if health.status is not None else ():
            topic, projection = seen.view.topic(unit.topic), seen.view.projection(unit.topic)
            path = Path(unit.path)
            if topic is None or projection is None or topic.name not in endings:
                continue
            disk = OsDisk()
            try:
                store = PageStore.open(
                    disk, path, segment_bytes=SEGMENT_BYTES, disk_space=DiskSpace(disk, path)
                )
                write_down(store, projection, endings[topic.name], process_of(health.node))
                store.close()
            except VarlogError as error:
                history.complaints.append(f"{path} is not whole: {error}")


def _examine(replicas: Sequence[tuple[int, NodeID, Path]], history: RealHistory) -> None:
    """What each replica holds on disk, now that its node has stopped."""
    for log_stream, node, path in replicas:
        try:
            store = LogStore.open(OsDisk(), path)
        except VarlogError as error:
            history.complaints.append(f"{path} cannot be opened: {error}")
            continue
        try:
            entries = list(stored_entries(store))
        except VarlogError as error:
            history.complaints.append(f"{path} is not whole: {error}")
            continue
        finally:
            store.close()
        for ending in history.endings:
            ending.replicas.setdefault(log_stream, {})[process_of(node)] = entries
            ending.trims.setdefault(log_stream, {})[process_of(node)] = store.trimmed
