"""D2b on real processes: nodes that know a newer order are kept.

The repository and one storage node forgot entries that the two other nodes hold, synced and ordered. Before, the
manager rebuilt these two from the node without the entries, and deleted what they had, seconds after the start.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from varlog.model.cluster import Ordering
from varlog.testing.cluster_under_load import plan_for
from varlog.testing.harms.harmed_cluster import HarmedCluster, harmed_cluster, stored_data

pytestmark = pytest.mark.process

# What must not happen gets the time within which it happened before.
REBUILT_BEFORE_S = 8.0


def test_nodes_that_know_a_newer_order_are_neither_cut_nor_rebuilt(tmp_path: Path) -> None:
    async def story() -> dict[str, set[bytes]]:
        plan = plan_for(tmp_path, replicas=3, replace_after_s=2.0)
        async with harmed_cluster(plan, [Ordering.COMMITTED]) as cluster:
            await cluster.append(30)
            await cluster.wait_rows_synced()
            copy = cluster.copy("older", "vmr", "vsn-3")
            await cluster.append(30)
            await cluster.wait_rows_synced()
            cluster.kill_all()
            cluster.restore(copy, "vmr", "vsn-3")
            await cluster.stop()
            await cluster.start()
            await asyncio.sleep(REBUILT_BEFORE_S)
            await cluster.stop()
            return {node: stored_on(cluster, node) for node in ("vsn-1", "vsn-2")}

    def stored_on(cluster: HarmedCluster, node: str) -> set[bytes]:
        missing = set(cluster.records["orders"].entries.values())
        for replica in (cluster.plan.data / node).glob("cid=*/snid=*/lsid=*"):
            missing -= stored_data(replica)
        return missing

    missing = asyncio.run(story())
    assert not any(missing.values()), f"entries that were synced and ordered are gone: {missing}"
