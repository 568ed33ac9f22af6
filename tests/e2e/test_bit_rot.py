"""Bit rot on one replica of a whole cluster in one process, on real files.

Every entry is read, and the files are equal again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from varlog.client.admin import Admin
from varlog.client.connect import connect_admin, connect_log
from varlog.client.log import Log
from varlog.manager.config import ManagerConfig
from varlog.manager.manager import Manager
from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.ids import ClusterID, NodeID
from varlog.rpc.memory import MemoryTransport
from varlog.runtime.environment import system_environment
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNodeServer

CLUSTER = ClusterID(1)
NODES = (1, 2, 3)
ENTRIES = 400
TIMEOUT_S = 90.0


class Cluster:
    """Three nodes that scrub continuously, a repository, a manager; small segments, so that most are closed."""

    def __init__(self, root: Path, *, scrub: bool) -> None:
        self._root = root
        self._scrub = scrub
        self._environment = system_environment(synced=False)
        self._transport = MemoryTransport()
        self._nodes: dict[int, StorageNodeServer] = {}
        store = SqliteStore(root / "metadata.db", self._environment, synced=False)
        repository = MetadataRepositoryConfig(CLUSTER, "repository")
        self._repository = MetadataRepository(repository, store, self._environment, self._transport)
        addresses = tuple(f"node{node}" for node in NODES)
        # No node hangs here: a machine that pauses must not be taken for a dead node, which would be sealed out.
        config = ManagerConfig(
            CLUSTER, "repository", "manager", nodes=addresses, heartbeat_s=0.05, node_timeout_s=TIMEOUT_S
        )
        self._manager = Manager(config, self._environment, self._transport)

    async def start_node(self, node: int) -> None:
        volume = self._root / f"volume{node}"
        volume.mkdir(exist_ok=True)
        config = StorageNodeConfig(
            CLUSTER,
            NodeID(node),
            (volume,),
            listen=f"node{node}",
            segment_bytes=8192,
            rows_sync_delay_s=0.01,
            scrub_bytes_per_s=1 << 30 if self._scrub else 0,
            scrub_interval_s=0.05,
        )
        self._nodes[node] = StorageNodeServer(config, self._environment, self._transport)
        await self._nodes[node].start()

    async def stop_node(self, node: int) -> None:
        await self._nodes.pop(node).stop()

    async def start(self) -> None:
        for node in NODES:
            await self.start_node(node)
        await self._repository.start()
        await self._manager.start()

    async def stop(self) -> None:
        await self._manager.stop()
        await self._repository.stop()
        for node in list(self._nodes):
            await self.stop_node(node)

    async def connect(self) -> Log:
        log = await connect_log(
            self._transport, self._environment, "repository", topic="rot", create=True, timeout_s=TIMEOUT_S
        )
        await log.connector.wait_running()
        return log

    async def admin(self) -> Admin:
        return await connect_admin(self._transport, self._environment, "repository")

    def segments(self, node: int) -> dict[str, bytes]:
        """The contents of each segment file of a node."""
        files = sorted((self._root / f"volume{node}").rglob("*.seg"))
        return {path.name: path.read_bytes().rstrip(b"\0") for path in files}

    def flip(self, node: int, random: Random, *, count: int) -> None:
        """Flip bits in closed segments of a node."""
        for path in sorted((self._root / f"volume{node}").rglob("*.seg"))[: 2 * count : 2]:
            content = bytearray(path.read_bytes())
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
            path.write_bytes(content)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await holds():
            await asyncio.sleep(0.01)


def entry(number: int) -> bytes:
    return b"entry %d of the log " % number * 4


async def filled(cluster: Cluster) -> Log:
    await cluster.start()
    log = await cluster.connect()
    for begin in range(1, ENTRIES + 1, 4):
        await log.append_batch([entry(number) for number in range(begin, begin + 4)])
    return log


async def all_equal(cluster: Cluster) -> bool:
    first = cluster.segments(1)
    return all(cluster.segments(node) == first for node in NODES[1:])


async def read_all(log: Log) -> list[bytes]:
    return [found.data async for found in log.subscribe(1, ENTRIES + 1)]


EVERYTHING = [entry(number) for number in range(1, ENTRIES + 1)]


def run(work: Awaitable[None]) -> None:
    async def check() -> None:
        await asyncio.wait_for(work, 2 * TIMEOUT_S)

    asyncio.run(check())


@pytest.mark.parametrize("scrub", [True, False], ids=["scrubbed", "read"])
def test_rot_is_read_around_found_and_repaired(tmp_path: Path, seed: int, scrub: bool) -> None:
    """With the scrub, no reader is needed; without it, readers report it. The stream runs throughout."""

    async def story() -> None:
        cluster = Cluster(tmp_path, scrub=scrub)
        async with await filled(cluster) as log:
            await until(lambda: all_equal(cluster))
            good = cluster.segments(1)
            assert len(good) > 4
            cluster.flip(2, Random(seed), count=3)
            assert scrub or cluster.segments(2) != good
            if not scrub:

                async def read_until_equal() -> bool:
                    async with await cluster.connect() as another:  # each begins with a random replica
                        assert await read_all(another) == EVERYTHING
                    return await all_equal(cluster)

                await until(read_until_equal)
            await until(lambda: all_equal(cluster))
            assert cluster.segments(2) == good
            assert await read_all(log) == EVERYTHING
            (stream,) = log.streams
            assert stream.epoch == 1, "nothing was sealed for it"
        await cluster.stop()

    run(story())


def test_a_node_that_restarts_over_rot_finds_it_again(tmp_path: Path, seed: int) -> None:
    """Bytes rot while the node is down, and in what was being repaired: known damage is forgotten with the process, and
    found again."""

    async def story() -> None:
        cluster = Cluster(tmp_path, scrub=True)
        async with await filled(cluster) as log:
            await until(lambda: all_equal(cluster))
            good = cluster.segments(1)
            cluster.flip(3, Random(seed), count=2)
            await cluster.stop_node(3)
            cluster.flip(3, Random(seed + 1), count=3)
            await cluster.start_node(3)
            await until(lambda: all_equal(cluster))
            assert cluster.segments(3) == good
            assert await read_all(log) == EVERYTHING
            async with await cluster.admin() as admin:

                async def well() -> bool:
                    replicas = [
                        r
                        for node in (await admin.status()).nodes
                        if node.status
                        for r in node.status.replicas
                    ]
                    return len(replicas) == 3 and all(r.state == "running" and not r.damage for r in replicas)

                await until(well)
            assert (await log.append(b"it continues")).glsn == ENTRIES + 1
        await cluster.stop()

    run(story())
