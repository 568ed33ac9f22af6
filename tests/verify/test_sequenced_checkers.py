"""Every checker of sequenced topics accepts a good history and rejects a small bad one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.verify.test_checkers import TOPIC, Story, violations
from varlog.model.cluster import changed
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID, Stripe
from varlog.verify.checkers import check_history
from varlog.verify.history import CallOutcome, Ending, ObservedGrant, Seen, StoredPage

ONE, TWO = (SequencerID(f"sq{number}:1", number) for number in (1, 2))
# Two stripes of two positions each: stream 1 has 1 2 5 6, stream 2 has 3 4 7 8.
RANGE = Range(GLSN(1), (Stripe(LogStreamID(1)), Stripe(LogStreamID(2))), 2)
A, B, E = Seen(1, 1, 1, b"a"), Seen(3, 1, 2, b"b"), Seen(5, 3, 1, b"e")


def _projection(epoch: int = 1, begin: int = 1, nodes: tuple[int, ...] = (1, 2)) -> Projection:
    chain = tuple(map(NodeID, nodes))
    chains = (Chain(LogStreamID(1), chain), Chain(LogStreamID(2), (NodeID(1), NodeID(2))))
    return Projection(TopicID(1), Epoch(epoch), GLSN(begin), (RANGE,), chains, ONE)


def _trace(story: Story, *projections: Projection) -> None:
    story.sequenced_facts.names[1] = TOPIC
    story.sequenced_facts.projections[1] = {projection.epoch: projection for projection in projections}


def _end(story: Story, *entries: Seen, junk: set[int], tail: int) -> Ending:
    ending = story.end(*entries, tail=tail)
    ending.junk, ending.replicas = junk, {}
    ending.trims = {1: {"sn1": ending.trimmed}}
    return ending


def good() -> Story:
    """Two holes were filled, a sequencer was lost with what it had granted, and every client got that answer."""
    story = Story()
    story.sequenced = {TOPIC}
    _trace(story, _projection(), _projection(2, 6), _projection(3, 6, (1,)))
    story.sequenced_facts.tokens = [ObservedGrant(1, 1, 1, 3, "sq1#1"), ObservedGrant(1, 2, 3, 6, "sq1#1")]
    story.append(A)
    story.tail(9)  # positions that nobody was to write
    story.append(B)
    story.append(E)
    story.tail(5)
    story.read(2, None, CallOutcome.FILLED)
    story.subscribe(1, 6, A, B, E)
    story.subscribe(2, 5, B)
    story.subscribe(1, None, A, outcome=CallOutcome.OPEN)
    ending = _end(story, A, B, E, junk={2, 4}, tail=5)
    page = StoredPage(1, 2, False, 77)
    ending.units = {1: {"sn1": [page], "sn2": [page]}}
    return story


def test_a_good_history_of_a_sequenced_topic_is_accepted() -> None:
    assert check_history(good()) == []


def _passed_over_an_entry() -> Story:
    story = good()
    story.subscribe(1, 6, A, E)
    return story


def _passed_over_what_is_no_junk() -> Story:
    story = good()
    story.subscribe(1, 8, A, B, E)
    story.endings[0].tail = 8
    return story


def _repeated() -> Story:
    story = good()
    story.subscribe(1, 6, A, A, B, E)
    return story


def _beyond_the_end() -> Story:
    story = good()
    story.subscribe(1, 4, A, B, E)
    return story


def _filled_and_written() -> Story:
    story = good()
    story.read(3, None, CallOutcome.FILLED)
    return story


def _filled_and_not_written() -> Story:
    story = good()
    story.endings[0].junk = {4}
    return story


def _hole() -> Story:
    story = good()
    story.endings[0].tail = 6
    return story


def _stale_tail() -> Story:
    """Law of leases: what a deposed sequencer says is older than what was acknowledged."""
    story = good()
    story.tail(4)
    return story


def _stale_not_written() -> Story:
    story = good()
    story.read(4, None, CallOutcome.NOT_WRITTEN)
    return story


def _moved() -> Story:
    story = good()
    _trace(story, _projection(), changed(_projection(2), ranges=(Range(GLSN(1), RANGE.stripes, 1),)))
    return story


def _range_lost() -> Story:
    story = good()
    _trace(story, _projection(), changed(_projection(2, 6), ranges=(Range(GLSN(1), RANGE.stripes, 1),)))
    return story


def _units_differ() -> Story:
    story = good()
    story.endings[0].units[1]["sn2"] = [StoredPage(1, 2, True, 77)]
    return story


def _chain_turned_round() -> Story:
    story = good()
    _trace(story, _projection(), _projection(2, 6, (2, 1)))
    return story


def _joined_at_the_head() -> Story:
    story = good()
    _trace(story, _projection(), _projection(2, 6, (3, 1, 2)))
    return story


def _begins_earlier() -> Story:
    story = good()
    _trace(story, _projection(1, 6), _projection(2, 5))
    return story


def _two_of_one_epoch() -> Story:
    story = good()
    story.sequenced_facts.contradictions.append("topic 1 has two projections of epoch 2")
    return story


def _given_twice() -> Story:
    story = good()
    story.sequenced_facts.tokens.append(ObservedGrant(1, 2, 5, 6, "sq1#1"))
    return story


def _given_from_before_its_time() -> Story:
    story = good()
    _trace(story, _projection(), changed(_projection(2, 6), sequencer=TWO))
    story.sequenced_facts.tokens = [ObservedGrant(1, 2, 5, 6, "sq2#1")]
    return story


def _observed(what: str) -> Callable[[], Story]:
    def make() -> Story:
        story = good()
        getattr(story.sequenced_facts, what).append("it did")
        return story

    return make


BAD: list[tuple[Callable[[], Story], str]] = [
    (_passed_over_an_entry, "SubscribersPassOverJunkAlone"),
    (_passed_over_what_is_no_junk, "SubscribersPassOverJunkAlone"),
    (_repeated, "SubscribersPassOverJunkAlone"),
    (_beyond_the_end, "SubscribersPassOverJunkAlone"),
    (_filled_and_written, "JunkStaysJunk"),
    (_filled_and_not_written, "JunkStaysJunk"),
    (_hole, "Dense"),
    (_stale_tail, "WatermarksMonotone"),
    (_stale_not_written, "WatermarksMonotone"),
    (_moved, "PlacesFollowPositions"),
    (_range_lost, "ProjectionsFollow"),
    (_units_differ, "UnitsEqual"),
    (_chain_turned_round, "ProjectionsFollow"),
    (_joined_at_the_head, "ProjectionsFollow"),
    (_begins_earlier, "ProjectionsFollow"),
    (_two_of_one_epoch, "ProjectionsFollow"),
    (_given_twice, "TokensOnce"),
    (_given_from_before_its_time, "TokensOnce"),
    (_observed("written_twice"), "WrittenOnce"),
    (_observed("broken_chains"), "ChainsFillHeadToTail"),
    (_observed("stale_answers"), "SealsHold"),
]


@pytest.mark.parametrize(("make", "name"), BAD, ids=[f"{name}-{at}" for at, (_, name) in enumerate(BAD)])
def test_a_bad_history_of_a_sequenced_topic_is_rejected(make: Callable[[], Story], name: str) -> None:
    assert name in violations(make())
