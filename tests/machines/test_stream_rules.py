"""A stream's micro-batches: how far each reads, how it is cut into tasks, and where it resumes after a restart."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.spark.read.planning_rules import MeasuredRange
from varlog.spark.stream.offsets import (
    EntriesMissing,
    EntriesTrimmed,
    ForeignCheckpoint,
    Offset,
    TopicGone,
    TopicNow,
    TopicOffset,
    TopicRecreated,
    check_topics,
    resume_point,
)
from varlog.spark.stream.stream_rules import (
    Limits,
    admitted,
    backlog,
    moved,
    new_topics,
    records_that_fit,
    shared,
    split_records,
)

NAMES = st.sampled_from(["a", "b", "c", "d"])
WAITING = st.dictionaries(NAMES, st.integers(0, 10_000), min_size=1)
AT_17 = Offset(5, {"orders": TopicOffset(3, 17)})


# --- How far ------------------------------------------------------------------------------------------------------------


@given(WAITING, st.integers(0, 50_000))
def test_a_shared_limit_is_used_up_and_never_passed(waiting: dict[str, int], records: int) -> None:
    shares = shared(waiting, records)
    assert sum(shares.values()) == min(records, sum(waiting.values()))
    assert all(0 <= shares[name] <= count for name, count in waiting.items())


def test_a_small_topic_is_not_starved_by_a_large_one() -> None:
    assert shared({"large": 1_000_000, "small": 2000}, 1000) == {"large": 998, "small": 2}


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=300), st.integers(1, 100_000))
def test_what_fits_into_the_bytes_is_within_them_or_one_record(sizes: list[int], bytes_max: int) -> None:
    before = [0, *accumulate(sizes)]
    search = records_that_fit(len(sizes), bytes_max)
    asked, records = [next(search)], None
    while records is None:
        try:
            asked.append(search.send(before[asked[-1]]))
        except StopIteration as found:
            records = found.value
    assert len(asked) <= 9
    assert records == 1 or before[records] <= bytes_max
    assert records == len(sizes) or before[-1] > bytes_max


def test_equal_entries_fill_the_bytes_at_the_second_question() -> None:
    search = records_that_fit(1_000_000, 100_000)
    assert next(search) == 1_000_000
    assert search.send(100 * 1_000_000) == 1000
    with pytest.raises(StopIteration) as found:
        search.send(100 * 1000)
    assert found.value.value == 1000


def test_too_few_records_wait_for_more() -> None:
    assert admitted({"a": 4, "b": 5}, Limits(records_min=10)) == 0
    assert admitted({"a": 5, "b": 5}, Limits(records_min=10)) == 10
    assert admitted({"a": 50}, Limits(records_min=10, records_max=20)) == 20


def test_nothing_behind_the_target_of_available_now_is_taken() -> None:
    now = {"orders": TopicNow(3, 1, 100), "later": TopicNow(4, 1, 9)}
    start = Offset(5, {"orders": TopicOffset(3, 17), "later": TopicOffset(4, 1)})
    assert backlog(start, now) == {"orders": 83, "later": 8}
    assert backlog(start, now, {"orders": 20}) == {"orders": 3, "later": 0}
    assert backlog(start, now, {"orders": 10}) == {"orders": 0, "later": 0}


def test_a_topic_that_came_since_begins_at_its_oldest_entry() -> None:
    now = {"orders": TopicNow(3, 1, 100), "later": TopicNow(4, 7, 9)}
    assert new_topics(AT_17, now) == {"later": TopicOffset(4, 7)}
    assert moved(AT_17, {"orders": 3}) == Offset(5, {"orders": TopicOffset(3, 20)})


# --- Into which tasks ---------------------------------------------------------------------------------------------------

RANGES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 1000), st.integers(0, 500)),
    max_size=4,
    unique_by=lambda r: r[0],
)


@given(RANGES, st.integers(0, 20), st.integers(0, 100))
def test_tasks_cover_each_range_once_and_keep_the_bounds(
    drawn: list[tuple[int, int, int]], partitions_min: int, records_max: int
) -> None:
    ranges = [
        MeasuredRange("orders", stream, begin, begin + count, 10 * count) for stream, begin, count in drawn
    ]
    tasks = split_records(ranges, partitions_min, records_max)
    for whole in ranges:
        own = [task for task in tasks if task.log_stream == whole.log_stream]
        edges = [whole.begin, *(task.end for task in own)]
        assert [(task.begin, task.end) for task in own] == list(pairwise(edges))
        assert edges[-1] == whole.end
    assert all(
        task.begin < task.end and (not records_max or task.end - task.begin <= records_max) for task in tasks
    )
    assert len(tasks) >= min(partitions_min, sum(whole.end - whole.begin for whole in ranges))
    assert split_records(reversed(ranges), partitions_min, records_max) == tasks


# --- From where ---------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 1 << 31),
    st.dictionaries(st.text(), st.builds(TopicOffset, st.integers(1), st.integers(1))),
)
def test_an_offset_comes_back_from_its_text(cluster: int, places: dict[str, TopicOffset]) -> None:
    offset = Offset(cluster, places)
    text = json.dumps(offset.to_json())
    assert Offset.of_json(json.loads(text)) == offset
    assert json.dumps(Offset(cluster, dict(reversed(places.items()))).to_json()) == text


@pytest.mark.parametrize(
    "foreign", [{}, {"i": 3}, {"cluster": 5, "topics": 3}, {"cluster": 5, "topics": {"a": {}}}]
)
def test_an_offset_of_another_source_is_recognised(foreign: dict[str, object]) -> None:
    with pytest.raises(ForeignCheckpoint, match="no offset of varlog"):
        Offset.of_json(foreign)


def test_an_offset_that_fits_is_left_as_it_is() -> None:
    for oldest, end in ((1, 18), (17, 17), (17, 100)):
        found = resume_point(AT_17, 5, {"orders": TopicNow(3, oldest, end)})
        assert (found.offset, found.losses) == (AT_17, ())


@pytest.mark.parametrize(
    ("now", "loss", "resumes_at"),
    [
        (TopicNow(3, 30, 40), EntriesTrimmed("orders", 17, 30), TopicOffset(3, 30)),
        (TopicNow(3, 1, 10), EntriesMissing("orders", 17, 10), TopicOffset(3, 10)),
        (TopicNow(8, 5, 100), TopicRecreated("orders", 3, 8), TopicOffset(8, 5)),
        (None, TopicGone("orders"), None),
    ],
)
def test_a_loss_is_reported_by_its_kind_with_the_offset_to_resume_at(
    now: TopicNow | None, loss: Exception, resumes_at: TopicOffset | None
) -> None:
    found = resume_point(AT_17, 5, {"orders": now} if now else {})
    assert [(type(one), one.args) for one in found.losses] == [(type(loss), loss.args)]
    assert "'orders'" in str(loss) and "failOnDataLoss" in str(loss) and "checkpoint" in str(loss)
    assert found.offset.places.get("orders") == resumes_at


def test_a_checkpoint_of_another_cluster_or_topic_is_refused() -> None:
    with pytest.raises(ForeignCheckpoint, match="of cluster 5, and this is cluster 6"):
        resume_point(AT_17, 6, {"orders": TopicNow(3, 1, 100)})
    with pytest.raises(ForeignCheckpoint, match="of topic 'orders', which option topic leaves out"):
        check_topics(AT_17, ("payments",), "")
    with pytest.raises(ForeignCheckpoint, match="option topicPattern leaves out"):
        check_topics(AT_17, (), "pay.*")
    check_topics(AT_17, ("orders", "payments"), "")
    check_topics(AT_17, (), "ord.*")
