"""Projection: positions and places follow from each other, whatever ranges and stripes there were (law 3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, Range, Stripe, StripePosition
from varlog.reconfiguration.rules import SealAnswer, Wish, next_projection, slow_tail

A, B, C = LogStreamID(1), LogStreamID(2), LogStreamID(3)


def _first(streams: int, stripe_size: int, first: int = 1) -> Projection:
    names = [LogStreamID(number + 1) for number in range(streams)]
    return Projection(
        TopicID(1),
        Epoch(1),
        GLSN(first),
        (Range(GLSN(first), tuple(map(Stripe, names)), stripe_size),),
        tuple(Chain(name, (NodeID(1),)) for name in names),
    )


@st.composite
def grown(draw: st.DrawFn) -> Projection:
    """A projection that log streams were added to at any positions, several times."""
    now = _first(draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 4)))
    for _ in range(draw(st.integers(0, 3))):
        newest = now.locate(GLSN(now.begin + draw(st.integers(0, 30))))
        sealed = {
            chain.log_stream: {
                chain.head: SealAnswer(newest.llsn if chain.log_stream == newest.log_stream else LLSN(0))
            }
            for chain in now.chains
        }
        fresh = LogStreamID(len(now.chains) + 1)
        sealed[fresh] = {NodeID(2): SealAnswer(LLSN(0))}
        now = next_projection(now, sealed, Wish(streams={fresh: (NodeID(2),)}), None)
    return now


def _by_hand(projection: Projection, end: int) -> dict[int, tuple[LogStreamID, LLSN]]:
    """Position by position, as the drawing has it."""
    written: dict[LogStreamID, int] = {}
    places = {}
    bounds = [*(found.begin for found in projection.ranges[1:]), end]
    for found, stop in zip(projection.ranges, bounds, strict=True):
        for glsn in range(found.begin, min(stop, end)):
            stripe = found.stripes[(glsn - found.begin) // found.stripe_size % len(found.stripes)]
            written[stripe.log_stream] = written.get(stripe.log_stream, 0) + 1
            places[glsn] = (stripe.log_stream, LLSN(written[stripe.log_stream]))
    return places


@given(grown())
def test_every_position_is_where_the_turns_put_it_and_back(projection: Projection) -> None:
    """R-SEQ-3."""
    for glsn, (log_stream, llsn) in _by_hand(projection, projection.begin + 60).items():
        place = projection.locate(GLSN(glsn))
        assert (place.log_stream, place.llsn) == (log_stream, llsn)
        assert projection.position(log_stream, llsn) == (glsn, place.run)


@given(grown(), st.integers(0, 40))
def test_a_run_is_consecutive_in_both_orders_and_ends_where_it_must(
    projection: Projection, offset: int
) -> None:
    """R-SEQ-3, R-ORD-5."""
    places = _by_hand(projection, projection.first + 300)
    glsn = GLSN(projection.first + offset)
    run = min(projection.locate(glsn).run, 30)
    log_stream, llsn = places[glsn]
    assert [places[glsn + step] for step in range(run)] == [(log_stream, llsn + step) for step in range(run)]


@given(grown(), st.integers(0, 60))
def test_the_first_entry_of_a_stream_from_a_position_on_is_found(projection: Projection, offset: int) -> None:
    places = _by_hand(projection, projection.first + 400)
    glsn = GLSN(projection.first + offset)
    for chain in projection.chains:
        later = [
            llsn for at, (log_stream, llsn) in places.items() if at >= glsn and log_stream == chain.log_stream
        ]
        assert projection.llsn_from(chain.log_stream, glsn) == later[0]


@given(grown(), st.integers(1, 20), st.integers(0, 20))
def test_rows_are_the_positions_of_a_streams_entries(projection: Projection, begin: int, count: int) -> None:
    places = _by_hand(projection, projection.first + 600)
    for chain in projection.chains:
        by_llsn = {llsn: at for at, (log_stream, llsn) in places.items() if log_stream == chain.log_stream}
        rows = list(projection.rows(chain.log_stream, LLSN(begin), LLSN(begin + count)))
        mapped = [(llsn + step, glsn + step) for llsn, glsn, length in rows for step in range(length)]
        assert mapped == [(llsn, by_llsn[LLSN(llsn)]) for llsn in range(begin, begin + count)]


@given(grown(), st.integers(0, 60), st.integers(1, 8))
def test_a_batch_gets_the_first_run_that_holds_it(projection: Projection, offset: int, count: int) -> None:
    """A batch is never cut (R-ORD-5); what does not fit anywhere is refused."""
    glsn = GLSN(projection.begin + offset)
    if count > projection.run_max:
        with pytest.raises(ValueError, match="stripe size"):
            projection.run_from(glsn, count)
        return
    found = projection.run_from(glsn, count)
    assert projection.locate(found).run >= count
    assert all(projection.locate(GLSN(at)).run < count for at in range(glsn, found))


@given(grown())
def test_no_old_position_moves_when_log_streams_are_added(projection: Projection) -> None:
    """Every old position stays readable after any number of reconfigurations (R-SEQ-3)."""
    sealed = {chain.log_stream: {chain.head: SealAnswer(LLSN(0))} for chain in projection.chains}
    fresh = LogStreamID(9)
    sealed[fresh] = {NodeID(3): SealAnswer(LLSN(0))}
    after = next_projection(projection, sealed, Wish(streams={fresh: (NodeID(3),)}), None)
    for glsn in range(projection.first, after.begin):
        old, new = projection.locate(GLSN(glsn)), after.locate(GLSN(glsn))
        assert (old.log_stream, old.llsn) == (new.log_stream, new.llsn)


def test_positions_take_turns_as_drawn() -> None:
    """R-SEQ-3: the address space of source 003, and one with units of two."""
    one = _first(2, 1)
    assert [one.locate(GLSN(glsn))[:2] for glsn in (1, 2, 3, 4)] == [(A, 1), (B, 1), (A, 2), (B, 2)]
    two = _first(2, 2)
    assert [two.locate(GLSN(glsn)) for glsn in (1, 2, 3, 8)] == [
        StripePosition(A, LLSN(1), 2),
        StripePosition(A, LLSN(2), 1),
        StripePosition(B, LLSN(1), 2),
        StripePosition(B, LLSN(4), 1),
    ]


def test_the_slow_tail_is_the_largest_position_that_any_unit_has() -> None:
    """R-SEQ-2."""
    now = _first(2, 1)
    assert slow_tail(now, {A: {NodeID(1): SealAnswer(LLSN(0))}, B: {NodeID(1): SealAnswer(LLSN(0))}}) == 0
    sealed = {
        A: {NodeID(1): SealAnswer(LLSN(3)), NodeID(2): SealAnswer(LLSN(5))},
        B: {NodeID(1): SealAnswer(LLSN(4))},
    }
    assert slow_tail(now, sealed) == 9
