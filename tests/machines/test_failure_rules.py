"""What a sequenced topic's client decides: whose a token's positions are after any number of projections, and when to accuse."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from varlog.client.sequenced.failure_rules import (
    Remedy,
    Symptom,
    Token,
    in_doubt,
    place_of,
    remedy,
    still_ours,
)
from varlog.model.cluster import changed
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID, Stripe

SEQUENCERS = tuple(SequencerID(f"seq-{n}", 1) for n in range(3))
UNIT = 4


class TokenHistory(RuleBasedStateMachine):
    """Sequencers count, batches get written or not, and projections follow each other, with other sequencers and more streams."""

    def __init__(self) -> None:
        super().__init__()
        one = LogStreamID(1)
        self.now = Projection(
            TopicID(1),
            Epoch(1),
            GLSN(1),
            (Range(GLSN(1), (Stripe(one),), UNIT),),
            (Chain(one, (NodeID(1),)),),
            SEQUENCERS[0],
        )
        self.next = {SEQUENCERS[0]: GLSN(1)}
        self.tokens: list[Token] = []
        self.written: dict[GLSN, tuple[Token, LogStreamID, LLSN]] = {}

    @rule(count=st.integers(1, UNIT))
    def give(self, count: int) -> None:
        sequencer = self.now.sequencer
        assert sequencer is not None
        first = self.now.run_from(self.next[sequencer], count)
        self.next[sequencer] = GLSN(first + count)
        self.tokens.append(Token(first, count, self.now.epoch, sequencer))

    @rule(number=st.integers(0, 1000))
    def write(self, number: int) -> None:
        """The holder of a token writes with it, if it still owns it and the position is free."""
        if not self.tokens:
            return
        token = self.tokens[number % len(self.tokens)]
        place = place_of(token, token.length, self.now)
        free = all(GLSN(token.first + n) not in self.written for n in range(token.length))
        if place is not None and free:
            for n in range(token.length):
                self.written[GLSN(token.first + n)] = (token, place.log_stream, LLSN(place.llsn + n))

    @rule(sequencer=st.sampled_from(SEQUENCERS), wider=st.booleans())
    def reconfigure(self, sequencer: SequencerID, wider: bool) -> None:
        begin = max(self.now.begin, GLSN(max(self.written, default=0) + 1))
        self.now = changed(self.now, epoch=Epoch(self.now.epoch + 1), begin=begin, sequencer=sequencer)
        if wider and len(self.now.chains) < 3:
            self._widen(begin)
        self.next[sequencer] = max(self.next.get(sequencer, GLSN(1)), begin)

    def _widen(self, begin: GLSN) -> None:
        new, newest = LogStreamID(len(self.now.chains) + 1), self.now.newest_range
        continuing = tuple(
            Stripe(s.log_stream, self.now.llsn_from(s.log_stream, begin)) for s in newest.stripes
        )
        fresh = Range(begin, (*continuing, Stripe(new, FIRST_LLSN)), UNIT)
        kept = self.now.ranges if newest.begin < begin else self.now.ranges[:-1]
        self.now = changed(
            self.now, ranges=(*kept, fresh), chains=(*self.now.chains, Chain(new, (NodeID(1),)))
        )

    @invariant()
    def nobody_writes_ahead_of_the_count(self) -> None:
        """R-SEQ-2: an append that begins after another was acknowledged gets a larger position, so no token that may still be used
        is above what the present sequencer grants next."""
        assert self.now.sequencer is not None
        for token in self.tokens:
            if still_ours(token, self.now):
                assert token.end <= self.next[self.now.sequencer]

    @invariant()
    def what_is_written_stays_where_it_is(self) -> None:
        """R-SEQ-3: so a batch whose place is another one now was written nowhere."""
        for glsn, (token, log_stream, llsn) in self.written.items():
            assert self.now.locate(glsn)[:2] == (log_stream, llsn)
            assert place_of(token, token.length, self.now) is not None


TestTokenHistory = TokenHistory.TestCase


def test_a_stale_epoch_requests_a_newer_projection_and_accuses_no_node() -> None:
    """R-SEQ-11."""
    assert remedy(Symptom.STALE, 1000, 1000.0) is Remedy.NEWER


def test_one_failure_alone_accuses_nobody_and_a_long_row_of_them_does() -> None:
    """R-SEQ-10."""
    for symptom in set(Symptom) - {Symptom.STALE}:
        assert remedy(symptom, 1, 0.01) is Remedy.AGAIN
        assert remedy(symptom, 50, 60.0) is Remedy.WITHOUT


def test_positions_of_a_sequencer_that_was_deposed_and_named_again_are_nobodys() -> None:
    """R-SEQ-2: the one in between may have granted them to another client."""
    one = LogStreamID(1)
    now = Projection(
        TopicID(1),
        Epoch(1),
        GLSN(1),
        (Range(GLSN(1), (Stripe(one),), UNIT),),
        (Chain(one, (NodeID(1),)),),
        SEQUENCERS[0],
    )
    token = Token(GLSN(40), 1, Epoch(1), SEQUENCERS[0])
    deposed = changed(now, epoch=Epoch(2), begin=GLSN(37), sequencer=SEQUENCERS[1])
    named_again = changed(deposed, epoch=Epoch(3), sequencer=SEQUENCERS[0])
    assert still_ours(token, changed(now, epoch=Epoch(2)))
    assert not still_ours(token, deposed)
    assert not still_ours(token, named_again)
    assert [in_doubt(token, changed(now, epoch=Epoch(epoch))) for epoch in (1, 2, 3)] == [False, False, True]
    assert still_ours(token, changed(named_again, begin=GLSN(41)))
