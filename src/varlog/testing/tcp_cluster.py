"""TcpCluster: a whole cluster over TCP in one loop thread of this process.

Three storage nodes, a repository, a sequencer and a manager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import varlog
from varlog.localcluster.ports import HOST, free_ports
from varlog.manager.config import ManagerConfig
from varlog.manager.manager import Manager
from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.ids import ClusterID, NodeID
from varlog.rpc.tcp import TcpTransport
from varlog.runtime.environment import system_environment
from varlog.runtime.loop_thread import LoopThread
from varlog.sequencer.sequencer import Sequencer, SequencerConfig
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNodeServer

CLUSTER = ClusterID(5)
NODES = 3
# Only so that nothing hangs: a busy machine may pause for seconds.
WAIT_S = 90.0


class TcpCluster:
    """Services on free ports of 127.0.0.1. Their disks do not wait for the device: nothing here loses power.

    The ports are none that the kernel gives to outgoing connections: a server that is stopped and started again finds its own free.
    """

    def __init__(self, path: Path) -> None:
        self._environment = system_environment(synced=False)
        self._transport = TcpTransport(CLUSTER)
        self._volumes = [path / f"node-{n + 1}" for n in range(NODES)]
        self._listen = [f"{HOST}:{port}" for port in free_ports(NODES + 2)]
        self._metadata = MemoryMetadata()
        self.nodes: list[StorageNodeServer] = []
        self._stopped: set[int] = set()
        self.repository: MetadataRepository
        self.sequencer: Sequencer
        self.manager: Manager

    async def start(self, *, auto_create_topics: bool) -> None:
        for volume in self._volumes:
            volume.mkdir()
            self.nodes.append(await self._start_node(len(self.nodes), self._listen[len(self.nodes)]))
        await self.start_repository(self._listen[-2])
        await self.start_sequencer(self._listen[-1])
        self.manager = Manager(
            ManagerConfig(
                CLUSTER,
                self.repository.address,
                "127.0.0.1:0",
                nodes=tuple(node.address for node in self.nodes),
                replicas=3,
                heartbeat_s=0.05,
                # Nodes are stopped here, and never hang: a machine that does must not be taken for one of them.
                node_timeout_s=WAIT_S,
                auto_create_topics=auto_create_topics,
            ),
            self._environment,
            self._transport,
        )
        await self.manager.start()

    async def restart_node(self, index: int) -> None:
        await self.stop_node(index)
        await self.start_node(index)

    async def restart(self) -> None:
        """Every node, the repository and the sequencer at once: what is left is what they keep."""
        repository, sequencer = self.repository.address, self.sequencer.address
        await self.sequencer.stop()
        await self.repository.stop()
        for index in range(len(self.nodes)):
            await self.restart_node(index)
        await self.start_repository(repository)
        await self.start_sequencer(sequencer)

    async def stop_node(self, index: int) -> None:
        """May be called twice: cleaning up after a failed test does not know how far it got."""
        if index not in self._stopped:
            self._stopped.add(index)
            await self.nodes[index].stop()

    async def start_node(self, index: int) -> None:
        """One that was stopped, where it listened before."""
        self.nodes[index] = await self._start_node(index, self.nodes[index].address)
        self._stopped.discard(index)

    async def start_repository(self, listen: str) -> None:
        """The first time, or again after it was stopped: with what it knew."""
        config = MetadataRepositoryConfig(CLUSTER, listen, node_retry_s=0.02)
        store = MemoryStore(self._metadata)
        self.repository = MetadataRepository(config, store, self._environment, self._transport)
        await self.repository.start()

    async def start_sequencer(self, listen: str) -> None:
        """The first time, or again after it was stopped: it has counted nothing then."""
        config = SequencerConfig(CLUSTER, self.repository.address, listen)
        self.sequencer = Sequencer(config, self._environment, self._transport)
        await self.sequencer.start()

    async def wait_nodes(self) -> None:
        """Until the manager knows all nodes, and the repository the sequencer."""
        async with asyncio.timeout(WAIT_S):
            await self.sequencer.wait_leased()
        async with asyncio.timeout(WAIT_S), varlog.aio.admin(self.repository.address) as admin:
            while len([node for node in (await admin.status()).nodes if node.alive]) < 3:  # noqa: ASYNC110 - they are polled
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await self.manager.stop()
        await self.sequencer.stop()
        await self.repository.stop()
        for index in range(len(self.nodes)):
            await self.stop_node(index)

    async def _start_node(self, index: int, listen: str) -> StorageNodeServer:
        config = StorageNodeConfig(
            CLUSTER,
            NodeID(index + 1),
            (self._volumes[index],),
            listen=listen,
            # Its first pass comes a minute after the start: what a test damages would be repaired before the test reads it.
            scrub_bytes_per_s=0,
        )
        node = StorageNodeServer(config, self._environment, self._transport)
        await node.start()
        return node


@contextmanager
def running(path: Path, *, auto_create_topics: bool = False) -> Iterator[tuple[TcpCluster, LoopThread]]:
    thread = LoopThread("cluster")
    cluster = TcpCluster(path)
    try:
        thread.run(cluster.start(auto_create_topics=auto_create_topics))
        thread.run(cluster.wait_nodes())
        try:
            yield cluster, thread
        finally:
            thread.run(
                cluster.stop()
            )  # also behind a test that failed: what still runs keeps the thread alive
    finally:
        thread.close()
