"""O2 on real processes: a slow disk is shown and loses its primaries.

It does not slow down a stream that has nothing on it.
"""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import pytest

from tests.faults.helpers import first_stream
from varlog import aio
from varlog.client.cluster_status import slow_nodes
from varlog.localcluster.ports import free_ports
from varlog.model.cluster import Ordering
from varlog.model.ids import LogStreamID, NodeID
from varlog.testing.cluster_under_load import (
    WAIT_TIMEOUT_S,
    ClusterUnderLoad,
    process_of,
    run_story,
)
from varlog.testing.faulty_disk import SlowDiskPlan

# Ten times what the disks of a busy machine take for a sync, and more.
SLOW_S = 0.3
OTHER_TOPIC = "appended-by-one-client"
# Appended to it while one of its two streams has a slow disk, by this many appenders.
APPENDS, APPENDERS = 1_000, 16
# Slow and quick in alternation: how often, and how many appends are not counted after a change, because some wait for
# the disk.
ROUNDS, SETTLING = 3, 300
# The stream without the slow disk keeps this much of half of the topic's appends. It can accept all of them: about 1.8
# is seen.
KEPT_SHARE = 0.9


@pytest.mark.process
@pytest.mark.faults
def test_on_real_processes_a_slow_disk_is_shown_loses_its_primaries_and_delays_no_other_stream(
    tmp_path: Path,
) -> None:
    """Two streams that share no node. Batches in turn would give the slow one half of all appends, and leave the other
    one a fiftieth of its share."""
    nodes = 4
    plan = SlowDiskPlan(tmp_path, free_ports(nodes + 2), replicas=2, streams=2, heartbeat_s=0.1)

    async def story(cluster: ClusterUnderLoad) -> None:
        async with aio.admin(cluster.address, timeout_s=WAIT_TIMEOUT_S) as admin:
            await admin.create_topic(OTHER_TOPIC, streams=2, replicas=2)
            await cluster.wait_healed()
            slow = (await first_stream(cluster)).primary
            assert statistics.median(await shares_kept(slow, cluster, plan)) >= KEPT_SHARE
            before = {one.log_stream: one.replicas for one in await cluster.streams()}
            plan.slow_down(process_of(slow), SLOW_S)
            await cluster.wait_status(lambda seen: list(slow_nodes(seen)) == [slow])
            assert await share_of(slow, cluster) < 0.25
            await cluster.wait_status(
                lambda seen: all(stream.primary != slow for stream in seen.view.streams)
            )
            await cluster.wait_healed()
            after = {one.log_stream: one.replicas for one in await cluster.streams()}
            assert {one: set(nodes) for one, nodes in after.items()} == {
                one: set(nodes) for one, nodes in before.items()
            }
            assert await share_of(slow, cluster) < 0.25
            # Primaries do not move back automatically when the disk is quick again.
            plan.slow_down(process_of(slow), 0.0)
            await cluster.wait_status(lambda seen: not slow_nodes(seen))
            assert after == {one.log_stream: one.replicas for one in await cluster.streams()}
            await admin.delete_topic(OTHER_TOPIC)

    violations = asyncio.run(run_story(plan, story))
    assert not violations, "\n".join(violations)


@pytest.mark.process
@pytest.mark.faults
def test_on_real_processes_a_slow_disk_of_a_sequenced_topic_is_shown(tmp_path: Path) -> None:
    """Its chains have no primary to lose, and a position determines its chain: nothing is moved, and nothing is
    lost."""
    plan = SlowDiskPlan(tmp_path, free_ports(4 + 2), replicas=2, streams=2, heartbeat_s=0.1)

    async def story(cluster: ClusterUnderLoad) -> None:
        node = (await cluster.chain()).head
        plan.slow_down(process_of(node), SLOW_S)
        await cluster.wait_status(lambda seen: node in slow_nodes(seen))
        plan.slow_down(process_of(node), 0.0)
        await cluster.wait_status(lambda seen: not slow_nodes(seen))

    violations = asyncio.run(run_story(plan, story, ordering=Ordering.SEQUENCED))
    assert not violations, "\n".join(violations)


async def shares_kept(slow: NodeID, cluster: ClusterUnderLoad, plan: SlowDiskPlan) -> list[float]:
    """Appends to the stream without the slow node while that is slow, against half of those of the topic in the quick
    phases before and after: the machine affects neighbouring phases alike, so these are ratios and not speeds."""
    done: list[LogStreamID] = []
    loop = asyncio.get_running_loop()
    target, reached = 0, loop.create_future()

    async with (
        asyncio.timeout(WAIT_TIMEOUT_S),
        aio.connect(cluster.address, OTHER_TOPIC, timeout_s=60.0) as log,
        asyncio.TaskGroup() as tasks,
    ):
        (sound,) = [one.log_stream for one in log.streams if slow not in one.replicas]

        async def again() -> None:
            while True:
                done.append((await log.append(b"x")).log_stream)
                if len(done) >= target and not reached.done():
                    reached.set_result(None)

        async def wait_more(count: int) -> None:
            nonlocal target, reached
            target, reached = len(done) + count, loop.create_future()
            await reached

        appenders = [tasks.create_task(again(), name=f"append/{n}") for n in range(APPENDERS)]
        rates: list[tuple[float, float]] = []  # of the healthy stream, and of the topic
        for number in range(2 * ROUNDS + 1):
            plan.slow_down(process_of(slow), SLOW_S * (number % 2))
            await wait_more(SETTLING)
            began, counted = loop.time(), len(done)
            await wait_more(APPENDS)
            seconds, streams = loop.time() - began, done[counted:]
            rates.append((streams.count(sound) / seconds, len(streams) / seconds))
        for appender in appenders:
            appender.cancel()
    quick = [(rates[n - 1][1] + rates[n + 1][1]) / 2 for n in range(1, len(rates), 2)]
    return [rates[2 * n + 1][0] / (total / 2) for n, total in enumerate(quick)]


async def share_of(slow: NodeID, cluster: ClusterUnderLoad) -> float:
    """Of the appends that leave the choice to the client: how many went to the only stream with the slow node."""
    left, positions = iter(range(APPENDS)), []
    async with (
        asyncio.timeout(WAIT_TIMEOUT_S),
        aio.connect(cluster.address, OTHER_TOPIC, timeout_s=60.0) as log,
    ):

        async def again() -> None:
            for number in left:
                positions.append(await log.append(b"%d" % number))

        await asyncio.gather(*(again() for _ in range(APPENDERS)))
        (stream,) = [one.log_stream for one in log.streams if slow in one.replicas]
    return sum(position.log_stream == stream for position in positions) / len(positions)
