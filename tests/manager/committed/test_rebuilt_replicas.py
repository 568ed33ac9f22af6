"""Replicas that are rebuilt in a whole cluster: what was trimmed stays trimmed, what moved is filled, at any size."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.manager.sim_cluster import SimCluster
from varlog.client.connect import connect_admin
from varlog.model.cluster import StreamState
from varlog.testing.sim.core.loop import run_simulated


def test_a_rebuilt_replica_knows_what_was_trimmed_before_it_was_created() -> None:
    """R-TRIM-1, law 9: also where nothing has to be copied, because its stream is empty."""

    async def story() -> None:
        cluster = SimCluster(nodes=3)
        cluster.start()
        async with await connect_admin(
            cluster.transport, cluster.environment, "mr:7100", timeout_s=30.0
        ) as admin:
            await admin.create_topic("orders", streams=2)
        log = await cluster.log()
        written = [await log.append(b"x", log_stream=1) for _ in range(5)]
        await log.trim(written[2].glsn)
        cluster.manager.crash()
        cluster.lose_directory(2)
        await asyncio.sleep(5.0)  # the repository has sent the trim to the node before the replicas exist
        cluster.start_manager()
        await cluster.wait_whole(streams=2)
        statuses = await cluster.statuses()
        for status in statuses.values():
            assert [replica.low_watermark for replica in status.replicas] == [3, 3], status
        found = [entry.data async for entry in log.subscribe(written[3].glsn, end=written[4].glsn + 1)]
        assert found == [b"x", b"x"]
        await log.close()

    run_simulated(story())


def test_a_hung_node_is_found_within_a_second_and_holds_nobody_up() -> None:
    """R-SEAL-2: with the defaults. The others' replicas are sealed in a moment, though the hung one answers nothing."""

    async def story() -> None:
        cluster = SimCluster()
        cluster.network.slow = 0.0
        for host in cluster.nodes.values():
            host.delay = lambda rng: 0.001  # a disk that hangs is another story
        cluster.start()
        log = await cluster.log(create=True)
        await log.append(b"first")
        stream = (await cluster.view()).streams[0]
        cluster.network.cut_off(f"sn{stream.replicas[1]}", "", until=1e9)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while (await cluster.view()).streams[0].state is not StreamState.SEALED:
            await asyncio.sleep(0.01)
        assert loop.time() - begun < 1.1
        sealed = loop.time()
        others = [f"sn{node}:7110" for node in stream.replicas if node != stream.replicas[1]]
        while not await cluster.all_sealed(others):
            await asyncio.sleep(0.005)
        assert loop.time() - sealed < 0.05
        await log.close()

    run_simulated(story())


@pytest.mark.parametrize(("grace_s", "kept"), [(10.0, []), (math.inf, [1])])
def test_what_left_a_stream_is_kept_for_the_grace_time_also_forever(grace_s: float, kept: list[int]) -> None:
    """R-REG-5: the data of a replica that was replaced, on a node that came back."""

    async def story() -> None:
        cluster = SimCluster(zombie_grace_s=grace_s)
        cluster.start()
        log = await cluster.log(create=True)
        await log.append(b"entry")
        old = (await cluster.view()).streams[0].replicas[-1]
        cluster.nodes[old].crash()
        while old in (await cluster.view()).streams[0].replicas:
            await asyncio.sleep(1.0)
        await log.append(b"without it")
        cluster.nodes[old].boot()
        await asyncio.sleep(120.0)
        status = (await cluster.statuses())[old]
        assert [replica.log_stream for replica in status.replicas] == kept
        await log.close()

    run_simulated(story())
