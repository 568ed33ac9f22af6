"""The figures of a report, and the page that shows them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from random import Random

import pytest

from varlog.spark.report.page import nice_steps, page
from varlog.spark.report.report_rules import (
    CLASSES_PER_DOUBLING,
    Bucket,
    Busy,
    Quantiles,
    Silence,
    Skew,
    StreamFigures,
    TopicReport,
    ValueClass,
    between,
    bucket_width_us,
    bytes_text,
    class_of,
    count_text,
    duration_text,
    longest,
    merged_classes,
    quantile,
    quantiles,
    skew,
    time_text,
)

SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000


def classes_of(values: list[int]) -> list[ValueClass]:
    return merged_classes((class_of(value), ValueClass(value, value, 1)) for value in values)


def test_a_quantile_is_right_to_within_a_class() -> None:
    random = Random(7)
    values = sorted(int(random.lognormvariate(7, 2)) for _ in range(3000))
    classes = classes_of(values)
    assert len(classes) < 300
    for share in (0.01, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = values[max(0, round(share * len(values)) - 1)]
        assert quantile(classes, share) == pytest.approx(
            exact, rel=2 ** (1 / CLASSES_PER_DOUBLING) - 1, abs=1
        )


def test_quantiles_of_few_values_are_exact() -> None:
    assert quantiles(classes_of([0, 100, 100, 1000]), 1200) == Quantiles(
        300.0, 0, 100, 1000, 1000, 1000, 1000
    )
    assert quantiles([], 0) == Quantiles()


@pytest.mark.parametrize("length", [0, 1, 999, 5 * SECOND, 59 * SECOND, 7 * HOUR, 400 * DAY, 5000 * DAY])
@pytest.mark.parametrize("first", [0, 1_780_000_000_123_456])
def test_a_bucket_is_as_wide_as_it_must_be_and_no_wider_than_people_count(length: int, first: int) -> None:
    width = bucket_width_us(first, first + length, 96)
    begin = first - first % width
    assert (first + length - begin) // width < 96
    assert width <= max(1000, (length + 1) / 96 * 3.2)


def test_silences_are_between_what_arrived_and_the_longest_come_first() -> None:
    silences = list(between([Busy(50, 60), Busy(0, 10), Busy(11, 11), Busy(90, 90)]))
    assert silences == [Silence(10, 11), Silence(11, 50), Silence(60, 90)]
    assert [gap.length_us for gap in longest(silences, 2)] == [39, 30]


def test_skew_is_none_among_equals_and_large_where_one_has_all() -> None:
    assert skew([5, 5, 5]) == Skew(0.0, 1.0)
    uneven = skew([9, 0, 0])
    assert uneven.variation == pytest.approx(2**0.5) and uneven.largest == 3.0
    assert skew([]) == skew([0, 0]) == Skew()


def test_steps_of_an_axis_are_round_and_reach_the_top() -> None:
    assert nice_steps(1.0) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert nice_steps(1300) == [0, 500, 1000, 1500]
    assert nice_steps(3 * 1024, 1024) == [0, 1024, 2048, 3072]
    assert nice_steps(0) == [0.0, 1.0]


def test_numbers_as_people_read_them() -> None:
    assert [count_text(value) for value in (0, 7.25, 1500, 2e9)] == ["0", "7.25", "1.5 k", "2 G"]
    assert [bytes_text(value) for value in (0, 1023, 1536)] == ["0 B", "1023 B", "1.5 KiB"]
    assert [duration_text(value) for value in (5, 1500, 90 * SECOND)] == ["5 µs", "1.5 ms", "1.5 min"]
    assert time_text(1_780_000_000_123_456) == "2026-05-28 20:26:40.123"
    assert time_text(1_780_000_000_123_456, DAY) == "2026-05-28"


class Checker(HTMLParser):
    """Every tag that is opened is closed; ids are what others refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.referred: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "!doctype"):
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if "id" in found:
            assert found["id"] not in self.ids
            self.ids.add(str(found["id"]))
        self.referred |= set(str(found.get("aria-labelledby", "")).split())


def check_page(report: TopicReport) -> str:
    text = page(report)
    checker = Checker()
    checker.feed(text)
    assert checker.open == [] and checker.referred <= checker.ids
    assert not re.search(r"(src|href)=|url\(|@import|nan|inf\b", text)
    return text


def report_of(streams: int, buckets: int) -> TopicReport:
    size = quantiles(classes_of([10, 20, 3000]), 3030)
    figures = tuple(
        StreamFigures(n, 10, 1000, 1 / streams, 1 / streams, 5, 9, size) for n in range(1, streams + 1)
    )
    cells = tuple(Bucket(number, 1, 10, 1000) for number in range(0, buckets, 2))
    return TopicReport(
        "<orders>",
        5,
        1,
        31,
        30,
        3030,
        5,
        9,
        size=size,
        sizes=tuple(classes_of([10, 20, 3000])),
        waits=tuple(classes_of([0, 7])),
        silences=(Silence(5, 9),),
        streams=figures,
        bucket_us=SECOND,
        buckets=cells,
    )


@pytest.mark.parametrize(("streams", "buckets"), [(1, 1), (3, 90), (40, 2)])
def test_a_page_is_whole_and_needs_nothing_else(streams: int, buckets: int) -> None:
    text = check_page(report_of(streams, buckets))
    assert text.count("<svg") == 5 and "&lt;orders&gt;" in text and "<orders>" not in text
    assert text.count("prefers-color-scheme: dark") == 1


def test_an_empty_page_states_that_it_is_empty() -> None:
    assert "There are no entries." in check_page(TopicReport("t", 1, 1, 1))
