"""D2 in sequenced topics: a restored repository lost projections and trims.

The topic was STOPPED with no remedy but a newer copy, or nothing was noticed: trimmed positions came back as holes, and
a node that started late, and alone knew the newest projection, was filled from a chain that had never had its entries.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.hardening.witness_cluster import RewoundCluster
from tests.manager.sequenced_cluster import SequencedCluster
from tests.manager.sim_cluster import REPOSITORY, TOPIC
from varlog.client.log import Log
from varlog.model.cluster import Ordering
from varlog.model.commit import OrderAdoption
from varlog.model.epoch import Epoch
from varlog.model.errors import OutcomeUnknown, PreconditionFailed, TopicStopped, Trimmed
from varlog.model.ids import NodeID
from varlog.rpc import messages as m
from varlog.testing.sim.core.loop import run_simulated


class RewoundSequencedCluster(RewoundCluster, SequencedCluster):
    """Both: chains and sequencers, and metadata that can go back in time."""

    async def log_of(self, streams: int = 1) -> Log:
        async with await self.admin() as admin:
            await admin.create_topic(TOPIC, streams=streams, ordering=Ordering.SEQUENCED, stripe_size=4)
        return await self.log()

    async def newest_copies(self, *nodes: int) -> None:
        """Wait until these nodes keep a copy of the present view."""
        revision = (await self.view()).revision

        async def kept() -> bool:
            known = [(await self._facts(node)) for node in nodes or self.nodes]
            return all(found == revision for found in known)

        await self.until(kept)

    async def _facts(self, node: int) -> int:
        from varlog.storagenode.node import StorageNodeServer

        service = self.nodes[node].service
        return service._view.revision if isinstance(service, StorageNodeServer) else 0

    async def adopt(self, *, dry_run: bool = False) -> OrderAdoption:
        async with await self.admin() as admin:
            return await admin.adopt_order(TOPIC, dry_run=dry_run)

    async def chain_without(self, node: int) -> None:
        """The manager makes the next projection without a node that is gone."""
        self.nodes[node].crash()

        async def left_out() -> bool:
            return all(node not in chain.nodes for chain in (await self.projection()).chains)

        await self.until(left_out)


async def appended(log: Log, *entries: bytes) -> dict[int, bytes]:
    return {(await log.append(entry)).glsn: entry for entry in entries}


@pytest.mark.parametrize("streams", [1, 2])
def test_d2_a_lost_projection_and_a_lost_trim_are_adopted_from_the_nodes(streams: int) -> None:
    async def story() -> None:
        cluster = RewoundSequencedCluster(nodes=3)
        cluster.start()
        log = await cluster.log_of(streams)
        entries = await appended(log, *(b"%d" % number for number in range(12)))
        old = cluster.copy()
        before = await cluster.projection()
        await cluster.chain_without(3)
        entries |= await appended(log, *(b"new %d" % number for number in range(12)))
        await log.trim(6)
        newest = await cluster.projection()
        assert newest.epoch > before.epoch
        await cluster.newest_copies(1, 2)
        cluster.restore(old)
        cluster.nodes[3].boot()  # of the old projection, and it knows nothing newer
        await cluster.until(cluster.is_stopped)
        topic = await cluster.topic()
        assert f"projection {newest.epoch}, the repository has projection {before.epoch}" in topic.stopped
        # A client that uses the newest projection may finish its operation; nothing else is accepted.
        async with await cluster.log() as another:
            with pytest.raises((TopicStopped, OutcomeUnknown), match="adopt-order"):
                await another.append(b"no")
        with pytest.raises(PreconditionFailed, match="STOPPED"):
            await log.trim(7)

        # A restart changes nothing, and members of the old projection serve no client in the meantime.
        cluster.repository.crash()
        cluster.repository.boot()
        await cluster.until(cluster.is_stopped)

        async def reported() -> bool:
            return not (await cluster.adopt(dry_run=True)).silent

        await cluster.until(reported)
        for chain in before.chains:
            unit = await cluster.unit(3, chain.log_stream)
            assert unit is None or unit.epoch >= newest.epoch
        shown = await cluster.adopt(dry_run=True)
        assert (shown.projection, shown.lost, shown.trimmed) == (newest.epoch, before.epoch, 6)
        assert shown.source in (1, 2) and not shown.needed and not shown.conflicts and not shown.adopted
        assert await cluster.is_stopped()
        done = await cluster.adopt()
        assert done.adopted and (await cluster.projection()).epoch >= newest.epoch
        assert (await cluster.topic()).trimmed == 6
        (after,) = await appended(log, b"after")
        assert after > max(entries)
        for glsn, data in entries.items():
            if glsn > 6:
                assert (await log.read(glsn)).data == data
            else:
                with pytest.raises(Trimmed):
                    await log.read(glsn)
        await cluster.wait_whole(streams)
        await log.close()

    run_simulated(story())


def test_d2_a_newer_copy_restored_later_is_followed_by_clients_that_saw_the_older_one() -> None:
    """The older one had two reasons to stop the topic, the newer one has one: its view counted as older than the
    previous one, and processes that had seen that ignored it until they were restarted."""

    async def story() -> None:
        cluster = RewoundSequencedCluster(nodes=3)
        cluster.start()
        log = await cluster.log_of()
        entries = await appended(log, b"first")
        old = cluster.copy()
        await cluster.chain_without(3)
        entries |= await appended(log, b"second")
        await cluster.newest_copies(1, 2)
        new = cluster.copy()
        # In a term that the nodes have seen, and with an older projection than they have received.
        cluster.restore(old, term=old.term - 1)

        async def both_informed() -> bool:
            return "the repository has projection" in (await cluster.topic()).stopped

        await cluster.until(both_informed)
        with pytest.raises((TopicStopped, OutcomeUnknown)):
            await log.append(b"no")
        seen = (await cluster.view()).revision
        cluster.restore(new, term=new.term)

        async def resumes() -> bool:
            return bool(await cluster.adopt()) and not await cluster.is_stopped()

        await cluster.until(resumes)
        assert (await cluster.view()).revision > seen
        cluster.nodes[3].boot()
        await cluster.wait_whole(1)
        entries |= await appended(log, b"third")
        for glsn, data in entries.items():
            assert (await log.read(glsn)).data == data
        await log.close()

    run_simulated(story())


def test_d2_a_trim_that_the_copy_does_not_have_stops_a_sequenced_topic() -> None:
    """It reached beyond the last entry: before, positions in it were assigned, and no node accepted an entry there."""

    async def story() -> None:
        cluster = RewoundSequencedCluster(nodes=3)
        cluster.start()
        log = await cluster.log_of(2)
        await appended(log, *(b"%d" % number for number in range(10)))
        old = cluster.copy()
        await log.trim(9)
        cluster.restore(old)
        await cluster.until(cluster.is_stopped)
        assert "up to 9 are trimmed, the repository up to 0" in (await cluster.topic()).stopped

        async def adopted() -> bool:
            return (await cluster.adopt()).adopted

        await cluster.until(adopted)
        assert (await cluster.topic()).trimmed == 9
        with pytest.raises(Trimmed):
            await log.read(9)
        assert [entry.data async for entry in log.subscribe(10, end=11)] == [b"9"]
        await log.append(b"after")
        await log.close()

    run_simulated(story())


def test_d2_a_trim_counts_while_its_units_are_sealed_for_a_projection_that_was_never_made() -> None:
    """Seed 6496: a reconfiguration had sealed the units with the next epoch when the repository went back. Their trim was
    left out as one of a newer projection, and no reader got past the positions that only the units knew to be trimmed."""

    async def story() -> None:
        cluster = RewoundSequencedCluster(nodes=3)
        cluster.start()
        log = await cluster.log_of(2)
        await appended(log, *(b"%d" % number for number in range(10)))
        old = cluster.copy()
        await log.trim(9)
        addresses = {node.node: node.address for node in (await cluster.view()).nodes}
        present = await cluster.projection()
        cluster.manager.crash()
        for chain in present.chains:
            for node in chain.nodes:
                await cluster.ask(addresses[node], m.SealUnit(chain.log_stream, Epoch(present.epoch + 1)))
        cluster.restore(old)
        await cluster.until(cluster.is_stopped)
        assert "up to 9 are trimmed, the repository up to 0" in (await cluster.topic()).stopped
        await log.close()

    run_simulated(story())


def test_d2_a_trim_that_the_copy_does_not_have_stops_a_committed_topic() -> None:
    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        await appended(log, *(b"%d" % number for number in range(10)))
        old = cluster.copy()
        await log.trim(9)
        cluster.restore(old)
        await cluster.until(cluster.is_stopped)
        async with await cluster.admin() as admin:

            async def adopted() -> bool:
                return (await admin.adopt_order(TOPIC, dry_run=False)).adopted

            await cluster.until(adopted)
        assert (await cluster.topic()).trimmed == 9
        with pytest.raises(Trimmed):
            await log.read(9)
        await cluster.until(cluster.runs)
        assert (await log.append(b"after")).glsn == 11
        await log.close()

    run_simulated(story())


def test_d2_a_projection_that_no_node_in_session_keeps_names_the_nodes_that_may() -> None:
    async def story() -> None:
        cluster = RewoundSequencedCluster(nodes=3)
        cluster.start()
        log = await cluster.log_of()
        await appended(log, b"first")
        old = cluster.copy()
        await cluster.newest_copies()
        await cluster.chain_without(3)
        await appended(log, b"second")
        await cluster.newest_copies(1, 2)
        for node in (1, 2):
            cluster.nodes[node].crash()
        # Node 1 received the newest projection, and its copy of the view is gone; node 2 comes later.
        node_home = cluster.nodes[1].replica_paths()[0].parent
        cluster.nodes[1].drive.folder(node_home).unlink("view")
        cluster.nodes[1].drive.folder(node_home).sync()
        cluster.restore(old)
        cluster.nodes[1].boot()
        cluster.nodes[3].boot()
        await cluster.until(cluster.is_stopped)

        async def reported() -> bool:
            return (await cluster.adopt(dry_run=True)).silent == (2,)

        await cluster.until(reported)
        shown = await cluster.adopt()
        (why,) = shown.conflicts
        assert "know of projection 2" in why and "start node 2, which may keep it" in why
        assert not shown.adopted and await cluster.is_stopped()
        cluster.nodes[2].boot()

        async def adopted() -> bool:
            return (await cluster.adopt()).adopted

        await cluster.until(adopted)
        (after,) = await appended(log, b"third")
        assert after > 2 and (await log.read(2)).data == b"second"
        await log.close()

    run_simulated(story())


def test_d2_a_projection_in_no_copy_of_the_view_was_stored_by_its_chain_before_it_took_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The repository loses it before any copy of the view was sent: clients have acted by it, so some node must have
    it."""

    async def story() -> None:
        cluster = RewoundSequencedCluster(nodes=3)
        cluster.start()
        log = await cluster.log_of()
        await appended(log, b"first")
        old = cluster.copy()
        await cluster.newest_copies()
        monkeypatch.setattr("varlog.metarepo.recovery.view_copies.ViewCopies._send", lambda self: 0)
        await cluster.chain_without(3)
        made = await cluster.projection()
        await appended(log, b"second")
        cluster.restore(old)
        cluster.nodes[3].boot()
        await cluster.until(cluster.is_stopped)

        async def reported() -> bool:
            return not (await cluster.adopt(dry_run=True)).silent

        await cluster.until(reported)
        shown = await cluster.adopt()
        assert shown.adopted and shown.conflicts == () and shown.projection == made.epoch
        assert shown.source in (1, 2)
        (after,) = await appended(log, b"third")
        assert after > 2 and (await log.read(2)).data == b"second"
        await log.close()

    run_simulated(story())


def test_d2_a_late_node_that_alone_knows_the_newest_projection_is_evidence() -> None:
    """No node that is up in time knows of it, and another projection of the same epoch is made: that is found when the
    node comes, whatever epoch the topic is in by then, and nothing of it is filled or rebuilt."""

    async def story() -> None:
        cluster = RewoundSequencedCluster(nodes=2, replicas=2)
        cluster.start()
        log = await cluster.log_of()
        await appended(log, b"first")
        old = cluster.copy()
        await cluster.newest_copies()
        first, last = (await cluster.projection()).chains[0].nodes
        await cluster.chain_without(last)
        alone = await appended(log, b"node %d alone has it" % first)
        await cluster.newest_copies(first)
        await log.close()
        cluster.nodes[first].crash()
        for host in cluster.sequencers.values():
            host.crash()
            host.boot()
        cluster.restore(old)
        cluster.nodes[last].boot()

        async def another() -> bool:
            return (await cluster.projection()).chains[0].nodes == (NodeID(last),)

        await cluster.until(another, within_s=120.0)
        log = await cluster.log()
        again = await appended(log, b"given again")
        assert again.keys() == alone.keys()  # unavoidable: no node was up that knew
        cluster.nodes[first].boot()
        await cluster.until(cluster.is_stopped)
        assert f"node {first} keeps projection" in (await cluster.topic()).stopped
        shown = await cluster.adopt()
        assert not shown.adopted and any(f"stop node {first}" in why for why in shown.conflicts)
        await asyncio.sleep(60.0)
        unit = await cluster.unit(first, (await cluster.projection()).chains[0].log_stream)
        assert unit is not None and unit.newest == 2 and unit.sync is None
        await log.close()

    run_simulated(story())


def test_d2_a_sequenced_topic_of_which_no_chain_has_reported_waits_for_its_nodes() -> None:
    async def story() -> None:
        cluster = RewoundSequencedCluster(nodes=3, replicas=2)
        cluster.start()
        log = await cluster.log_of()
        await appended(log, b"first")
        chain = (await cluster.projection()).chains[0].nodes
        for node in chain:
            cluster.nodes[node].crash()
        cluster.repository.crash()
        cluster.repository.boot()
        await cluster.until(cluster.is_stopped)
        assert (await cluster.topic()).missed == tuple(sorted(chain))
        view = await cluster.view()
        proposal = m.ProposeProjection(view.projections[0], ())
        assert await cluster.ask(REPOSITORY, proposal) == m.ProposeProjectionReply(view.projections[0])
        cluster.nodes[chain[0]].boot()

        async def continues() -> bool:
            return not await cluster.is_stopped()

        await cluster.until(continues)
        cluster.nodes[chain[1]].boot()
        await appended(log, b"second")
        await log.close()

    run_simulated(story())
