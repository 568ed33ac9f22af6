"""Projections at the repository: the next epoch alone, who was sealed alone; no position moves, chains keep order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines.sequenced import (
    FOUR,
    LS,
    NODES,
    ONE,
    OTHER,
    SEQUENCER,
    THREE,
    TOPIC,
    TWO,
    UNIT,
    begun,
    first,
    present,
    reconfigured,
    registered,
    sealed_by,
)
from varlog.metarepo.membership import projection_rules, rules
from varlog.metarepo.membership.projection_rules import SEQUENCERS_MAX, Handover, accept, handover
from varlog.metarepo.membership.rules import Members
from varlog.model.cluster import Ordering, StreamState, changed
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    InvalidRequest,
    PreconditionFailed,
    ProjectionConflict,
    Unavailable,
    UnknownTopic,
)
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID, Stripe
from varlog.reconfiguration.rules import SealAnswer, Wish, next_projection

SECOND = LogStreamID(2)


def test_the_first_projection_has_the_streams_run() -> None:
    """R-SEQ-12."""
    members = begun(2)
    assert present(members).epoch == 1
    for stream in members.view.streams:
        assert (stream.state, stream.epoch, stream.replicas) == (StreamState.RUNNING, Epoch(1), NODES)


def test_asked_again_it_holds_already() -> None:
    members = begun()
    now = present(members)
    assert accept(members, now, {}) is members


def test_only_the_next_epoch_can_be_proposed() -> None:
    """R-SEQ-3: of two that reconfigure at once the repository takes the first."""
    members = begun()
    mine = reconfigured(members, {LS: (ONE, TWO)})
    other = changed(present(mine), chains=(Chain(LS, (TWO, THREE), (ONE,)),))
    with pytest.raises(ProjectionConflict) as taken:
        accept(mine, other, {LS: (TWO, THREE)})
    assert (taken.value.asked, taken.value.current) == (2, 2)
    with pytest.raises(ProjectionConflict):
        accept(members, changed(other, epoch=Epoch(3)), {LS: (TWO, THREE)})


def test_members_that_are_away_stay_replicas_of_their_stream() -> None:
    members = reconfigured(begun(), {LS: (TWO, THREE)})
    stream = members.view.streams[0]
    assert (present(members).chain(LS), stream.replicas) == (
        Chain(LS, (TWO, THREE), (ONE,)),
        (TWO, THREE, ONE),
    )
    assert stream.epoch == 2
    with pytest.raises(PreconditionFailed, match="holds replicas"):
        rules.unregister_node(members, ONE)


def test_a_joining_node_comes_behind_the_tail_and_a_leaving_one_is_no_replica_any_more() -> None:
    away = reconfigured(begun(), {LS: (TWO, THREE)})
    wish = Wish(join={LS: (FOUR,)}, leave={LS: (ONE,)})
    moved = reconfigured(away, {LS: (TWO, THREE, FOUR)}, wish=wish)
    assert moved.view.streams[0].replicas == (TWO, THREE, FOUR)
    assert rules.unregister_node(moved, ONE).view.node(ONE) is None


def _propose(members: Members, **changes: object) -> Members:
    """The next projection of `begun`, with something wrong in it."""
    now = present(members)
    proposed = changed(now, epoch=Epoch(now.epoch + 1), **changes)
    return accept(members, proposed, sealed_by(now))


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        (Chain(LS, (TWO, ONE, THREE)), "must keep its order"),
        (Chain(LS, (ONE, THREE, TWO)), "must keep its order"),
        (Chain(LS, (FOUR, ONE)), "was not sealed"),
        (Chain(LS, (ONE, NodeID(9))), "storage node 9 is not registered"),
    ],
)
def test_a_chain_that_breaks_its_order_or_was_not_sealed_is_refused(chain: Chain, why: str) -> None:
    """Law 8: whatever the tail has, all before it have."""
    with pytest.raises(PreconditionFailed, match=why):
        _propose(begun(), chains=(chain,))


def test_a_member_that_knows_what_is_written_must_have_been_sealed() -> None:
    members = begun()
    proposed = changed(present(members), epoch=Epoch(2), chains=(Chain(LS, (FOUR,), NODES),))
    with pytest.raises(PreconditionFailed, match="must be sealed: no other knows"):
        accept(members, proposed, {LS: (FOUR,)})
    moved = accept(members, proposed, {LS: (THREE, FOUR)})
    assert present(moved) == proposed, "one that was filled from a sealed one may continue alone"


def test_positions_that_may_be_written_do_not_move() -> None:
    """Law 3."""
    members = reconfigured(begun(2), {LS: NODES, SECOND: NODES}, newest=6)
    begin, stripes = present(members).begin, (Stripe(LS), Stripe(SECOND))
    assert begin == 15, "LLSN 6 of the second stream is position 14"
    wrong: list[tuple[dict[str, object], str]] = [
        ({"begin": GLSN(begin - 1)}, "cannot begin at 14"),
        ({"ranges": (Range(GLSN(1), stripes, UNIT + 1),)}, "cannot move"),
        ({"ranges": (Range(GLSN(2), stripes, UNIT),)}, "cannot move"),
        ({"ranges": (Range(GLSN(1), stripes, UNIT), Range(GLSN(10), stripes, UNIT))}, "cannot begin at 10"),
        (
            {"ranges": (Range(GLSN(1), stripes, UNIT), Range(begin, stripes, UNIT))},
            "continues at LLSN 9, not at 1",
        ),
    ]
    for changes, why in wrong:
        with pytest.raises(PreconditionFailed, match=why):
            _propose(members, **changes)


def test_a_chain_with_entries_cannot_be_left_out() -> None:
    members = begun(2)
    with pytest.raises(PreconditionFailed, match="cannot be left out"):
        _propose(members, ranges=(Range(GLSN(1), (Stripe(LS),), UNIT),), chains=(Chain(LS, NODES),))


def test_a_new_stream_takes_part_from_where_nothing_was_written() -> None:
    members = reconfigured(begun(), {LS: NODES}, newest=10)
    members, fresh = rules.new_log_stream_id(members)
    members, _ = rules.register_log_stream(members, TOPIC, fresh, NODES)
    wish = Wish(streams={fresh: NODES})
    answers = {
        LS: dict.fromkeys(NODES, SealAnswer(LLSN(10))),
        fresh: dict.fromkeys(NODES, SealAnswer(LLSN(0))),
    }
    proposed = next_projection(present(members), answers, wish, SEQUENCER)
    grown = present(accept(members, proposed, {LS: NODES, fresh: NODES}))
    assert [found.begin for found in grown.ranges] == [1, 11]
    assert grown.locate(GLSN(10)).log_stream == LS
    unknown = changed(proposed, epoch=Epoch(3))
    with pytest.raises(PreconditionFailed, match="does not belong to topic 1"):
        accept(reconfigured(begun(), {LS: NODES}, newest=10), unknown, {LS: NODES, fresh: NODES})


def test_a_new_range_begins_above_what_is_trimmed() -> None:
    """Law 9: units are trimmed by LLSN, also for positions that were granted and never written."""
    members, fresh = rules.new_log_stream_id(begun())
    members, _ = rules.register_log_stream(members, TOPIC, fresh, (ONE,))
    members = rules.trim_topic(members, TOPIC, GLSN(10), GLSN(10))
    answers = {LS: dict.fromkeys(NODES, SealAnswer(LLSN(2))), fresh: {ONE: SealAnswer(LLSN(0))}}
    sealed = {LS: NODES, fresh: (ONE,)}
    wish = Wish(streams={fresh: (ONE,)})
    late = next_projection(present(members), answers, wish, SEQUENCER)
    with pytest.raises(PreconditionFailed, match="trimmed up to 10"):
        accept(members, late, sealed)
    grown = next_projection(present(members), answers, wish, SEQUENCER, trimmed=GLSN(10))
    assert present(accept(members, grown, sealed)).newest_range.begin == 11


def test_a_first_projection_that_is_none_is_refused() -> None:
    members = registered(2)
    right = first(members)
    stripes = right.ranges[0].stripes
    wrong = [
        changed(right, begin=GLSN(2)),
        changed(right, ranges=(Range(GLSN(1), stripes, UNIT), Range(GLSN(9), stripes, UNIT))),
        changed(right, ranges=(Range(GLSN(1), (Stripe(LS, LLSN(5)), Stripe(SECOND)), UNIT),)),
    ]
    for proposed in wrong:
        with pytest.raises(PreconditionFailed):
            accept(members, proposed, sealed_by(right))


def test_only_sequenced_topics_have_projections() -> None:
    members, topic = rules.register_topic(registered(), "committed", Ordering.COMMITTED)
    with pytest.raises(PreconditionFailed, match="is ordered as committed"):
        accept(members, changed(first(registered()), topic=topic.topic), {})
    with pytest.raises(UnknownTopic):
        accept(members, changed(first(registered()), topic=TopicID(9)), {})


def test_a_projection_leaves_with_its_topic() -> None:
    assert rules.unregister_topic(begun(), TOPIC).view.projections == ()


# --- Sequencers ----------------------------------------------------------------------------------------------------------


def test_a_sequencer_that_was_started_again_takes_the_place_of_the_one_before() -> None:
    members = projection_rules.register_sequencer(registered(), SequencerID(SEQUENCER.address, 9))
    assert members.view.sequencers == (OTHER, SequencerID(SEQUENCER.address, 9))
    assert projection_rules.register_sequencer(members, OTHER) is members
    with pytest.raises(InvalidRequest):
        projection_rules.register_sequencer(members, SequencerID("", 9))


def test_only_a_registered_sequencer_is_appointed_and_an_unregistered_one_may_stay() -> None:
    members = projection_rules.register_sequencer(begun(), SequencerID(SEQUENCER.address, 9))
    stays = reconfigured(members, {LS: NODES})
    assert present(stays).sequencer == SEQUENCER, "nobody else answers: it may come back"
    with pytest.raises(PreconditionFailed, match="is not registered, or was started again"):
        reconfigured(members, {LS: NODES}, sequencer=SequencerID("s3:1", 3))
    back = reconfigured(members, {LS: NODES}, sequencer=OTHER)
    with pytest.raises(PreconditionFailed):
        reconfigured(back, {LS: NODES}, sequencer=SEQUENCER)


def test_sequencers_that_nobody_needs_are_forgotten_in_the_end() -> None:
    members = begun()
    for number in range(3 * SEQUENCERS_MAX):
        members = projection_rules.register_sequencer(members, SequencerID(f"x{number}:1", 1))
    assert len(members.view.sequencers) == SEQUENCERS_MAX
    assert SEQUENCER in members.view.sequencers, "it has a topic"


# --- Whom it takes something from ------------------------------------------------------------------------------------------


def test_unsealed_units_and_replaced_sequencers_must_be_waited_for() -> None:
    """R-SEQ-13."""
    now = present(begun(2))
    later = changed(now, epoch=Epoch(2))
    assert handover(None, now, {}) == Handover(Epoch(1))
    assert handover(now, later, sealed_by(now)) == Handover(Epoch(2))
    assert handover(now, changed(later, sequencer=OTHER), {LS: (TWO, THREE), SECOND: NODES}) == Handover(
        Epoch(2), ((LS, ONE),), SEQUENCER
    )


def test_a_unit_out_of_sync_is_not_waited_for() -> None:
    """It was sealed, or had no lease, when it went; and gets one again only in the present epoch."""
    now = present(reconfigured(begun(), {LS: (TWO, THREE)}))
    assert handover(now, changed(now, epoch=Epoch(3)), {LS: (TWO, THREE)}) == Handover(Epoch(3))


# --- Whatever the reconfigurer says ------------------------------------------------------------------------------------------

_node = st.sampled_from((*NODES, FOUR))
_some = st.sets(_node).map(lambda found: tuple(sorted(found)))


@st.composite
def _steps(draw: st.DrawFn) -> tuple[dict[LogStreamID, tuple[NodeID, ...]], Wish, int]:
    sealed = {LS: draw(_some), SECOND: draw(_some)}
    wish = Wish(
        accused=frozenset(draw(_some)),
        join={LS: draw(_some), SECOND: draw(_some)},
        leave={LS: draw(_some)} if draw(st.booleans()) else {},
    )
    return sealed, wish, draw(st.integers(0, 30))


@given(st.lists(_steps(), max_size=8))
def test_what_reconfigurers_propose_is_accepted_and_no_position_ever_moves(
    steps: list[tuple[dict[LogStreamID, tuple[NodeID, ...]], Wish, int]],
) -> None:
    """Laws 3 and 8, over any history of failures, joins and moves."""
    members = begun(2)
    for sealed, wish, newest in steps:
        before = present(members)
        answers = {at: dict.fromkeys(nodes, SealAnswer(LLSN(newest))) for at, nodes in sealed.items()}
        try:
            proposed = next_projection(before, answers, wish, SEQUENCER)
        except Unavailable:
            continue
        members = accept(members, proposed, sealed)
        _check_follows(before, present(members))


def _check_follows(before: Projection, after: Projection) -> None:
    assert after.epoch == before.epoch + 1
    assert after.begin >= before.begin
    for glsn in map(GLSN, range(1, after.begin)):
        assert before.locate(glsn)[:2] == after.locate(glsn)[:2]
    for chain in before.chains:
        nodes = after.chain(chain.log_stream).nodes
        staying = [node for node in nodes if node in chain.nodes]
        assert staying == [node for node in chain.nodes if node in nodes]
        assert list(nodes[: len(staying)]) == staying
