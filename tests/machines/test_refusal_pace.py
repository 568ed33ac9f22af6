"""Refused threads are answered one after the other, and each at once: within a tenth of its time."""

from __future__ import annotations

import pytest

from varlog.client.blocking import PAUSE_S_MIN, SHARE, SPACING_S, RefusalPace


def test_a_few_refusals_are_answered_without_a_pause() -> None:
    pace = RefusalPace()
    assert [pace.pause_s(1.0, 1.0) for _ in range(10)] == [0.0] * 10
    assert pace.pause_s(5.0, 1.0) == 0.0


def test_many_at_once_are_spread_and_none_waits_for_more_than_a_tenth_of_its_time() -> None:
    pace = RefusalPace()
    pauses = [pace.pause_s(1.0, 1.0) for _ in range(5000)]
    assert pauses == sorted(pauses)
    assert pauses[500] == pytest.approx(500 * SPACING_S, abs=PAUSE_S_MIN)
    assert pauses[-1] == pytest.approx(SHARE)
    assert pace.pause_s(1.0, 0.05) == pytest.approx(SHARE * 0.05)
    # One with more time does not wait behind what others could not.
    assert pace.pause_s(1.0, 60.0) <= SHARE * 0.05 + SPACING_S
    assert pace.pause_s(1.0, 0.0) == 0.0
