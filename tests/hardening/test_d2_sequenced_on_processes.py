"""D2 of a sequenced topic on real processes.

The repository gets a copy from before a new projection and a trim. Before, the topic was STOPPED, `adopt-order` refused
it, and the only remedies were a newer copy and `vmr recover`; a lost trim was not noticed, and trimmed positions
counted as readable.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from varlog.localcluster.wait import wait_until
from varlog.model.cluster import Ordering
from varlog.model.errors import Trimmed
from varlog.model.projection import Projection
from varlog.storage.view_copy import decode_view_copy
from varlog.testing.cluster_under_load import plan_for
from varlog.testing.harms.harmed_cluster import (
    SEQUENCED,
    HarmedCluster,
    HarmOutcome,
    HarmResult,
    harmed_cluster,
    result_of,
)
from varlog.testing.processes import PATIENCE_S

pytestmark = pytest.mark.process

LEFT_OUT, TRIMMED = 3, 10


async def projection(cluster: HarmedCluster) -> Projection:
    (found,) = (await cluster.status()).view.projections
    return found


def epochs_kept(cluster: HarmedCluster) -> list[int]:
    """The newest epoch of the projections in the nodes' copies of the view."""
    paths = cluster.plan.data.glob("vsn-*/cid=*/snid=*/view")
    copies = [decode_view_copy(path.read_bytes(), path).view for path in paths]
    return [found.epoch for copy in copies for found in copy.projections]


async def trimmed(cluster: HarmedCluster) -> list[str]:
    """The result of reading each trimmed position, where it is not Trimmed."""
    wrong = []
    async with cluster.log(SEQUENCED) as log:
        for glsn in range(1, TRIMMED + 1):
            try:
                wrong.append(f"position {glsn} holds {(await log.read(glsn)).data[:20]!r}")
            except Trimmed:
                continue
    return wrong


def test_d2_an_older_copy_of_the_repository_of_a_sequenced_topic(tmp_path: Path) -> None:
    async def story() -> HarmResult:
        async with harmed_cluster(plan_for(tmp_path, replicas=3), [Ordering.SEQUENCED]) as cluster:
            await cluster.append(30)
            before = await projection(cluster)
            copy = cluster.copy("older", "vmr")
            cluster.kill(f"vsn-{LEFT_OUT}")
            seen = await cluster.wait_status(
                lambda seen: all(LEFT_OUT not in chain.nodes for chain in seen.view.projections[0].chains)
            )
            await cluster.append(30)
            async with cluster.log(SEQUENCED) as log:
                await log.trim(TRIMMED)
            record = cluster.records[SEQUENCED]
            record.entries = {glsn: data for glsn, data in record.entries.items() if glsn > TRIMMED}
            newest = (await projection(cluster)).epoch
            assert newest >= seen.view.projections[0].epoch > before.epoch
            async with asyncio.timeout(PATIENCE_S):
                await wait_until(lambda: epochs_kept(cluster).count(newest) == 2)
            cluster.kill_all()
            cluster.restore(copy, "vmr")

            # Node 3 is of the old projection; node 2 comes later.
            late = "vsn-2"
            await cluster.restart(*(name for name in cluster.names() if name != late))
            await cluster.wait_status(lambda seen: any(topic.stopped for topic in seen.view.topics))
            where = ("--cluster", cluster.address)
            shown = cluster.varlog("status", *where)
            assert shown.returncode == 1 and f"STOPPED: topic {SEQUENCED}" in shown.stdout, shown.stdout
            assert f"knows of projection {newest}, the repository has projection" in shown.stdout
            assert await cluster.try_append(1), "an entry was taken in a topic that is stopped"

            dry = cluster.varlog("topic", "adopt-order", SEQUENCED, *where)
            assert dry.returncode == 0, dry.stdout + dry.stderr
            assert (
                f"node 1 keeps projection {newest}, the repository has projection {before.epoch}"
                in dry.stdout
            )
            assert f"positions up to {TRIMMED} are trimmed" in dry.stdout
            assert "NOT PROVEN: that there is no newer projection, without node 2" in dry.stdout
            assert "nothing was changed" in dry.stdout
            assert await cluster.try_append(1), "a dry run started the topic"

            await cluster.restart(late)
            await cluster.wait_status(lambda seen: all(health.alive for health in seen.nodes))
            async with asyncio.timeout(PATIENCE_S):
                await wait_until(
                    lambda: (
                        "NOT PROVEN" not in cluster.varlog("topic", "adopt-order", SEQUENCED, *where).stdout
                    )
                )
            done = cluster.varlog("topic", "adopt-order", SEQUENCED, "--yes", *where)
            assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr
            found = await result_of(cluster, cluster.log_sizes(), heals=True)
            assert await trimmed(cluster) == []
            return found

    found = asyncio.run(story())
    assert found.outcome is HarmOutcome.HEALED, found
