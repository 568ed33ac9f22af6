"""The manager makes sequenced topics and brings their chains back: reconfigured, refilled, replaced."""

from __future__ import annotations

import asyncio

import pytest

from tests.manager.sequenced_cluster import SequencedCluster
from tests.manager.sim_cluster import TOPIC
from varlog.model.batch import HEADER_BYTES
from varlog.model.cluster import StreamState
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed, Unavailable
from varlog.model.events import EventKind, sentence
from varlog.model.ids import NodeID
from varlog.model.lsn import LLSN
from varlog.rpc import messages as m
from varlog.testing.sim.core.loop import run_simulated


def test_a_sequenced_topic_is_made_sealed_and_projected() -> None:
    """R-SEQ-12: its units are sealed with epoch 1, then the first projection holds."""

    async def story() -> None:
        cluster = SequencedCluster()
        cluster.start()
        projection = await cluster.create(streams=2)
        view = await cluster.view()
        assert projection.epoch == 1 and projection.begin == 1
        assert projection.sequencer in view.sequencers
        assert [stripe.log_stream for stripe in projection.newest_range.stripes] == [1, 2]
        for stream in view.streams:
            assert stream.state is StreamState.RUNNING and stream.epoch == 1
            assert projection.chain(stream.log_stream).nodes == stream.replicas
            assert len(stream.replicas) == 3
        assert [await cluster.append(b"entry") for _ in range(10)] == list(range(1, 11))
        await cluster.check_written()

    run_simulated(story())


def test_a_dead_node_is_left_out_at_once_and_comes_back_behind_the_tail() -> None:
    """R-SEQ-10, R-SEQ-14."""

    async def story() -> None:
        cluster = SequencedCluster(nodes=3)
        cluster.start()
        first = await cluster.create()
        head, *others = first.chains[0].nodes
        await cluster.append(b"before")
        cluster.nodes[head].crash()
        for number in range(20):
            await cluster.append(f"meanwhile {number}".encode())
        chain = (await cluster.projection()).chains[0]
        assert (chain.nodes, chain.out_of_sync) == (tuple(others), (head,))
        cluster.nodes[head].boot()
        await cluster.wait_whole()
        assert (await cluster.projection()).chains[0].nodes == (*others, head)
        await cluster.append(b"after")
        await cluster.check_written()

    run_simulated(story())


def test_the_last_node_continues_alone_and_that_is_reported_loudly() -> None:
    """R-SEQ-10: two of three fail."""

    async def story() -> None:
        cluster = SequencedCluster(nodes=3)
        cluster.start()
        first = await cluster.create()
        *gone, alone = first.chains[0].nodes
        for node in gone:
            cluster.nodes[node].crash()
        await cluster.append(b"alone")
        async with await cluster.admin() as admin:
            status = await admin.status()
        [wait] = [wait for wait in status.waits if wait.log_stream == first.chains[0].log_stream]
        assert wait.one_copy and "NO REDUNDANCY" in sentence(wait)
        assert any(event.kind is EventKind.ONE_COPY_LEFT for event in status.events)
        assert status.tails[0].high_watermark >= max(cluster.written)
        for node in gone:
            cluster.nodes[node].boot()
        await cluster.wait_whole()
        assert (await cluster.projection()).chains[0].nodes[0] == alone
        await cluster.check_written()
        async with await cluster.admin() as admin:
            status = await admin.status()
        assert status.waits == ()

    run_simulated(story())


def test_a_lost_sequencer_is_replaced_and_no_position_is_given_twice() -> None:
    """R-SEQ-2."""

    async def story() -> None:
        cluster = SequencedCluster()
        cluster.start()
        first = await cluster.create(streams=2)
        for number in range(10):
            await cluster.append(f"{number}".encode())
        lost = 1 if first.sequencer is not None and first.sequencer.address == "sq1:7120" else 2
        cluster.sequencers[lost].crash()
        for number in range(10):
            await cluster.append(f"again {number}".encode())
        now = await cluster.projection()
        assert now.sequencer is not None and now.sequencer != first.sequencer
        assert len(cluster.written) == 20
        await cluster.wait_whole(2)
        await cluster.check_written()

    run_simulated(story())


def test_a_sequencer_that_was_started_again_at_once_is_another_one() -> None:
    async def story() -> None:
        cluster = SequencedCluster()
        cluster.start()
        first = await cluster.create()
        await cluster.append(b"one")
        for host in cluster.sequencers.values():
            host.crash()
            host.boot()
        await cluster.append(b"two")
        assert (await cluster.projection()).sequencer != first.sequencer
        await cluster.check_written()

    run_simulated(story())


def test_a_node_that_lost_its_disk_is_filled_again() -> None:
    """R-SEQ-14: a living node without its unit is left out first, and only then gets an empty one."""

    async def story() -> None:
        cluster = SequencedCluster(nodes=3)
        cluster.start()
        first = await cluster.create(streams=2)
        for number in range(30):
            await cluster.append(f"{number}".encode())
        cluster.lose_directory(first.chains[0].tail)
        await cluster.append(b"meanwhile")
        await cluster.wait_whole(2)
        await cluster.check_written()

    run_simulated(story())


def test_a_node_that_stays_away_is_replaced_and_its_unit_swept() -> None:
    """R-REG-6, R-REG-4."""

    async def story() -> None:
        cluster = SequencedCluster(nodes=4)
        cluster.start()
        first = await cluster.create()
        chain = first.chains[0]
        for number in range(30):
            await cluster.append(f"{number}".encode())
        cluster.nodes[chain.head].crash()
        await asyncio.sleep(20)
        (spare,) = {NodeID(number) for number in cluster.nodes} - {*chain.nodes}
        assert (await cluster.projection()).chains[0].nodes == (*chain.nodes[1:], spare)
        assert (await cluster.view()).streams[0].replicas == (*chain.nodes[1:], spare)
        cluster.nodes[chain.head].boot()
        await cluster.wait_whole()
        await cluster.check_written()

    run_simulated(story())


def test_an_operator_moves_a_unit_and_adds_a_stream_while_appends_continue() -> None:
    async def story() -> None:
        cluster = SequencedCluster(nodes=4)
        cluster.start()
        chain = (await cluster.create()).chains[0]
        for number in range(10):
            await cluster.append(f"{number}".encode())
        (spare,) = {NodeID(number) for number in cluster.nodes} - {*chain.nodes}
        async with await cluster.admin() as admin:
            moved = await admin.replace_replica(chain.log_stream, chain.tail, spare)
            assert moved.replicas == (*chain.nodes[:-1], spare)
            added = await admin.add_stream(TOPIC)
        projection = await cluster.projection()
        assert [stripe.log_stream for stripe in projection.newest_range.stripes] == [
            chain.log_stream,
            added.log_stream,
        ]
        for number in range(10):
            await cluster.append(f"more {number}".encode())
        await cluster.wait_whole(2)
        await cluster.check_written()

    run_simulated(story())


def test_an_epoch_that_was_begun_and_never_proposed_is_ended() -> None:
    """A client that died half-way leaves units that refuse the old epoch."""

    async def story() -> None:
        cluster = SequencedCluster(nodes=3)
        cluster.start()
        first = await cluster.create()
        view = await cluster.view()
        for node in view.nodes:
            await cluster.ask(node.address, m.SealUnit(first.chains[0].log_stream, Epoch(2)))
        await cluster.append(b"continues")
        assert (await cluster.projection()).epoch == 2
        await cluster.check_written()

    run_simulated(story())


def test_a_deleted_topic_leaves_nothing_behind() -> None:
    async def story() -> None:
        cluster = SequencedCluster()
        cluster.start()
        await cluster.create(streams=2)
        async with await cluster.admin() as admin:
            await admin.delete_topic(TOPIC)
        view = await cluster.view()
        assert (view.streams, view.projections) == ((), ())
        assert all(not status.units for status in (await cluster.statuses()).values())

    run_simulated(story())


def test_without_a_sequencer_a_topic_waits_and_reports_for_what() -> None:
    async def story() -> None:
        cluster = SequencedCluster()
        cluster.start()
        for host in cluster.sequencers.values():
            host.crash()
        with pytest.raises(Unavailable, match="vseq start"):
            await cluster.create()
        for host in cluster.sequencers.values():
            host.boot()
        await cluster.wait_whole()

    run_simulated(story())


def test_groups_of_storage_nodes_take_turns_in_the_chain() -> None:
    """R-SEQ-3, figure a."""

    async def story() -> None:
        cluster = SequencedCluster(nodes=3)
        cluster.start()
        projection = await cluster.create(streams=3, grouping="node")
        chains = [chain.nodes for chain in projection.chains]
        assert {frozenset(chain) for chain in chains} == {frozenset({1, 2, 3})}
        assert {chain[0] for chain in chains} == {chain[-1] for chain in chains} == {1, 2, 3}

    run_simulated(story())


def test_one_stream_of_a_sequenced_topic_cannot_be_sealed_by_hand() -> None:
    async def story() -> None:
        cluster = SequencedCluster()
        cluster.start()
        log_stream = (await cluster.create()).chains[0].log_stream
        async with await cluster.admin() as admin:
            with pytest.raises(PreconditionFailed, match="sequenced"):
                await admin.seal_stream(log_stream)

    run_simulated(story())


def test_a_damaged_unit_is_left_out_rebuilt_and_filled() -> None:
    """Corrupt data is never served: the chain continues without the unit, which comes back whole."""

    async def story() -> None:
        cluster = SequencedCluster(nodes=3)
        cluster.start()
        chain = (await cluster.create()).chains[0]
        for number in range(10):
            await cluster.append(f"{number}".encode())
        host = cluster.nodes[chain.tail]
        (path,) = host.replica_paths()
        segment = next(name for name in host.drive.folder(path).entries if name.endswith(".seg"))
        host.drive.file(path / segment).flip(HEADER_BYTES + 8, 1)
        rotten = m.CheckEntries(chain.log_stream, LLSN(1), LLSN(2))
        await cluster.ask(f"sn{chain.tail}:7110", rotten)
        await asyncio.sleep(10)
        await cluster.wait_whole()
        assert (await cluster.projection()).epoch == 3  # without it, and with it again
        await cluster.check_written()

    run_simulated(story())


def test_a_node_without_a_lease_is_left_out_and_comes_back() -> None:
    """R-SEQ-13: cut off from the repository alone, it serves nobody, though the manager still sees it."""

    async def story() -> None:
        cluster = SequencedCluster(nodes=3)
        cluster.start()
        chain = (await cluster.create()).chains[0]
        await cluster.append(b"before")
        now = asyncio.get_running_loop().time()
        cluster.network.cut_off(f"sn{chain.head}", "mr", until=now + 15.0)
        await asyncio.sleep(5)
        assert chain.head in (await cluster.projection()).chains[0].out_of_sync
        await cluster.append(b"meanwhile")
        await cluster.wait_whole()
        await cluster.check_written()

    run_simulated(story())
