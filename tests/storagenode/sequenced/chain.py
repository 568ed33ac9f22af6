"""Log units on real nodes over the in-memory transport, and a repository by hand that grants leases and gives orders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.storagenode.scripted import STREAM, TIMEOUT_S, TOPIC, Bench, entries_in
from varlog.model.batch import pack, place_batch
from varlog.model.cluster import Ordering
from varlog.model.epoch import Epoch
from varlog.model.ids import NodeID, ProducerID
from varlog.model.lsn import LLSN
from varlog.model.status import SyncState, SyncStatus, UnitStatus
from varlog.rpc.messages import (
    AddLogStream,
    FetchUnit,
    FetchUnitReply,
    FillUnit,
    GetNodeStatus,
    GetNodeStatusReply,
    LeaseReply,
    Message,
    OpenSession,
    ReadUnit,
    ReplicaAddress,
    RequestLease,
    SealUnit,
    SealUnitReply,
    SyncReply,
    SyncUnit,
    UnitOrder,
    WriteUnit,
)
from varlog.rpc.transport import Call, Connection

M = TypeVar("M", bound=Message)

__all__ = ["STREAM", "TIMEOUT_S", "TOPIC", "Chain", "Granter", "batch_at", "entries_in", "run_chain", "until"]


def batch_at(llsn: int, *entries: bytes, epoch: int = 1, producer: int = 7, sequence: int = 1) -> bytearray:
    """A batch as a client writes it to a unit."""
    batch = pack(entries, producer=ProducerID(producer), sequence=sequence, time_us=llsn * 1000)
    place_batch(batch, Epoch(epoch), LLSN(llsn))
    return batch


# Longer than any test: a busy machine may stall for longer than LEASE_S, and only some tests are about what happens then.
GRANTED_S = 3600.0


@dataclass
class Granter:
    """The repository's side of a session. While it `grants`, each RequestLease is answered with a lease and the orders."""

    grants: bool = True
    lease_s: float = GRANTED_S
    orders: tuple[UnitOrder, ...] = ()
    alone: bool = True  # so that a restarted node serves
    asked: list[RequestLease] = field(default_factory=list)
    connection: Connection | None = None

    def take(self, call: Call | None, message: Message, payload: bytearray) -> None:
        if isinstance(message, RequestLease):
            self.asked.append(message)
            if self.grants:
                self.send(self.lease_s)

    def send(self, lease_s: float) -> None:
        """Send a lease now, requested or not."""
        assert self.connection is not None
        orders = self.orders or (UnitOrder(STREAM, Epoch(0), LLSN(1), self.alone),)
        self.connection.send(LeaseReply(self.asked[-1].stamp, lease_s, orders))

    def order(self, epoch: int, low: int = 1) -> None:
        self.orders = (UnitOrder(STREAM, Epoch(epoch), LLSN(low), self.alone),)
        self.send(self.lease_s)


class Chain(Bench):
    """A bench whose nodes have log units."""

    async def add(self, node: int = 1) -> None:
        await self.call(AddLogStream(TOPIC, STREAM, ordering=Ordering.SEQUENCED), node=node)

    async def seal(self, epoch: int, node: int = 1) -> SealUnitReply:
        sealed, _ = await self.call(SealUnit(STREAM, Epoch(epoch)), node=node)
        assert isinstance(sealed, SealUnitReply)
        return sealed

    async def lease(self, node: int = 1, *, term: int = 1, alone: bool = True) -> Granter:
        """A repository opens its session; returns once the node has its lease."""
        granter = Granter(alone=alone)
        granter.connection = await self.transport.connect(
            f"node{node}", handler=granter.take, timeout_s=TIMEOUT_S
        )
        await granter.connection.call(OpenSession(term), timeout_s=TIMEOUT_S)
        await self.leased(node)
        return granter

    async def leased(self, node: int = 1, *, valid: bool = True) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while (await self.node_status(node)).status.leased is not valid:
                await asyncio.sleep(0.001)

    async def serve(self, node: int = 1, epoch: int = 1, **config: object) -> Granter:
        """A node with a new unit that serves in `epoch`."""
        await self.start(node, **config)  # type: ignore[arg-type]
        await self.add(node)
        for number in range(1, epoch + 1):
            await self.seal(number, node)
        return await self.lease(node)

    async def write(self, batch: bytearray, *, epoch: int = 1, node: int = 1) -> None:
        await self.call(WriteUnit(STREAM, Epoch(epoch)), batch, node=node)

    async def fill(self, llsn: int, count: int = 1, *, epoch: int = 1, node: int = 1) -> None:
        await self.call(FillUnit(STREAM, Epoch(epoch), LLSN(llsn), count), node=node)

    async def read(self, llsn: int, *, epoch: int = 1, node: int = 1, whole: bool = False) -> bytearray:
        return (await self.call(ReadUnit(STREAM, Epoch(epoch), LLSN(llsn), whole), node=node))[1]

    async def fetch(
        self, llsn: int, *, epoch: int = 1, node: int = 1, wait_s: float = 0.0, bytes_max: int = 0
    ) -> tuple[FetchUnitReply, bytearray]:
        request = FetchUnit(STREAM, Epoch(epoch), LLSN(llsn), bytes_max, wait_s)
        fetched, payload = await self.call(request, node=node)
        assert isinstance(fetched, FetchUnitReply)
        return fetched, payload

    async def node_status(self, node: int = 1) -> GetNodeStatusReply:
        status, _ = await self.call(GetNodeStatus(), node=node)
        assert isinstance(status, GetNodeStatusReply)
        return status

    async def status(self, node: int = 1) -> UnitStatus:
        (unit,) = (await self.node_status(node)).status.units
        return unit

    async def sync_once(
        self, node: int, source: int, epoch: int = 0, *, backfill: bool = False, proves: bool = True
    ) -> SyncStatus:
        address = ReplicaAddress(NodeID(source), f"node{source}")
        request = SyncUnit(STREAM, address, Epoch(epoch), backfill=backfill, proves=proves)
        reply, _ = await self.call(request, node=node)
        assert isinstance(reply, SyncReply)
        return reply.sync

    async def sync(self, node: int, source: int, epoch: int = 0, *, backfill: bool = False) -> SyncStatus:
        """Until it has ended."""
        async with asyncio.timeout(TIMEOUT_S):
            while (
                sync := await self.sync_once(node, source, epoch, backfill=backfill)
            ).state is SyncState.IN_PROGRESS:
                await asyncio.sleep(0.001)
        return sync


def run_chain(tmp_path: Path, story: Callable[[Chain], Awaitable[None]]) -> None:
    """Run a scenario with a bench that is always closed at its end."""

    async def body() -> None:
        chain = Chain(tmp_path)
        try:
            await asyncio.wait_for(story(chain), 60)
        finally:
            await chain.close()

    asyncio.run(body())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.001)
