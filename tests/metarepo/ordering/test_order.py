"""Order and Outbox: the rows a node lacks, cut where it stands, merged, in version order, in messages of bounded size."""

from __future__ import annotations

import pytest

from varlog.metarepo.membership.rules import Members
from varlog.metarepo.ordering import outbox as outboxes
from varlog.metarepo.ordering.commit_rules import Cut, TopicCut
from varlog.metarepo.ordering.order import Order, merged_rows
from varlog.metarepo.ordering.outbox import Outbox
from varlog.metarepo.records import BaseRecord
from varlog.metarepo.state import RepositoryState
from varlog.model.cluster import ClusterView, LogStream, StorageNode, Topic
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.invariant import InvariantBroken
from varlog.model.limits import FRAME_META_BYTES_MAX
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.codec import encode
from varlog.rpc.messages import Commits

TOPIC = TopicID(1)
A, B = LogStreamID(1), LogStreamID(2)


def cuts(*counts: tuple[int, int]) -> list[Cut]:
    """Cut i orders counts[i] entries of streams A and B."""
    ends, glsn, found = {A: 1, B: 1}, 1, []
    for version, pair in enumerate(counts, 1):
        after, before = GLSN(glsn - 1 + sum(pair)), GLSN(glsn - 1)
        rows = []
        for log_stream, count in zip((A, B), pair, strict=True):
            if count:
                row = CommitRow(version, after, before, GLSN(glsn), LLSN(ends[log_stream]), count, Epoch(1))
                rows.append((log_stream, row))
                ends[log_stream] += count
                glsn += count
        found.append(Cut(version, (TopicCut(TOPIC, tuple(rows)),)))
    return found


def order(*counts: tuple[int, int]) -> Order:
    return Order(BaseRecord(0, (), ()), cuts(*counts))


def state(*counts: tuple[int, int]) -> RepositoryState:
    node = NodeID(1)
    view = ClusterView(
        ClusterID(1),
        1,
        (StorageNode(node, "n"),),
        (Topic(TOPIC, "t", trimmed=GLSN(2)),),
        (LogStream(A, TOPIC, (node,)), LogStream(B, TOPIC, (node,))),
    )
    return RepositoryState(Members(view), order(*counts))


def test_rows_start_exactly_where_a_replica_stands() -> None:
    found = order((3, 0), (0, 2), (4, 1))
    assert found.rows_from(A, LLSN(8)) == []
    assert [(row.llsn_begin, row.glsn_begin, row.count) for row in found.rows_from(A, LLSN(1)) or ()] == [
        (1, 1, 3),
        (4, 6, 4),
    ]
    assert [(row.llsn_begin, row.glsn_begin, row.count) for row in found.rows_from(A, LLSN(6)) or ()] == [
        (6, 8, 2)
    ]


def test_rows_that_were_forgotten_are_not_made_up() -> None:
    found = order((3, 1), (4, 1))
    found.rebase(found.base(lambda log_stream: LLSN(4) if log_stream == A else LLSN(1)))
    assert found.rows_from(A, LLSN(3)) is None
    assert [row.llsn_begin for row in found.rows_from(A, LLSN(4)) or ()] == [4]
    assert [row.llsn_begin for row in found.rows_from(B, LLSN(1)) or ()] == [1, 2]


def test_rows_merge_where_they_follow_each_other_in_both_orders() -> None:
    assert [
        (row.llsn_begin, row.count) for row in merged_rows(order((3, 0), (2, 0), (1, 1), (2, 0)).kept_rows(A))
    ] == [
        (1, 6),
        (7, 2),
    ]


def test_a_cut_that_does_not_follow_breaks_loudly() -> None:
    with pytest.raises(InvariantBroken):
        Order(BaseRecord(0, (), ()), cuts((1, 0), (1, 0), (1, 0))[1:])


# --- Outbox ------------------------------------------------------------------------------------------------------------


def begun(found: RepositoryState, a: int = 1, b: int = 1) -> Outbox:
    outbox = Outbox(found, "1")
    outbox.begin(A, LLSN(a))
    outbox.begin(B, LLSN(b))
    outbox.add_topic(TOPIC)
    return outbox


def test_the_first_message_has_everything_that_the_node_lacks() -> None:
    message = begun(state((3, 0), (2, 1)), a=2).next_message()
    assert message is not None
    assert [(ls, [(row.llsn_begin, row.count) for row in rows]) for ls, rows in message.rows] == [
        (A, [(2, 4)]),
        (B, [(1, 1)]),
    ]
    assert [(mark.high_watermark, mark.trimmed) for mark in message.marks] == [(6, 2)]
    assert (message.serial, message.version) == (1, 2)


def test_a_first_message_is_sent_even_if_it_is_empty() -> None:
    """A node that restarted serves no reads before it."""
    outbox = Outbox(state(), "1")
    assert outbox.next_message() == Commits(1, 0, (), ())
    assert outbox.next_message() is None


def test_what_gathers_while_a_node_reads_slowly_is_one_message() -> None:
    found = state((1, 0))
    outbox = begun(found)
    outbox.next_message()
    for cut in cuts((1, 0), (2, 0), (3, 0), (0, 4))[1:]:
        found.order.apply(cut)
        outbox.add_topic(TOPIC)
        outbox.add_rows([(log_stream, (row,)) for log_stream, row in cut.topics[0].rows])
    message = outbox.next_message()
    assert message is not None
    assert [(ls, [(row.llsn_begin, row.count) for row in rows]) for ls, rows in message.rows] == [
        (A, [(2, 5)]),
        (B, [(1, 4)]),
    ]
    assert outbox.next_message() is None


def test_the_rows_of_the_newest_cut_are_sent_once_however_they_came() -> None:
    """As they are where the node lacks nothing else, and by positions where it does."""
    found = state((1, 1))
    outbox = begun(found)
    outbox.next_message()
    cut = cuts((1, 1), (2, 3))[1]
    found.order.apply(cut)
    outbox.add_rows([(log_stream, (row,)) for log_stream, row in cut.topics[0].rows])
    assert not outbox.empty
    outbox.add_rows([])  # the marks of another topic: what was not sent yet is still to be sent
    message = outbox.next_message()
    assert message is not None
    assert message.rows == tuple((log_stream, (row,)) for log_stream, row in cut.topics[0].rows)
    assert outbox.empty


def test_too_much_for_one_message_goes_out_by_versions_and_marks_come_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A high watermark claims that all below it was sent: the parts before the last carry only the trim."""
    monkeypatch.setattr(outboxes, "ROWS_PER_MESSAGE_MAX", 5)
    outbox = begun(state(*[(1, 1)] * 7))
    messages = []
    while (message := outbox.next_message()) is not None:
        messages.append(message)
    versions = [sorted(row.version for _, rows in message.rows for row in rows) for message in messages]
    assert versions == [[1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6], [7, 7]]
    assert [(mark.high_watermark, mark.trimmed) for message in messages for mark in message.marks] == [
        (0, 2),
        (0, 2),
        (14, 2),
    ]


def test_the_largest_message_fits_a_frame() -> None:
    big = 2**62
    row = CommitRow(big, GLSN(big), GLSN(big), GLSN(big), LLSN(big), 2**31, Epoch(2**31))
    rows = tuple(
        (LogStreamID(2**31 - number), (row,)) for number in range(outboxes.ROWS_PER_MESSAGE_MAX + 1000)
    )
    assert len(encode(Commits(1, big, (), rows))) < FRAME_META_BYTES_MAX


def test_rows_of_a_removed_stream_are_not_sent_and_those_of_an_added_one_are() -> None:
    found = state((2, 2))
    outbox = begun(found)
    outbox.follow([found.streams[A]])
    message = outbox.next_message()
    assert message is not None and [ls for ls, _ in message.rows] == [A]
    new = LogStream(LogStreamID(3), TopicID(2), (NodeID(1),))
    outbox.follow([found.streams[A], new])
    assert not outbox.empty


# --- validate() --------------------------------------------------------------------------------------------------------


def test_an_order_whose_rows_have_a_gap_is_not_valid() -> None:
    found = order((3, 1), (4, 1), (2, 0))
    del found._rows[A][1]
    with pytest.raises(InvariantBroken, match="no gap"):
        found.validate()


def test_an_order_whose_newest_row_is_missing_is_not_valid() -> None:
    found = order((3, 1), (4, 1))
    found._rows[B].pop()
    with pytest.raises(InvariantBroken, match="ends where its stream is ordered"):
        found.validate()


def test_an_outbox_that_would_send_rows_twice_is_not_valid() -> None:
    found = state((3, 1))
    outbox = begun(found)
    outbox.next_message()
    (newest,) = cuts((3, 1), (2, 0))[1:]
    found.order.apply(newest)
    outbox.add_rows([(A, (newest.topics[0].rows[0][1],))])
    outbox.validate()
    outbox._streams[A] = None
    with pytest.raises(InvariantBroken, match="lacks nothing else"):
        outbox.validate()
