"""A manager is cut off at every step it takes, and a fresh one ends in the same healthy cluster: everything runs with the right
number of replicas, no zombie is left, and every acknowledged entry is there.

The cluster is the production code on simulated clock, network and disks: half a minute of waiting takes no time, and the run is the
same every time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.manager.sim_cluster import TOPIC, Cut, SimCluster, When
from varlog.client.connect import connect_admin
from varlog.model.errors import VarlogError
from varlog.model.ids import LogStreamID
from varlog.rpc import messages as m
from varlog.testing.sim.core.loop import run_simulated

pytestmark = pytest.mark.thorough

ENTRIES = 20
CALLS_MAX = 60

Break = Callable[[SimCluster], Awaitable[None]]


async def _primary_gone(cluster: SimCluster) -> None:
    cluster.nodes[(await cluster.view()).streams[0].primary].crash()


async def _backup_gone(cluster: SimCluster) -> None:
    cluster.nodes[(await cluster.view()).streams[0].replicas[-1]].crash()


async def _directory_deleted(cluster: SimCluster) -> None:
    cluster.lose_directory((await cluster.view()).streams[0].replicas[1])


async def _primarys_directory_deleted(cluster: SimCluster) -> None:
    cluster.lose_directory((await cluster.view()).streams[0].primary)


async def _power_lost(cluster: SimCluster) -> None:
    for host in [*cluster.nodes.values(), cluster.repository]:
        host.crash()
        host.boot()


async def _half_made(cluster: SimCluster) -> None:
    """What is left when a manager dies between the nodes and the repository."""
    view = await cluster.view()
    for node in view.nodes[:3]:
        await cluster.ask(node.address, m.AddLogStream(view.topics[0].topic, LogStreamID(50)))


BREAKS = [
    _primary_gone,
    _backup_gone,
    _directory_deleted,
    _primarys_directory_deleted,
    _power_lost,
    _half_made,
]


async def _fill(cluster: SimCluster) -> list[bytes]:
    log = await cluster.log(create=True)
    entries = [f"entry {number}".encode() for number in range(ENTRIES)]
    for entry in entries:
        await log.append(entry)
    await log.close()
    return entries


async def _check_whole(cluster: SimCluster, entries: list[bytes], streams: int = 1) -> None:
    await cluster.wait_whole(streams)
    for host in [host for host in cluster.nodes.values() if not host.up]:
        host.boot()  # a replaced node comes back, and its data is a zombie now
    await cluster.wait_whole(streams)
    log = await cluster.log()
    at = await log.append(b"and it continues")
    found = [entry.data async for entry in log.subscribe(1, end=at.glsn + 1)]
    await log.close()
    assert found == [*entries, b"and it continues"]
    assert cluster.complaints == []


async def _story(how: Break, cut: Cut) -> list[str]:
    """Break the cluster, let a manager be cut off at its work, start another; returns what the first one did."""
    cluster = SimCluster()
    cluster.start()
    entries = await _fill(cluster)
    cluster.manager.crash()
    await how(cluster)
    cluster.start_manager(cut)
    if cut.call:
        await _until_dead(cluster)
        cluster.start_manager()
    await _check_whole(cluster, entries)
    return cut.calls


async def _until_dead(cluster: SimCluster) -> None:
    """The manager dies at its call, or, if it needs fewer this time, after everything is done."""
    for _ in range(600):
        if not cluster.manager.up:
            return
        await asyncio.sleep(0.5)
    cluster.manager.crash()


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("how", BREAKS, ids=lambda how: how.__name__.strip("_"))
def test_a_manager_that_is_cut_off_at_any_step_leaves_nothing_that_the_next_cannot_finish(
    how: Break, when: When
) -> None:
    """R-REG-4, R-REG-6, R-FAIL-1: the next manager repairs the stream and removes what was left; each
    acknowledged entry is there."""
    calls = run_simulated(_story(how, Cut()))
    assert 1 <= len(calls) <= CALLS_MAX, calls
    for number in range(1, len(calls) + 1):
        cut = Cut(number, when)
        done = run_simulated(_story(how, cut))
        assert cut.fell or len(done) < number, "it made that call, and was not cut off"


async def _creating(cut: Cut) -> list[str]:
    cluster = SimCluster()
    cluster.cut = cut
    cluster.start()
    creating = asyncio.ensure_future(_create(cluster))
    if cut.call:
        await _until_dead(cluster)
        cluster.start_manager()
    await creating
    calls = list(cut.calls)
    await cluster.wait_whole(streams=2)
    log = await cluster.log()
    await log.append(b"first")
    await log.close()
    assert cluster.complaints == []
    return calls


async def _create(cluster: SimCluster) -> None:
    """As an operator does: ask, and if no answer comes ask again."""
    while True:
        try:
            async with await connect_admin(
                cluster.transport, cluster.environment, "mr:7100", timeout_s=5.0
            ) as admin:
                await admin.create_topic(TOPIC, streams=2)
                return
        except VarlogError:
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("when", When)
def test_a_topic_that_is_made_by_managers_that_are_cut_off_has_its_streams_and_no_more(when: When) -> None:
    """R-REG-4."""
    calls = run_simulated(_creating(Cut()))
    assert "RegisterLogStream" in calls and len(calls) <= CALLS_MAX
    for number in range(1, len(calls) + 1):
        assert run_simulated(_creating(Cut(number, when))), number


@pytest.mark.parametrize("how", BREAKS, ids=lambda how: how.__name__.strip("_"))
def test_two_managers_at_once_end_in_the_same_cluster(how: Break) -> None:
    async def story() -> None:
        cluster = SimCluster()
        cluster.start()
        entries = await _fill(cluster)
        await how(cluster)
        second = cluster.second_manager()
        second.boot()
        await _check_whole(cluster, entries)
        assert second.up and cluster.manager.up

    run_simulated(story())


@pytest.mark.parametrize("when", When)
def test_a_move_by_hand_that_is_cut_off_is_finished_or_undone(when: When) -> None:
    async def story(cut: Cut) -> list[str]:
        cluster = SimCluster()
        cluster.start()
        entries = await _fill(cluster)
        cluster.manager.crash()
        cluster.start_manager(cut)
        old = (await cluster.view()).streams[0].primary
        moving = asyncio.ensure_future(_move(cluster, old))
        if cut.call:
            await _until_dead(cluster)
            cluster.start_manager()
        await moving
        calls = list(cut.calls)
        assert old not in (await cluster.view()).streams[0].replicas
        await _check_whole(cluster, entries)
        return calls

    calls = run_simulated(story(Cut()))
    assert "SetReplicas" in calls
    for number in range(1, len(calls) + 1):
        assert run_simulated(story(Cut(number, when))), number


async def _move(cluster: SimCluster, old: int) -> None:
    """An operator asks until it is done."""
    while old in (await cluster.view()).streams[0].replicas:
        try:
            async with await connect_admin(
                cluster.transport, cluster.environment, "mr:7100", timeout_s=5.0
            ) as admin:
                await admin.replace_replica(1, old)
        except VarlogError:
            await asyncio.sleep(0.5)
