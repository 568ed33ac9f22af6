"""[A2] PURE. What an error says of an append: certainly not in the log (again, or refused for good), or unknown (law 10)."""

from __future__ import annotations

from enum import Enum

from varlog.model.errors import (
    CorruptBatch,
    InvalidRequest,
    NotAccepted,
    NotInCluster,
    OutcomeUnknown,
    Rejected,
    Sealed,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import LogStreamID


class Verdict(Enum):
    """What follows from an error."""

    AGAIN = "certainly not in the log; another stream, or a later try, may take it"
    REFUSED = "certainly not in the log; trying again will not help"
    UNKNOWN = "it may be in the log, or may still get there: only the caller knows whether twice is harmless"


def judge(error: BaseException, *, sent: bool) -> Verdict:
    """The verdict on one try. `sent` is False only where the request certainly never left."""
    if not sent:
        return Verdict.AGAIN
    if isinstance(error, NotInCluster | UnknownLogStream):
        # Invalid where it arrived, not in itself: the view is old, or another process got the address.
        return Verdict.AGAIN
    if isinstance(error, InvalidRequest):
        return Verdict.REFUSED
    if isinstance(error, Rejected | CorruptBatch):
        # A primary checks a batch before it takes it: one that was damaged on the way is nowhere.
        return Verdict.AGAIN
    # Unavailable included: a primary that failed half-way may have written it.
    return Verdict.UNKNOWN


def unknown(error: BaseException) -> VarlogError:
    """What the caller hears of an UNKNOWN verdict."""
    return error if isinstance(error, OutcomeUnknown) else OutcomeUnknown(str(error) or type(error).__name__)


def spent(chosen: LogStreamID | None, last: BaseException | None, timeout_s: float) -> Rejected:
    """What the caller hears when the deadline is there and no try got it into the log."""
    if chosen is not None and isinstance(last, Sealed | NotInCluster | UnknownLogStream):
        return last
    where = "no log stream of the topic" if chosen is None else f"log stream {chosen} never"
    return NotAccepted(f"{where} took it within {round(timeout_s, 2):g} s" + (f" ({last})" if last else ""))
