"""[Q4] PURE. What follows from a failed call to a node or sequencer (R-SEQ-10).

Retry, look for a newer projection, or reconfigure without it. Also: who owns a token after the projection changed (R-SEQ-2).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from varlog.model.epoch import Epoch
from varlog.model.limits import LEASE_S
from varlog.model.lsn import GLSN
from varlog.model.projection import Projection, SequencerID, StripePosition

# Two refused connections this far apart prove that nothing listens there. A process that is restarting does not count as dead.
REFUSED_S: Final = 0.05
# The time without any answer after which a node counts as failed.
SILENT_S: Final = 2.0
# The time to reach the repository that a node without a lease has: one and a half leases.
LEASELESS_S: Final = 1.5 * LEASE_S
# The time that a node with errors has to recover, such as a unit whose disk is slow to record a new epoch.
FAILING_S: Final = 1.0
# The time for which a node may be overloaded. A chain with fewer nodes would not have less to do.
BUSY_S: Final = 5.0


class Symptom(Enum):
    """How a call ended."""

    STALE = "its epoch has ended"
    REFUSED = "nothing listens there"
    SILENT = "no answer"
    LEASELESS = "it is cut off from the repository"
    FAILING = "it answers with errors"
    BUSY = "it is overloaded"


class Remedy(Enum):
    """What to do about it."""

    AGAIN = "retry after a pause"
    NEWER = "find a newer projection, or create one"
    WITHOUT = "reconfigure without it"


def remedy(symptom: Symptom, times: int, failing_s: float) -> Remedy:
    """The remedy after `times` failures in a row, the first of which began `failing_s` ago."""
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
    """`length` positions from `first` on, assigned by `sequencer` in `epoch`."""

    first: GLSN
    length: int
    epoch: Epoch
    sequencer: SequencerID

    @property
    def end(self) -> GLSN:
        return GLSN(self.first + self.length)


def still_ours(token: Token, projection: Projection) -> bool:
    """Whether no other client gets these positions. A sequencer that stayed continues its count. A new one starts at `begin` and
    assigns the positions above it again: writing there would conflict with its count. Across more than one epoch, the same
    sequencer may have been deposed and reinstated, and another one may have assigned the positions in between. No unit stored
    anything at or above `begin` when that epoch began."""
    stayed = token.sequencer == projection.sequencer and projection.epoch <= token.epoch + 1
    return stayed or token.end <= projection.begin


def in_doubt(token: Token, projection: Projection) -> bool:
    """Whether epochs passed of which nothing is known here: another sequencer may have assigned these positions again in them,
    although they are below `begin` now. What was written there stays; this token must not write there any more."""
    return projection.epoch > token.epoch + 1


def place_of(token: Token, count: int, projection: Projection) -> StripePosition | None:
    """Where a batch of `count` entries goes with this token. None: it can go nowhere, and a new token is needed."""
    if count > token.length or not still_ours(token, projection):
        return None
    place = projection.locate(token.first)
    return place if place.run >= count else None
