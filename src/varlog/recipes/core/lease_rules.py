"""PURE. Leases over the log: how long one is valid, and when others may expire it.

No clock is compared with another one. Both sides count from the same heartbeat, which is a command in the log:

    holder      sends it ──── lease valid for ttl * (1 - 2 drift) by its own clock ────┤
    other             applies it ──── waits for ttl by its own clock ──────────────────────┤ expire(the heartbeat)

A heartbeat is applied after it was sent, and a clock is at most `CLOCK_DRIFT_MAX` off: with drift d the lease ends before
ttl * (1 - 2d) / (1 - d) of true time have passed, and no other process sends expire before ttl / (1 + d) have, which is later.
`expire` counts only if the heartbeat that it names is still the last one. So whenever a claim is expired, its owner's lease has
ended before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import takewhile
from typing import Final, Generic, NamedTuple, TypeVar

from varlog.model.errors import InvalidRequest
from varlog.model.limits import CLOCK_DRIFT_MAX
from varlog.model.lsn import GLSN

TTL_S: Final = 10.0
# Below, the log would be full of renewals; above, a dead holder would block the others for longer than anyone intends.
TTL_S_MIN: Final = 0.05
TTL_S_MAX: Final = 86_400.0

K = TypeVar("K", bound=Hashable)


def ttl_us(ttl_s: float) -> int:
    """A time to live in microseconds. InvalidRequest if it is out of bounds."""
    if not TTL_S_MIN <= ttl_s <= TTL_S_MAX:
        raise InvalidRequest(f"a time to live of {ttl_s} s: take one from {TTL_S_MIN} to {TTL_S_MAX:.0f} s")
    return int(ttl_s * 1_000_000)


def validity_us(ttl_us: int) -> int:
    """How long a lease is valid for its holder, counted from before the heartbeat was sent."""
    return int(ttl_us * (1 - 2 * CLOCK_DRIFT_MAX))


def renew_us(ttl_us: int) -> int:
    """How long after a heartbeat the next one is sent: two of them may be lost before the lease ends."""
    return validity_us(ttl_us) // 3


class SentHeartbeats:
    """What the owner of a claim knows: when it sent which heartbeat. Number 0 is the command that made the claim."""

    def __init__(self, ttl_us: int, sent_us: int) -> None:
        self.ttl_us = ttl_us
        self.newest = 0
        self._sent_us = {0: sent_us}

    @property
    def sent_us(self) -> int:
        """When the newest heartbeat was sent."""
        return self._sent_us[self.newest]

    def send(self, now_us: int) -> int:
        """The number of a heartbeat that is about to be sent: call this before sending it."""
        self.newest += 1
        self._sent_us[self.newest] = now_us
        return self.newest

    def until_us(self, beat: int) -> int:
        """Until when the lease is valid, if `beat` is the newest heartbeat that was applied: counted from before it was sent. A
        beat that was never sent from here is of another writer in the topic: then the oldest known one counts, the earliest."""
        if beat not in self._sent_us:
            return min(self._sent_us.values()) + validity_us(self.ttl_us)
        for older in [sent for sent in self._sent_us if sent < beat]:
            del self._sent_us[older]
        return self._sent_us[beat] + validity_us(self.ttl_us)


class HeartbeatSeen(NamedTuple):
    """The last heartbeat of a claim, as a replica has applied it."""

    at: GLSN
    ttl_us: int


class Watch(Generic[K]):
    """What a participant knows of the others: since when, by its own clock, it has seen no newer heartbeat of each.

    `observe` is called with a time that was read *after* the heartbeats were applied: an earlier one would expire a holder too
    early."""

    def __init__(self) -> None:
        self._seen: dict[K, tuple[HeartbeatSeen, int]] = {}

    def observe(self, heartbeats: Iterable[tuple[K, HeartbeatSeen]], now_us: int) -> None:
        seen = self._seen
        self._seen = {}
        for who, heartbeat in heartbeats:
            before = seen.get(who)
            known = before is not None and before[0] == heartbeat
            self._seen[who] = before if before is not None and known else (heartbeat, now_us)

    def due_us(self, who: K) -> int:
        """From when on it may be expired, if nothing newer is seen."""
        heartbeat, since_us = self._seen[who]
        return since_us + heartbeat.ttl_us

    def sees(self, who: K) -> bool:
        """Whether it was in the last observation."""
        return who in self._seen

    def overdue(self, who: K, now_us: int) -> bool:
        return self.sees(who) and now_us >= self.due_us(who)


def dead_before(me: K, line: Sequence[K], watch: Watch[K], now_us: int) -> list[K]:
    """Which claims of the line `me` has to expire: the dead ones just before it, up to the first that lives; before the first is
    the last, as in a ring. So each claim is watched by exactly one other, and hundreds that wait do not all append at once."""
    return list(takewhile(lambda who: watch.overdue(who, now_us), _before(me, line)))


def next_check_us(me: K, line: Sequence[K], watch: Watch[K], now_us: int) -> int | None:
    """When the next one before `me` may have to be expired; None if no other claim lives."""
    return next((watch.due_us(who) for who in _before(me, line) if not watch.overdue(who, now_us)), None)


def _before(me: K, line: Sequence[K]) -> Sequence[K]:
    """The others, backwards from `me` on; none if it is not in the line."""
    if me not in line:
        return ()
    at = line.index(me)
    return (*reversed(line[:at]), *reversed(line[at + 1 :]))
