"""Signals to a job that runs forever."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from varlog.spark.jobs.progress import java_ended, stop_on_signal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_requests_a_stop_and_the_second_ends_the_process(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signal() as stop:
        signal.raise_signal(number)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_spark_has_ended_when_its_context_has_or_nobody_answers() -> None:
    def context(answer: Callable[[], bool]) -> object:
        stopped = SimpleNamespace(isStopped=answer)
        return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: stopped)))

    def nobody() -> bool:
        raise ConnectionRefusedError

    found = [java_ended(context(answer)) for answer in (lambda: False, lambda: True, nobody)]  # type: ignore[arg-type]
    assert found == [False, True, True]
