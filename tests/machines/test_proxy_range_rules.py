"""Which positions a range covers, how many entries a page takes, and which media type is chosen: against plain models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.errors import Trimmed
from varlog.proxy.header_rules import best, media_type
from varlog.proxy.position_rules import PositionRange, clamped_range, entries_that_fit

MAYBE = st.none() | st.integers(1, 30)


@given(MAYBE, MAYBE, MAYBE, st.integers(0, 20), st.integers(0, 10))
def test_a_span_is_the_requested_positions_that_exist(
    begin: int | None, until: int | None, limit: int | None, trimmed: int, more: int
) -> None:
    tail = trimmed + more
    if begin is not None and begin <= trimmed:
        with pytest.raises(Trimmed):
            clamped_range(begin, until, limit, trimmed, tail)
        return
    found = clamped_range(begin, until, limit, trimmed, tail)
    first = trimmed + 1 if begin is None else begin
    wanted = [p for p in range(first, tail + 1) if until is None or p < until][: limit or None]
    assert found.begin == first
    assert list(range(found.begin, found.end)) == wanted


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 120), st.integers(1, 100))
def test_a_page_takes_what_fits_and_one_entry_at_least(sizes: list[int], taken: int, room: int) -> None:
    fit = entries_that_fit(sizes, taken, room)
    if taken == 0 and sizes:
        assert fit >= 1
    assert taken + sum(sizes[:fit]) <= room or (fit <= 1 and taken == 0) or fit == 0
    if fit < len(sizes):
        assert taken + sum(sizes[: fit + 1]) > room


def test_a_span_beyond_the_tail_cannot_be_made() -> None:
    with pytest.raises(ValueError):
        PositionRange(1, 9, 3)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", "a/json"),
        ("*/*", "a/json"),
        ("b/text", "b/text"),
        ("b/*", "b/text"),
        ("b/text;q=0.5, a/json;q=0.4", "b/text"),
        ("B/TEXT ; Q=0.9 , */*;q=0.1", "b/text"),
        ("*/*, a/json;q=0", "b/text"),
        ("c/none", None),
        ("a/json;q=0", None),
        ("a/json;q=nonsense", "a/json"),
        ("a/json;q=nan", "a/json"),
        ("text/html, */*;q=0.8", "a/json"),
        (",", "a/json"),
    ],
)
def test_the_best_accepted_offer_is_chosen(accept: str, chosen: str | None) -> None:
    assert best(accept, ("a/json", "b/text")) == chosen


@given(st.text(max_size=40))
def test_any_accept_is_understood_somehow(accept: str) -> None:
    assert best(accept, ("a/json", "b/text")) in ("a/json", "b/text", None)


def test_a_content_type_is_known_by_its_name_alone() -> None:
    assert media_type("Text/Plain; charset=utf-8") == "text/plain"
    assert media_type("") == "application/octet-stream"
