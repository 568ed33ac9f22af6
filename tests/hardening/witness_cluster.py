"""A cluster in virtual time whose metadata can go back in time.

Like a disk that lost its newest records, or a restored copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.manager.sim_cluster import REPOSITORY, TOPIC, SimCluster
from varlog.client.admin import Admin
from varlog.client.connect import connect_admin
from varlog.client.log import Log
from varlog.metarepo.store.memory import MemoryMetadata
from varlog.model.cluster import StreamState, Topic
from varlog.model.errors import VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.status import ReplicaStatus
from varlog.rpc import messages as m

ENTRIES = [b"entry %d" % number for number in range(100)]


async def fill(cluster: SimCluster, topic: str) -> None:
    log = await cluster.log(topic, create=True)
    await log.append_batch(ENTRIES)
    await log.close()


async def read_all(cluster: SimCluster, topic: str) -> list[bytes]:
    log = await cluster.log(topic)
    found = [entry.data async for entry in log.subscribe(1, end=len(ENTRIES) + 1)]
    await log.close()
    return found


@dataclass(frozen=True)
class Copy:
    """The metadata at some moment."""

    items: dict[str, bytes]
    term: int


class RewoundCluster(SimCluster):
    """Three nodes, three copies."""

    def __init__(self, nodes: int = 3, replicas: int = 3) -> None:
        super().__init__(nodes, replicas)
        self.network.slow = 0.0

    def copy(self) -> Copy:
        return Copy(dict(self._metadata.items), self._metadata.term)

    def restore(self, copy: Copy, *, term: int | None = None) -> None:
        """The repository ends, its store is the copy, it starts again. `term`: as in the store; None: terms have
        continued."""
        self.repository.crash()
        self._metadata.items = dict(copy.items)
        self._metadata.term = self._metadata.term if term is None else term
        self.repository.boot()

    def lose_newest_cuts(self, count: int) -> None:
        """Like a disk that lost the newest records of a journal: nothing else is older."""
        self.repository.crash()
        cuts = sorted(key for key in self._metadata.items if key.startswith("cut/"))
        assert len(cuts) >= count, cuts
        for key in cuts[-count:]:
            del self._metadata.items[key]
        self.repository.boot()

    @contextmanager
    def metadata_lost(self) -> Iterator[None]:
        """The repository begins with an empty store; at the end it has the old one back."""
        kept = self._metadata
        for metadata in (MemoryMetadata(), kept):
            self.manager.crash()
            self.repository.crash()
            self._metadata = metadata
            self.repository.boot()
            self.manager.boot()
            if metadata is not kept:
                yield

    async def topic(self) -> Topic:
        found = (await self.view()).topic_named(TOPIC)
        assert found is not None
        return found

    async def admin(self) -> Admin:
        return await connect_admin(self.transport, self.environment, REPOSITORY, timeout_s=30.0)

    async def two_streams(self) -> tuple[Log, LogStreamID, LogStreamID]:
        """A topic of two log streams on two nodes with one copy each: that of node 1, and that of node 2."""
        async with await self.admin() as admin:
            await admin.create_topic(TOPIC, streams=2)
        streams = {stream.replicas[0]: stream.log_stream for stream in (await self.view()).streams}
        return await self.log(), streams[NodeID(1)], streams[NodeID(2)]

    async def all_replicas(self) -> list[ReplicaStatus]:
        return [replica for status in (await self.statuses()).values() for replica in status.replicas]

    async def tail(self) -> int:
        answer = await self.ask(REPOSITORY, m.GetTail((await self.topic()).topic))
        assert isinstance(answer, m.GetTailReply)
        return answer.high_watermark

    async def until(self, holds: Callable[[], object], within_s: float = 60.0) -> None:
        """Wait until `holds()`, or what it returns when awaited, is true."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while True:
            try:
                found = holds()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return
            except VarlogError:
                pass  # a process that has just started does not answer yet
            assert loop.time() < deadline, "it did not come to that"
            await asyncio.sleep(0.05)

    async def runs(self) -> bool:
        view = await self.view()
        return all(stream.state is StreamState.RUNNING for stream in view.streams)

    async def is_stopped(self) -> bool:
        return bool((await self.topic()).stopped)

    async def adopt_order(self) -> None:
        """Adopt the order from the nodes, as an operator does, as soon as that is possible."""

        async def adopted() -> bool:
            async with await self.admin() as admin:
                return (await admin.adopt_order(TOPIC, dry_run=False)).adopted

        await self.until(adopted)
