"""How many batches are in flight, and which one more would be written too late."""

from __future__ import annotations

import pytest

from varlog.model.errors import Overloaded
from varlog.model.lsn import GLSN
from varlog.sequencer.in_flight import FREE_BATCHES, KEPT_S, LOOK_S, TokensInFlight


def give(flight: TokensInFlight, begin: int, count: int, now: float = 0.0, within_s: float = 1.0) -> None:
    for first in range(begin, begin + count):
        flight.given(GLSN(first), within_s, now)


def test_one_more_takes_as_long_as_those_before_it_in_proportion_to_how_many_there_are() -> None:
    flight = TokensInFlight()
    give(flight, 1, 20)
    for number in range(1, 21):
        flight.written(GLSN(number), 0.01 * number)  # one each ten milliseconds
    give(flight, 21, 39)
    assert flight.wait_s() == pytest.approx(0.4)
    flight.check(0.81, 0.5)
    with pytest.raises(Overloaded) as refused:
        flight.check(0.5, 0.5)
    assert refused.value.waiting == 39
    assert refused.value.rate == pytest.approx(97.5)
    assert refused.value.retry_after_s == pytest.approx(0.15)


def test_while_few_are_in_flight_none_is_refused_however_long_the_last_ones_took() -> None:
    flight = TokensInFlight()
    give(flight, 1, 1)
    flight.written(GLSN(1), 30.0)
    give(flight, 2, FREE_BATCHES - 1)
    flight.check(0.001, 0.5)
    give(flight, 50, 1)
    with pytest.raises(Overloaded):
        flight.check(0.001, 0.5)


def test_what_is_given_up_does_not_count_in_how_long_a_batch_takes() -> None:
    flight = TokensInFlight()
    give(flight, 1, 20)
    flight.written(GLSN(20), 2.0)
    flight.given_up([GLSN(number) for number in range(1, 10)])
    assert len(flight) == 10
    assert flight.wait_s() == pytest.approx(11 * 0.1)
    flight.given_up([GLSN(1), GLSN(99)])
    flight.written(GLSN(98), 0.0)
    assert flight.wait_s() == pytest.approx(11 * 0.1)


def test_a_batch_that_is_never_reported_counts_until_its_deadline_and_not_forever() -> None:
    flight = TokensInFlight()
    give(flight, 1, 1)
    flight.written(GLSN(1), 1.0)
    give(flight, 2, 10, now=0.0, within_s=1.0)
    give(flight, 12, 10, now=0.0, within_s=3600.0)
    with pytest.raises(Overloaded):
        flight.check(1.0, 0.9)
    with pytest.raises(Overloaded):
        flight.check(1.0, 1.0 + LOOK_S)
    assert len(flight) == 10
    flight.check(1.0, KEPT_S + LOOK_S)
    assert len(flight) == 0
