"""PURE. The lease rule: when it ends at its holder, and when at its granter.

It keeps R-SEQ-13 and law 7.
A holder counts from when it asked and stops a little early (`held_for_s`). A granter counts from when it answered, which is
later, and waits a little longer (`ended_after_s`). So a lease ends at its holder first, although no clock is right: both allow
for clocks that drift.

Storage nodes and sequencers (HeldLease) and the repository that grants their leases (LeaseBook) count by two clocks each: a
holder stops as soon as either clock says so, a granter waits for both, so that one of the two may stop or jump ahead.
A repository's own lease in etcd (ElectionLease) is counted by one clock, and its holder carries the whole margin: etcd ends a
lease when its time is over, and waits for nobody's drift.
"""

from __future__ import annotations

from typing import NamedTuple

from varlog.model.limits import CLOCK_DRIFT_MAX, LEASE_S


def held_for_s(lease_s: float, drift: float = CLOCK_DRIFT_MAX) -> float:
    """How long a holder may rely on a lease, by its own clock, from when it asked. `drift`: the share by which its clock may be
    slower than the one of the granter, beyond what that allows for itself."""
    return lease_s * (1 - drift)


def ended_after_s(lease_s: float) -> float:
    """When a granter may rely on the end of a lease, by its own clock, from when it answered."""
    return lease_s * (1 + CLOCK_DRIFT_MAX) / (1 - CLOCK_DRIFT_MAX)


class Instant(NamedTuple):
    """One moment by both clocks of a machine that never go back, in microseconds, each since an origin of its own."""

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
    """What its holder knows of one lease. Each request has a stamp, which the answer repeats."""

    __slots__ = ("_asked_us", "_stamp", "_until")

    def __init__(self) -> None:
        self._until = BEGINNING
        self._stamp = 0  # of the newest request
        # The monotonic clock's time of each request that may still be answered, by its stamp, oldest first.
        self._asked_us: dict[int, int] = {}

    def ask(self, now: Instant) -> int:
        """The stamp of a new request: the steady clock's time, or a little more if that clock has stopped."""
        self._stamp = max(now.steady_us, self._stamp + 1)
        over_us = now.monotonic_us - int(LEASE_S * 1_000_000)
        self._asked_us = {stamp: asked for stamp, asked in self._asked_us.items() if asked > over_us}
        self._asked_us[self._stamp] = now.monotonic_us
        return self._stamp

    def granted(self, stamp: int, lease_s: float) -> bool:
        """The answer to the request with this stamp. False: no request has it, or a later one was answered before."""
        if (asked_us := self._asked_us.get(stamp)) is None:
            return False
        self._asked_us = {other: asked for other, asked in self._asked_us.items() if other >= stamp}
        self._until = Instant(stamp, asked_us).after(int(held_for_s(lease_s) * 1_000_000))
        return True

    def end(self) -> None:
        self._until = BEGINNING

    def holds(self, now: Instant) -> bool:
        return now.steady_us < self._until.steady_us and now.monotonic_us < self._until.monotonic_us
