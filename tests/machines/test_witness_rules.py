"""What commit rows of several replicas add up to, however they are cut: the same order, or a gap or contradiction that is said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from varlog.metarepo.recovery.witness_rules import (
    ReplicaWord,
    ReportedRange,
    claim_of_replica,
    claim_of_topic,
    join,
)
from varlog.model.cluster import LogStream
from varlog.model.commit import CommitRow, TopicMark
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN

TOPIC = TopicID(1)
STREAM = LogStream(LogStreamID(1), TOPIC, (NodeID(1), NodeID(2)), epoch=Epoch(3))

Order = list[tuple[LogStreamID, CommitRow]]


def _order(lengths: list[tuple[int, int]]) -> Order:
    """Rows back to back, each (stream, count)."""
    ends: dict[int, int] = {}
    glsn, rows = 1, []
    for version, (stream, count) in enumerate(lengths, 1):
        llsn = ends.get(stream, 1)
        high, before = GLSN(glsn + count - 1), GLSN(glsn - 1)
        row = CommitRow(version, high, before, GLSN(glsn), LLSN(llsn), count, Epoch(1))
        rows.append((LogStreamID(stream), row))
        ends[stream] = llsn + count
        glsn += count
    return rows


def _entries(rows: Order) -> dict[int, tuple[int, int]]:
    return {
        row.glsn_begin + step: (stream, row.llsn_begin + step)
        for stream, row in rows
        for step in range(row.count)
    }


ORDERS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), min_size=1, max_size=12)


@given(ORDERS, st.integers(1, 20), st.data())
def test_rows_of_all_replicas_add_up_to_the_order_however_they_are_cut(
    lengths: list[tuple[int, int]], begin: int, data: st.DataObject
) -> None:
    rows = _order(lengths)
    newest = rows[-1][1].glsn_end - 1
    reported = []
    for node in (1, 2, 3):
        for stream in {stream for stream, _ in rows}:
            own = [row for found, row in rows if found == stream]
            # The last replica reports everything; the others as far as they have got, and cut elsewhere.
            if node < 3:
                own = own[: data.draw(st.integers(0, len(own)))]
                own = [
                    part for row in own for part in (_halves(row, data.draw(st.integers(0, row.count - 1))))
                ]
            reported.append(ReportedRange(NodeID(node), stream, tuple(own)))
    ends = {
        stream: LLSN(1 + sum(1 for glsn, at in _entries(rows).items() if at[0] == stream and glsn < begin))
        for stream in {stream for stream, _ in rows}
    }
    joined = join(GLSN(begin), GLSN(newest), ends, reported)
    assert joined.is_whole
    expected = {glsn: at for glsn, at in _entries(rows).items() if glsn >= begin}
    assert _entries([(found.log_stream, found.row) for found in joined.taken]) == expected


def _halves(row: CommitRow, at: int) -> list[CommitRow]:
    return [row.head(at), row.rest(at)] if at else [row]


@given(ORDERS, st.data())
def test_a_position_that_no_replica_reports_is_missing(
    lengths: list[tuple[int, int]], data: st.DataObject
) -> None:
    rows = _order(lengths)
    newest = rows[-1][1].glsn_end - 1
    gone = data.draw(st.integers(0, len(rows) - 1))
    stream, lost = rows[gone]
    # A replica that lost it also lost everything of its stream that came after.
    left = [(found, row) for number, (found, row) in enumerate(rows) if found != stream or number < gone]
    reported = [ReportedRange(NodeID(1), found, (row,)) for found, row in left]
    joined = join(GLSN(1), GLSN(newest), {}, reported)
    assert not joined.is_whole
    missing = {glsn for begin, end in joined.missing for glsn in range(begin, end)}
    assert missing == set(_entries(rows)) - set(_entries(left))
    assert lost.glsn_begin in missing


def test_what_is_known_to_exist_and_no_node_holds_is_missing() -> None:
    joined = join(GLSN(5), GLSN(7), {}, [])
    assert joined.missing == ((5, 8),) and not joined.is_whole


def test_one_entry_at_two_positions_is_a_conflict() -> None:
    one = CommitRow(4, GLSN(6), GLSN(4), GLSN(5), LLSN(3), 2, Epoch(1))
    other = CommitRow(4, GLSN(7), GLSN(4), GLSN(6), LLSN(3), 2, Epoch(1))
    reported = [
        ReportedRange(NodeID(1), LogStreamID(1), (one,)),
        ReportedRange(NodeID(2), LogStreamID(1), (other,)),
    ]
    joined = join(GLSN(5), GLSN(7), {LogStreamID(1): LLSN(3)}, reported)
    assert any("entry 3" in conflict for conflict in joined.conflicts)


def test_one_position_in_two_streams_is_a_conflict() -> None:
    row = CommitRow(4, GLSN(6), GLSN(4), GLSN(5), LLSN(3), 2, Epoch(1))
    reported = [
        ReportedRange(NodeID(1), LogStreamID(1), (row,)),
        ReportedRange(NodeID(2), LogStreamID(2), (row,)),
    ]
    joined = join(GLSN(5), GLSN(6), {}, reported)
    assert any("twice" in conflict for conflict in joined.conflicts)


def test_entries_that_do_not_continue_where_the_repository_ended_are_a_conflict() -> None:
    row = CommitRow(4, GLSN(6), GLSN(4), GLSN(5), LLSN(3), 2, Epoch(1))
    joined = join(
        GLSN(5), GLSN(6), {LogStreamID(1): LLSN(2)}, [ReportedRange(NodeID(1), LogStreamID(1), (row,))]
    )
    assert joined.conflicts and not joined.missing


def _word(end: int, glsn: int, epoch: int = 3) -> ReplicaWord:
    return ReplicaWord(Epoch(epoch), LLSN(end), GLSN(glsn))


def test_a_replica_that_knows_as_much_as_the_repository_or_less_claims_nothing() -> None:
    assert claim_of_replica(NodeID(1), STREAM, _word(4, 9), LLSN(4), GLSN(9)) is None
    assert claim_of_replica(NodeID(1), STREAM, _word(3, 8, 2), LLSN(4), None) is None
    assert claim_of_replica(NodeID(1), STREAM, _word(1, 0, 0), FIRST_LLSN, None) is None
    # It began behind trimmed entries, and has no row yet that says where the last of them is.
    assert claim_of_replica(NodeID(1), STREAM, _word(4, 0), LLSN(9), GLSN(8)) is None
    assert (
        claim_of_topic(NodeID(1), TopicMark(TOPIC, GLSN(9), GLSN(2)), TopicMark(TOPIC, GLSN(9), GLSN(2)))
        is None
    )


def test_more_entries_another_position_or_a_newer_epoch_are_claims() -> None:
    more = claim_of_replica(NodeID(1), STREAM, _word(5, 12), LLSN(4), None)
    assert more is not None and more.order_alone and more.position == 12
    other = claim_of_replica(NodeID(1), STREAM, _word(4, 10), LLSN(4), GLSN(9))
    assert other is not None and not other.order_alone
    newer = claim_of_replica(NodeID(1), STREAM, _word(4, 9, 4), LLSN(4), GLSN(9))
    assert newer is not None and not newer.order_alone


def test_a_node_is_a_witness_of_positions_in_streams_that_it_does_not_hold() -> None:
    ours = TopicMark(TOPIC, GLSN(304), GLSN(0))
    found = claim_of_topic(NodeID(3), ours, TopicMark(TOPIC, GLSN(306), GLSN(0)))
    assert found is not None and found.why == "node 3 knows positions up to 306, the repository up to 304"
    trim = claim_of_topic(NodeID(3), ours, TopicMark(TOPIC, GLSN(304), GLSN(7)))
    assert trim is not None and not trim.order_alone
