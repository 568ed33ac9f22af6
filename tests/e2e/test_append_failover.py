"""A whole cluster in one process, whose nodes are killed under load.

Every append ends at one position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from varlog.client.connect import connect_admin, connect_log
from varlog.client.log import Log
from varlog.manager.config import ManagerConfig
from varlog.manager.manager import Manager
from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.entry import Position
from varlog.model.ids import ClusterID, LogStreamID, NodeID
from varlog.rpc.memory import MemoryTransport
from varlog.rpc.messages import Append
from varlog.runtime.disk import OsDisk
from varlog.runtime.environment import Environment, SystemClock
from varlog.runtime.worker import ThreadWorker
from varlog.storagenode.committed.replica import Replica
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNodeServer

CLUSTER = ClusterID(5)
TIMEOUT_S = 90.0
STORY_S = 240.0


class InProcessCluster:
    """A repository, a manager and nodes 1 to 3, over connections in memory."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root = root
        self.transport = MemoryTransport()
        self.environment = Environment(SystemClock(), Random(seed), OsDisk(synced=False), ThreadWorker)
        self.nodes: dict[int, StorageNodeServer] = {}

    async def start(self) -> None:
        for node in (1, 2, 3):
            await self.start_node(node)
        store = SqliteStore(self._root / "metadata.db", self.environment, synced=False)
        config = MetadataRepositoryConfig(CLUSTER, "repository")
        self._repository = MetadataRepository(config, store, self.environment, self.transport)
        await self._repository.start()
        addresses = tuple(f"node-{node}" for node in self.nodes)
        self._manager = Manager(
            ManagerConfig(
                CLUSTER, "repository", "manager", nodes=addresses, replicas=2, streams=2, heartbeat_s=0.05
            ),
            self.environment,
            self.transport,
        )
        await self._manager.start()

    async def start_node(self, node: int) -> None:
        volume = self._root / f"volume{node}"
        volume.mkdir(exist_ok=True)
        config = StorageNodeConfig(CLUSTER, NodeID(node), (volume,), listen=f"node-{node}")
        self.nodes[node] = StorageNodeServer(config, self.environment, self.transport)
        await self.nodes[node].start()

    async def kill_node(self, node: int) -> None:
        """Its connections break at once; appends in flight get no reply."""
        await self.nodes.pop(node).stop()

    async def stop(self) -> None:
        await self._manager.stop()
        for node in list(self.nodes):
            await self.kill_node(node)
        await self._repository.stop()

    async def connect(self, streams: int) -> Log:
        admin = await connect_admin(self.transport, self.environment, "repository", cluster=CLUSTER)
        async with admin, asyncio.timeout(TIMEOUT_S):
            while len(await admin.nodes()) < 3:
                await asyncio.sleep(0.01)
        log = await connect_log(
            self.transport,
            self.environment,
            "repository",
            topic="orders",
            create=True,
            streams=streams,
            timeout_s=TIMEOUT_S,
        )
        assert await log.connector.wait_running()
        return log


async def append_while(
    log: Log, name: int, going: Callable[[], bool], positions: dict[bytes, Position]
) -> None:
    """One append after the other, alone or in pairs; each must be answered, whatever happens."""
    number = 0
    while going():
        number += 1
        one, two = (b"%d/%d/%s" % (name, number, part) for part in (b"a", b"b"))
        if number % 3:
            positions[one] = await log.append(one)
        else:
            first = (await log.append_batch([one, two])).first
            positions[one] = first
            positions[two] = Position(first.glsn + 1, first.llsn + 1, first.log_stream)  # type: ignore[arg-type]


async def check_everything_is_present_once(log: Log, positions: dict[bytes, Position]) -> None:
    tail = await log.tail()
    found: dict[bytes, Position] = {}
    async for entry in log.subscribe(1, tail + 1):
        assert entry.data not in found, f"{entry.data!r} is in the log twice"
        found[entry.data] = entry.position
    assert found == positions


@pytest.mark.parametrize("streams", [1, 2])
def test_every_append_resolves_to_one_position_while_primaries_are_killed(
    tmp_path: Path, seed: int, streams: int
) -> None:
    """R-ORD-7, R-FAIL-1. One stream: appends wait for it. Two: they continue in the other one, once their outcome is
    known."""

    async def story() -> None:
        random = Random(seed)
        cluster = InProcessCluster(tmp_path, seed)
        await cluster.start()
        log = await cluster.connect(streams)
        positions: dict[bytes, Position] = {}
        killing = True
        clients = [
            asyncio.create_task(append_while(log, name, lambda: killing, positions)) for name in range(16)
        ]
        for _ in range(3):
            before = len(positions)
            async with asyncio.timeout(TIMEOUT_S):
                while len(positions) < before + 50:
                    await asyncio.sleep(0.001)
                victim = int(random.choice(log.streams).primary)
                await cluster.kill_node(victim)
                await asyncio.sleep(random.choice((0.0, 0.05)))
                await cluster.start_node(victim)
                await log.connector.wait_running()
        killing = False
        await asyncio.gather(*clients)
        await check_everything_is_present_once(log, positions)
        await log.close()
        await cluster.stop()

    asyncio.run(asyncio.wait_for(story(), STORY_S))


def test_replies_lost_after_the_append_was_ordered_duplicate_nothing(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-ORD-7: every few appends the connection breaks right after the primary accepted the batch: the client must find
    its position."""
    take, taken = Replica.append, [0]

    def break_behind(replica: Replica, call: object, request: Append, batch: bytearray) -> None:
        take(replica, call, request, batch)  # type: ignore[arg-type]
        taken[0] += 1
        if taken[0] % 7 == 0:
            call.connection.close()  # type: ignore[attr-defined]

    monkeypatch.setattr(Replica, "append", break_behind)

    async def story() -> None:
        cluster = InProcessCluster(tmp_path, seed)
        await cluster.start()
        log = await cluster.connect(2)
        positions: dict[bytes, Position] = {}
        clients = [
            asyncio.create_task(append_while(log, name, lambda: len(positions) < 400, positions))
            for name in range(8)
        ]
        await asyncio.gather(*clients)
        assert taken[0] > 20
        await check_everything_is_present_once(log, positions)
        assert {position.log_stream for position in positions.values()} <= {LogStreamID(1), LogStreamID(2)}
        await log.close()
        await cluster.stop()

    asyncio.run(asyncio.wait_for(story(), STORY_S))
