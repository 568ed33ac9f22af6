"""Filters that are taken become exact selections; every other one goes back to Spark as it came."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from varlog.spark.read.reader import POSITIONS_MAX, selected
from varlog.spark.read.resolve_rules import Selection

TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
TIME_US = 1_767_323_045_678_901


def positions(*filters: Filter) -> list[tuple[int, int]]:
    """Those of [1, 1000) that are left by filters which are all taken."""
    selection, left = selected(filters)
    assert not left
    return selection.within(1, 1000)


def test_positions_are_ranges() -> None:
    glsn = ("glsn",)
    assert positions() == [(1, 1000)]
    assert positions(EqualTo(glsn, 7)) == [(7, 8)]
    assert positions(EqualNullSafe(glsn, 7)) == [(7, 8)]
    assert positions(GreaterThan(glsn, 7), LessThanOrEqual(glsn, 9)) == [(8, 10)]
    assert positions(GreaterThanOrEqual(glsn, 7), LessThan(glsn, 9)) == [(7, 9)]
    assert positions(In(glsn, (9, 3, None, 9, 5000))) == [(3, 4), (9, 10)]
    assert positions(In(glsn, (3, 9)), GreaterThan(glsn, 5)) == [(9, 10)]
    assert positions(GreaterThan(glsn, 9), LessThan(glsn, 9)) == []
    assert positions(LessThan(glsn, -5)) == []


def test_a_long_list_of_positions_is_read_as_one_range_and_left_to_spark() -> None:
    many = In(("glsn",), tuple(range(10, 500, 10)))
    assert len(many.value) > POSITIONS_MAX
    selection, left = selected([many])
    assert left == [many]
    assert selection.within(1, 1000) == [(10, 491)]


def test_topics_and_streams_are_sets() -> None:
    selection, left = selected(
        [EqualTo(("topic",), "a"), In(("log_stream",), (1, 2)), EqualTo(("log_stream",), 2)]
    )
    assert (selection, left) == (Selection(topics=frozenset("a"), log_streams=frozenset([2])), [])


def test_times_are_microseconds() -> None:
    column = ("timestamp",)
    assert selected([GreaterThanOrEqual(column, TIME)])[0].time == (TIME_US, 2**63 - 1)
    assert selected([GreaterThan(column, TIME), LessThan(column, TIME)])[0].time == (TIME_US + 1, TIME_US)
    assert selected([EqualTo(column, TIME)])[0].time == (TIME_US, TIME_US + 1)


def test_no_column_is_ever_null() -> None:
    for name in ("topic", "glsn", "llsn", "log_stream", "timestamp", "data"):
        assert selected([IsNotNull((name,))]) == (Selection(), [])
        for never in (IsNull((name,)), EqualNullSafe((name,), None)):
            selection, left = selected([never])
            assert not left
            assert selection.within(1, 1000) == []


@pytest.mark.parametrize(
    "other",
    [
        Not(EqualTo(("glsn",), 1)),
        EqualTo(("llsn",), 1),
        EqualTo(("data",), b"x"),
        StringStartsWith(("topic",), "a"),
        EqualTo(("glsn", "x"), 1),
        EqualTo(("other",), 1),
        EqualTo(("glsn",), 1.5),
        EqualTo(("glsn",), True),
        EqualTo(("glsn",), None),
        In(("glsn",), (None,)),
        In(("timestamp",), (TIME, TIME)),
        EqualTo(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - a time without a zone is what is tried
        GreaterThan(("topic",), "a"),
    ],
)
def test_what_is_not_understood_goes_back(other: Filter) -> None:
    assert selected([other]) == (Selection(), [other])
