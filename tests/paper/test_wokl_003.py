"""Source 003, the design of WOKL: every diagram is a test that follows the messages drawn.

Besides what is drawn a reconfiguration asks the sequencer who it is (`who`), at the same time as it seals.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.paper.wokl import Wokl, run_story
from varlog.model.cluster import Grouping
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    AlreadyWritten,
    JunkPosition,
    NoLease,
    NotWritten,
    ProjectionConflict,
    StaleEpoch,
    Trimmed,
    Unavailable,
)
from varlog.model.limits import CLOCK_DRIFT_MAX, LEASE_S
from varlog.model.lsn import LLSN
from varlog.reconfiguration.rules import Wish
from varlog.rpc.messages import FillUnit, Message, NextTokens, ReadUnit, SealUnit, SealUnitReply, WriteUnit

# --- Figures ----------------------------------------------------------------------------------------------------------


def test_positions_rotate_over_the_log_streams() -> None:
    """003, "GLSN address space": of 1 … 10 log stream 1 has the odd ones and log stream 2 the even ones."""

    async def story() -> None:
        wokl = await Wokl(2, replicas=1, streams=2).drawn()
        cl = await wokl.client("CL")
        at = [await cl.do(cl.log.append(b"%d" % glsn)) for glsn in range(1, 11)]
        one, two = (chain.log_stream for chain in wokl.projection.chains)
        assert [position.glsn for position in at] == list(range(1, 11))
        assert [position.glsn for position in at if position.log_stream == one] == [1, 3, 5, 7, 9]
        assert [position.glsn for position in at if position.log_stream == two] == [2, 4, 6, 8, 10]
        assert [position.llsn for position in at] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]

    run_story(story)


def test_figure_a_storage_nodes_form_a_replica_group() -> None:
    """Every log stream of the group is on all its nodes, and each node is the head of one: their arrows go different
    ways."""

    async def story() -> None:
        wokl = await Wokl(3, streams=3, grouping=Grouping.NODE).drawn()
        chains = wokl.projection.chains
        assert {frozenset(chain.nodes) for chain in chains} == {frozenset(wokl.nodes)}
        assert {chain.head for chain in chains} == set(wokl.nodes)

    run_story(story)


def test_figure_a_with_six_nodes_has_two_replica_groups() -> None:
    async def story() -> None:
        wokl = await Wokl(6, replicas=3, streams=6, grouping=Grouping.NODE).drawn()
        groups = {frozenset(chain.nodes) for chain in wokl.projection.chains}
        assert sorted(map(len, groups)) == [3, 3]
        assert not frozenset.intersection(*groups)

    run_story(story)


def test_figure_b_log_streams_form_a_replica_group() -> None:
    """Four nodes, three replicas: neighbouring log streams have different groups of nodes."""

    async def story() -> None:
        wokl = await Wokl(4, replicas=3, streams=4, grouping=Grouping.STREAM).drawn()
        groups = [frozenset(chain.nodes) for chain in wokl.projection.chains]
        assert {len(group) for group in groups} == {3}
        assert len(set(groups)) > 1
        assert frozenset.union(*groups) == frozenset(wokl.nodes)

    run_story(story)


# --- Read, append, fill, seal -----------------------------------------------------------------------------------------


def test_read() -> None:
    """003, "Read": the client finds the node in its own projection, the node verifies epoch and position."""

    async def story() -> None:
        wokl = await Wokl(1).drawn()
        cl = await wokl.client("CL")
        await cl.do(cl.log.append(b"entry"))
        wokl.transcript.take()
        assert (await cl.do(cl.log.read(1))).data == b"entry"
        assert wokl.transcript.take() == ["CL -> SN1 read e1 ok"]
        stream = wokl.projection.chains[0].log_stream
        for epoch in (0, 2):
            with pytest.raises(StaleEpoch):
                await cl.ask("SN1", ReadUnit(stream, Epoch(epoch), LLSN(1)))
        with pytest.raises(NotWritten):
            await cl.ask("SN1", ReadUnit(stream, Epoch(1), LLSN(2)))

    run_story(story)


def test_append() -> None:
    """003, "Append": get next log position, append; the node verifies epoch and position: each is written once (R-SEQ-5)."""

    async def story() -> None:
        wokl = await Wokl(1).drawn()
        cl, other = await wokl.client("CL"), await wokl.client("CL2")
        await cl.do(cl.log.append(b"entry"))
        assert wokl.transcript.take() == ["CL -> SQ next e1 ok", "CL -> SN1 write e1 ok"]
        assert (await other.do(other.log.append(b"other"))).glsn == 2
        stream = wokl.projection.chains[0].log_stream
        _, first = await cl.ask("SN1", ReadUnit(stream, Epoch(1), LLSN(1), whole=True))
        _, second = await cl.ask("SN1", ReadUnit(stream, Epoch(1), LLSN(2), whole=True))
        await cl.ask("SN1", WriteUnit(stream, Epoch(1)), first)  # the very same: harmless
        with pytest.raises(StaleEpoch):
            await cl.ask("SN1", WriteUnit(stream, Epoch(0)), first)
        with pytest.raises(AlreadyWritten):
            await cl.ask("SN1", FillUnit(stream, Epoch(1), LLSN(2)))
        assert bytes(first) != bytes(second)

    run_story(story)


def test_fill() -> None:
    """003, "Fill": a node reacts as to an append; the entry of a slow appender then has to go elsewhere (R-SEQ-7). In
    the meantime it checks (`list`) whether the position that it abandons still has to be filled."""

    async def story() -> None:
        wokl = await Wokl(1).drawn()
        cl = await wokl.client("CL")
        stream = wokl.projection.chains[0].log_stream

        def fill() -> None:
            filling.append(cl.start(cl.ask("SN1", FillUnit(stream, Epoch(1), LLSN(1)))))

        filling: list[asyncio.Task[tuple[Message, bytearray]]] = []
        wokl.transcript.at("CL -> SN1 write e1", fill)
        cl.transport.slow_s = 0.5
        at = await cl.do(cl.log.append(b"late"))
        assert at.glsn == 2
        assert wokl.transcript.take() == [
            "CL -> SQ next e1 ok",
            "CL -> SN1 write e1 AlreadyWritten",
            "CL -> SN1 fill e1 ok",
            "CL -> SQ next e1 ok",
            "CL -> SN1 list ok",
            "CL -> SN1 write e1 ok",
        ]
        with pytest.raises(JunkPosition):
            await cl.do(cl.log.read(1))
        assert [entry.glsn async for entry in cl.log.subscribe(1, 3)] == [2]

    run_story(story)


def test_seal_is_answered_with_the_newest_position_and_fences_older_epochs() -> None:
    """003, "Seal", R-SEQ-9: the epoch rises, and nothing of an older one is accepted any more."""

    async def story() -> None:
        wokl = await Wokl(2).drawn()
        cl = await wokl.client("CL")
        await cl.do(cl.log.append_batch([b"1", b"2", b"3"]))
        stream = wokl.projection.chains[0].log_stream
        sealed, _ = await cl.ask("SN1", SealUnit(stream, Epoch(2)))
        assert isinstance(sealed, SealUnitReply)
        assert (sealed.epoch, sealed.newest) == (2, 3)
        assert (await cl.ask("SN1", SealUnit(stream, Epoch(2))))[0] == sealed
        with pytest.raises(StaleEpoch):
            await cl.ask("SN1", SealUnit(stream, Epoch(1)))
        assert wokl.epochs("SN1", "SN2") == [2, 1]

    run_story(story)


def test_one_sealed_node_of_a_replica_group_is_enough_to_end_the_epoch() -> None:
    """003, "seal에 대한 응답은 … 하나에게서만이라도": an append with the old epoch fails at the node that is sealed. Here the
    projection that the seal was for is never proposed, as if its proposer had died: the next client that meets the seal
    completes the reconfiguration."""

    async def story() -> None:
        wokl = await Wokl(2).drawn()
        cl = await wokl.client("CL")
        stream = wokl.projection.chains[0].log_stream
        await cl.ask("SN2", SealUnit(stream, Epoch(2)))
        wokl.transcript.take()
        assert (await cl.do(cl.log.append(b"a"))).glsn == 1
        assert wokl.transcript.take() == [
            "CL -> SQ next e1 ok",
            "CL -> SN1 write e1 ok",
            "CL -> SN2 write e1 StaleEpoch",
            "CL -> SQ who ok",
            "CL -> SN1 seal e2 ok",
            "CL -> SN2 seal e2 ok",
            "CL -> MR propose e2 ok",
            "CL -> SN1 write e2 ok",
            "CL -> SN2 write e2 ok",
        ]
        assert (wokl.chain(), wokl.epoch) == ("SN1->SN2", 2)

    run_story(story)


def test_trim() -> None:
    """003, "Trim", R-TRIM-1: everything at or below a position is deleted, on every node. The sequencer confirms that
    the log is that long."""

    async def story() -> None:
        wokl = await Wokl(2).drawn()
        cl = await wokl.client("CL")
        await cl.do(cl.log.append_batch([b"1", b"2", b"3"]))
        wokl.transcript.take()
        await cl.do(cl.log.trim(2))
        assert wokl.transcript.take() == ["CL -> SQ tail e1 ok", "CL -> MR trim ok"]
        assert [wokl.units(name)[0].low for name in ("SN1", "SN2")] == [3, 3]
        with pytest.raises(Trimmed):
            await cl.do(cl.log.read(2))
        assert (await cl.do(cl.log.read(3))).data == b"3"

    run_story(story)


# --- Cluster creation -------------------------------------------------------------------------------------------------


def test_cluster_creation() -> None:
    """003, "클러스터 생성", R-SEQ-12: storage nodes format (epoch 0), the manager gets the projection (there is none), seals with
    epoch 1, and proposes the first one, with storage nodes and sequencer; from then on the log can be used."""

    async def story() -> None:
        wokl = Wokl(3)
        await wokl.start()
        assert not wokl.view.projections
        assert [wokl.units(f"SN{n}") for n in (1, 2, 3)] == [[], [], []]
        wokl.transcript.take()
        formatted: list[list[int]] = []
        wokl.transcript.at("MCL -> SN1 seal e1", lambda: formatted.append(wokl.epochs("SN1", "SN2", "SN3")))
        await wokl.create()
        drawn = ("format", "seal", "propose")
        assert [line for line in wokl.transcript.take("MCL") if line.split()[3] in drawn] == [
            *(f"MCL -> SN{n} format ok" for n in (1, 2, 3)),
            *(f"MCL -> SN{n} seal e1 ok" for n in (1, 2, 3)),
            "MCL -> MR propose e1 ok",
        ]
        assert formatted == [[0, 0, 0]]
        assert (wokl.epoch, wokl.epochs("SN1", "SN2", "SN3")) == (1, [1, 1, 1])
        assert wokl.projection.sequencer in wokl.view.sequencers
        cl = await wokl.client("CL")
        assert (await cl.do(cl.log.tail()), (await cl.do(cl.log.append(b"first"))).glsn) == (0, 1)

    run_story(story)


# --- Append / read failure --------------------------------------------------------------------------------------------


def test_append_and_read_failure_with_two_clients() -> None:
    """003, "Append / Read Failure", the first diagram. Two log streams, each with another head: client 1 needs storage
    node 1 as a head, client 2 as a tail. After the reconfiguration client 1 continues with the position it has: 003
    leaves open whether it asks for another one (its second `next`), 004 decides that the append is resumed (R-SEQ-10).

    Client 2 does not know of it, and fails at storage node 1. Its two drawn seals are saved: before it seals any node
    it asks the repository whether another process has, renews its projection, and reads. The next test is as drawn.
    """

    async def story() -> None:
        wokl = await Wokl(2, streams=2, grouping=Grouping.NODE).drawn()
        one, two = (chain.log_stream for chain in wokl.projection.chains)
        assert (wokl.chain(one), wokl.chain(two)) == ("SN1->SN2", "SN2->SN1")
        cl1, cl2 = await wokl.client("CL1"), await wokl.client("CL2", watches=False)
        await cl1.do(cl1.log.append(b"1"))
        await cl1.do(cl1.log.append(b"2"))
        wokl.transcript.take()

        wokl.fail("SN1")
        assert (await cl1.do(cl1.log.append(b"3"))).glsn == 3
        assert wokl.transcript.take() == [
            "CL1 -> SQ next e1 ok",
            f"CL1 -> SN1 write e1 ls{one} ×",
            "CL1 -> SQ who ok",
            f"CL1 -> SN1 seal e2 ls{one} ×",
            f"CL1 -> SN2 seal e2 ls{one} ok",
            f"CL1 -> SN1 seal e2 ls{two} ×",
            f"CL1 -> SN2 seal e2 ls{two} ok",
            "CL1 -> MR propose e2 ok",
            f"CL1 -> SN2 write e2 ls{one} ok",
        ]
        assert (wokl.epoch, [unit.epoch for unit in wokl.units("SN2")]) == (2, [2, 2])

        assert (await cl2.do(cl2.log.read(2))).data == b"2"
        assert wokl.transcript.take() == [
            f"CL2 -> SN1 read e1 ls{two} ×",
            "CL2 -> MR projection ok",
            f"CL2 -> SN2 read e2 ls{two} ok",
        ]

    run_story(story)


def test_a_second_reconfiguration_from_the_same_epoch_is_harmless() -> None:
    """The same diagram, with the seals of client 2 as drawn. It seals with the epoch that client 1 sealed with, which
    changes nothing; it learns that its own is over from the repository, which accepts one proposal per epoch
    (R-SEQ-3)."""

    async def story() -> None:
        wokl = await Wokl(2, streams=2, grouping=Grouping.NODE).drawn()
        one, two = (chain.log_stream for chain in wokl.projection.chains)
        cl1, cl2 = await wokl.client("CL1"), await wokl.client("CL2", watches=False)
        old = wokl.view
        await cl1.do(cl1.log.append_batch([b"1"]))
        await cl1.do(cl1.log.append_batch([b"2"]))
        wokl.fail("SN1")
        await cl1.do(cl1.log.append(b"3"))
        wokl.transcript.take()
        with pytest.raises(ProjectionConflict):
            await cl2.do(cl2.reconfigurer().run(old, wokl.projection.topic, Wish()))
        assert (await cl2.do(cl2.log.read(2))).data == b"2"
        assert wokl.transcript.take() == [
            "CL2 -> SQ who ok",
            f"CL2 -> SN1 seal e2 ls{one} ×",
            f"CL2 -> SN2 seal e2 ls{one} ok",
            f"CL2 -> SN1 seal e2 ls{two} ×",
            f"CL2 -> SN2 seal e2 ls{two} ok",
            "CL2 -> MR propose e2 ProjectionConflict",
            f"CL2 -> SN1 read e1 ls{two} ×",
            "CL2 -> MR projection ok",
            f"CL2 -> SN2 read e2 ls{two} ok",
        ]
        assert wokl.epoch == 2

    run_story(story)


def test_a_client_that_missed_a_reconfiguration_learns_of_it_by_stale_epoch() -> None:
    """R-SEQ-11: it asks a node that is in a newer epoch, renews its projection, and continues."""

    async def story() -> None:
        wokl = await Wokl(3).drawn()
        cl1, cl2 = await wokl.client("CL1"), await wokl.client("CL2", watches=False)
        wokl.fail("SN1")
        await cl1.do(cl1.log.append(b"1"))
        wokl.transcript.take()
        assert (await cl2.do(cl2.log.read(1))).data == b"1"
        assert wokl.transcript.take() == [
            "CL2 -> SN3 read e1 StaleEpoch",
            "CL2 -> MR projection ok",
            "CL2 -> SN3 read e2 ok",
        ]

    run_story(story)


def test_a_sequencer_refuses_a_client_that_missed_a_reconfiguration() -> None:
    """R-SEQ-11: it assigns no position in an epoch that it knows to be over."""

    async def story() -> None:
        wokl = await Wokl(3).drawn()
        cl1, cl2 = await wokl.client("CL1"), await wokl.client("CL2", watches=False)
        wokl.fail("SN1")
        await cl1.do(cl1.log.append(b"1"))
        assert (await cl1.do(cl1.log.append(b"2"))).glsn == 2
        wokl.transcript.take()
        assert (await cl2.do(cl2.log.append(b"3"))).glsn == 3
        assert wokl.transcript.take() == [
            "CL2 -> SQ next e1 NotSequencing",
            "CL2 -> MR projection ok",
            "CL2 -> SQ next e2 ok",
            "CL2 -> SN2 write e2 ok",
            "CL2 -> SN3 write e2 ok",
        ]

    run_story(story)


def test_recovery_by_a_reader() -> None:
    """The second diagram, first half: client 1 dies after storage node 1 has the entry. Client 2 finds nothing at the
    tail, reads the head, and writes what it found down the chain (R-SEQ-8). Before that it asks the sequencer whether
    the position was assigned at all (`tail`), and waits a moment at the tail of the chain (`wait`): most often the
    appender is only slow. In the end it reads as intended."""

    async def story() -> None:
        wokl = await Wokl(2).drawn()
        cl1, cl2 = await wokl.client("CL1"), await wokl.client("CL2")
        wokl.transcript.at("CL1 -> SN2 write", cl1.die)
        _ = cl1.start(cl1.log.append(b"half"))
        await cl1.died.wait()
        assert wokl.transcript.take() == [
            "CL1 -> SQ next e1 ok",
            "CL1 -> SN1 write e1 ok",
            "CL1 -> SN2 write e1 ×",
        ]
        assert [wokl.units(name)[0].newest for name in ("SN1", "SN2")] == [1, 0]
        assert (await cl2.do(cl2.log.read(1))).data == b"half"
        assert wokl.transcript.take() == [
            "CL2 -> SN2 read e1 NotWritten",
            "CL2 -> SQ tail e1 ok",
            "CL2 -> SN2 wait e1 ok",
            "CL2 -> SN1 read e1 ok",
            "CL2 -> SN2 write e1 ok",
            "CL2 -> SN2 read e1 ok",
        ]
        assert (await cl2.do(cl2.log.read(1))).data == b"half"
        assert wokl.transcript.take() == ["CL2 -> SN2 read e1 ok"]

    run_story(story)


def test_recovery_by_a_reader_of_an_append_that_was_only_slow() -> None:
    """The same, but client 1 lives: its write comes late, finds the very same bytes, and counts as done (R-SEQ-5)."""

    async def story() -> None:
        wokl = await Wokl(2).drawn()
        cl1, cl2 = await wokl.client("CL1"), await wokl.client("CL2")

        def slow() -> None:
            cl1.transport.slow_s = 0.8

        wokl.transcript.at("CL1 -> SN2 write", slow)
        appending = cl1.start(cl1.log.append(b"slow"))
        while not wokl.units("SN1")[0].newest:
            await asyncio.sleep(0.01)
        assert (await cl2.do(cl2.log.read(1))).data == b"slow"
        assert not appending.done()
        assert (await appending).glsn == 1
        assert wokl.transcript.take("CL1") == [
            "CL1 -> SQ next e1 ok",
            "CL1 -> SN1 write e1 ok",
            "CL1 -> SN2 write e1 ok",
        ]
        assert [entry.data async for entry in cl2.log.subscribe(1, 2)] == [b"slow"]

    run_story(story)


def test_junk_filling() -> None:
    """The second diagram, second half: client 1 dies before it has written anything. Client 2 finds nothing at the head
    either, and fills the position with junk, along the chain (R-SEQ-7, R-SEQ-8), having seen how far the hole goes
    (`list`). Readers skip it."""

    async def story() -> None:
        wokl = await Wokl(2).drawn()
        cl1, cl2 = await wokl.client("CL1"), await wokl.client("CL2")
        wokl.transcript.at("CL1 -> SN1 write", cl1.die)
        _ = cl1.start(cl1.log.append(b"none"))
        await cl1.died.wait()
        assert wokl.transcript.take() == ["CL1 -> SQ next e1 ok", "CL1 -> SN1 write e1 ×"]
        with pytest.raises(JunkPosition):
            await cl2.do(cl2.log.read(1))
        assert wokl.transcript.take() == [
            "CL2 -> SN2 read e1 NotWritten",
            "CL2 -> SQ tail e1 ok",
            "CL2 -> SN2 wait e1 ok",
            "CL2 -> SN1 read e1 NotWritten",
            "CL2 -> SN1 list ok",
            "CL2 -> SN1 fill e1 ok",
            "CL2 -> SN2 fill e1 ok",
            "CL2 -> SN2 read e1 ok",
        ]
        assert [wokl.units(name)[0].newest for name in ("SN1", "SN2")] == [1, 1]
        at = await cl2.do(cl2.log.append(b"next"))
        assert [entry.position async for entry in cl2.log.subscribe(1, at.glsn + 1)] == [at]

    run_story(story)


def test_the_sequencer_is_lost_and_the_next_one_starts_from_the_slow_tail() -> None:
    """003, "Slow Log Tail Finding": seal all, use the largest position that any node has; no position is assigned twice
    (R-SEQ-2)."""

    async def story() -> None:
        wokl = await Wokl(2).drawn()
        cl = await wokl.client("CL")
        given = [(await cl.do(cl.log.append(b"%d" % number))).glsn for number in range(5)]
        before = wokl.projection.sequencer
        wokl.transcript.take()
        wokl.fail("SQ")
        wokl.sequencer.boot()
        given += [(await cl.do(cl.log.append(b"again"))).glsn]
        assert wokl.transcript.take() == [
            "CL -> SQ next e1 ×",
            "CL -> SQ next e1 NotSequencing",
            "CL -> SQ who ok",
            "CL -> SQ who ok",
            "CL -> SN1 seal e2 ok",
            "CL -> SN2 seal e2 ok",
            "CL -> MR propose e2 ok",
            "CL -> SQ next e2 ok",
            "CL -> SN1 write e2 ok",
            "CL -> SN2 write e2 ok",
        ]
        assert wokl.projection.sequencer != before
        assert wokl.projection.begin == 6
        assert all(one < two for one, two in pairwise(given))

    run_story(story)


# --- Storage node lease timeout ---------------------------------------------------------------------------------------


SLOW, FAST = 1 - CLOCK_DRIFT_MAX, 1 + CLOCK_DRIFT_MAX


@pytest.mark.parametrize(("nodes", "repository"), [(1.0, 1.0), (SLOW, FAST), (FAST, SLOW)])
def test_storage_node_lease_timeout(nodes: float, repository: float) -> None:
    """003, "Storage Node Lease Timeout", R-SEQ-13: SN2, the tail, and client 1 are cut off together from all others,
    and each considers the other healthy. Before client 2 can continue without SN2, SN2 has stopped answering: client 1
    never sees the old state beside the new one. Whichever clock runs slow, and whichever runs fast."""

    async def story() -> None:
        wokl = Wokl(2)
        for host in wokl.nodes.values():
            host.clock.rate = nodes
        wokl.repository.clock.rate = repository
        await wokl.drawn()
        cl1, cl2 = await wokl.client("CL1"), await wokl.client("CL2")
        await cl2.do(cl2.log.append(b"1"))
        for place in ("SN2", "CL1"):
            wokl.cut(place, "MR", "SQ", "SN1", "CL2")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        wokl.transcript.take()
        seen: list[tuple[float, str]] = []

        async def look() -> None:
            stream = wokl.projection.chains[0].log_stream
            while True:
                try:
                    await cl1.ask("SN2", ReadUnit(stream, Epoch(1), LLSN(2)))
                except (NotWritten, Unavailable) as error:
                    seen.append((loop.time(), type(error).__name__))
                await asyncio.sleep(0.01)

        looking = cl1.start(look())
        # Client 2 does not wait: the repository does, until SN2 can have no lease any more.
        await cl2.do(cl2.reconfigurer().run(wokl.view, wokl.projection.topic, Wish(), seal_s=0.1))
        done = loop.time()
        assert wokl.transcript.take("CL2") == [
            "CL2 -> SQ who ok",
            "CL2 -> SN1 seal e2 ok",
            "CL2 -> SN2 seal e2 ×",
            "CL2 -> MR propose e2 ok",
        ]
        assert (await cl2.do(cl2.log.append(b"2"))).glsn == 2
        await asyncio.sleep(1.0)
        looking.cancel()
        assert wokl.chain() == "SN1"
        assert {error for at, error in seen if at >= done} == {NoLease.__name__}
        assert {error for at, error in seen if at < begun + LEASE_S / 2} == {NotWritten.__name__}
        assert LEASE_S / 2 < done - begun < 10 * LEASE_S

    run_story(story)


def test_a_sequencer_without_a_lease_assigns_no_positions() -> None:
    async def story() -> None:
        wokl = await Wokl(2).drawn()
        cl = await wokl.client("CL")
        topic = wokl.projection.topic
        await cl.ask("SQ", NextTokens(topic, Epoch(1), 1))
        wokl.cut("SQ", "MR")
        await asyncio.sleep(2 * LEASE_S)
        with pytest.raises(NoLease):
            await cl.ask("SQ", NextTokens(topic, Epoch(1), 1))

    run_story(story)
