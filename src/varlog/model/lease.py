"""PURE. Leases as their holders count them (R-SEQ-13): by two clocks, and over as soon as either says so.

A holder counts from when it asked, a little short; who granted the lease counts from when it answered, a little long, and takes it
for over when both of its clocks do. So no clock needs to be right, and one of two may stand still or jump ahead.
"""

from __future__ import annotations

from typing import NamedTuple

from varlog.model.limits import CLOCK_DRIFT_MAX, LEASE_S


class Instant(NamedTuple):
    """One moment by both clocks of a machine that never go back, in microseconds since moments of their own."""

    steady_us: int  # counts while the machine sleeps
    monotonic_us: int  # may not

    def after(self, us: int) -> Instant:
        return Instant(self.steady_us + us, self.monotonic_us + us)

    def latest(self, other: Instant) -> Instant:
        return Instant(
            max(self.steady_us, other.steady_us),
            max(self.monotonic_us, other.monotonic_us),
        )

    def left_us(self, now: Instant) -> int:
        """Until this moment by the slower clock; 0: both have reached it."""
        return max(self.steady_us - now.steady_us, self.monotonic_us - now.monotonic_us, 0)


BEGINNING = Instant(0, 0)


class HeldLease:
    """What its holder knows of one lease. Each question has a stamp, which the answer repeats."""

    __slots__ = ("_asked_us", "_stamp", "_until")

    def __init__(self) -> None:
        self._until = BEGINNING
        self._stamp = 0  # of the newest question
        # The monotonic clock's time of each question that an answer may still come to, by its stamp, oldest first.
        self._asked_us: dict[int, int] = {}

    def ask(self, now: Instant) -> int:
        """The stamp of a new question: the steady clock's time, or a little more where that stands still."""
        self._stamp = max(now.steady_us, self._stamp + 1)
        over_us = now.monotonic_us - int(LEASE_S * 1_000_000)
        self._asked_us = {stamp: asked for stamp, asked in self._asked_us.items() if asked > over_us}
        self._asked_us[self._stamp] = now.monotonic_us
        return self._stamp

    def granted(self, stamp: int, lease_s: float) -> bool:
        """The answer to the question with this stamp. False: none has it, or a later one was answered before."""
        if (asked_us := self._asked_us.get(stamp)) is None:
            return False
        self._asked_us = {other: asked for other, asked in self._asked_us.items() if other >= stamp}
        self._until = Instant(stamp, asked_us).after(int(lease_s * (1 - CLOCK_DRIFT_MAX) * 1_000_000))
        return True

    def end(self) -> None:
        self._until = BEGINNING

    def holds(self, now: Instant) -> bool:
        return now.steady_us < self._until.steady_us and now.monotonic_us < self._until.monotonic_us
