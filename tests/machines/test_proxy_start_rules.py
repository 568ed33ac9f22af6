"""Laws of where a follower begins."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.lsn import LSN_MAX
from varlog.proxy.position_rules import PATTERN, Start

POSITIONS = st.integers(0, LSN_MAX - 1)


@given(POSITIONS, POSITIONS, st.integers(1, LSN_MAX))
def test_a_start_is_the_position_named_or_clamped_to_what_exists(
    trimmed: int, count: int, number: int
) -> None:
    oldest, newest = trimmed + 1, min(trimmed + count, LSN_MAX)
    there = {"oldest": oldest, "newest": newest}
    assert Start("oldest").position(**there) == oldest
    assert Start("next").position(**there) == newest + 1
    assert Start(str(number)).position(**there) == number
    last = Start(str(-number)).position(**there)
    assert oldest <= last <= newest + 1
    assert newest + 1 - last == min(number, newest + 1 - oldest)


@given(POSITIONS)
def test_a_returning_consumer_begins_behind_what_it_has(position: int) -> None:
    assert Start.behind(position).position(oldest=1, newest=0) == position + 1


@given(st.text() | st.integers().map(str))
def test_what_the_pattern_allows_is_a_start_unless_it_is_too_large(text: str) -> None:
    matches = re.fullmatch(PATTERN.strip("^$"), text, re.ASCII) is not None
    if matches and (text in ("oldest", "next") or abs(int(text)) <= LSN_MAX):
        assert Start(text).text == text
    elif matches:
        with pytest.raises(ValueError, match="at most"):
            Start(text)


@pytest.mark.parametrize("text", ["0", "", "soon", "-0", str(LSN_MAX + 1)])
def test_what_is_no_start_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a valid start|at most"):
        Start(text)
