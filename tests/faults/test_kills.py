"""kill -9 under load: of each process, of several, of all, of a client.

Nothing is lost or duplicated, and no operator is needed.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from tests.faults.helpers import check_story, first_stream, kill_and_wait
from varlog.testing.cluster_under_load import ClusterUnderLoad, process_of

pytestmark = pytest.mark.process


def test_each_process_is_killed_in_turn(tmp_path: Path) -> None:
    """R-FAIL-1: a primary, a backup, the repository, the manager."""

    async def story(cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        for name in (*map(process_of, stream.replicas), "vmr", "vmc"):
            await kill_and_wait(cluster, [name])

    check_story(tmp_path, story)


def test_everything_is_killed_at_once(tmp_path: Path) -> None:
    """Like a power cut of all processes; only what was synced to the disks is left."""

    async def story(cluster: ClusterUnderLoad) -> None:
        await kill_and_wait(cluster, list(cluster.supervisor.pids()))

    check_story(tmp_path, story, replicas=3)


def test_a_cluster_that_is_stopped_and_started_under_load_has_everything(tmp_path: Path) -> None:
    """SIGTERM to every process, in order, while clients append: the most orderly end, which must lose nothing
    either."""

    async def story(cluster: ClusterUnderLoad) -> None:
        await cluster.supervisor.stop()
        await cluster.start()

    check_story(tmp_path, story)


@pytest.mark.faults
@pytest.mark.parametrize("victims", [("vsn-1", "vsn-2"), ("vmr", "vmc"), ("vmr", "vsn-1"), ("vmc", "vsn-2")])
def test_two_are_killed_at_once(victims: tuple[str, str], tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        for _ in range(2):
            await kill_and_wait(cluster, victims)

    check_story(tmp_path, story, replicas=3)


@pytest.mark.faults
def test_the_next_is_killed_before_the_cluster_has_healed(tmp_path: Path) -> None:
    """Whatever step the repair was at, it continues from the state that it finds."""

    async def story(cluster: ClusterUnderLoad) -> None:
        names = ("vsn-1", "vmc", "vsn-2", "vmr", "vsn-3")
        for pair in combinations(names, 2):
            for name in pair:
                restarts = cluster.supervisor.restarts()[name]
                cluster.supervisor.kill(name)
                await cluster.supervisor.wait_restarted(name, restarts + 1)

    check_story(tmp_path, story, replicas=3)


@pytest.mark.faults
def test_trims_hold_over_kills(tmp_path: Path) -> None:
    """Law 9: what was trimmed stays trimmed, also on a node that was away."""

    async def story(cluster: ClusterUnderLoad) -> None:
        for name in ("vsn-1", "vmr", "vsn-2"):
            await kill_and_wait(cluster, [name])

    check_story(tmp_path, story, trims=True)


@pytest.mark.faults
def test_a_killed_client_leaves_whole_appends_or_none(tmp_path: Path) -> None:
    """R-ORD-5, law 10: it never learnt the outcome of its last appends; each is in the log once, complete, or not at
    all."""

    async def story(cluster: ClusterUnderLoad) -> None:
        cluster.clients[0].kill()
        await kill_and_wait(cluster, ["vsn-1"])
        cluster.clients[1].kill()
        cluster.start_clients(2)
        await cluster.wait_acknowledged(200)

    check_story(tmp_path, story)
