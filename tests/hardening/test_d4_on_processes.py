"""D4 on real processes: a lost repository is rebuilt from the storage nodes.

Before, everything acknowledged was lost with the repository's one file, although every node held its entries and their
order.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from varlog.localcluster.wait import wait_until
from varlog.testing.cluster_under_load import plan_for
from varlog.testing.harms.harmed_cluster import (
    SEQUENCED,
    HarmOutcome,
    HarmResult,
    harmed_cluster,
    result_after_restart,
)
from varlog.testing.processes import PATIENCE_S, command

pytestmark = pytest.mark.process

NODES = 3


def every_node_knows_the_names(directory: Path) -> bool:
    copies = [path.read_bytes() for path in directory.glob("vsn-*/cid=*/snid=*/view")]
    return len(copies) == NODES and all(SEQUENCED.encode() in copy for copy in copies)


def test_a_lost_repository_is_rebuilt_from_the_nodes(tmp_path: Path) -> None:
    """Topics of both orderings; the nodes keep running, the repository and the manager do not."""

    async def story() -> HarmResult:
        async with harmed_cluster(plan_for(tmp_path, replicas=NODES)) as cluster:
            await cluster.append(60)
            await cluster.wait_rows_synced()
            # Names are in the copy of the view alone, and it comes to the nodes a moment after a change. If it never comes, that is
            # seen by what is lost.
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await wait_until(lambda: every_node_knows_the_names(tmp_path))
            cluster.kill("vmc", "vseq", "vmr")
            shutil.rmtree(tmp_path / "vmr")
            (tmp_path / "vmr").mkdir()
            nodes = ",".join(cluster.plan.node_addresses)
            recover = ("vmr", "recover", f"--store={tmp_path / 'vmr' / 'metadata.db'}", f"--nodes={nodes}")
            done = command("varlog.cli.serve", [*recover, "--yes"])
            print(done.returncode, done.stdout + done.stderr)
            return await result_after_restart(cluster, "vmr", "vseq", "vmc", heals=True)

    found = asyncio.run(story())
    assert found.outcome is HarmOutcome.HEALED, found
