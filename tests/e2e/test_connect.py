"""varlog.connect: three storage nodes, a repository and a manager over TCP, in one loop thread, used from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import varlog
from varlog.manager.config import ManagerConfig
from varlog.manager.manager import Manager
from varlog.metarepo.repository import MetadataRepository, MetadataRepositoryConfig
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.ids import ClusterID, NodeID
from varlog.rpc.tcp import TcpTransport
from varlog.runtime.doors import system_doors
from varlog.runtime.loop_thread import LoopThread
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNode

CLUSTER = ClusterID(5)


class Cluster:
    """Services on free ports of 127.0.0.1. Their disks do not wait for the device: nothing here loses power."""

    def __init__(self, path: Path) -> None:
        self._doors = system_doors(synced=False)
        self._transport = TcpTransport(CLUSTER)
        self._volumes = [path / f"node-{n}" for n in (1, 2, 3)]
        self.nodes: list[StorageNode] = []
        self.repository: MetadataRepository
        self.manager: Manager

    async def start(self, *, auto_create_topics: bool) -> None:
        for volume in self._volumes:
            volume.mkdir()
            self.nodes.append(await self._start_node(len(self.nodes), "127.0.0.1:0"))
        config = MetadataRepositoryConfig(CLUSTER, "127.0.0.1:0", node_retry_s=0.02)
        self.repository = MetadataRepository(
            config, MemoryStore(MemoryMetadata()), self._doors, self._transport
        )
        await self.repository.start()
        self.manager = Manager(
            ManagerConfig(
                CLUSTER,
                self.repository.address,
                "127.0.0.1:0",
                nodes=tuple(node.address for node in self.nodes),
                replicas=3,
                heartbeat_s=0.05,
                auto_create_topics=auto_create_topics,
            ),
            self._doors,
            self._transport,
        )
        await self.manager.start()

    async def restart_node(self, index: int) -> None:
        address = self.nodes[index].address
        await self.nodes[index].stop()
        self.nodes[index] = await self._start_node(index, address)

    async def wait_nodes(self) -> None:
        async with asyncio.timeout(30), varlog.aio.admin(self.repository.address) as admin:
            while len([node for node in (await admin.status()).nodes if node.alive]) < 3:
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await self.manager.stop()
        await self.repository.stop()
        for node in self.nodes:
            await node.stop()

    async def _start_node(self, index: int, listen: str) -> StorageNode:
        config = StorageNodeConfig(CLUSTER, NodeID(index + 1), (self._volumes[index],), listen=listen)
        node = StorageNode(config, self._doors, self._transport)
        await node.start()
        return node


@contextmanager
def running(path: Path, *, auto_create_topics: bool = False) -> Iterator[tuple[Cluster, LoopThread]]:
    thread = LoopThread("cluster")
    cluster = Cluster(path)
    try:
        thread.run(cluster.start(auto_create_topics=auto_create_topics))
        thread.run(cluster.wait_nodes())
        yield cluster, thread
        thread.run(cluster.stop())
    finally:
        thread.close()


def test_the_same_code_works_against_a_cluster(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, _):
        address = cluster.repository.address
        with pytest.raises(varlog.UnknownTopic):
            varlog.connect(address, topic="orders")
        with varlog.admin(address) as admin:
            assert admin.create_topic("orders", streams=2).name == "orders"
            assert len(admin.streams("orders")) == 2
            assert [stream.replicas for stream in admin.streams("orders")] != []
        with varlog.connect(address, topic="orders") as log:
            at = log.append(b"hello")
            run = log.append_batch([b"a", b"b"])
            assert (at.glsn, run.first.glsn, len(run)) == (1, 2, 2)
            assert log.read(at.glsn).data == b"hello"
            assert [entry.data for entry in log.subscribe(1, log.tail() + 1)] == [b"hello", b"a", b"b"]
            assert sum(batch.num_rows for batch in log.arrow(1, log.tail() + 1)) == 3
            log.trim(at.glsn)
            with pytest.raises(varlog.Trimmed):
                log.read(at.glsn)


def test_the_wrong_cluster_and_a_silent_address_are_refused(tmp_path: Path) -> None:
    with running(tmp_path, auto_create_topics=True) as (cluster, _):
        with pytest.raises(varlog.NotInCluster):
            varlog.connect(cluster.repository.address, cluster=6)
        with varlog.connect(cluster.repository.address, topic="made-by-itself", cluster=5) as log:
            assert log.append(b"x").glsn == 1
        address = cluster.nodes[0].address
    with pytest.raises(varlog.Unavailable):
        varlog.connect(address, timeout_s=0.1)


def test_restarted_nodes_lose_nothing_and_a_subscriber_sees_each_entry_once(tmp_path: Path) -> None:
    """R-READ-3 and R-FAIL-1 with clean restarts: appends may be refused meanwhile, never lost or doubled."""
    with (
        running(tmp_path, auto_create_topics=True) as (cluster, thread),
        varlog.connect(cluster.repository.address, topic="t", streams=2, timeout_s=30) as log,
    ):
        follower = log.subscribe(1)
        acknowledged: dict[int, bytes] = {}
        seen: dict[int, bytes] = {}
        for round_ in range(4):
            for number in range(20):
                data = b"%d.%d" % (round_, number)
                try:
                    acknowledged[log.append(data).glsn] = data
                except varlog.OutcomeUnknown:
                    pass  # it may be there: the subscriber will tell
            thread.run(cluster.restart_node(round_ % 3))
            while len(seen) < len(acknowledged):
                entry = next(follower)
                assert entry.glsn == len(seen) + 1
                seen[entry.glsn] = entry.data
        assert acknowledged.items() <= seen.items()
        follower.close()
