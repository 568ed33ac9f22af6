"""D1, D2: a repository whose journal lost its newest records.

It assigned acknowledged positions again, unnoticed: only the ends of single streams were compared. Now nodes report the
newest order they know of, and the repository adopts it first.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.hardening.witness_cluster import RewoundCluster
from varlog.model.errors import Rejected, Unavailable, VarlogError
from varlog.testing.sim.core.host import VOLUME
from varlog.testing.sim.core.loop import run_simulated


@pytest.mark.parametrize("restarted", [False, True], ids=["nodes run", "nodes restart as well"])
@pytest.mark.parametrize("older_copy", [False, True], ids=["d1 a journal lost them", "d2 an older copy"])
def test_positions_that_a_repository_forgot_are_adopted_from_the_nodes_and_never_reassigned(
    restarted: bool, older_copy: bool
) -> None:
    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        appended = {(await log.append(b"%d" % number)).glsn: b"%d" % number for number in range(9)}
        old = cluster.copy()
        appended |= {(await log.append(b"%d" % number)).glsn: b"%d" % number for number in range(9, 12)}
        await asyncio.sleep(1.0)  # the nodes have synced their rows
        if restarted:
            for host in cluster.nodes.values():
                host.crash()
        if older_copy:
            cluster.restore(old)
        else:
            cluster.lose_newest_cuts(3)
        if restarted:
            for host in cluster.nodes.values():
                host.boot()
        after = await log.append(b"after")
        assert after.glsn not in appended
        assert after.glsn == max(appended) + 1
        for glsn, data in appended.items():
            assert (await log.read(glsn)).data == data
        await cluster.until(cluster.runs)
        assert not await cluster.is_stopped()
        await log.close()

    run_simulated(story())


def test_d2_an_older_copy_assigns_no_position_of_one_log_stream_to_another() -> None:
    """The node that holds what was ordered since the copy starts late."""

    async def story() -> tuple[int, int]:
        cluster = RewoundCluster(nodes=2, replicas=1)
        cluster.start()
        log, busy, idle = await cluster.two_streams()
        await log.append(b"before the copy", log_stream=busy)
        old = cluster.copy()
        newest = [await log.append(b"behind it", log_stream=busy) for _ in range(3)][-1]
        await asyncio.sleep(1.0)
        cluster.nodes[1].crash()
        cluster.restore(old)
        appending = asyncio.ensure_future(log.append(b"other", log_stream=idle, timeout_s=30.0))
        await asyncio.sleep(10.0)
        cluster.nodes[1].boot()
        try:
            given = (await appending).glsn
        except VarlogError:  # refused or undecided; a later append shows how the topic continues
            await cluster.until(cluster.runs)
            given = (await log.append(b"another", log_stream=idle)).glsn
        await log.close()
        return newest.glsn, given

    newest, given = run_simulated(story())
    assert given > newest, f"position {given} is given again: {newest} were acknowledged"


def test_d1_a_node_is_a_witness_of_positions_in_streams_that_it_does_not_hold() -> None:
    """The node that holds the newest entries is permanently lost; another one knows how far the topic was."""

    async def story() -> None:
        cluster = RewoundCluster(nodes=2, replicas=1)
        cluster.start()
        log, lost, other = await cluster.two_streams()
        await log.append(b"known to both", log_stream=other)
        newest = await log.append(b"known to node 1", log_stream=lost)
        await asyncio.sleep(1.0)
        cluster.nodes[1].crash()
        cluster.lose_newest_cuts(1)
        await cluster.until(cluster.is_stopped)
        assert (await cluster.topic()).known == newest.glsn
        with pytest.raises(Unavailable, match="node 1 has not reported yet"):
            await cluster.tail()
        await log.close()

    run_simulated(story())


def test_d1_nothing_is_ordered_in_a_term_before_every_node_has_reported() -> None:
    """A node that is slow to open its session is waited for: it may be the only one that knows."""

    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        for number in range(5):
            await log.append(b"%d" % number)
        await asyncio.sleep(1.0)
        loop = asyncio.get_running_loop()
        # The usual restart: all nodes are up, and there is no grace time to wait for.
        cluster.repository.crash()
        cluster.repository.boot()
        begun = loop.time()
        await log.append(b"on")
        assert loop.time() - begun < 1.0
        # One is away: nothing is ordered for the grace time, and then it is.
        cluster.network.cut_off("sn3", "", until=loop.time() + 2.0)
        cluster.repository.crash()
        cluster.repository.boot()
        await log.append(b"on and on")
        await log.close()

    run_simulated(story())


@pytest.mark.parametrize("harm", ["damaged", "deleted"])
def test_d1_a_log_stream_without_any_replica_is_no_witness_and_nothing_is_assigned(harm: str) -> None:
    """All nodes have reported, and none can open its commit rows: no process knows of the newer positions any more."""

    from varlog.testing.sim.faults.harm import files_of

    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        for number in range(12):
            await log.append(b"%d" % number)
        await asyncio.sleep(1.0)  # the nodes have synced their rows
        for host in cluster.nodes.values():
            await host.stop()
            for path in [path for path in files_of(host, VOLUME) if path.name == "commits.log"]:
                if harm == "deleted":
                    host.drive.folder(path.parent).unlink(path.name)
                else:
                    host.drive.file(path).flip(40, 1)
        cluster.lose_newest_cuts(3)
        for host in cluster.nodes.values():
            host.boot()
        await cluster.until(cluster.is_stopped)
        await asyncio.sleep(20.0)  # all nodes are in session
        with pytest.raises(Rejected, match="is STOPPED"):
            await log.append(b"after")
        with pytest.raises(Unavailable):
            await log.tail(timeout_s=2.0)
        await log.close()

    run_simulated(story())


def test_d1_nothing_is_answered_or_assigned_while_a_damaged_replica_may_know_more() -> None:
    """All nodes have reported. One replica lost its newest rows like a torn write, the other one is damaged: no
    reporting replica knows the newest position."""
    from varlog.storage.committed.row_file import ROW_BYTES
    from varlog.testing.sim.faults.harm import files_of

    async def story() -> None:
        cluster = RewoundCluster(nodes=2, replicas=2)
        cluster.start()
        log = await cluster.log(create=True)
        for number in range(12):
            await log.append(b"%d" % number)
            await asyncio.sleep(0.5)  # one row each
        for host in cluster.nodes.values():
            await host.stop()
        for host, harm in zip(cluster.nodes.values(), ("torn", "damaged"), strict=True):
            for path in [path for path in files_of(host, VOLUME) if path.name == "commits.log"]:
                file = host.drive.file(path)
                if harm == "torn":
                    file.resize(len(file.content) - 3 * ROW_BYTES)  # two rows, and the mark behind them
                else:
                    file.flip(40, 1)
        cluster.lose_newest_cuts(6)
        for host in cluster.nodes.values():
            host.boot()
        await cluster.until(cluster.is_stopped)
        await asyncio.sleep(20.0)  # all nodes are in session
        with pytest.raises(Rejected, match="is STOPPED"):
            await log.append(b"after")
        with pytest.raises(Unavailable, match="the replica on node 2 has not reported yet"):
            await cluster.tail()
        async with await cluster.admin() as admin:
            assert (await admin.adopt_order("orders", dry_run=True)).silent == (2,)
        await log.close()

    run_simulated(story())
