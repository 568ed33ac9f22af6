"""A manager of sequenced topics is cut off at every step it takes, and a fresh one ends in the same healthy cluster: every chain is
full, no zombie is left, every acknowledged entry is on every node of its chain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.manager.sequenced_cluster import SequencedCluster
from tests.manager.sim_cluster import TOPIC, Cut, When
from varlog.client.connect import connect_admin
from varlog.model.cluster import Ordering
from varlog.model.errors import VarlogError
from varlog.model.ids import NodeID
from varlog.testing.sim.core.loop import run_simulated

pytestmark = pytest.mark.thorough

ENTRIES = 10
CALLS_MAX = 60

Break = Callable[[SequencedCluster], Awaitable[None]]


async def _head_back_soon(cluster: SequencedCluster) -> None:
    """It was away while the others continued, and comes back with its old data."""
    head = (await cluster.projection()).chains[0].head
    cluster.nodes[head].crash()
    helper = cluster.second_manager()
    helper.boot()
    await cluster.append(b"meanwhile")
    helper.crash()
    cluster.nodes[head].boot()


async def _tail_gone(cluster: SequencedCluster) -> None:
    cluster.nodes[(await cluster.projection()).chains[0].tail].crash()


async def _directory_deleted(cluster: SequencedCluster) -> None:
    cluster.lose_directory((await cluster.projection()).chains[0].nodes[1])


async def _sequencer_gone(cluster: SequencedCluster) -> None:
    sequencer = (await cluster.projection()).sequencer
    assert sequencer is not None
    cluster.sequencers[1 if sequencer.address == "sq1:7120" else 2].crash()


async def _power_lost(cluster: SequencedCluster) -> None:
    for host in [*cluster.nodes.values(), cluster.repository, *cluster.sequencers.values()]:
        host.crash()
        host.boot()


BREAKS = [_head_back_soon, _tail_gone, _directory_deleted, _sequencer_gone, _power_lost]


async def _filled() -> SequencedCluster:
    cluster = SequencedCluster()
    cluster.start()
    await cluster.create()
    for number in range(ENTRIES):
        await cluster.append(f"entry {number}".encode())
    return cluster


async def _check_whole(cluster: SequencedCluster, streams: int = 1) -> None:
    await cluster.wait_whole(streams)
    for host in [host for host in cluster.nodes.values() if not host.up]:
        host.boot()  # a replaced node comes back, and its data is a zombie now
    await cluster.wait_whole(streams)
    await cluster.append(b"and it continues")
    await cluster.check_written()


async def _story(how: Break, cut: Cut) -> list[str]:
    """Break the cluster, let a manager be cut off at its work, start another; returns what the first one did."""
    cluster = await _filled()
    cluster.manager.crash()
    await how(cluster)
    cluster.start_manager(cut)
    if cut.call:
        await _until_dead(cluster)
        cluster.start_manager()
    await _check_whole(cluster)
    return cut.calls


async def _until_dead(cluster: SequencedCluster) -> None:
    """The manager dies at its call, or, if it needs fewer this time, after everything is done."""
    for _ in range(120):
        if not cluster.manager.up:
            return
        await asyncio.sleep(0.5)
    cluster.manager.crash()


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("how", BREAKS, ids=lambda how: how.__name__.strip("_"))
def test_a_manager_that_is_cut_off_at_any_step_leaves_nothing_that_the_next_cannot_finish(
    how: Break, when: When
) -> None:
    """R-SEQ-14, R-REG-4: the next manager fills each chain and removes what was left; each acknowledged entry
    is on all its nodes."""
    calls = run_simulated(_story(how, Cut()))
    assert 1 <= len(calls) <= CALLS_MAX, calls
    for number in range(1, len(calls) + 1):
        cut = Cut(number, when)
        done = run_simulated(_story(how, cut))
        assert cut.fell or len(done) < number, "it made that call, and was not cut off"


@pytest.mark.parametrize("how", BREAKS, ids=lambda how: how.__name__.strip("_"))
def test_two_managers_at_once_end_in_the_same_cluster(how: Break) -> None:
    async def story() -> None:
        cluster = await _filled()
        await how(cluster)
        second = cluster.second_manager()
        second.boot()
        await _check_whole(cluster)
        assert second.up and cluster.manager.up

    run_simulated(story())


async def _persistently(cluster: SequencedCluster, ask: Callable[..., Awaitable[object]]) -> None:
    """As an operator does: ask, and if no answer comes ask again."""
    while True:
        try:
            async with await connect_admin(
                cluster.transport, cluster.environment, "mr:7100", timeout_s=5.0
            ) as admin:
                await ask(admin)
                return
        except VarlogError:
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("when", When)
def test_a_topic_that_is_made_by_managers_that_are_cut_off_has_its_streams_and_no_more(when: When) -> None:
    """R-SEQ-12, R-REG-4."""

    async def story(cut: Cut) -> list[str]:
        cluster = SequencedCluster()
        cluster.cut = cut
        cluster.start()
        creating = asyncio.ensure_future(
            _persistently(
                cluster,
                lambda admin: admin.create_topic(
                    TOPIC, streams=2, ordering=Ordering.SEQUENCED, stripe_size=2
                ),
            )
        )
        if cut.call:
            await _until_dead(cluster)
            cluster.start_manager()
        await creating
        calls = list(cut.calls)
        await _check_whole(cluster, streams=2)
        return calls

    calls = run_simulated(story(Cut()))
    assert calls.count("ProposeProjection") == 1 and len(calls) <= CALLS_MAX, calls
    for number in range(1, len(calls) + 1):
        assert run_simulated(story(Cut(number, when))), number


@pytest.mark.parametrize("when", When)
def test_a_move_by_hand_that_is_cut_off_is_finished_or_undone(when: When) -> None:
    async def story(cut: Cut) -> list[str]:
        cluster = await _filled()
        cluster.manager.crash()
        cluster.start_manager(cut)
        chain = (await cluster.projection()).chains[0]
        (spare,) = {NodeID(number) for number in cluster.nodes} - {*chain.nodes}
        moving = asyncio.ensure_future(
            _persistently(cluster, lambda admin: admin.replace_replica(chain.log_stream, chain.head, spare))
        )
        if cut.call:
            await _until_dead(cluster)
            cluster.start_manager()
        await moving
        calls = list(cut.calls)
        assert (await cluster.projection()).chains[0].nodes == (*chain.nodes[1:], spare)
        await _check_whole(cluster)
        return calls

    calls = run_simulated(story(Cut()))
    assert "SyncUnit" in calls and "ProposeProjection" in calls
    for number in range(1, len(calls) + 1):
        assert run_simulated(story(Cut(number, when))), number
