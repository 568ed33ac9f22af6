"""SIGSTOP under load: a process that hangs.

Its connections stay open and nothing is answered; then it continues as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.faults.helpers import check_story, first_stream
from varlog.testing.cluster_under_load import ClusterUnderLoad, process_of

pytestmark = pytest.mark.process

# Longer than the timeouts of the heartbeat and of a client's append, and than any lease.
LONGER_THAN_EVERY_TIMEOUT_S = 12.0
SLOW_TURNS = 30


async def hang(cluster: ClusterUnderLoad, names: list[str], seconds: float) -> None:
    """The fault is the time that passes: there is no condition to wait for."""
    for name in names:
        cluster.supervisor.signal(name, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    for name in names:
        cluster.supervisor.signal(name, signal.SIGCONT)


def test_a_primary_that_hangs_is_sealed_out_and_readmitted(tmp_path: Path) -> None:
    """R-SEAL-2: found by the heartbeat; the other stream accepts the appends; what the paused primary had in flight is
    fenced (law 7)."""

    async def story(cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        sleeper = process_of(stream.primary)
        cluster.supervisor.signal(sleeper, signal.SIGSTOP)
        await cluster.wait_sealed(stream.log_stream)
        await cluster.wait_acknowledged(100)
        cluster.supervisor.signal(sleeper, signal.SIGCONT)

    check_story(tmp_path, story, nodes=4)


@pytest.mark.faults
@pytest.mark.parametrize("sleeper", ["primary", "backup", "vmr", "vmc"])
def test_one_hangs_for_longer_than_every_timeout(sleeper: str, tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        nodes = {"primary": process_of(stream.primary), "backup": process_of(stream.replicas[-1])}
        await hang(cluster, [nodes.get(sleeper, sleeper)], LONGER_THAN_EVERY_TIMEOUT_S)

    check_story(tmp_path, story)


@pytest.mark.faults
def test_all_hang_and_wake_together(tmp_path: Path) -> None:
    """A machine that was suspended: every timer is over at once, and no process is dead."""

    async def story(cluster: ClusterUnderLoad) -> None:
        await hang(cluster, list(cluster.supervisor.pids()), LONGER_THAN_EVERY_TIMEOUT_S)

    check_story(tmp_path, story)


@pytest.mark.faults
def test_a_node_that_hangs_is_killed_before_it_wakes(tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        sleeper = process_of(stream.primary)
        cluster.supervisor.signal(sleeper, signal.SIGSTOP)
        await cluster.wait_sealed(stream.log_stream)
        cluster.supervisor.kill(sleeper)
        await cluster.supervisor.wait_restarted(sleeper)

    check_story(tmp_path, story)


@pytest.mark.faults
def test_a_node_that_is_slow_all_the_time_leaves_other_streams_alone(tmp_path: Path) -> None:
    """It is paused for nine tenths of the time, never long enough to count as dead: appends continue on streams without
    it."""

    async def story(cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        slow = process_of(stream.primary)
        before = cluster.acknowledged()
        for _ in range(SLOW_TURNS):
            await hang(cluster, [slow], 0.27)
            await asyncio.sleep(0.03)
        assert cluster.acknowledged() - before > SLOW_TURNS, (
            "the streams without the slow node stopped with it"
        )

    check_story(tmp_path, story, nodes=4)
