"""Reconfigurer: seals all, takes those who answer, copies the last entries to who joins, proposes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest

from varlog.model.cluster import ClusterView, Ordering, StorageNode, Topic
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed, StaleEpoch, Unavailable
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection, SequencerID
from varlog.model.status import SyncState, SyncStatus
from varlog.reconfiguration.reconfigurer import Reconfigurer
from varlog.reconfiguration.rules import SealAnswer, Wish, first_projection
from varlog.rpc import messages as m
from varlog.rpc.messages import Message
from varlog.testing.sim.core.loop import run_simulated as run_in_virtual_time

T = TypeVar("T")
M = TypeVar("M", bound=Message)

LS = LogStreamID(1)
A, B, C, D = (NodeID(number) for number in (1, 2, 3, 4))
ONE, TWO = SequencerID("sq:1", 1), SequencerID("sq:2", 1)
TOPIC = Topic(TopicID(1), "t", Ordering.SEQUENCED)
SEAL_S = 0.05


class Fakes:
    """Units with these numbers of entries; `deaf` never answer, `dead` refuse the connection. Records the requests it gets."""

    def __init__(self, newest: dict[NodeID, int], *, there: tuple[SequencerID, ...] = (ONE,)) -> None:
        self.newest = newest
        self.epochs = dict.fromkeys(newest, 0)
        self.deaf: set[NodeID] = set()
        self.dead: set[NodeID] = set()
        self.there = there
        self.syncs: dict[NodeID, list[SyncState]] = {}
        self.asked: list[tuple[str, Message]] = []
        self.proposed: list[m.ProposeProjection] = []
        self.taken = False
        self.unverified: set[NodeID] = set()

    async def ask(self, address: str, request: Message, answer: type[M], timeout_s: float) -> M:
        self.asked.append((address, request))
        if isinstance(request, m.GetSequencer):
            found = next((known for known in self.there if known.address == address), None)
            if found is None:
                raise Unavailable("nobody listens there")
            return cast(M, m.GetSequencerReply(found, True))
        node = NodeID(int(address.removeprefix("sn:")))
        if node in self.dead:
            raise Unavailable("nobody listens there")
        if node in self.deaf:
            await asyncio.sleep(3600)
        if isinstance(request, m.SyncUnit):
            state = self.syncs[node].pop(0)
            if state is SyncState.COMPLETE:
                self.newest[node] = self.newest[request.source.node]
            return cast(M, m.SyncReply(SyncStatus(state, request.source.node, LLSN(1), LLSN(1))))
        assert isinstance(request, m.SealUnit)
        if request.epoch < self.epochs[node]:
            raise StaleEpoch(LS, request.epoch, Epoch(self.epochs[node]))
        self.epochs[node] = request.epoch
        newest = LLSN(self.newest[node])
        unverified = node in self.unverified
        return cast(M, m.SealUnitReply(LS, request.epoch, newest, LLSN(newest + 1), unverified=unverified))

    async def ask_repository(self, request: Message, answer: type[M], timeout_s: float) -> M:
        assert isinstance(request, m.ProposeProjection)
        self.proposed.append(request)
        return cast(M, m.ProposeProjectionReply(request.projection))

    def synced_from(self, node: NodeID) -> list[NodeID]:
        return [
            request.source.node
            for address, request in self.asked
            if isinstance(request, m.SyncUnit) and address == f"sn:{node}"
        ]


def _view(projection: Projection | None, sequencers: tuple[SequencerID, ...] = (ONE,)) -> ClusterView:
    nodes = tuple(StorageNode(node, f"sn:{node}") for node in (A, B, C, D))
    projections = (projection,) if projection is not None else ()
    return ClusterView(ClusterID(1), 1, nodes, (TOPIC,), projections=projections, sequencers=sequencers)


def _chain(*nodes: NodeID) -> Projection:
    sealed = {LS: dict.fromkeys(nodes, SealAnswer(LLSN(0)))}
    return first_projection(TOPIC.topic, GLSN(1), 4, {LS: nodes}, sealed, ONE)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """In virtual time: an immediate answer is never too late."""

    async def within() -> T:
        async with asyncio.timeout(20):
            return await work

    return run_in_virtual_time(within())


def _reconfigure(fakes: Fakes, now: Projection, wish: Wish | None = None) -> Projection:
    run = Reconfigurer(fakes.ask, fakes.ask_repository).run
    return _run(run(_view(now), TOPIC.topic, wish or Wish(), seal_s=SEAL_S))


def test_a_topic_begins_sealed_with_epoch_1() -> None:
    """R-SEQ-12."""
    fakes = Fakes({A: 0, B: 0})
    reconfigurer = Reconfigurer(fakes.ask, fakes.ask_repository)
    begun = _run(reconfigurer.begin(_view(None), TOPIC, {LS: (A, B)}, seal_s=SEAL_S))
    assert (begun.epoch, begun.sequencer, begun.chains[0].nodes) == (1, ONE, (A, B))
    assert fakes.epochs == {A: 1, B: 1}
    assert fakes.proposed[0].sealed == ((LS, (A, B)),)


def test_no_topic_begins_without_a_sequencer() -> None:
    fakes = Fakes({A: 0}, there=())
    reconfigurer = Reconfigurer(fakes.ask, fakes.ask_repository)
    with pytest.raises(Unavailable, match="vseq start"):
        _run(reconfigurer.begin(_view(None), TOPIC, {LS: (A,)}, seal_s=SEAL_S))
    assert not fakes.proposed


def test_one_that_hangs_is_waited_for_only_so_long_and_is_not_called_sealed() -> None:
    """R-SEQ-10, R-SEQ-13: a node that may not know must not be named as sealed: the repository waits for its lease to end."""
    fakes = Fakes({A: 5, B: 5, C: 5})
    fakes.deaf, fakes.dead = {A}, {C}
    projection = _reconfigure(fakes, _chain(A, B, C))
    assert (projection.chains[0].nodes, projection.chains[0].out_of_sync) == ((B,), (A, C))
    assert fakes.proposed[0].sealed == ((LS, (B,)),)


def test_an_accused_node_that_was_sealed_is_named_as_sealed() -> None:
    fakes = Fakes({A: 5, B: 5})
    projection = _reconfigure(fakes, _chain(A, B), Wish(accused=frozenset({A})))
    assert projection.chains[0].nodes == (B,)
    assert fakes.proposed[0].sealed == ((LS, (A, B)),)


def test_a_unit_in_a_newer_epoch_ends_it() -> None:
    fakes = Fakes({A: 5, B: 5})
    fakes.epochs[B] = 7
    with pytest.raises(StaleEpoch):
        _reconfigure(fakes, _chain(A, B))
    assert not fakes.proposed


def test_a_topic_without_a_projection_cannot_get_its_next_one() -> None:
    fakes = Fakes({A: 0})
    with pytest.raises(PreconditionFailed, match="still being made"):
        _run(Reconfigurer(fakes.ask, fakes.ask_repository).run(_view(None), TOPIC.topic, Wish()))


def test_a_joining_node_is_filled_from_the_last_sealed_node_of_the_chain() -> None:
    """R-SEQ-14, law 8: from an earlier one it could have what the tail has not."""
    fakes = Fakes({A: 9, B: 7, C: 7, D: 3})
    fakes.dead = {C}
    fakes.syncs[D] = [SyncState.IN_PROGRESS, SyncState.COMPLETE]
    projection = _reconfigure(fakes, _chain(A, B, C), Wish(join={LS: (D,)}))
    assert projection.chains[0].nodes == (A, B, D)
    assert fakes.synced_from(D) == [B, B]
    asked = [request for _, request in fakes.asked if isinstance(request, m.SyncUnit)]
    assert {request.epoch for request in asked} == {2}
    assert fakes.newest[D] == 7


def test_one_that_cannot_be_filled_does_not_join_and_is_not_called_sealed() -> None:
    fakes = Fakes({A: 5, B: 5, D: 50})
    fakes.syncs[D] = [SyncState.ERROR]
    wish = Wish(join={LS: (D,)}, leave={LS: (A,)})
    projection = _reconfigure(fakes, _chain(A, B), wish)
    assert projection.chains[0].nodes == (A, B)
    assert projection.begin == 6  # what it holds and the chain does not counts for nothing
    assert fakes.proposed[0].sealed == ((LS, (A, B)),)


def test_one_that_joined_meanwhile_is_not_copied_to_while_it_serves() -> None:
    fakes = Fakes({A: 5, B: 5})
    projection = _reconfigure(fakes, _chain(A, B), Wish(join={LS: (B,)}))
    assert projection.chains[0].nodes == (A, B)
    assert not fakes.synced_from(B)


def test_after_a_restart_of_all_one_answer_is_not_enough() -> None:
    """The drive of the one that answers may have gone back in time."""
    fakes = Fakes({A: 9, B: 5, C: 9})
    fakes.unverified, fakes.dead = {A, B, C}, {A, C}
    with pytest.raises(Unavailable, match="may hold newer entries"):
        _reconfigure(fakes, _chain(A, B, C))
    assert not fakes.proposed


def test_after_a_restart_of_all_the_largest_end_counts_and_each_gets_what_it_lacks() -> None:
    fakes = Fakes({A: 9, B: 5, C: 9})
    fakes.unverified = {A, B, C}
    fakes.syncs = {
        node: [SyncState.COMPLETE, SyncState.IN_PROGRESS, SyncState.COMPLETE] for node in (A, B, C)
    }
    projection = _reconfigure(fakes, _chain(A, B, C))
    assert (projection.chains[0].nodes, projection.begin) == ((A, B, C), 10)
    assert [fakes.synced_from(node) for node in (A, B, C)] == [[B, C, C], [A, C, C], [A, B, B]]
    asked = [request for address, request in fakes.asked if isinstance(request, m.SyncUnit)]
    assert all(request.backfill and request.epoch == 2 for request in asked)
    last = {A: C, B: C, C: B}
    for address, request in fakes.asked:
        if isinstance(request, m.SyncUnit):
            assert request.proves == (request.source.node == last[NodeID(int(address[3:]))])


def test_one_that_could_not_be_compared_is_left_out_and_if_none_could_nothing_is_proposed() -> None:
    fakes = Fakes({A: 9, B: 5})
    fakes.unverified = {A, B}
    fakes.syncs = {A: [SyncState.COMPLETE], B: [SyncState.ERROR]}
    assert _reconfigure(fakes, _chain(A, B)).chains[0].nodes == (A,)
    fakes = Fakes({A: 9, B: 5})
    fakes.unverified = {A, B}
    fakes.syncs = {A: [SyncState.ERROR], B: [SyncState.ERROR]}
    with pytest.raises(Unavailable, match="could not be compared"):
        _reconfigure(fakes, _chain(A, B))


def test_units_compared_without_a_member_stay_unverified_until_the_projection_without_it_holds() -> None:
    """Law 8: if that projection is never made, the member that was not compared may be back, and lacks what the others got from
    each other (sequenced seed 5762)."""
    fakes = Fakes({A: 5, B: 4, C: 4})
    fakes.unverified, fakes.dead = {A, C}, {B}
    fakes.syncs = {A: [SyncState.COMPLETE], C: [SyncState.COMPLETE]}
    projection = _reconfigure(fakes, _chain(A, B, C), Wish(lost={LS: (B,)}))
    assert (projection.chains[0].nodes, projection.chains[0].out_of_sync) == ((A, C), (B,))
    syncs = [request for _, request in fakes.asked if isinstance(request, m.SyncUnit)]
    assert len(syncs) == 2 and not any(request.proves for request in syncs)


def test_the_last_unit_left_is_trusted_with_a_warning_when_the_others_are_declared_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fakes = Fakes({A: 9, B: 5})
    fakes.unverified, fakes.dead = {A, B}, {A}
    with caplog.at_level(logging.WARNING):
        projection = _reconfigure(fakes, _chain(A, B), Wish(lost={LS: (A,)}))
    assert (projection.chains[0].nodes, projection.begin) == ((B,), 6)
    assert "UNVERIFIED" in caplog.text and "NO REDUNDANCY" in caplog.text


def test_a_topic_of_one_copy_has_nothing_to_be_compared_with(caplog: pytest.LogCaptureFixture) -> None:
    fakes = Fakes({A: 9})
    fakes.unverified = {A}
    assert _reconfigure(fakes, _chain(A)).begin == 10
    assert "UNVERIFIED" not in caplog.text


def test_the_present_sequencer_stays_if_registered_and_no_unregistered_one_is_appointed() -> None:
    view = _view(_chain(A), (TWO, ONE))

    def chosen(*there: SequencerID) -> SequencerID | None:
        fakes = Fakes({A: 0}, there=there)
        choose = Reconfigurer(fakes.ask, fakes.ask_repository).choose_sequencer
        return _run(choose(view, ONE, SEAL_S))

    assert chosen(ONE, TWO) == ONE
    assert chosen(TWO) == TWO
    assert chosen() == ONE
    assert (
        chosen(SequencerID("sq:1", 2)) == ONE
    )  # started again: it is another one, which the view does not know yet
