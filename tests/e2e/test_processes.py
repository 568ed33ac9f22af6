"""Real processes under load: kill -9 and SIGSTOP of each kind, and of all; nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from varlog import aio
from varlog.cli.demo import judge
from varlog.model.entry import Entry
from varlog.testing.processes import TOPIC, ProcessCluster, process_cluster

pytestmark = pytest.mark.process

Story = Callable[[ProcessCluster], Awaitable[None]]


def run(directory: Path, story: Story, *, replicas: int = 3) -> None:
    async def whole() -> None:
        async with process_cluster(directory, replicas=replicas) as cluster:
            await cluster.start_clients()
            await cluster.wait_acknowledged(100)
            await story(cluster)
            await cluster.stop_clients()
            await check(cluster)

    asyncio.run(whole())


async def check(cluster: ProcessCluster) -> None:
    """Laws 3, 4, 10 and R-READ-3: what was acknowledged is there, once, at its place, without gaps, in
    order."""
    entries: list[Entry] = []
    followed: list[bytes] = []
    async with aio.connect(cluster.address, TOPIC) as log:
        newest = await log.tail()
        async for part in log.subscribe_lists(1, newest + 1):
            entries += part
        async for entry in log.subscribe(1, newest + 1):
            followed.append(entry.data)
    verdicts = judge(cluster.history, entries, newest, followed)
    assert [violation for verdict in verdicts for violation in verdict.violations] == []


@pytest.mark.parametrize("victim", ["vmr", "vmc", "vsn-1", "vsn-2"])
def test_a_process_killed_under_load_comes_back_and_nothing_is_lost(victim: str, tmp_path: Path) -> None:
    """R-FAIL-1: repository, manager, the primary of one stream and of the other."""

    async def story(cluster: ProcessCluster) -> None:
        for times in (1, 2):
            cluster.supervisor.kill(victim)
            await cluster.supervisor.wait_restarted(victim, times)
            await cluster.wait_healed()
            await cluster.wait_acknowledged(100)

    run(tmp_path, story)


def test_a_node_that_hangs_is_sealed_out_and_taken_back(tmp_path: Path) -> None:
    """SIGSTOP: its connections stay open, and nothing answers. The other stream goes on meanwhile."""

    async def story(cluster: ProcessCluster) -> None:
        cluster.supervisor.signal("vsn-1", signal.SIGSTOP)
        await cluster.wait_acknowledged(100)
        cluster.supervisor.signal("vsn-1", signal.SIGCONT)
        await cluster.wait_healed()
        await cluster.wait_acknowledged(100)

    run(tmp_path, story, replicas=2)


def test_everything_killed_at_once_comes_back_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    async def story() -> None:
        async with process_cluster(tmp_path) as cluster:
            await cluster.start_clients()
            await cluster.wait_acknowledged(200)
            cluster.kill_all()
            await cluster.supervisor.stop()
            await cluster.start()
            await cluster.wait_acknowledged(50)
            await cluster.stop_clients()
            await check(cluster)

    asyncio.run(story())


def test_a_cluster_stopped_under_load_and_started_again_has_everything(tmp_path: Path) -> None:
    """SIGTERM to every process, in order, while clients append."""

    async def story() -> None:
        async with process_cluster(tmp_path) as cluster:
            await cluster.start_clients()
            await cluster.wait_acknowledged(200)
            await cluster.supervisor.stop()
            await cluster.start()
            await cluster.wait_acknowledged(50)
            await cluster.stop_clients()
            await check(cluster)

    asyncio.run(story())
