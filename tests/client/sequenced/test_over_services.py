"""Clients of a sequenced topic on real services: nodes and the sequencer go and come under load, and the order holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.client.fakes import run_in_real_time, until
from varlog import aio
from varlog.client.log import Log
from varlog.model.entry import Position
from varlog.model.errors import OutcomeUnknown, VarlogError
from varlog.testing.tcp_cluster import TcpCluster

TIMEOUT_S = 60.0
Story = Callable[[TcpCluster, "Load"], Awaitable[None]]


class Load:
    """Appenders that run until `stop` is set, and record their outcomes."""

    def __init__(self, logs: list[Log]) -> None:
        self.logs = logs
        self.stop = False
        self.acknowledged: dict[bytes, Position] = {}
        self.unknown: list[bytes] = []
        self.order: list[tuple[int, int]] = []  # (newest position acknowledged before it began, its own)

    async def append(self, name: int) -> None:
        log, number = self.logs[name % len(self.logs)], 0
        while not self.stop:
            number += 1
            data = b"%d/%d" % (name, number)
            before = max((at.glsn for at in self.acknowledged.values()), default=0)
            try:
                at = await log.append(data)
            except OutcomeUnknown:
                self.unknown.append(data)
                continue
            self.acknowledged[data] = at
            self.order.append((before, at.glsn))
            await asyncio.sleep(0)

    async def wait_more(self, count: int) -> None:
        """Until `count` more are acknowledged."""
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted)

    async def check(self) -> None:
        """No acknowledged append is lost, doubled or moved; none was overtaken by one that began after it."""
        tail = await self.logs[0].tail()
        found = {}
        async for entry in self.logs[-1].subscribe(1, tail + 1):
            assert entry.data not in found, "in the log twice"
            found[entry.data] = entry.position
        assert {data: found.get(data) for data in self.acknowledged} == self.acknowledged
        assert all(before < mine for before, mine in self.order)
        assert set(found) <= {*self.acknowledged, *self.unknown}


async def lose_head_and_tail(cluster: TcpCluster, load: Load) -> None:
    for index in (0, 2):
        await cluster.stop_node(index)
        await load.wait_more(20)
        await cluster.start_node(index)
        await wait_whole(cluster)


async def lose_the_sequencer(cluster: TcpCluster, load: Load) -> None:
    address = cluster.sequencer.address
    await cluster.sequencer.stop()
    await cluster.start_sequencer(address)
    await load.wait_more(20)


async def wait_whole(cluster: TcpCluster) -> None:
    """Until every chain has all its nodes again."""
    async with asyncio.timeout(TIMEOUT_S), aio.admin(cluster.repository.address) as admin:
        while any(chain.out_of_sync for found in (await admin.view()).projections for chain in found.chains):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("story", [lose_head_and_tail, lose_the_sequencer])
def test_the_order_holds_while_processes_go_and_come(story: Story, streams: int, tmp_path: Path) -> None:
    """R-SEQ-2, R-SEQ-10, R-SEQ-14: appends continue without a head, a tail or the sequencer, and each node is
    back in its chain."""

    async def scenario() -> None:
        cluster = TcpCluster(tmp_path)
        await cluster.start(auto_create_topics=False)
        await cluster.wait_nodes()
        address = cluster.repository.address
        logs: list[Log] = []
        try:
            async with aio.admin(address) as admin:
                await admin.create_topic("orders", streams=streams, ordering="sequenced", stripe_size=16)
            logs += [await aio.connect(address, "orders", timeout_s=TIMEOUT_S) for _ in range(3)]
            load = Load(logs)
            appending = [asyncio.ensure_future(load.append(name)) for name in range(6)]
            await load.wait_more(20)
            await story(cluster, load)
            await load.wait_more(20)
            load.stop = True
            await asyncio.gather(*appending)
            assert not load.unknown
            await load.check()
        finally:
            for log in logs:
                await log.close()
            await cluster.stop()

    run_in_real_time(scenario())


def test_every_call_ends_by_its_deadline_when_no_server_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = TcpCluster(tmp_path)
        await cluster.start(auto_create_topics=False)
        await cluster.wait_nodes()
        async with aio.admin(cluster.repository.address) as admin:
            await admin.create_topic("orders", ordering="sequenced")
        log = await aio.connect(cluster.repository.address, "orders")
        await log.append(b"a")
        for index in range(len(cluster.nodes)):
            await cluster.stop_node(index)
        await cluster.sequencer.stop()
        for call in (log.append(b"b", timeout_s=0.5), log.read(1, timeout_s=0.5), log.tail(timeout_s=0.5)):
            # Only its own deadline ends it: that of the test would be a TimeoutError.
            with pytest.raises(VarlogError):
                await call
        await log.close()
        await cluster.manager.stop()
        await cluster.repository.stop()

    run_in_real_time(scenario())
