"""[A2 A4] PURE. Admission: how long what waits will take; late is refused early.

A request of n units takes a fixed time and some time per unit: both are fitted to the last requests by least squares,
in which older ones count less and less. A unit is a byte; an entry counts as ENTRY_UNITS more. Requests overlap: one
that was sent while another was in flight counts from the end of the other, so that the sum of all times is the time in
which anything was in flight.

While all requests are alike nothing is known of larger ones, and they are taken to last as long: the estimate is too low rather
than too high until the first large one was served. What is admitted by mistake is refused later, what is refused by mistake is
lost to its caller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from varlog.model.errors import Overloaded

ENTRY_UNITS: Final = 512
# The same for a batch, where a storage node counts batches.
BATCH_UNITS: Final = 512
# What a new sample leaves of the weight of the earlier ones, and again for each DECAY_S that it took: a log that has
# become slow is noticed by few samples.
DECAY: Final = 0.9
DECAY_S: Final = 0.05
# A request that takes longer met a failover, a full disk or a paused process: it says little of those that wait.
STALL_S: Final = 1.0
# Sizes that spread by less than this share of their mean say nothing of the time per unit.
SPREAD_MIN: Final = 0.1
# An append is admitted if the estimate is at most this share of its time: a machine that becomes slower while the
# append waits must not make all that wait too late.
SHARE: Final = 0.5
# The same behind a queue that has not been empty for STANDING_S: more arrives than is served, and a longer queue only
# makes each wait longer.
STANDING_SHARE: Final = 0.3
STANDING_S: Final = 0.5
# One that has waited is sent only while this share of its time is left beyond the estimate. Without it a queue that was
# admitted at a higher rate is served at the edge of its deadlines, each a moment too late, for as long as there is a
# queue.
SLACK: Final = 0.2
# A refused append is not worth trying again sooner.
RETRY_S_MIN: Final = 0.01


class Admission:
    """`fixed_s` and `unit_s` are 0 until something was served: then everything is admitted."""

    __slots__ = ("_cross", "_ended", "_seconds", "_squares", "_units", "_weight", "fixed_s", "unit_s")

    def __init__(self) -> None:
        # Sums over the requests that were served; older ones weigh less.
        self._weight = self._units = self._seconds = self._squares = self._cross = 0.0
        self._ended = -math.inf  # when the last one was served
        self.fixed_s = 0.0
        self.unit_s = 0.0

    def served(self, units: float, began: float, ended: float) -> None:
        """A request of this many units was sent at `began`, and answered now. Called in the order of the answers."""
        seconds = min(max(0.0, ended - max(began, self._ended)), STALL_S)
        self._ended = ended
        kept = DECAY ** (1 + seconds / DECAY_S)
        self._weight = weight = kept * self._weight + 1
        self._units = total = kept * self._units + units
        self._seconds = total_s = kept * self._seconds + seconds
        self._squares = kept * self._squares + units * units
        self._cross = kept * self._cross + units * seconds
        spread = weight * self._squares - total * total
        self.unit_s = 0.0
        if spread > (SPREAD_MIN * total) ** 2:
            slope = (weight * self._cross - total * total_s) / spread
            self.unit_s = min(max(slope, 0.0), total_s / total)
        self.fixed_s = (total_s - self.unit_s * total) / weight

    def estimate_s(self, requests: float, units: float) -> float:
        """How long these units in these requests take, one after the other."""
        return self.fixed_s * requests + self.unit_s * units


def late(wait_s: float, left_s: float, waiting: int, *, share: float = 1 - SLACK) -> Overloaded | None:
    """The refusal of a request that waits for `wait_s` behind `waiting` others, and may wait for this share of `left_s`; None:
    it is in time."""
    in_time_s = share * left_s
    if wait_s <= in_time_s:
        return None
    rate = waiting / wait_s if wait_s else 0.0
    return Overloaded(waiting, rate, max(wait_s - in_time_s, RETRY_S_MIN))


class CallerPatience:
    """How long callers wait, where they give up before the deadlines that they named; without end while they do not.

    A queue that is admitted by deadlines nobody waits for serves each append a moment after its caller gave up. So
    cancelled appends count, if they are most of a batch: a few say that their callers had another reason. `seconds`
    grows again, because a queue that is short enough shows no cancelled ones.
    """

    MOST: Final = 0.5
    SECONDS_MIN: Final = 0.1
    SECONDS_MAX: Final = 60.0
    GROWTH_PER_S: Final = 1.1

    __slots__ = ("_at", "seconds")

    def __init__(self) -> None:
        self.seconds = math.inf
        self._at = 0.0  # as of when

    def gave_up(self, ages_s: Sequence[float], among: int, now: float) -> None:
        """Of `among` appends these were given up by their callers, at these ages at most."""
        if len(ages_s) > self.MOST * among:
            self.seconds = max(self.SECONDS_MIN, min(self.at(now), *ages_s))

    def at(self, now: float) -> float:
        """`seconds`, and how much it has grown by now."""
        if self.seconds < math.inf:
            self.seconds *= self.GROWTH_PER_S ** (now - self._at)
            if self.seconds > self.SECONDS_MAX:
                self.seconds = math.inf
        self._at = now
        return self.seconds
