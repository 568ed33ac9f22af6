"""The ordering law, fuzzed: laws 2, 3, 4, 6 and 7 hold for any reports in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from varlog.metarepo.ordering.commit_rules import Candidate, Cut, TopicCut, check_cut, next_cut, orderable_end
from varlog.model.cluster import LogStream, StreamState
from varlog.model.commit import CommitRow, Report
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.invariant import InvariantBroken
from varlog.model.lsn import GLSN, LLSN

LS = LogStreamID(7)
NODES = (NodeID(1), NodeID(2), NodeID(3))


def stream(
    log_stream: int = LS, topic: int = 1, state: StreamState = StreamState.RUNNING, epoch: int = 4
) -> LogStream:
    return LogStream(LogStreamID(log_stream), TopicID(topic), NODES, state, Epoch(epoch), LLSN(1))


def reports(*ends: int, epoch: int = 4, log_stream: int = LS) -> dict[NodeID, Report]:
    return {
        node: Report(LogStreamID(log_stream), Epoch(epoch), LLSN(end), LLSN(1))
        for node, end in zip(NODES, ends, strict=False)
    }


@given(st.lists(st.integers(1, 100), min_size=3, max_size=3), st.integers(1, 100))
def test_only_what_every_replica_holds_is_ordered(ends: list[int], committed_end: int) -> None:
    """Law 2, R-ORD-2; and a claim below what is ordered takes nothing back (law 3)."""
    candidate = (stream(), LLSN(committed_end), reports(*ends))
    assert orderable_end(*candidate) == max(committed_end, min(ends))


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        ((stream(), LLSN(5), reports(9, 9)), "one replica never reported"),
        ((stream(), LLSN(5), {}), "nobody reported"),
        ((stream(), LLSN(5), reports(9, 9, 9, epoch=3)), "reports of an older epoch (law 7)"),
        ((stream(), LLSN(5), reports(9, 9, 9, epoch=5)), "reports of an epoch not begun"),
        ((stream(), LLSN(5), reports(9, 9, 9) | reports(9, epoch=3)), "one of an older epoch"),
        ((stream(state=StreamState.SEALED), LLSN(5), reports(9, 9, 9)), "sealed (law 6)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_ordered_when(candidate: Candidate, why: str) -> None:
    assert orderable_end(*candidate) == 5, why
    assert next_cut(1, [candidate], {}) is None


def test_streams_of_a_topic_follow_each_other_by_id_and_topics_do_not_mix() -> None:
    """R-ORD-3: consecutive GLSNs to runs of LLSNs, one row a stream."""
    candidates = [
        (stream(9, topic=1), LLSN(1), reports(3, 3, 3, log_stream=9)),
        (stream(2, topic=1), LLSN(4), reports(9, 8, 7, log_stream=2)),
        (stream(5, topic=2), LLSN(1), reports(2, 2, 2, log_stream=5)),
        (stream(3, topic=1), LLSN(6), reports(6, 6, 6, log_stream=3)),
    ]
    cut = next_cut(10, candidates, {TopicID(1): GLSN(100)})
    assert cut == Cut(
        11,
        (
            TopicCut(
                TopicID(1),
                (
                    (LogStreamID(2), CommitRow(11, GLSN(105), GLSN(100), GLSN(101), LLSN(4), 3, Epoch(4))),
                    (LogStreamID(9), CommitRow(11, GLSN(105), GLSN(100), GLSN(104), LLSN(1), 2, Epoch(4))),
                ),
            ),
            TopicCut(
                TopicID(2),
                ((LogStreamID(5), CommitRow(11, GLSN(1), GLSN(0), GLSN(1), LLSN(1), 1, Epoch(4))),),
            ),
        ),
    )


def _broken(cut: Cut) -> bool:
    try:
        check_cut(cut, 10, {LS: LLSN(5)}, {TopicID(1): GLSN(100)})
    except InvariantBroken:
        return True
    return False


def _one(row: CommitRow, version: int = 11) -> Cut:
    return Cut(version, (TopicCut(TopicID(1), ((LS, row),)),))


def test_a_cut_that_does_not_continue_where_the_last_one_ended_fails_loudly() -> None:
    """Laws 3 and 4."""
    good = CommitRow(11, GLSN(102), GLSN(100), GLSN(101), LLSN(5), 2, Epoch(4))
    assert not _broken(_one(good))
    assert _broken(_one(good, version=12))
    bad = [
        CommitRow(11, GLSN(102), GLSN(100), GLSN(101), LLSN(6), 2, Epoch(4)),  # skips an LLSN
        CommitRow(11, GLSN(102), GLSN(100), GLSN(101), LLSN(4), 2, Epoch(4)),  # orders an LLSN twice
        CommitRow(11, GLSN(103), GLSN(100), GLSN(102), LLSN(5), 2, Epoch(4)),  # skips a GLSN
        CommitRow(11, GLSN(101), GLSN(99), GLSN(100), LLSN(5), 2, Epoch(4)),  # gives a GLSN twice
        CommitRow(11, GLSN(103), GLSN(100), GLSN(101), LLSN(5), 2, Epoch(4)),  # claims more than it gives
        CommitRow(10, GLSN(102), GLSN(100), GLSN(101), LLSN(5), 2, Epoch(4)),  # another cut's row
    ]
    assert [_broken(_one(row)) for row in bad] == [True] * len(bad)
    twice = Cut(11, (TopicCut(TopicID(1), ((LS, good), (LS, good))),))
    assert _broken(twice)


class OrderingMachine(RuleBasedStateMachine):
    """Three streams in two topics with two replicas each, written, reported, cut, sealed and unsealed in any order."""

    NODES = (NodeID(1), NodeID(2))
    reported = Bundle("reported")

    def __init__(self) -> None:
        super().__init__()
        self.streams = {
            LogStreamID(number): LogStream(
                LogStreamID(number), TopicID(1 if number < 3 else 2), self.NODES, StreamState.RUNNING
            )
            for number in (1, 2, 3)
        }
        self.durable: dict[tuple[LogStreamID, NodeID], LLSN] = {
            (log_stream, node): LLSN(1) for log_stream in self.streams for node in self.NODES
        }
        self.table: dict[LogStreamID, dict[NodeID, Report]] = {log_stream: {} for log_stream in self.streams}
        self.ends = dict.fromkeys(self.streams, LLSN(1))
        self.tops: dict[TopicID, GLSN] = {}
        self.version = 0
        self.order: dict[tuple[TopicID, GLSN], tuple[LogStreamID, LLSN]] = {}
        self.sealed_ends: dict[LogStreamID, LLSN] = {}

    @rule(number=st.integers(1, 3), node=st.sampled_from(NODES), count=st.integers(1, 5))
    def write(self, number: int, node: NodeID, count: int) -> None:
        self.durable[LogStreamID(number), node] = LLSN(self.durable[LogStreamID(number), node] + count)

    @rule(target=reported, number=st.integers(1, 3), node=st.sampled_from(NODES))
    def send_report(self, number: int, node: NodeID) -> tuple[NodeID, Report]:
        """A report leaves its replica. It may arrive much later, or never."""
        log_stream = LogStreamID(number)
        epoch = self.streams[log_stream].epoch
        return node, Report(log_stream, epoch, self.durable[log_stream, node], LLSN(1))

    @rule(message=consumes(reported))
    def deliver_report(self, message: tuple[NodeID, Report]) -> None:
        node, report = message
        self.table[report.log_stream][node] = report

    @rule(number=st.integers(1, 3))
    def seal(self, number: int) -> None:
        """The final cut, then a new epoch; the replicas cut their tails."""
        log_stream = LogStreamID(number)
        known = self.streams[log_stream]
        if known.state is StreamState.RUNNING:
            self.cut()
            self.sealed_ends[log_stream] = self.ends[log_stream]
            self.streams[log_stream] = self._with(known, StreamState.SEALED, known.epoch + 1)
            for node in self.NODES:
                self.durable[log_stream, node] = self.ends[log_stream]

    @rule(number=st.integers(1, 3))
    def unseal(self, number: int) -> None:
        log_stream = LogStreamID(number)
        known = self.streams[log_stream]
        self.sealed_ends.pop(log_stream, None)
        self.streams[log_stream] = self._with(known, StreamState.RUNNING, known.epoch)

    @staticmethod
    def _with(known: LogStream, state: StreamState, epoch: int) -> LogStream:
        return LogStream(known.log_stream, known.topic, known.replicas, state, Epoch(epoch))

    @precondition(lambda self: any(self.table.values()))
    @rule()
    def cut(self) -> None:
        candidates = [(s, self.ends[ls], self.table[ls]) for ls, s in self.streams.items()]
        cut = next_cut(self.version, candidates, self.tops)
        if cut is None:
            return
        check_cut(cut, self.version, self.ends, self.tops)
        self.version = cut.version
        for part in cut.topics:
            for log_stream, row in part.rows:
                self._check_row(part.topic, log_stream, row)
                self.ends[log_stream] = row.llsn_end
            self.tops[part.topic] = part.high_watermark

    def _check_row(self, topic: TopicID, log_stream: LogStreamID, row: CommitRow) -> None:
        held = min(self.durable[log_stream, node] for node in self.NODES)
        assert row.llsn_end <= held, "law 2: ordered before every replica had it"
        assert log_stream not in self.sealed_ends, "law 6: ordered while sealed"
        for offset in range(row.count):
            glsn = GLSN(row.glsn_begin + offset)
            assert (topic, glsn) not in self.order, "law 3: a GLSN given twice"
            assert glsn > self.tops.get(topic, 0), "a later cut orders behind all earlier ones"
            self.order[topic, glsn] = (log_stream, LLSN(row.llsn_begin + offset))

    @invariant()
    def the_order_is_dense_and_one_to_one(self) -> None:
        """R-ORD-3, R-ORD-4, laws 3 and 4: in the order in which they were given, GLSNs are 1, 2, 3, …, and each
        LLSN has one."""
        for topic, top in self.tops.items():
            assert [glsn for found, glsn in self.order if found == topic] == list(range(1, top + 1))
        assert len(dict.fromkeys(self.order.values())) == len(self.order)

    @invariant()
    def a_sealed_stream_ends_where_its_last_cut_ended(self) -> None:
        """R-SEAL-3, law 6: reports that arrive after the seal order nothing."""
        for log_stream, sealed_end in self.sealed_ends.items():
            assert self.ends[log_stream] == sealed_end


TestOrderingMachine = OrderingMachine.TestCase
