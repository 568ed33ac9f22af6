"""D4: a lost repository is rebuilt from the nodes (`vmr recover`).

Losing its one SQLite file meant losing the log, although every node held its batches and rows. Now what was
acknowledged is at its old position, and what is not proven is reported.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.manager.sim_cluster import SimCluster
from varlog import aio
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import ensure_topic
from varlog.metarepo import records
from varlog.metarepo.recovery.rebuild import NodeEvidence, rebuild
from varlog.metarepo.recovery.recover import Recovery, find_recovery, write_store
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.cluster import StreamState, changed
from varlog.model.errors import PreconditionFailed
from varlog.model.ids import ANY_CLUSTER, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN
from varlog.rpc import messages as m
from varlog.rpc.tcp import TcpTransport
from varlog.testing.cluster_under_load import plan_for
from varlog.testing.processes import PATIENCE_S, command
from varlog.testing.sim.core.loop import run_simulated

NODES = ["sn1:7110", "sn2:7110", "sn3:7110", "sn4:7110"]


async def _append(cluster: SimCluster, topic: str, begin: int, count: int) -> None:
    log = await cluster.log(topic, create=True)
    for number in range(begin, begin + count, 10):
        await log.append_batch([f"{topic} {one}".encode() for one in range(number, number + 10)])
    await log.close()


async def _check(cluster: SimCluster, topic: str, begin: int, end: int) -> None:
    log = await cluster.log(topic)
    found = [(entry.glsn, entry.data) async for entry in log.subscribe(begin, end=end)]
    assert found == [(number, f"{topic} {number}".encode()) for number in range(begin, end)]
    await log.close()


async def _without_repository(cluster: SimCluster) -> Recovery:
    """The repository and its store are gone; the nodes are asked."""
    await asyncio.sleep(3.0)  # virtual: the copies of the view are sent
    cluster.manager.crash()
    cluster.repository.crash()
    return await _sessions_over(cluster)


async def _sessions_over(cluster: SimCluster) -> Recovery:
    """Wait until every node has seen that the repository is gone."""
    async with asyncio.timeout(60.0):  # virtual
        while True:
            recovery = await find_recovery(cluster.transport, NODES)
            if not any(found.in_session for found in recovery.nodes):
                return recovery
            await asyncio.sleep(0.5)


async def _start_again(cluster: SimCluster, recovery: Recovery) -> None:
    cluster._metadata = MemoryMetadata()
    await write_store(recovery.rebuilt, MemoryStore(cluster._metadata))
    cluster.repository.boot()
    cluster.manager.boot()


def test_everything_acknowledged_is_at_its_old_position_after_a_recovery() -> None:
    async def story() -> None:
        cluster = SimCluster()
        cluster.start()
        for topic in ("orders", "bills"):
            await _append(cluster, topic, 1, 500)
        log = await cluster.log("orders")
        await log.trim(120)
        await log.close()
        before = await cluster.view()
        recovery = await _without_repository(cluster)
        rebuilt = recovery.rebuilt
        assert not rebuilt.stops, (rebuilt.problems, [found.problems for found in rebuilt.topics])
        assert rebuilt.members.view.uuid == before.uuid
        assert rebuilt.members.view.revision > before.revision
        await _start_again(cluster, recovery)
        await cluster.wait_whole(2)
        await _check(cluster, "orders", 121, 501)
        await _check(cluster, "bills", 1, 501)
        for topic in ("orders", "bills"):
            await _append(cluster, topic, 501, 50)
        await _check(cluster, "orders", 121, 551)
        await _append(cluster, "new", 1, 10)
        view = await cluster.view()
        assert view.streams[-1].log_stream > before.streams[-1].log_stream + 1
        assert not cluster.complaints

    run_simulated(story())


def test_nodes_that_were_restarted_without_a_repository_still_prove_everything() -> None:
    async def story() -> None:
        cluster = SimCluster()
        cluster.start()
        await _append(cluster, "orders", 1, 300)
        await asyncio.sleep(3.0)  # virtual: rows are synced
        cluster.manager.crash()
        cluster.repository.crash()
        for host in cluster.nodes.values():
            host.crash()
            host.boot()
        await asyncio.sleep(1.0)  # virtual: they have started
        recovery = await _sessions_over(cluster)
        assert not recovery.rebuilt.stops
        await _start_again(cluster, recovery)
        await cluster.wait_whole(1)
        await _check(cluster, "orders", 1, 301)

    run_simulated(story())


def test_a_node_that_does_not_answer_stops_the_recovery_unless_it_is_abandoned() -> None:
    async def story() -> None:
        cluster = SimCluster()
        cluster.start()
        await _append(cluster, "orders", 1, 100)
        await asyncio.sleep(3.0)
        cluster.manager.crash()
        cluster.repository.crash()
        lost = NodeID(1)
        cluster.nodes[1].crash()
        recovery = await _sessions_over(cluster)
        assert recovery.rebuilt.stops
        assert any("storage node 1 at" in problem for problem in recovery.rebuilt.problems)
        with pytest.raises(PreconditionFailed, match="not everything is proven"):
            await write_store(recovery.rebuilt, MemoryStore(MemoryMetadata()))
        given_up = await find_recovery(cluster.transport, NODES, lost=[lost])
        assert not given_up.rebuilt.stops
        await _start_again(cluster, given_up)
        await cluster.wait_whole(1)
        await _check(cluster, "orders", 1, 101)

    run_simulated(story())


def test_a_repository_that_runs_is_not_rebuilt() -> None:
    async def story() -> None:
        cluster = SimCluster()
        cluster.start()
        await _append(cluster, "orders", 1, 10)
        await asyncio.sleep(3.0)
        recovery = await find_recovery(cluster.transport, NODES)
        assert recovery.rebuilt.stops
        assert any("in session" in problem for problem in recovery.rebuilt.problems)

    run_simulated(story())


def _evidence() -> tuple[NodeEvidence, ...]:
    """What the nodes of a small cluster report when its repository is lost."""

    async def story() -> tuple[NodeEvidence, ...]:
        cluster = SimCluster()
        cluster.start()
        for topic in ("orders", "bills"):
            await _append(cluster, topic, 1, 100)
        return (await _without_repository(cluster)).nodes

    return run_simulated(story())


def test_rows_that_no_node_has_are_listed_and_only_that_topic_is_left_out() -> None:
    nodes = _evidence()
    view = nodes[0].copy
    assert view is not None
    (bills,) = [topic for topic in view.view.topics if topic.name == "bills"]
    (stream,) = view.view.streams_of(bills.topic)
    poor = [
        replace(
            found,
            rows={one: rows[1:] if one == stream.log_stream else rows for one, rows in found.rows.items()},
        )
        for found in nodes
    ]
    found = rebuild(poor)
    assert found.stops
    (harmed,) = [topic for topic in found.topics if topic.problems]
    assert harmed.topic.name == "bills"
    assert "no answering node knows where they are" in harmed.problems[0]
    without = rebuild(poor, leave_out=["bills"])
    assert not without.stops
    assert [topic.name for topic in without.members.view.topics] == ["orders"]
    # What is left out must not be removed.
    assert any(begin <= stream.log_stream < end for begin, end in without.members.foreign)


def test_rows_that_contradict_each_other_are_listed() -> None:
    nodes = _evidence()

    def moved(found: NodeEvidence) -> NodeEvidence:
        rows = {
            one: tuple(type(row)(row.version, row.high_watermark, row.previous_high_watermark, GLSN(row.glsn_begin + 1),
                                 row.llsn_begin, row.count, row.epoch) for row in reported)
            for one, reported in found.rows.items()
        }  # fmt: skip
        return replace(found, rows=rows)

    found = rebuild([moved(nodes[0]), *nodes[1:]])
    assert found.stops
    assert any("at position" in problem for topic in found.topics for problem in topic.problems)


def test_what_is_rebuilt_is_sealed_in_epochs_and_ids_above_all_that_were_seen() -> None:
    nodes = _evidence()
    found = rebuild(nodes)
    epochs = {replica.log_stream: replica.epoch for one in nodes for replica in one.status.replicas}
    for stream in found.members.view.streams:
        assert stream.state is StreamState.SEALED
        assert stream.epoch > epochs[stream.log_stream]
    assert found.members.terms_lost >= max(one.term for one in nodes)
    assert found.members.next_log_stream > max(epochs)
    items = records.items_of(found.members, found.base)
    assert records.members_of(items) == found.members
    assert records.base_of(items) == found.base


def test_a_stream_that_no_copy_of_the_view_knows_is_a_problem_and_never_a_zombie() -> None:
    nodes = list(_evidence())
    replica = nodes[0].status.replicas[0]
    newer = changed(replica, log_stream=LogStreamID(900), topic=TopicID(70))
    nodes[0] = replace(nodes[0], status=changed(nodes[0].status, replicas=(*nodes[0].status.replicas, newer)))
    found = rebuild(nodes)
    assert any("log stream 900 of topic 70" in problem for problem in found.problems)
    without = rebuild(nodes, leave_out=["70"])
    assert not without.stops
    assert any(begin <= 900 < end for begin, end in without.members.foreign)


def test_nodes_of_two_clusters_are_not_mixed() -> None:
    nodes = _evidence()
    other = changed(nodes[1].status, cluster_uuid="01234567-89ab-4cde-8f01-23456789abcd")
    found = rebuild([nodes[0], replace(nodes[1], status=other), *nodes[2:]])
    assert any("different clusters" in problem for problem in found.problems)


# --- real processes -----------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_cluster_whose_repository_is_deleted_comes_back_by_vmr_recover(tmp_path: Path) -> None:
    """Two orderings, trims, kill -9 of the repository, all its files gone; the nodes keep running."""

    async def body() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            supervisor = Supervisor(plan_for(tmp_path))
            await supervisor.start()
            try:
                await story(supervisor)
            finally:
                await supervisor.stop()

    async def story(supervisor: Supervisor) -> None:
        address, plan = supervisor.address, supervisor.plan
        await ensure_topic(plan, "any", say=lambda _: None)  # which waits until every node is up
        async with aio.admin(address, timeout_s=PATIENCE_S) as admin:
            await admin.create_topic("orders", streams=2)
            await admin.create_topic("bills", streams=2, ordering="sequenced")
        written: dict[str, dict[int, bytes]] = {}
        for topic in ("orders", "bills"):
            written[topic] = await fill(address, topic, 2_000)
        async with aio.connect(address, "orders", timeout_s=PATIENCE_S) as log:
            await log.trim(300)
        supervisor.signal("vmc", signal.SIGKILL)
        await copies_out(plan)
        supervisor.kill("vmr", restart=False)
        shutil.rmtree(tmp_path / "vmr")
        (tmp_path / "vmr").mkdir(mode=0o700)
        store, nodes = tmp_path / "vmr" / "metadata.db", ",".join(plan.node_addresses)
        dry = await vmr("recover", "--store", str(store), "--nodes", nodes)
        assert dry.returncode == 0, dry.stdout + dry.stderr
        assert "dry run" in dry.stdout and not store.exists()
        done = await vmr("recover", "--store", str(store), "--nodes", nodes, "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        again = await vmr("recover", "--store", str(store), "--nodes", nodes, "--yes")
        assert again.returncode == 1 and "exists" in again.stderr
        await supervisor.restart("vmr")
        for topic, entries in written.items():
            first = 301 if topic == "orders" else 1
            async with aio.connect(address, topic, timeout_s=PATIENCE_S) as log:
                assert (await log.append(b"after")).glsn > max(entries)
                read = {entry.glsn: entry.data async for entry in log.subscribe(first, end=max(entries) + 1)}
            assert read == {glsn: data for glsn, data in entries.items() if glsn >= first}

    async def fill(address: str, topic: str, count: int) -> dict[int, bytes]:
        entries: dict[int, bytes] = {}
        async with aio.connect(address, topic, timeout_s=PATIENCE_S) as log:
            for begin in range(0, count, 50):
                batch = [f"{topic} {number}".encode() for number in range(begin, begin + 50)]
                run_of = await log.append_batch(batch)
                entries.update((run_of[number].glsn, data) for number, data in enumerate(batch))
        return entries

    async def copies_out(plan: ClusterPlan) -> None:
        """Wait until every node keeps the newest view."""
        transport = TcpTransport(ANY_CLUSTER)
        connection = await transport.connect(plan.repository, timeout_s=PATIENCE_S)
        try:
            while True:
                seen, _ = await connection.call(m.GetView(), timeout_s=PATIENCE_S)
                assert isinstance(seen, m.GetViewReply)
                found = await find_recovery(transport, plan.node_addresses)
                copies = [one.copy.view.revision for one in found.nodes if one.copy is not None]
                if copies == [seen.view.revision] * len(plan.node_addresses):
                    return
                await asyncio.sleep(0.05)
        finally:
            connection.close()

    async def vmr(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command, "varlog.cli.serve", ["vmr", *arguments])

    asyncio.run(body())
