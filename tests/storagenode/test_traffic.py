"""What storage nodes count of their traffic: acknowledged appends, and answered reads, of both orderings."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from varlog.client.cluster_status import held_by, node_statuses
from varlog.embedded import EmbeddedCluster
from varlog.model.status import Traffic
from varlog.runtime.environment import system_environment


@pytest.mark.parametrize("ordering", ["committed", "sequenced"])
def test_a_node_counts_what_it_acknowledged_and_what_it_served(ordering: str, tmp_path: Path) -> None:
    async def story() -> None:
        cluster = EmbeddedCluster(tmp_path, system_environment(synced=False), sync=False)
        await cluster.start()
        try:
            async with (
                await cluster.connect("orders", ordering=ordering) as log,
                await cluster.admin() as admin,
            ):
                assert await log.connector.wait_running()

                async def traffic() -> Traffic:
                    [status] = node_statuses(await admin.status()).values()
                    [held] = held_by(status)
                    return held.traffic

                assert await traffic() == Traffic()
                await log.append_batch([b"x" * 100] * 10)
                await log.append(b"y" * 100)
                after = await traffic()
                assert (after.appends, after.append_entries) == (2, 11)
                assert 1_100 < after.append_bytes < 1_600
                assert sum(after.append_buckets) == 2 and after.append_s > 0.0
                assert (after.reads, after.read_entries) == (0, 0)
                await log.read(11)
                async with aclosing(log.subscribe(1, end=12)) as entries:
                    assert len([entry async for entry in entries]) == 11
                after = await traffic()
                assert (after.appends, after.read_entries) == (2, 12)
                assert after.reads >= 2 and after.read_bytes > 1_200
        finally:
            await cluster.stop()

    async def run() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(run())
