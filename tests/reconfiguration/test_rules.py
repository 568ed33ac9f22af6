"""The next projection, case by case."""

from __future__ import annotations

import pytest

from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection, SequencerID
from varlog.reconfiguration.rules import (
    SealAnswer,
    SealAnswers,
    Wish,
    first_projection,
    next_projection,
    slow_tail,
    thin,
    to_compare,
)

LS, OTHER = LogStreamID(1), LogStreamID(2)
A, B, C, D = (NodeID(number) for number in (1, 2, 3, 4))
ONE, TWO = SequencerID("sq:1", 1), SequencerID("sq:2", 1)


def _answers(newest: int, *nodes: NodeID, trouble: str = "") -> dict[NodeID, SealAnswer]:
    return dict.fromkeys(nodes, SealAnswer(LLSN(newest), trouble))


def _first(*nodes: NodeID, stripe_size: int = 4) -> Projection:
    return first_projection(TopicID(1), GLSN(1), stripe_size, {LS: nodes}, {LS: _answers(0, *nodes)}, ONE)


def _next(now: Projection, sealed: SealAnswers, wish: Wish | None = None) -> Projection:
    return next_projection(now, sealed, wish or Wish(), now.sequencer)


def test_a_topic_begins_with_the_sealed_units_and_the_others_are_out_of_sync() -> None:
    """R-SEQ-12."""
    begun = first_projection(TopicID(1), GLSN(7), 4, {LS: (A, B, C)}, {LS: _answers(0, A, C)}, ONE)
    assert (begun.epoch, begun.begin, begun.first) == (1, 7, 7)
    assert (begun.chains[0].nodes, begun.chains[0].out_of_sync) == ((A, C), (B,))
    with pytest.raises(Unavailable):
        first_projection(TopicID(1), GLSN(1), 4, {LS: (A, B)}, {LS: {}}, ONE)


@pytest.mark.parametrize("gone", [A, B, C])
def test_head_middle_or_tail_is_left_out_and_the_others_keep_their_order(gone: NodeID) -> None:
    """R-SEQ-10."""
    left = [node for node in (A, B, C) if node != gone]
    projection = _next(_first(A, B, C), {LS: _answers(5, *left)})
    assert (projection.epoch, projection.begin) == (2, 6)
    assert (projection.chains[0].nodes, projection.chains[0].out_of_sync) == (tuple(left), (gone,))
    assert thin(projection) == ()


def test_two_of_three_gone_leaves_one_without_redundancy() -> None:
    """R-SEQ-10: it continues, and is known to be thin."""
    projection = _next(_first(A, B, C), {LS: _answers(5, B)})
    assert thin(projection) == projection.chains
    assert thin(_first(A)) == ()  # a topic that was made with one copy has what was asked for


def test_nobody_answers_for_a_stream_so_there_is_no_next_projection() -> None:
    with pytest.raises(Unavailable, match="none of its nodes"):
        _next(_first(A, B), {LS: {}})
    with pytest.raises(Unavailable):  # one that would join knows nothing of it
        _next(_first(A, B), {LS: _answers(0, C)}, Wish(join={LS: (C,)}))


def test_the_slow_tail_is_the_largest_position_that_any_unit_has() -> None:
    """R-SEQ-2: also of one who is accused."""
    now = _first(A, B)
    sealed = {LS: {A: SealAnswer(LLSN(9)), B: SealAnswer(LLSN(3))}}
    assert slow_tail(now, sealed) == 9
    assert _next(now, sealed, Wish(accused=frozenset({A}))).begin == 10
    assert slow_tail(now, {LS: _answers(0, A)}) == 0


def test_where_nothing_was_written_since_it_begins_where_it_began() -> None:
    now = _next(_first(A, B), {LS: _answers(9, A, B)})
    assert _next(now, {LS: _answers(4, A, B)}).begin == 10


def test_accused_and_troubled_ones_serve_only_where_there_is_no_other() -> None:
    now = _first(A, B, C)
    sealed = {
        LS: {A: SealAnswer(LLSN(1)), B: SealAnswer(LLSN(1), "its disk is full"), C: SealAnswer(LLSN(1))}
    }
    assert _next(now, sealed, Wish(accused=frozenset({A}))).chains[0].nodes == (C,)
    assert _next(now, sealed, Wish(without={LS: (C,)})).chains[0].nodes == (A,)
    assert _next(now, sealed, Wish(accused=frozenset({A, C}))).chains[0].nodes == (A, B, C)
    assert _next(now, sealed, Wish(without={OTHER: (A,)})).chains[0].nodes == (A, C)


def test_a_joining_node_comes_behind_the_tail() -> None:
    now = _next(_first(A, B, C), {LS: _answers(5, B, C)})
    joined = _next(now, {LS: _answers(5, A, B, C)}, Wish(join={LS: (A,)}))
    assert (joined.chains[0].nodes, joined.chains[0].out_of_sync) == ((B, C, A), ())


def test_one_replaces_another_in_one_step_also_the_only_one() -> None:
    now = _first(A, B)
    wish = Wish(join={LS: (D,)}, leave={LS: (A,)})
    chain = _next(now, {LS: _answers(5, A, B, D)}, wish).chains[0]
    assert (chain.nodes, chain.out_of_sync) == ((B, D), ())
    alone = _next(_first(A), {LS: _answers(5, A, D)}, wish).chains[0]
    assert (alone.nodes, alone.out_of_sync) == ((D,), ())


@pytest.mark.parametrize(
    "answers", [_answers(5, A, B), {**_answers(5, A, B), **_answers(5, D, trouble="no")}]
)
def test_no_member_leaves_for_a_replacement_that_could_not_join(answers: dict[NodeID, SealAnswer]) -> None:
    chain = _next(_first(A, B), {LS: answers}, Wish(join={LS: (D,)}, leave={LS: (A,)})).chains[0]
    assert (chain.nodes, chain.out_of_sync) == ((A, B), ())


def test_a_member_out_of_sync_that_is_replaced_is_no_member_any_more() -> None:
    now = _next(_first(A, B, C), {LS: _answers(5, B, C)})
    chain = _next(now, {LS: _answers(5, B, C, D)}, Wish(join={LS: (D,)}, leave={LS: (A,)})).chains[0]
    assert (chain.nodes, chain.out_of_sync) == ((B, C, D), ())


def test_a_new_stream_takes_turns_from_the_next_position_on() -> None:
    """R-SEQ-3: what is written stays where it is."""
    now = _first(A, B, stripe_size=2)
    sealed = {LS: _answers(5, A, B), OTHER: _answers(0, B, C)}
    grown = _next(now, sealed, Wish(streams={OTHER: (C, B, D)}))
    assert (grown.chain(OTHER).nodes, grown.chain(OTHER).out_of_sync) == ((C, B), (D,))
    assert [grown.locate(GLSN(glsn))[:2] for glsn in range(5, 11)] == [
        (LS, 5),
        (LS, 6),
        (LS, 7),
        (OTHER, 1),
        (OTHER, 2),
        (LS, 8),
    ]


def test_a_stream_that_came_in_meanwhile_is_not_taken_in_twice() -> None:
    now = _first(A, B)
    assert _next(now, {LS: _answers(5, A, B)}, Wish(streams={LS: (A, B)})).ranges == now.ranges


def test_a_new_stream_whose_unit_holds_something_is_not_served_from_it() -> None:
    sealed = {LS: _answers(5, A), OTHER: {B: SealAnswer(LLSN(3)), C: SealAnswer(LLSN(0))}}
    chain = _next(_first(A), sealed, Wish(streams={OTHER: (B, C)})).chain(OTHER)
    assert (chain.nodes, chain.out_of_sync) == ((C,), (B,))


def test_a_new_stream_of_which_nobody_answers_waits_and_keeps_nobody_waiting() -> None:
    projection = _next(_first(A, B), {LS: _answers(5, B), OTHER: {}}, Wish(streams={OTHER: (C,)}))
    assert [chain.log_stream for chain in projection.chains] == [LS]
    assert projection.chains[0].nodes == (B,)


def test_what_was_trimmed_counts_as_written_even_if_nobody_wrote_it() -> None:
    """Law 9: units have been trimmed by LLSN. A new range must not map other positions to those LLSNs."""
    sealed = {LS: _answers(2, A), OTHER: _answers(0, B)}
    wish = Wish(streams={OTHER: (B,)})
    grown = next_projection(_first(A), sealed, wish, ONE, trimmed=GLSN(10))
    assert (grown.begin, grown.newest_range.begin) == (11, 11)
    assert grown.llsn_from(LS, GLSN(11)) == 11


def test_a_unit_restored_and_not_compared_since_is_no_answer() -> None:
    """A disk that went back in time lacks what was acknowledged, and looks sound."""
    restored = {A: SealAnswer(LLSN(3), unverified=True)}
    kept = _next(_first(A, B, C), {LS: {**restored, **_answers(5, B, C)}}).chains[0]
    assert (kept.nodes, kept.out_of_sync) == ((B, C), (A,))
    with pytest.raises(Unavailable, match="may hold newer entries"):
        _next(_first(A, B, C), {LS: restored})
    full = {**restored, B: SealAnswer(LLSN(5), "its disk is full")}
    assert _next(_first(A, B), {LS: full}).chains[0].nodes == (B,)  # whole, and poor


def test_after_a_restart_of_all_units_they_are_compared_once_all_are_back_or_lost() -> None:
    chain = _first(A, B, C).chains[0]
    restored = {node: SealAnswer(LLSN(3), unverified=True) for node in (A, B, C)}
    two = {A: restored[A], B: restored[B]}
    assert to_compare(chain, restored, Wish()) == {A: (B, C), B: (A, C), C: (A, B)}
    assert to_compare(chain, two, Wish()) == {}
    assert to_compare(chain, two, Wish(lost={LS: (C,)})) == {A: (B,), B: (A,)}
    assert to_compare(chain, {A: restored[A]}, Wish(lost={LS: (B, C)})) == {A: ()}
    assert to_compare(chain, {**two, C: SealAnswer(LLSN(3))}, Wish()) == {}
    older = {**two, C: SealAnswer(LLSN(3), unverified=True, went_back=True)}
    assert to_compare(chain, older, Wish()) == {A: (B,), B: (A,)}
    unused = {node: answer._replace(went_back=True) for node, answer in restored.items()}
    assert to_compare(chain, unused, Wish()) == {A: (B, C), B: (A, C), C: (A, B)}
