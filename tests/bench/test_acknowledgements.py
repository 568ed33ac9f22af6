"""Pauses and rates out of moments: the arithmetic behind the figures about faults."""

from __future__ import annotations

import pytest

from varlog.bench.figures import Acknowledgements


def at(*moments: float) -> Acknowledgements:
    times = Acknowledgements()
    for moment in moments:
        times.add(moment)
    return times


def steady(begin: float, end: float, rate: float) -> list[float]:
    return [begin + number / rate for number in range(round((end - begin) * rate))]


def test_the_longest_pause_lies_between_two_answers() -> None:
    assert at(1.0, 1.5, 3.0, 3.1).longest_pause(0.9, 3.2) == (1.5, 3.0)


def test_a_pause_may_begin_with_the_fault_or_last_until_the_end() -> None:
    assert at(0.5, 2.0, 2.1).longest_pause(1.0, 2.5) == (1.0, 2.0)
    assert at(0.5, 1.1).longest_pause(1.0, 4.0) == (1.1, 4.0)
    assert at().longest_pause(1.0, 4.0) == (1.0, 4.0)


def test_rates_come_in_whole_bins() -> None:
    assert at(0.0, 0.1, 0.25, 0.9).rates(0.0, 1.1, 0.5) == [6.0, 2.0]


def test_the_old_rate_is_back_where_the_first_full_window_begins() -> None:
    """100/s, nothing for half a second, 50/s for two seconds, then 100/s again."""
    times = at(*steady(0, 5, 100), *steady(5.5, 7.5, 50), *steady(7.5, 12, 100))
    back = times.old_rate_back(5.0, 12.0, times.rate(0, 5))
    # The window may reach a little into the slow interval: it needs 90 of 100.
    assert back == pytest.approx(7.3, abs=0.06)


def test_a_rate_that_never_recovers_is_reported_as_such() -> None:
    times = at(*steady(0, 5, 100), *steady(6, 12, 50))
    assert times.old_rate_back(5.0, 12.0, 100.0) is None


def test_a_window_that_was_not_seen_whole_does_not_count() -> None:
    times = at(*steady(0, 5, 100), *steady(6, 6.5, 1000))
    assert times.old_rate_back(5.0, 6.6, 100.0) is None
