"""Leases and orders: a node serves its units while it has a lease of the repository, and applies orders before it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.storagenode.sequenced.chain import STREAM, Chain, batch_at, run_chain, until
from varlog.model.cluster import changed
from varlog.model.epoch import Epoch
from varlog.model.errors import NoLease, StaleEpoch, Trimmed, Unavailable
from varlog.model.limits import CLOCK_DRIFT_MAX, LEASE_S
from varlog.model.lsn import LLSN
from varlog.rpc.messages import FindUnitTime, LeaseReply, ListUnit, MeasureUnit, UnitOrder
from varlog.storagenode.sequenced.writer import UnitWrite


def asks(chain: Chain) -> list[Coroutine[Any, Any, Any]]:
    return [
        chain.write(batch_at(9, b"a")),
        chain.fill(9),
        chain.read(1),
        chain.fetch(1, wait_s=5.0),
        chain.call(MeasureUnit(STREAM, Epoch(1), LLSN(1), LLSN(2))),
        chain.call(FindUnitTime(STREAM, Epoch(1), 1)),
    ]


def test_without_a_lease_only_seals_and_copies_are_answered(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await chain.start()
        await chain.add()
        await chain.seal(1)
        for ask in asks(chain):
            with pytest.raises(NoLease):
                await ask
        await chain.call(ListUnit(STREAM, LLSN(1)))
        assert (await chain.seal(2)).epoch == 2
        assert not (await chain.node_status()).status.leased

    run_chain(tmp_path, story)


def test_a_lease_that_is_not_renewed_ends_by_the_nodes_own_clock(tmp_path: Path) -> None:
    """R-SEQ-13: it counts from when the node asked, and less than it was given: its clock may be slow."""

    async def story(chain: Chain) -> None:
        granter = await chain.serve()
        await chain.write(batch_at(1, b"a"))
        granter.grants = False
        granter.send(LEASE_S)
        waiting = asyncio.create_task(chain.fetch(2, wait_s=LEASE_S + 0.3))
        await chain.leased(valid=False)
        for ask in asks(chain):
            with pytest.raises(NoLease):
                await ask
        with pytest.raises(NoLease):
            await waiting
        granter.grants = True
        await chain.leased()
        await chain.read(1)

    run_chain(tmp_path, story)


def test_no_lease_is_answered_only_for_a_batch_that_was_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 10: this error means that the batch is nowhere. A batch that was written gets another answer."""

    async def story(chain: Chain) -> None:
        granter = await chain.serve()
        granter.grants = False
        node = chain.nodes[1]
        unit = node._units[STREAM]
        apply = unit._writer.write

        def take_and_lose_the_lease(write: UnitWrite) -> None:
            apply(write)
            node._lease.apply(LeaseReply(0, 0.0))

        monkeypatch.setattr(unit._writer, "write", take_and_lose_the_lease)
        with pytest.raises(Unavailable, match="written here"):
            await chain.write(batch_at(1, b"a"))
        with pytest.raises(NoLease):
            await chain.write(batch_at(2, b"b"))
        assert (await chain.status()).newest == 1

    run_chain(tmp_path, story)


def test_the_lease_is_over_at_the_node_before_it_is_over_at_the_repository(tmp_path: Path) -> None:
    """R-SEQ-13. With a clock by hand: valid until the last moment, and not a moment longer."""

    class HandClock:
        now_us = 10**15  # later than the machine's own clock: a stamp is never given twice

        def wall_us(self) -> int:
            return 0

        def steady_us(self) -> int:
            return self.now_us

        def monotonic_us(self) -> int:
            return self.now_us

    async def story(chain: Chain) -> None:
        granter = await chain.serve()
        granter.grants = False
        lease = chain.nodes[1]._lease
        clock = HandClock()
        lease._clock = clock
        granter.asked.clear()
        lease.request_soon()
        await until(lambda: granter.asked)
        lease.apply(LeaseReply(clock.now_us + 1, LEASE_S))
        lease.apply(LeaseReply(clock.now_us, LEASE_S))
        ends = clock.now_us + round(LEASE_S * (1 - CLOCK_DRIFT_MAX) * 1e6)
        clock.now_us = ends - 1
        assert [lease.valid] == [True]
        clock.now_us += 1
        assert [lease.valid] == [False], "nor does a stamp that was never sent count"
        lease.apply(LeaseReply(ends - 1, LEASE_S))
        assert [lease.valid] == [False], "it never asked then"

    run_chain(tmp_path, story)


def test_a_lease_that_is_taken_back_is_over_at_once(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        granter = await chain.serve()
        granter.grants = False
        granter.send(0.0)
        await chain.leased(valid=False)
        for ask in asks(chain):
            with pytest.raises(NoLease):
                await ask

    run_chain(tmp_path, story)


def test_only_the_repository_in_session_gives_leases(tmp_path: Path) -> None:
    """Law 7: one whose term is over has nothing to give."""

    async def story(chain: Chain) -> None:
        deposed = await chain.serve()
        newer = await chain.lease(term=2)
        newer.grants = False
        newer.send(0.0)
        await chain.leased(valid=False)
        assert deposed.connection is not None
        assert deposed.connection.closed
        stranger = await chain.connect()
        stranger.send(LeaseReply(newer.asked[-1].stamp, LEASE_S))
        await asyncio.sleep(0.01)
        assert not (await chain.node_status()).status.leased

    run_chain(tmp_path, story)


def test_a_node_without_units_requests_no_lease(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await chain.start()
        connecting = asyncio.create_task(chain.lease())
        await asyncio.sleep(LEASE_S / 2)
        assert not connecting.done()
        await chain.add()
        granter = await connecting
        assert granter.asked

    run_chain(tmp_path, story)


def test_an_order_seals_and_trims_and_is_reported_when_it_is_durable(tmp_path: Path) -> None:
    """R-TRIM-1: for a node that was cut off when the others were sealed."""

    async def story(chain: Chain) -> None:
        granter = await chain.serve()
        for llsn in range(1, 6):
            await chain.write(batch_at(llsn, b"%d" % llsn))
        waiting = asyncio.create_task(chain.fetch(6, wait_s=20.0))
        await asyncio.sleep(0.01)
        granter.order(4, low=4)
        with pytest.raises(StaleEpoch):
            await waiting
        await until(lambda: UnitOrder(STREAM, Epoch(4), LLSN(4)) in granter.asked[-1].units)
        status = await chain.status()
        assert (status.epoch, status.low, status.newest) == (4, 4, 5)
        with pytest.raises(StaleEpoch):
            await chain.read(4)
        with pytest.raises(Trimmed):
            await chain.read(3, epoch=4)
        with pytest.raises(Trimmed):
            await chain.write(batch_at(3, b"late"), epoch=4)
        await chain.read(4, epoch=4)
        granter.order(2, low=1)
        await chain.leased()
        after = await chain.status()
        assert changed(after, traffic=status.traffic) == status, "an older order changes nothing"

    run_chain(tmp_path, story)


def test_an_order_is_obeyed_before_the_lease_it_came_with_counts(tmp_path: Path) -> None:
    """A unit that was left behind must not answer in its old epoch for the moment until the new one is durable."""

    async def story(chain: Chain) -> None:
        await chain.serve()
        node = chain.nodes[1]
        unit = node._units[STREAM]
        node._lease.apply(LeaseReply(node._lease._granted, LEASE_S, (UnitOrder(STREAM, Epoch(3), LLSN(2)),)))
        assert node._lease.valid
        with pytest.raises(StaleEpoch):
            unit._admit(Epoch(1))
        assert unit.epoch == 1, "not durable yet"

    run_chain(tmp_path, story)


def test_a_batch_across_the_low_end_is_taken_whole(tmp_path: Path) -> None:
    """Its head has it whole, and those of its entries that are not trimmed must be had from the others, too."""

    async def story(chain: Chain) -> None:
        granter = await chain.serve()
        granter.order(1, low=4)
        await until(lambda: granter.asked[-1].units and granter.asked[-1].units[0].low == 4)
        await chain.write(batch_at(3, b"c", b"d"))
        await chain.read(4)
        with pytest.raises(Trimmed):
            await chain.read(3)
        with pytest.raises(Trimmed):
            await chain.fill(2, 2)

    run_chain(tmp_path, story)
