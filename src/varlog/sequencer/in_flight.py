"""[Q3] PURE. TokensInFlight: granted batches of one topic, not yet written.

A batch that would be late gets no position.

A sequencer sees all clients of a topic, and no client sees the others: where each writes what it has and none has a queue, the
queue is at the nodes of the chains. Clients report when a batch has ended, with their next request or soon after it. So the
sequencer knows how many batches are in flight and how long they take, and refuses (Overloaded) what would be written too late
before it gets a position: a position that is given and not written has to be filled on every node of its chain (law 4).

The estimate is Little's law: what a batch takes is in proportion to how many are in flight. While few are, that is not
so: a chain writes several as fast as one. So the first FREE_BATCHES are never refused, and a wrong estimate is
corrected by the next batch. A batch that is never reported, because its client has died, counts until its deadline, and
at most KEPT_S.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from varlog.model.admission import SHARE, late
from varlog.model.lsn import GLSN

FREE_BATCHES: Final = 8
# What a batch that was written leaves of the weight of those before it.
KEPT: Final = 0.95
# Between two searches for batches that are never reported.
LOOK_S: Final = 0.5
KEPT_S: Final = 5.0


class TokensInFlight:
    """Those of one topic. `now` never falls."""

    __slots__ = ("_given", "_look_at", "_numbers", "_seconds")

    def __init__(self) -> None:
        # By first position: how many were in flight with it, itself included, and until when it counts.
        self._given: dict[GLSN, tuple[int, float]] = {}
        # Of the batches that were written: the sum of these numbers, and of how long each took. Newer ones weigh more, in both
        # alike.
        self._numbers = 0.0
        self._seconds = 0.0
        self._look_at = -math.inf

    def __len__(self) -> int:
        return len(self._given)

    def wait_s(self) -> float:
        """How long one more batch would take. 0: too few are in flight to say, or none was written yet."""
        if len(self._given) < FREE_BATCHES or not self._numbers:
            return 0.0
        return (len(self._given) + 1) * self._seconds / self._numbers

    def check(self, within_s: float, now: float) -> None:
        """Overloaded: a batch whose client waits for `within_s` would be written too late, behind what is in flight."""
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self.given_up([first for first, (_, until) in self._given.items() if until <= now])
        if (wait_s := self.wait_s()) and (refusal := late(wait_s, within_s, len(self._given), share=SHARE)):
            raise refusal

    def given(self, first: GLSN, within_s: float, now: float) -> None:
        """Positions from `first` on, to a client that waits for `within_s`."""
        self._given[first] = (len(self._given) + 1, now + min(within_s, KEPT_S))

    def written(self, first: GLSN, took_s: float) -> None:
        """The batch is on every node of its chain."""
        if found := self._given.pop(first, None):
            self._numbers = KEPT * self._numbers + found[0]
            self._seconds = KEPT * self._seconds + took_s

    def given_up(self, firsts: Iterable[GLSN]) -> None:
        """They will never be written, which says nothing of how long a batch takes."""
        for first in firsts:
            self._given.pop(first, None)
