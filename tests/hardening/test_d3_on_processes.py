"""D3 on real processes: the metadata are lost, and the cluster starts without.

A new topic is created and deleted. Before, log streams were numbered from 1 again, and the manager deleted the replicas
of the old cluster, the only copies.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from varlog import aio
from varlog.model.cluster import Ordering
from varlog.model.errors import StartupError, VarlogError
from varlog.testing.cluster_under_load import plan_for
from varlog.testing.harms.harmed_cluster import HarmedCluster, harmed_cluster, stored_data

pytestmark = pytest.mark.process

# What must not happen gets the time within which it happened before.
REMOVED_BEFORE_S = 6.0


@pytest.mark.faults
def test_a_new_topic_leaves_the_data_of_the_old_cluster_alone(tmp_path: Path) -> None:
    async def story() -> set[bytes]:
        async with harmed_cluster(
            plan_for(tmp_path, nodes=4, replicas=1, zombie_grace_s=1.0), [Ordering.COMMITTED]
        ) as cluster:
            await cluster.append(100)
            await cluster.wait_rows_synced()
            cluster.kill_all()
            shutil.rmtree(tmp_path / "vmr")
            await cluster.stop()
            try:
                await cluster.start()
                await make_and_delete(cluster, times=6)
            except StartupError as refused:
                print("refused:", refused)
            await asyncio.sleep(REMOVED_BEFORE_S)
            await cluster.stop()
            replicas = tmp_path.glob("vsn-*/cid=*/snid=*/lsid=*")
            return set(cluster.records["orders"].entries.values()).difference(*map(stored_data, replicas))

    missing = asyncio.run(story())
    assert not missing, f"of 100 acknowledged entries {len(missing)} are on no node any more"


async def make_and_delete(cluster: HarmedCluster, times: int) -> None:
    """Like an operator who tries repeatedly; each try may use up numbers of log streams."""
    async with aio.admin(cluster.address) as admin:
        for number in range(times):
            try:
                await admin.create_topic(f"new-{number}")
                await admin.delete_topic(f"new-{number}")
            except VarlogError as refused:
                print("refused:", refused)
