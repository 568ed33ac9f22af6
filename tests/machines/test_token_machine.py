"""The sequencer's counters: no position twice, a batch in one run, and silence in every epoch that is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.cluster import ClusterView, Ordering, Topic, changed
from varlog.model.epoch import Epoch
from varlog.model.errors import BatchTooLarge, InvalidRequest, NotSequencing
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID, Stripe
from varlog.sequencer.token_machine import GrantedTokens, TokenMachine, UnknownEpoch

TOPIC = TopicID(1)
ME, OTHER = SequencerID("me:1", 7), SequencerID("other:1", 8)
AGAIN = SequencerID("me:1", 9)
UNIT = 8


def projection(
    epoch: int, begin: int = 1, sequencer: SequencerID | None = ME, stripes: int = 2
) -> Projection:
    streams = [LogStreamID(number) for number in range(1, stripes + 1)]
    return Projection(
        TOPIC,
        Epoch(epoch),
        GLSN(begin),
        (Range(GLSN(1), tuple(map(Stripe, streams)), UNIT),),
        tuple(Chain(stream, (NodeID(1),)) for stream in streams),
        sequencer,
    )


def view(found: Projection | None, revision: int = 1, trimmed: int = 0) -> ClusterView:
    topic = Topic(TOPIC, "orders", Ordering.SEQUENCED, GLSN(trimmed))
    projections = (found,) if found is not None else ()
    return ClusterView(ClusterID(1), revision, topics=(topic,), projections=projections)


def machine(*seen: Projection) -> TokenMachine:
    made = TokenMachine(ME)
    for revision, found in enumerate(seen, 1):
        made.apply_view(view(found, revision))
    return made


def give(made: TokenMachine, epoch: int, count: int) -> GrantedTokens:
    return made.grant(TOPIC, Epoch(epoch), count)


def test_positions_follow_each_other_and_a_batch_is_never_cut() -> None:
    """R-SEQ-1: one or more positions per request. What is left of a stripe's turn is skipped, and reported, so
    that the client fills it."""
    made = machine(projection(1))
    assert give(made, 1, 5) == GrantedTokens(GLSN(1))
    assert give(made, 1, 5) == GrantedTokens(GLSN(9), 3)
    assert give(made, 1, 3) == GrantedTokens(GLSN(14))
    assert give(made, 1, 0) == GrantedTokens(GLSN(17)), "looking gives nothing"
    assert give(made, 1, 0) == GrantedTokens(GLSN(17))


def test_what_no_run_can_hold_is_refused() -> None:
    made = machine(projection(1))
    with pytest.raises(BatchTooLarge, match="over the limit of 8"):
        give(made, 1, 9)
    with pytest.raises(InvalidRequest):
        give(made, 1, -1)
    assert give(made, 1, 8) == GrantedTokens(GLSN(1)), "what was refused took no position"
    assert give(machine(projection(1, stripes=1)), 1, 1000) == GrantedTokens(GLSN(1)), "one stripe is one run"


def test_an_epoch_that_was_not_seen_is_looked_up_first() -> None:
    made = TokenMachine(ME)
    with pytest.raises(UnknownEpoch):
        give(made, 1, 1)
    made.apply_view(view(projection(1)))
    assert give(made, 1, 1) == GrantedTokens(GLSN(1))
    with pytest.raises(UnknownEpoch):
        give(made, 2, 1)


@pytest.mark.parametrize("sequencer", [OTHER, AGAIN, None])
def test_only_the_appointed_sequencer_grants_positions(sequencer: SequencerID | None) -> None:
    """Another start at the same address is another sequencer: it has counted nothing."""
    made = machine(projection(1), projection(2, sequencer=sequencer))
    for epoch in (1, 2):
        with pytest.raises(NotSequencing) as refused:
            give(made, epoch, 1)
        assert type(refused.value) is NotSequencing
        assert refused.value.here == 2


def test_a_kept_sequencer_continues_its_count_and_a_new_one_begins_above_what_was_written() -> None:
    made = machine(projection(1))
    give(made, 1, 6)
    made.apply_view(view(projection(2, begin=3), 2))
    assert give(made, 2, 1) == GrantedTokens(GLSN(7)), (
        "tokens of the epoch before stay valid: they are not given again"
    )
    with pytest.raises(NotSequencing):
        give(made, 1, 1)
    assert give(machine(projection(5, begin=40)), 5, 1) == GrantedTokens(GLSN(40))


def test_nothing_that_was_trimmed_is_given() -> None:
    """A sequencer may be lost with positions that nobody wrote, and that were trimmed all the same."""
    made = TokenMachine(ME)
    made.apply_view(view(projection(2, begin=5), trimmed=20))
    assert give(made, 2, 1) == GrantedTokens(GLSN(21))


def test_with_the_lease_comes_the_end_of_an_epoch() -> None:
    """In a newer epoch another sequencer may count; the tail of a stale epoch must not be returned."""
    made = machine(projection(1))
    give(made, 1, 4)
    made.apply_epochs([(TOPIC, Epoch(2)), (TopicID(9), Epoch(3))])
    for count in (0, 1):
        with pytest.raises(NotSequencing):
            give(made, 1, count)
    with pytest.raises(UnknownEpoch):
        give(made, 2, 0)
    made.apply_view(view(projection(2), 2))
    assert give(made, 2, 0) == GrantedTokens(GLSN(5))


def test_an_older_view_is_ignored_and_a_deleted_topic_is_forgotten() -> None:
    made = machine(projection(1), projection(2))
    give(made, 2, 4)
    made.apply_view(changed(view(None, 1), topics=()))
    assert give(made, 2, 0) == GrantedTokens(GLSN(5))
    made.apply_view(changed(view(None, 9), topics=()))
    assert made.epoch(TOPIC) == 0


def test_a_topic_that_comes_back_is_counted_on() -> None:
    """Law 3: an older copy of the repository's store does not have the topic, the newest one that is put back after it does. What
    was given in this epoch is not given a second time, and the tail does not fall."""
    made = machine(projection(1), projection(2))
    assert give(made, 2, 4) == GrantedTokens(GLSN(1))
    made.apply_view(changed(view(None, 1_000_000), topics=()))
    with pytest.raises(UnknownEpoch):
        give(made, 2, 1)
    made.apply_view(view(projection(2), 2_000_000))
    assert give(made, 2, 0) == GrantedTokens(GLSN(5))
    assert give(made, 2, 4) == GrantedTokens(GLSN(5))


def test_a_topic_that_comes_back_is_in_no_epoch_that_was_over() -> None:
    """Law 7: an older copy may have the topic in an epoch whose end is known here, also while the topic was gone."""
    made = machine(projection(1))
    made.apply_view(changed(view(None, 2), topics=()))
    assert made.apply_epochs([(TOPIC, Epoch(3))])
    made.apply_view(view(projection(1), 3))
    with pytest.raises(NotSequencing, match="epoch 3"):
        give(made, 1, 1)
    made.apply_view(view(projection(3, begin=20), 4))
    assert give(made, 3, 1) == GrantedTokens(GLSN(20))


def test_a_bounded_number_of_deleted_topics_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varlog.sequencer.token_machine.GONE_TOPICS_MAX", 2)
    made = TokenMachine(ME)
    for number in range(1, 5):
        of_it = changed(projection(1), topic=TopicID(number))
        topic = Topic(TopicID(number), f"t{number}", Ordering.SEQUENCED)
        made.apply_view(ClusterView(ClusterID(1), number, topics=(topic,), projections=(of_it,)))
    assert list(made._gone) == [2, 3]


class World:
    """Two sequencers over one topic. The replaced one has no lease until it knows the new epoch; every granted
    position is written."""

    def __init__(self, stripes: int) -> None:
        self.stripes = stripes
        self.now = projection(1, stripes=stripes)
        self.revision = 1
        self.machines = {ME: TokenMachine(ME), OTHER: TokenMachine(OTHER)}
        self.leased = dict.fromkeys(self.machines, True)
        self.given: set[int] = set()

    def next_epoch(self, sequencer: SequencerID) -> None:
        if self.now.sequencer is not None and sequencer != self.now.sequencer:
            self.leased[self.now.sequencer] = False
        begin = max(self.given, default=0) + 1
        self.now = projection(self.now.epoch + 1, begin, sequencer, self.stripes)
        self.revision += 1

    def look(self, sequencer: SequencerID) -> None:
        self.machines[sequencer].apply_view(view(self.now, self.revision))

    def renew(self, sequencer: SequencerID) -> None:
        self.machines[sequencer].apply_epochs([(TOPIC, self.now.epoch)])
        self.leased[sequencer] = True

    def check_ask(self, sequencer: SequencerID, epoch: Epoch, count: int) -> None:
        if not self.leased[sequencer]:
            return
        try:
            first, skipped = self.machines[sequencer].grant(TOPIC, epoch, count)
        except NotSequencing:
            return
        assert first + count > max(self.given, default=0), "the returned tail is never below what was written"
        run = set(range(first - skipped, first + count))
        assert not run & self.given, "a position is given once"
        assert count == 0 or self.now.locate(first).run >= count, "a batch lies in one run"
        self.given |= run


_who = st.sampled_from([ME, OTHER])
_events = st.lists(
    st.one_of(
        st.tuples(st.just("next epoch"), _who, st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["look", "renew"]), _who, st.just(0), st.just(0)),
        st.tuples(st.just("ask"), _who, st.integers(0, 2), st.integers(0, UNIT)),
    ),
    max_size=80,
)


@given(_events, st.integers(1, 3))
def test_no_position_is_given_twice_whatever_happens(
    events: list[tuple[str, SequencerID, int, int]], stripes: int
) -> None:
    """R-SEQ-1: in any order of views, epochs and appointments, and whichever epoch is requested."""
    world = World(stripes)
    for what, who, back, count in events:
        if what == "next epoch":
            world.next_epoch(who)
        elif what == "look":
            world.look(who)
        elif what == "renew":
            world.renew(who)
        else:
            world.check_ask(who, Epoch(world.now.epoch - back), count)
