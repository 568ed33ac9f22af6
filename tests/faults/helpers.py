"""Runs fault stories and network cuts, and checks their histories.

The checkers are those of the simulator, applied to a history of real processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from varlog.model.cluster import LogStream, Ordering
from varlog.testing.cluster_under_load import (
    AFTER,
    BEFORE,
    ENTRY_BYTES_MAX,
    ClusterUnderLoad,
    Story,
    plan_for,
    run_story,
)
from varlog.testing.network.cuttable_cluster import ClusterFactory, CuttableCluster, on_available_network
from varlog.testing.network.cuttable_network import CuttableNetwork

# Makes a cut and returns; the cut lasts for as long as the test decides.
Cut = Callable[[CuttableNetwork, ClusterUnderLoad], Awaitable[None]]


def check_story(
    directory: Path,
    story: Story,
    *,
    nodes: int = 3,
    replicas: int = 2,
    ordering: Ordering = Ordering.COMMITTED,
    trims: bool = False,
    replicated: bool = False,
    replace_after_s: float = 30.0,
    entry_bytes_max: int = ENTRY_BYTES_MAX,
) -> None:
    """Two streams: with two replicas each on three nodes, every node has some primary or backup."""
    plan = plan_for(
        directory, nodes=nodes, replicas=replicas, replicated=replicated, replace_after_s=replace_after_s
    )
    violations = asyncio.run(
        run_story(plan, story, ordering=ordering, trims=trims, entry_bytes_max=entry_bytes_max)
    )
    assert not violations, "\n".join(violations)


def check_cut(
    directory: Path, cut: Cut, *, seconds: float = 0.0, factory: ClusterFactory = on_available_network
) -> None:
    violations = asyncio.run(_cut_and_healed(factory(directory), cut, seconds))
    assert not violations, "\n".join(violations)


async def _cut_and_healed(
    factory: AbstractAsyncContextManager[CuttableCluster], cut: Cut, seconds: float
) -> list[str]:
    async with factory as found:
        network, cluster = found.network, found.cluster
        cluster.start_clients()
        await cluster.wait_acknowledged(BEFORE)
        await cut(network, cluster)
        await asyncio.sleep(seconds)  # the fault is the time that passes: nothing is waited for here
        network.heal()
        await cluster.wait_healed()
        await cluster.wait_acknowledged(AFTER)
        return await cluster.judged()


async def kill_and_wait(cluster: ClusterUnderLoad, names: Sequence[str]) -> None:
    """Send kill -9 to all of these at once; the supervisor restarts them as `varlog up` does. Wait until everything
    runs again."""
    before = cluster.supervisor.restarts()
    for name in names:
        cluster.supervisor.kill(name)
    for name in names:
        await cluster.supervisor.wait_restarted(name, before[name] + 1)
    await cluster.wait_healed()
    await cluster.wait_acknowledged(100)


async def first_stream(cluster: ClusterUnderLoad) -> LogStream:
    return (await cluster.streams())[0]
