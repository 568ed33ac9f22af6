"""D2 on real processes: the repository starts with an older copy of its files.

Before, positions that were acknowledged since the copy were assigned to other entries, or the topic stopped permanently
while the status showed it as running.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from varlog.model.cluster import Ordering
from varlog.testing.cluster_under_load import plan_for, process_of
from varlog.testing.harms.harmed_cluster import (
    COMMITTED,
    HarmedCluster,
    HarmOutcome,
    HarmResult,
    harmed_cluster,
    result_after_restart,
    result_of,
)

pytestmark = pytest.mark.process

AWAY = "vsn-3"


async def with_an_older_copy(cluster: HarmedCluster) -> None:
    """Killed, and the repository's files are those of an earlier time, when fewer entries were ordered."""
    await cluster.append(30)
    copy = cluster.copy("older", "vmr")
    await cluster.append(30)
    await cluster.wait_rows_synced()
    cluster.kill_all()
    cluster.restore(copy, "vmr")


def test_an_older_copy_assigns_no_position_again(tmp_path: Path) -> None:
    """Every node is up, and all of them agree: the newest cuts are adopted from them."""

    async def story() -> HarmResult:
        async with harmed_cluster(plan_for(tmp_path, replicas=3), [Ordering.COMMITTED]) as cluster:
            await with_an_older_copy(cluster)
            return await result_after_restart(cluster, heals=True)

    found = asyncio.run(story())
    assert found.outcome is HarmOutcome.HEALED, found


@pytest.mark.faults
def test_nodes_that_start_late_are_waited_for(tmp_path: Path) -> None:
    """Two log streams without a common node: only the nodes that start last know what was ordered since the copy.
    Before, the other log stream was assigned their positions, acknowledged."""

    async def story() -> HarmResult:
        plan = plan_for(tmp_path, nodes=4, replicas=2)
        async with harmed_cluster(plan, [Ordering.COMMITTED]) as cluster:
            await cluster.append(10)
            idle, busy = (await cluster.status()).view.streams
            assert not {*idle.replicas} & {*busy.replicas}
            copy = cluster.copy("older", "vmr")
            await cluster.append_to(busy.log_stream, 20)
            await cluster.wait_rows_synced()
            cluster.kill_all()
            cluster.restore(copy, "vmr")
            late = [process_of(node) for node in busy.replicas]
            await cluster.restart(*(name for name in cluster.names() if name not in late))
            await cluster.wait_status(
                lambda seen: any(topic.missed == tuple(sorted(busy.replicas)) for topic in seen.view.topics)
            )
            assert await cluster.try_append(1), "a position was given without the nodes that know the order"
            await cluster.restart(*late)
            return await result_of(cluster, cluster.log_sizes(), heals=True)

    found = asyncio.run(story())
    assert found.outcome is HarmOutcome.HEALED, found


def test_a_topic_that_cannot_decide_is_stopped_and_an_operator_adopts_the_order(tmp_path: Path) -> None:
    """A node that may know more is away: the status shows it with the remedy. A dry run changes nothing."""

    async def story() -> HarmResult:
        async with harmed_cluster(plan_for(tmp_path, replicas=3), [Ordering.COMMITTED]) as cluster:
            await with_an_older_copy(cluster)
            await cluster.restart(*(name for name in cluster.names() if name != AWAY))
            await cluster.wait_status(lambda seen: any(topic.stopped for topic in seen.view.topics))
            shown = cluster.varlog("status", "--cluster", cluster.address).stdout
            assert "STOPPED" in shown and "adopt-order" in shown, shown
            dry = cluster.varlog("topic", "adopt-order", COMMITTED, "--cluster", cluster.address)
            assert dry.returncode == 0, dry.stdout + dry.stderr
            assert await cluster.try_append(1), "a dry run started the topic"
            done = cluster.varlog("topic", "adopt-order", COMMITTED, "--cluster", cluster.address, "--yes")
            assert done.returncode == 0, done.stdout + done.stderr
            await cluster.restart(AWAY)
            return await result_of(cluster, cluster.log_sizes(), heals=True)

    found = asyncio.run(story())
    assert found.outcome is HarmOutcome.HEALED, found
