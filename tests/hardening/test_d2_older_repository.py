"""D2: a repository restored from an older copy.

It acknowledged a second entry at a used position; then the topic hung, shown as running. Now every topic whose order a
node knows better is stopped first, is shown, and continues when its order is adopted from the nodes.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.hardening.witness_cluster import RewoundCluster
from tests.manager.sim_cluster import REPOSITORY
from varlog.client.admin import Admin
from varlog.metarepo.recovery import witnesses
from varlog.model.cluster import LogStream
from varlog.model.errors import OutcomeUnknown, PreconditionFailed, TopicStopped, Unavailable
from varlog.model.events import EventKind
from varlog.model.ids import LogStreamID
from varlog.rpc import messages as m
from varlog.testing.sim.core.loop import run_simulated


@pytest.fixture(autouse=True)
def _by_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the copy were older than what is adopted automatically."""
    monkeypatch.setattr(witnesses, "CUTS_ADOPTED_MAX", 0)


def test_d2_a_restored_repository_orders_nothing_reports_it_and_adopts_the_order_from_the_nodes() -> None:
    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        appended = {(await log.append(b"%d" % number)).glsn: b"%d" % number for number in range(5)}
        old = cluster.copy()
        appended |= {(await log.append(b"new %d" % number)).glsn: b"new %d" % number for number in range(5)}
        await asyncio.sleep(1.0)
        epochs = [stream.epoch for stream in (await cluster.view()).streams]
        cluster.restore(old)
        await cluster.until(cluster.is_stopped)
        topic = await cluster.topic()
        assert "knows positions up to 10, the repository up to 5" in topic.stopped

        # Appends fail soon, with the reason; nothing is sealed, trimmed or deleted.
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises((TopicStopped, OutcomeUnknown), match="adopt-order"):
            await log.append(b"no")
        assert loop.time() - begun < 10.0
        with pytest.raises(PreconditionFailed, match="STOPPED"):
            await cluster.ask(REPOSITORY, m.SealStream(LogStreamID(1)))
        with pytest.raises(PreconditionFailed, match="STOPPED"):
            await log.trim(2)
        async with await cluster.admin() as admin:
            with pytest.raises(PreconditionFailed, match="STOPPED"):
                await admin.delete_topic("orders")
            await asyncio.sleep(20.0)  # the manager leaves everything as it is, and shows why
            assert [stream.epoch for stream in (await cluster.view()).streams] == epochs
            seen = await admin.status()
            assert any(wait.kind is EventKind.TOPIC_STOPPED for wait in seen.waits)

            # A restart of the repository does not undo it, not even with every witness away.
            for host in cluster.nodes.values():
                host.crash()
            cluster.repository.crash()
            cluster.repository.boot()
            await cluster.until(cluster.is_stopped)
            for host in cluster.nodes.values():
                host.boot()

            # The operator looks, and decides.
            async def reported() -> bool:
                shown = await admin.adopt_order("orders")
                return not shown.silent and shown.end == 11

            await cluster.until(reported)
            shown = await admin.adopt_order("orders")
            assert not shown.adopted and not shown.missing and not shown.conflicts
            assert (shown.begin, shown.end) == (6, 11)
            assert await cluster.is_stopped()
            done = await admin.adopt_order("orders", dry_run=False)
            assert done.adopted
        await cluster.until(cluster.runs)
        after = await log.append(b"after")
        assert after.glsn == 11
        for glsn, data in appended.items():
            assert (await log.read(glsn)).data == data
        await log.close()

    run_simulated(story())


def test_d2_a_copy_from_before_a_seal_continues_in_a_newer_epoch() -> None:
    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        await log.append(b"first")
        old = cluster.copy()
        async with await cluster.admin() as admin:
            await admin.seal_stream(1)
            await admin.unseal_stream(1)
            newest = await log.append(b"second")
            epoch = (await cluster.view()).streams[0].epoch
            await asyncio.sleep(1.0)
            cluster.restore(old)
            await cluster.until(cluster.is_stopped)
            await cluster.adopt_order()
        await cluster.until(cluster.runs)
        assert (await cluster.view()).streams[0].epoch > epoch
        assert (await log.append(b"third")).glsn == newest.glsn + 1
        assert (await log.read(newest.glsn)).data == b"second"
        await log.close()

    run_simulated(story())


def test_d2_positions_that_no_node_holds_are_reported_missing_and_nothing_is_changed() -> None:
    async def story() -> None:
        cluster = RewoundCluster(nodes=2, replicas=1)
        cluster.start()
        log, first, second = await cluster.two_streams()
        old = cluster.copy()
        async with await cluster.admin() as admin:
            gone = await log.append(b"only node 1 has it", log_stream=first)
            last = await log.append(b"node 2", log_stream=second)
            await asyncio.sleep(1.0)
            cluster.nodes[1].crash()
            cluster.restore(old)
            await cluster.until(cluster.is_stopped)
            shown = await admin.adopt_order("orders", dry_run=False)
            assert not shown.adopted
            assert shown.missing == ((gone.glsn, gone.glsn + 1),)
            assert shown.silent == (1,)
            assert await cluster.is_stopped()
            # With the node that holds it everything is present.
            cluster.nodes[1].boot()
            await cluster.adopt_order()
        await cluster.until(cluster.runs)
        assert (await log.append(b"on")).glsn == last.glsn + 1
        await log.close()

    run_simulated(story())


def test_d2_a_witness_that_comes_late_stops_the_topic_and_is_never_cut_or_removed() -> None:
    """Two of three replicas lost the newest entries with the repository; the third was away in the meantime."""

    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        await log.append(b"first")
        old = cluster.copy()
        newest = [await log.append(b"new %d" % number) for number in range(4)]
        await asyncio.sleep(1.0)
        cluster.nodes[3].crash()
        for number in (1, 2):
            cluster.nodes[number].crash()
            cluster.nodes[number].wipe(cluster.nodes[number].replica_paths()[0].parent)
        cluster.restore(old)
        await asyncio.sleep(10.0)
        cluster.nodes[3].boot()
        await cluster.until(cluster.is_stopped)
        await asyncio.sleep(60.0)
        (witness,) = [found for found in await cluster.all_replicas() if found.committed_end > 2]
        assert witness.high_watermark == newest[-1].glsn
        await log.close()

    run_simulated(story())


async def apart(cluster: RewoundCluster, admin: Admin) -> tuple[LogStream, LogStream]:
    """Two log streams of one topic without a common node."""

    async def registered() -> bool:
        return len((await cluster.view()).nodes) == 4

    await cluster.until(registered)
    await admin.create_topic("orders", streams=2)
    await cluster.until(cluster.runs)
    one, two = (await cluster.view()).streams
    assert not {*one.replicas} & {*two.replicas}
    return one, two


def test_d2_nodes_that_alone_know_a_log_stream_are_waited_for_also_after_the_grace_time() -> None:
    """Two log streams without a common node: only the nodes that start last know what was ordered since the copy.
    Before, their positions were assigned to the other log stream."""

    async def story() -> None:
        cluster = RewoundCluster(nodes=4, replicas=2)
        cluster.start()
        async with await cluster.admin() as admin:
            idle, busy = await apart(cluster, admin)
            log = await cluster.log()
            appended = {(await log.append(b"a", log_stream=idle.log_stream)).glsn: b"a"}
            old = cluster.copy()
            for number in range(20):
                data = b"b %d" % number
                appended[(await log.append(data, log_stream=busy.log_stream)).glsn] = data
            await asyncio.sleep(1.0)
            for host in cluster.nodes.values():
                host.crash()
            for node in idle.replicas:  # what they knew of the other log stream was in memory only
                cluster.nodes[node].boot()
            cluster.restore(old)
            await cluster.until(cluster.is_stopped)
            topic = await cluster.topic()
            assert topic.missed == tuple(sorted(busy.replicas))
            assert f"no replica of log stream {busy.log_stream} was reached" in topic.stopped
            assert f"start node {' or '.join(map(str, topic.missed))}" in topic.stopped
            with pytest.raises((TopicStopped, OutcomeUnknown), match="adopt-order"):
                await log.append(b"no", log_stream=idle.log_stream)
            with pytest.raises(Unavailable, match="not known"):
                await cluster.tail()
            shown = await admin.adopt_order("orders")
            assert shown.silent == topic.missed and not shown.adopted
            assert any(wait.kind is EventKind.TOPIC_STOPPED for wait in (await admin.status()).waits)

            # A restart of the repository changes nothing.
            cluster.repository.crash()
            cluster.repository.boot()
            await asyncio.sleep(10.0)
            assert (await cluster.topic()).missed == topic.missed

            # One of them is enough to contradict: it knows everything.
            cluster.nodes[busy.replicas[0]].boot()

            async def contradicted() -> bool:
                return "knows positions up to 21" in (await cluster.topic()).stopped

            await cluster.until(contradicted)
            assert not (await cluster.topic()).missed
            cluster.nodes[busy.replicas[1]].boot()
            await cluster.adopt_order()
        await cluster.until(cluster.runs)
        assert (await log.append(b"after")).glsn == 22
        for glsn, data in appended.items():
            assert (await log.read(glsn)).data == data
        await log.close()

    run_simulated(story())


def test_d2_the_tail_of_a_stopped_topic_is_not_answered_before_every_node_has_reported() -> None:
    """The nodes of one log stream contradict, the others, which know newer positions, are away. Before, the newest
    position of the reporting nodes was answered as the tail, and a read of a newer, acknowledged entry returned "not
    written"."""

    async def story() -> None:
        cluster = RewoundCluster(nodes=4, replicas=2)
        cluster.start()
        async with await cluster.admin() as admin:
            some, newest = await apart(cluster, admin)
            log = await cluster.log()
            await log.append(b"a", log_stream=some.log_stream)
            old = cluster.copy()
            await log.append(b"b", log_stream=some.log_stream)
            await log.append(b"c", log_stream=newest.log_stream)
            await asyncio.sleep(1.0)
            for host in cluster.nodes.values():
                host.crash()
            for node in some.replicas:
                cluster.nodes[node].boot()
            cluster.restore(old)
            await cluster.until(cluster.is_stopped)
            topic = await cluster.topic()
            assert "knows positions up to 2" in topic.stopped and not topic.missed
            await asyncio.sleep(10.0)  # the grace time is over
            with pytest.raises(Unavailable, match="not known"):
                await cluster.tail()
            with pytest.raises(Unavailable):
                await log.read(3, timeout_s=2.0)
            for node in newest.replicas:
                cluster.nodes[node].boot()

            async def answered() -> bool:
                try:
                    return (await cluster.tail()) == 3
                except Unavailable:
                    return False

            await cluster.until(answered)
            assert (await log.read(3)).data == b"c"
        await log.close()

    run_simulated(story())


def test_d2_one_node_of_each_log_stream_is_enough_and_an_operator_may_continue_without_them() -> None:
    async def story() -> None:
        cluster = RewoundCluster(nodes=4, replicas=2)
        cluster.start()
        async with await cluster.admin() as admin:
            idle, busy = await apart(cluster, admin)
            log = await cluster.log()
            first = await log.append(b"a", log_stream=idle.log_stream)
            for node in busy.replicas:
                cluster.nodes[node].crash()

            def restart() -> None:
                cluster.repository.crash()
                cluster.repository.boot()

            # Nothing was lost: a node that comes back reports that, and the topic continues automatically.
            restart()
            await cluster.until(cluster.is_stopped)
            cluster.nodes[busy.replicas[0]].boot()

            async def continues() -> bool:
                return not await cluster.is_stopped()

            await cluster.until(continues)
            assert (await log.append(b"b", log_stream=idle.log_stream)).glsn == first.glsn + 1

            # None comes back: an operator decides.
            cluster.nodes[busy.replicas[0]].crash()
            restart()
            await cluster.until(cluster.is_stopped)
            done = await admin.adopt_order("orders", dry_run=False)
            assert done.adopted and done.silent == tuple(sorted(busy.replicas))
            await cluster.until(continues)
            assert (await log.append(b"c", log_stream=idle.log_stream)).glsn == first.glsn + 2
        await log.close()

    run_simulated(story())
