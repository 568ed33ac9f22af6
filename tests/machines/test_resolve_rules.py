"""Which positions a read is of: what the options say against what the log has; trimmed and missing are not the same."""

from __future__ import annotations

import pytest

from varlog.spark.options import OffsetSpec, OptionError
from varlog.spark.read.resolve_rules import (
    MissingOffsets,
    TopicSpan,
    TrimmedOffsets,
    begin_of,
    check_dense,
    check_places,
    chosen_topics,
    end_of,
)

# Positions 11 to 99 can be read.
SPAN = TopicSpan("orders", 3, 11, 100, (1, 2))
EMPTY = TopicSpan("orders", 3, 1, 1, (1,))


def test_topics_are_chosen_by_name_or_by_pattern() -> None:
    known = ["b", "a1", "a2", "xa1"]
    assert chosen_topics(("b", "a1", "b"), "", known) == ("b", "a1")
    assert chosen_topics((), "a.", known) == ("a1", "a2")
    with pytest.raises(OptionError, match=r"option 'topic': there is no topic 'c': there are a1, a2, b, xa1"):
        chosen_topics(("a1", "c"), "", known)
    with pytest.raises(OptionError, match=r"option 'topicPattern' 'z' matches no topic"):
        chosen_topics((), "z", known)
    with pytest.raises(OptionError, match=r"t0, t1, t10, .* and 90 more"):
        chosen_topics(("c",), "", [f"t{n}" for n in range(100)])
    with pytest.raises(OptionError, match="there is none"):
        chosen_topics(("c",), "", [])


def test_positions_of_topics_that_are_not_read_are_refused() -> None:
    check_places("startingOffsets", {"orders": 4}, ("orders", "payments"))
    check_places("startingOffsets", 4, ("orders",))
    with pytest.raises(OptionError, match=r"option 'endingOffsets' has a position for topic 'order'"):
        check_places("endingOffsets", {"order": 4}, ("orders",))


@pytest.mark.parametrize(
    ("place", "begin"),
    [
        ("earliest", 11),
        ("latest", 100),
        (11, 11),
        (50, 50),
        (100, 100),
        ({"orders": 12}, 12),
        ({"payments": 2}, 11),
    ],
)
def test_a_read_begins_where_the_option_says(place: OffsetSpec, begin: int) -> None:
    assert begin_of(place, SPAN, fail_on_data_loss=True) == begin


@pytest.mark.parametrize(
    ("place", "end"),
    [("earliest", 11), ("latest", 100), (5, 5), (100, 100), ({"orders": 12}, 12), ({"payments": 2}, 100)],
)
def test_a_read_ends_where_the_option_says(place: OffsetSpec, end: int) -> None:
    assert end_of(place, SPAN, fail_on_data_loss=True) == end


def test_what_is_trimmed_is_an_error_with_a_remedy_or_left_out() -> None:
    with pytest.raises(
        TrimmedOffsets,
        match=r"trimmed up to position 10, and position 10 is to be read.*failOnDataLoss=false",
    ):
        begin_of(10, SPAN, fail_on_data_loss=True)
    assert begin_of(10, SPAN, fail_on_data_loss=False) == 11


def test_what_is_beyond_the_tail_is_missing_and_not_trimmed() -> None:
    for bound, option in ((begin_of, "startingOffsets"), (end_of, "endingOffsets")):
        with pytest.raises(MissingOffsets, match=f"option '{option}' is 101, and the newest is 99"):
            bound(101, SPAN, fail_on_data_loss=True)
        assert bound(101, SPAN, fail_on_data_loss=False) == 100
    with pytest.raises(MissingOffsets, match="it is empty"):
        begin_of(7, EMPTY, fail_on_data_loss=True)
    assert begin_of("earliest", EMPTY, fail_on_data_loss=True) == end_of(
        "latest", EMPTY, fail_on_data_loss=True
    )


def test_streams_that_do_not_have_all_of_a_range_together_are_missing_entries() -> None:
    check_dense("orders", 11, 100, [80, 9])
    with pytest.raises(MissingOffsets, match="of the 89 positions from 11 to 99 its log streams have 88"):
        check_dense("orders", 11, 100, [80, 8])
