"""D3: a repository that lost its metadata deletes nothing of the old cluster.

It began with the same ids, and the manager deleted the only copy of another cluster's entries as zombies. In virtual
time, on real nodes, a real repository and a real manager.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.hardening.witness_cluster import ENTRIES, RewoundCluster, fill, read_all
from tests.manager.sim_cluster import REPOSITORY, SimCluster
from varlog.client.connect import connect_admin
from varlog.metarepo.store.memory import MemoryMetadata
from varlog.model.errors import VarlogError
from varlog.model.events import EventKind
from varlog.rpc import messages as m
from varlog.testing.sim.core.loop import run_simulated


def _kept(cluster: SimCluster) -> set[str]:
    return {f"{host.name}{path}" for host in cluster.nodes.values() for path in host.replica_paths()}


async def _make_and_delete(cluster: SimCluster) -> None:
    """What an operator does who believes in the new, empty cluster. All of it may be refused."""
    admin = await connect_admin(cluster.transport, cluster.environment, REPOSITORY, timeout_s=20.0)
    try:
        for name in ("new", "newer", "newest"):
            with suppress(VarlogError):
                await admin.create_topic(name, streams=1, replicas=1)
        for name in ("new", "newer", "newest"):
            with suppress(VarlogError):
                await admin.delete_topic(name)
    finally:
        await admin.close()


def test_a_repository_that_lost_its_metadata_deletes_nothing_of_the_old_cluster() -> None:
    async def story() -> None:
        cluster = RewoundCluster(nodes=2, replicas=1)
        cluster.start()
        for topic in ("orders", "bills"):
            await fill(cluster, topic)
        before = _kept(cluster)
        assert len(before) == 2
        with cluster.metadata_lost():
            await _make_and_delete(cluster)
            await asyncio.sleep(60.0)  # virtual: several times the grace time of zombies
            assert before <= _kept(cluster)
        await cluster.wait_whole(2)
        assert await read_all(cluster, "orders") == ENTRIES
        assert await read_all(cluster, "bills") == ENTRIES
        assert not cluster.complaints

    run_simulated(story())


def test_a_manager_that_outlives_the_metadata_reports_another_cluster() -> None:
    """Nodes that the repository does not know are not asked, and a manager registers them only when it starts."""

    async def story() -> None:
        cluster = RewoundCluster(nodes=2, replicas=1)
        cluster.start()
        await fill(cluster, "orders")
        cluster.repository.crash()
        cluster._metadata = MemoryMetadata()
        cluster.repository.boot()
        await asyncio.sleep(20.0)
        reply = await cluster.ask("mc:7101", m.GetClusterStatus())
        assert isinstance(reply, m.GetClusterStatusReply)
        status = reply.status
        assert sum(event.kind is EventKind.REPOSITORY_CHANGED for event in status.events) == 1
        assert not cluster.complaints

    run_simulated(story())
