"""[Q2] PURE. ChainLoad: how busy a topic's chains are, as far as one client knows; what would be late asks for no token.

A token that is taken and not written leaves a hole that has to be filled on every node of its chain (law 4). So the sequencer
refuses a request for tokens whose batch would be late, and the head of a chain a write that would be (Overloaded). Both name
when one more has a chance: until then the client refuses by itself what has no more time. That ends by itself, so a wrong
estimate does not stay.

The head knows its own queue only. What the nodes behind it need is measured here, and kept back from the time that the head may
take.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from varlog.model.admission import SHARE, late
from varlog.model.errors import Overloaded
from varlog.model.ids import LogStreamID

# What the newest measurement counts against those before it; and what is left of all of them after a second without one.
GAIN: Final = 0.25
KEPT_PER_S: Final = 0.5
# The least share of its time that a write has at the head, however slow the rest of the chain was.
HEAD_SHARE_MIN: Final = 0.2


class _Rest(NamedTuple):
    """How long the nodes behind the head took, as of `at`."""

    seconds: float
    at: float


class ChainLoad:
    """Of one client's topic; `now` is the time of its loop."""

    __slots__ = ("_busy_until", "_rest", "_waiting")

    def __init__(self) -> None:
        # When that is served behind which the last refused batch would have been late; and how many batches it was.
        self._busy_until = -math.inf
        self._waiting = 0
        self._rest: dict[LogStreamID, _Rest] = {}

    def check(self, left_s: float, now: float) -> None:
        """Overloaded: a batch that has `left_s` for its answer would be late."""
        if self._busy_until > now and (
            refusal := late(self._busy_until - now, left_s, self._waiting, share=SHARE)
        ):
            raise refusal

    def refused(self, refusal: Overloaded, left_s: float, now: float) -> None:
        """A batch that had `left_s` was refused by the sequencer, or by the head of its chain."""
        self._busy_until = now + refusal.retry_after_s + SHARE * max(left_s, 0.0)
        self._waiting = refusal.waiting

    def head_s(self, log_stream: LogStreamID, left_s: float, now: float) -> float:
        """How much of `left_s` the head may take."""
        if not self._rest:
            return left_s
        return max(left_s - self._rest_s(log_stream, now), HEAD_SHARE_MIN * left_s)

    def written(self, log_stream: LogStreamID, rest_s: float, now: float) -> None:
        """A batch is on every node; those behind the head took so long."""
        before = self._rest_s(log_stream, now)
        self._rest[log_stream] = _Rest(before + GAIN * (rest_s - before), now)

    def _rest_s(self, log_stream: LogStreamID, now: float) -> float:
        known = self._rest.get(log_stream)
        return 0.0 if known is None else known.seconds * KEPT_PER_S ** (now - known.at)
