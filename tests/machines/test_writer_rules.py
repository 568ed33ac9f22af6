"""Named writers: every begin of a batch returns the same record; only finished writers are forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.metarepo.membership import named_rules, rules
from varlog.metarepo.membership.rules import Members
from varlog.model.cluster import ClusterView, NamedWriter, Ordering
from varlog.model.errors import InvalidRequest, PreconditionFailed, UnknownTopic
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN

ORDERS, BILLS = TopicID(1), TopicID(2)
STREAMS = (LogStreamID(1), LogStreamID(2))  # of orders; stream 3 is of bills


def topics() -> Members:
    members = Members(ClusterView(ClusterID(1), revision=1))
    members = rules.register_node(members, NodeID(1), "n1:1", (), ())
    for name in ("orders", "bills"):
        members, _ = rules.register_topic(members, name, Ordering.COMMITTED)
    for topic in (ORDERS, ORDERS, BILLS):
        members, log_stream = rules.new_log_stream_id(members)
        members, _ = rules.register_log_stream(members, topic, log_stream, (NodeID(1),))
    return members


def begun(
    members: Members, batch: int = 0, name: str = "job", tail: int = 10, streams: Any = STREAMS, **more: Any
) -> Members:
    return named_rules.begin_write(members, ORDERS, name, batch, streams, GLSN(tail), **more)[0]


def ended(members: Members, batch: int = 0, name: str = "job", **more: Any) -> Members:
    return named_rules.end_write(members, ORDERS, name, batch, **more)[0]


def record(members: Members, name: str = "job") -> NamedWriter | None:
    return members.writers.get(ORDERS, name)


def test_the_first_begin_decides_and_every_later_one_gets_the_same_record() -> None:
    members = begun(topics(), tail=10, streams=STREAMS[:1], kept=True, time_us=5)
    again, writer = named_rules.begin_write(members, ORDERS, "job", 0, STREAMS, GLSN(99), time_us=9)
    assert again is members
    assert writer == NamedWriter(ORDERS, "job", 0, GLSN(10), STREAMS[:1], False, True, 5)


def test_a_finished_batch_is_reported_as_finished() -> None:
    members = ended(begun(topics()), time_us=8)
    _, writer = named_rules.begin_write(members, ORDERS, "job", 0, STREAMS, GLSN(99))
    assert writer.finished and writer.updated_us == 8


@pytest.mark.parametrize("finish", [True, False])
def test_a_newer_batch_replaces_the_record_whether_the_older_was_finished_or_not(finish: bool) -> None:
    members = begun(topics(), 3)
    members = ended(members, 3) if finish else members
    found = record(begun(members, 7, tail=50, streams=STREAMS[1:]))
    assert found is not None
    assert (found.batch, found.begin, found.streams, found.finished) == (7, 50, STREAMS[1:], False)


def test_an_older_batch_is_refused_with_both_numbers() -> None:
    with pytest.raises(PreconditionFailed, match="is at batch 7: batch 6 is over"):
        begun(begun(topics(), 7), 6)


def test_ending_again_and_ending_late_change_nothing() -> None:
    members = ended(begun(topics(), 3), 3)
    assert ended(members, 3) is members
    newer = begun(members, 4)
    again, writer = named_rules.end_write(newer, ORDERS, "job", 3)
    assert again is newer and (writer.batch, writer.finished) == (4, False)


def test_nothing_ends_that_was_not_begun() -> None:
    with pytest.raises(PreconditionFailed, match="topic 'orders' knows no writer 'job'"):
        ended(topics())
    with pytest.raises(PreconditionFailed, match="is at batch 3: batch 4 was never begun"):
        ended(begun(topics(), 3), 4)


@pytest.mark.parametrize(
    ("streams", "why"),
    [
        ((), "at least one log stream"),
        ((LogStreamID(3),), "log stream 3: topic 'orders' has"),
        ((LogStreamID(1), LogStreamID(9)), "log stream 9"),
        ((LogStreamID(1), LogStreamID(1)), "twice"),
    ],
)
def test_a_writer_writes_to_streams_of_its_topic(streams: tuple[LogStreamID, ...], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        begun(topics(), streams=streams)


def test_names_batches_and_topics_are_checked() -> None:
    with pytest.raises(InvalidRequest, match="a writer's name"):
        begun(topics(), name="a/b")
    with pytest.raises(InvalidRequest, match="batches are numbered from 0 on"):
        begun(topics(), -1)
    with pytest.raises(UnknownTopic):
        named_rules.begin_write(topics(), TopicID(9), "job", 0, STREAMS, GLSN(1))


def test_writers_make_no_new_view_and_leave_with_their_topic() -> None:
    before = topics()
    members = ended(begun(before))
    assert members.view is before.view
    assert len(rules.unregister_topic(members, ORDERS).writers) == 0
    assert len(rules.unregister_topic(members, BILLS).writers) == 1


def test_a_forgotten_writer_starts_over() -> None:
    members = begun(topics(), 7)
    assert named_rules.forget_writer(members, BILLS, "job") is members
    found = record(begun(named_rules.forget_writer(members, ORDERS, "job"), 0, tail=77))
    assert found is not None and (found.batch, found.begin) == (0, 77)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_rules, "WRITERS_MAX", 6)
    monkeypatch.setattr(named_rules, "FINISHED_WRITERS_MAX", 3)


@pytest.mark.usefixtures("few")
def test_of_those_that_are_over_the_newest_are_remembered() -> None:
    members = ended(begun(topics(), name="kept", kept=True), name="kept", time_us=1)
    members = begun(members, name="in progress", time_us=1)
    for number in range(10):
        members = ended(begun(members, name=f"job {number}"), name=f"job {number}", time_us=100 - number)
    over = sorted(found.name for found in members.writers if found.finished and not found.kept)
    assert over == ["job 0", "job 1", "job 9"]  # the newest by their clocks, and the last one that came
    assert record(members, "kept") and record(members, "in progress")


@pytest.mark.usefixtures("few")
def test_where_nobody_may_be_forgotten_a_new_writer_is_refused() -> None:
    members = topics()
    for number in range(6):
        members = begun(members, name=f"job {number}")
    with pytest.raises(PreconditionFailed, match=r"6 named writers already.*varlog writer forget"):
        begun(members, name="one more")
    assert record(begun(members, 1, name="job 3"), "job 3")
    assert record(begun(ended(members, name="job 3"), name="one more"), "one more")


STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "begin", "end", "forget"]), st.integers(0, 4), st.integers(1, 9)),
    max_size=40,
)


@given(STEPS)
def test_one_batch_has_one_record_forever(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is asked in whatever order: while a writer is remembered, no batch of it is begun in two ways."""
    members = topics()
    returned: dict[int, tuple[int, tuple[int, ...]]] = {}
    finished: set[int] = set()
    newest = -1
    for kind, batch, tail in steps:
        try:
            if kind == "begin":
                members, found = named_rules.begin_write(
                    members, ORDERS, "job", batch, STREAMS[: 1 + tail % 2], GLSN(tail)
                )
                assert batch >= newest and found.batch == batch
                assert returned.setdefault(batch, (found.begin, found.streams)) == (
                    found.begin,
                    found.streams,
                )
                assert found.finished == (batch in finished)
                newest = batch
            elif kind == "end":
                members, found = named_rules.end_write(members, ORDERS, "job", batch)
                assert batch <= newest == found.batch
                if batch == newest:
                    finished.add(batch)
            else:
                members = named_rules.forget_writer(members, ORDERS, "job")
                returned, finished, newest = {}, set(), -1
        except PreconditionFailed:
            assert (kind == "begin" and batch < newest) or (kind == "end" and batch > newest)
