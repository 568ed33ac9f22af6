"""[Q4] PURE. What follows from a failed call to a node or sequencer (R-SEQ-10).

Ask again, find a newer projection, or reconfigure without it. Also: what became of a token when the projection changed (R-SEQ-2).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from varlog.model.epoch import Epoch
from varlog.model.limits import LEASE_S
from varlog.model.lsn import GLSN
from varlog.model.projection import Projection, SequencerID, StripePosition

# Two refusals this far apart: nothing listens there. A process that has just restarted does not count as dead.
REFUSED_S: Final = 0.05
# It did not answer for this long.
SILENT_S: Final = 2.0
# It had the time of a lease and a half to reach the repository.
LEASELESS_S: Final = 1.5 * LEASE_S
# It answers, and cannot do its part: a unit whose disk is slow to take a new epoch is given this long.
FAILING_S: Final = 1.0
# It has too much to do already. A chain with a node less would have no less to do.
BUSY_S: Final = 5.0


class Symptom(Enum):
    """How a call ended."""

    STALE = "its epoch is over"
    REFUSED = "nobody listens there"
    SILENT = "no answer"
    LEASELESS = "it is cut off from the repository"
    FAILING = "it cannot do its part"
    BUSY = "it takes nothing more just now"


class Remedy(Enum):
    """What follows."""

    AGAIN = "ask again in a moment"
    NEWER = "there is a newer projection, or there must be one"
    WITHOUT = "the next projection does without it"


def remedy(symptom: Symptom, times: int, failing_s: float) -> Remedy:
    """After `times` failures in a row, the first of which began `failing_s` ago."""
    if symptom is Symptom.STALE:
        return Remedy.NEWER
    enough = {
        Symptom.REFUSED: times > 1 and failing_s >= REFUSED_S,
        Symptom.SILENT: failing_s >= SILENT_S,
        Symptom.LEASELESS: failing_s >= LEASELESS_S,
        Symptom.FAILING: times > 1 and failing_s >= FAILING_S,
        Symptom.BUSY: failing_s >= BUSY_S,
    }
    return Remedy.WITHOUT if enough[symptom] else Remedy.AGAIN


class Token(NamedTuple):
    """`length` positions from `first` on, given by `sequencer` in `epoch`."""

    first: GLSN
    length: int
    epoch: Epoch
    sequencer: SequencerID

    @property
    def end(self) -> GLSN:
        return GLSN(self.first + self.length)


def still_ours(token: Token, projection: Projection) -> bool:
    """Whether no other client gets these positions. A sequencer that stayed continues its count; a new one begins at `begin`, and
    assigns what is above it again: to write there would put us ahead of its count. Over more than one epoch the same one may
    have been deposed and named again, and another one have assigned them in between. What is not below `begin` no unit had when
    that epoch began."""
    stayed = token.sequencer == projection.sequencer and projection.epoch <= token.epoch + 1
    return stayed or token.end <= projection.begin


def in_doubt(token: Token, projection: Projection) -> bool:
    """Whether an epoch came and went that we know nothing of: another sequencer may have assigned these positions again in it,
    though they are below `begin` now. What was written there stays; nothing may be written there by this token any more."""
    return projection.epoch > token.epoch + 1


def place_of(token: Token, count: int, projection: Projection) -> StripePosition | None:
    """Where a batch of `count` entries goes by this token; None: nowhere any more, so a new token is needed."""
    if count > token.length or not still_ours(token, projection):
        return None
    place = projection.locate(token.first)
    return place if place.run >= count else None
