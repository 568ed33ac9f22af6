"""DenyList: recent failures come last: after enough failures within a window, for longer each time, until the first success."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from varlog.client.failure_detector import DENIED_S_FIRST, DENIED_S_MAX, WINDOW_S, DenyList


def denied(listed: DenyList[str], now: float) -> list[str]:
    return list(listed.denied(now))


def test_one_failure_is_no_more_than_bad_luck_and_two_within_the_window_are_enough() -> None:
    """R-FAIL-2: threshold and expiry."""
    listed: DenyList[str] = DenyList()
    listed.failed("a", 100.0)
    assert denied(listed, 100.0) == []
    listed.failed("b", 101.0)
    listed.failed("a", 101.0)
    assert denied(listed, 101.0) == ["a"]
    assert denied(listed, 101.0 + DENIED_S_FIRST) == []


def test_failures_further_apart_than_the_window_do_not_add_up() -> None:
    listed: DenyList[str] = DenyList()
    listed.failed("a", 100.0)
    listed.failed("a", 100.0 + WINDOW_S)
    assert denied(listed, 100.0 + WINDOW_S) == []


def test_a_sure_failure_is_enough_by_itself() -> None:
    listed: DenyList[str] = DenyList()
    listed.failed("a", 100.0, surely=True)
    assert denied(listed, 100.5) == ["a"]


def test_a_key_that_fails_again_after_its_time_is_denied_for_twice_as_long_up_to_a_bound() -> None:
    listed: DenyList[str] = DenyList()
    now = 100.0
    spans: list[float] = []
    for _ in range(6):
        listed.failed("a", now, surely=not spans)
        until = listed.denied(now)["a"]
        spans.append(until - now)
        now = until + 0.5
    assert spans == [min(DENIED_S_FIRST * 2**n, DENIED_S_MAX) for n in range(6)]


def test_what_fails_while_it_is_denied_is_the_same_failure_seen_again() -> None:
    listed: DenyList[str] = DenyList()
    for _ in range(50):
        listed.failed("a", 100.0, surely=True)
    assert listed.denied(100.0) == {"a": 100.0 + DENIED_S_FIRST}


def test_the_first_success_forgets_everything() -> None:
    listed: DenyList[str] = DenyList()
    listed.failed("a", 100.0, surely=True)
    listed.failed("a", 102.0, surely=True)
    listed.succeeded("a")
    assert not listed
    listed.failed("a", 103.0)
    assert denied(listed, 103.0) == []
    listed.failed("a", 103.0)
    assert listed.denied(103.0) == {"a": 103.0 + DENIED_S_FIRST}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.floats(0.0, 15.0), st.sampled_from(["failed", "surely", "succeeded"])
        ),
        max_size=40,
    )
)
def test_no_key_is_denied_for_longer_than_the_bound_or_kept_forever(
    events: list[tuple[str, float, str]],
) -> None:
    """R-FAIL-2: whatever fails and succeeds when."""
    listed: DenyList[str] = DenyList()
    now = 0.0
    for key, after_s, what in events:
        now += after_s
        if what == "succeeded":
            listed.succeeded(key)
            assert key not in listed.denied(now)
        else:
            listed.failed(key, now, surely=what == "surely")
            assert what != "surely" or key in listed.denied(now)
        assert all(now < until <= now + DENIED_S_MAX for until in listed.denied(now).values())
    assert listed.denied(now + DENIED_S_MAX + WINDOW_S) == {}
    assert not listed, "nothing is left to look at"
