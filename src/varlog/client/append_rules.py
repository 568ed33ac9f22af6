"""[A2] PURE. InflightBatch, what errors prove, the next step (law 10, R-ORD-7)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from varlog.model.cluster import LogStream, StreamState
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    CorruptBatch,
    InvalidRequest,
    NotAccepted,
    NotInCluster,
    OutcomeUnknown,
    Rejected,
    Sealed,
    TopicStopped,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN, NO_GLSN

# Less time than this is not enough for an answer.
TRY_S_MIN: Final = 0.005


class ErrorClass(Enum):
    """What follows from an error."""

    AGAIN = "certainly not in the log; another stream, or a later try, may take it"
    REFUSED = "certainly not in the log; trying again will not help"
    UNKNOWN = "it may be in the log, or may still get there: to be found out before it goes anywhere else"


def classify(error: BaseException, *, sent: bool) -> ErrorClass:
    """What an error of one try proves. `sent` is False only where the request certainly never left."""
    if not sent:
        return ErrorClass.AGAIN
    if isinstance(error, NotInCluster | UnknownLogStream):
        # Invalid where it arrived, not in itself: the view is old, or another process got the address.
        return ErrorClass.AGAIN
    if isinstance(error, InvalidRequest):
        return ErrorClass.REFUSED
    if isinstance(error, Rejected | CorruptBatch):
        # A primary checks a batch before it takes it: one that was damaged on the way is nowhere.
        return ErrorClass.AGAIN
    # Unavailable included: a primary that failed half-way may have written it.
    return ErrorClass.UNKNOWN


class Attempt(NamedTuple):
    """Where a batch was sent: if it is in the log by this, it is in this stream, of this epoch, above LLSN `min_llsn` and GLSN
    `min_glsn`."""

    log_stream: LogStreamID
    epoch: Epoch
    min_llsn: LLSN
    min_glsn: GLSN = NO_GLSN


class InflightBatch:
    """`attempt` is set while the outcome of a try is open: the batch may be in the log by it. `dropped`: all its callers have
    the answer that it is not in the log, so it must not be sent any more. `on_nowhere` is called when an open outcome turns out to
    be a no, before the batch is sent again."""

    __slots__ = ("attempt", "batch", "chosen", "dropped", "last_error", "on_nowhere", "timeout_s", "tried")

    def __init__(
        self,
        batch: bytearray,
        chosen: LogStreamID | None,
        timeout_s: float,
        on_nowhere: Callable[[InflightBatch], None] | None = None,
    ) -> None:
        self.batch = batch
        self.chosen = chosen
        self.timeout_s = timeout_s
        self.on_nowhere = on_nowhere
        self.attempt: Attempt | None = None
        self.dropped = False
        self.last_error: BaseException | None = None
        self.tried: dict[LogStreamID, None] = {}

    @property
    def sent(self) -> bool:
        """It may be in the log."""
        return self.attempt is not None


class ResolveStep(Enum):
    """What finds out the outcome of an attempt."""

    AGAIN = "its epoch continues: the primary accepts the same batch only once, so send it again"
    ASK = "its epoch is over: any replica that was sealed since knows whether it is in the log"
    WAIT = "the view is older than the attempt: a newer one will say"
    GONE = "the stream was deleted: the outcome cannot be known any more"


def resolve_step(attempt: Attempt, stream: LogStream | None) -> ResolveStep:
    """How to continue with an attempt whose outcome is open, as the newest view has its stream."""
    if stream is None:
        return ResolveStep.GONE
    if stream.epoch > attempt.epoch:
        return ResolveStep.ASK
    if stream.epoch == attempt.epoch and stream.state is StreamState.RUNNING:
        return ResolveStep.AGAIN
    return ResolveStep.WAIT


def floor_of(stream: LogStream, newest: LLSN) -> LLSN:
    """What is sent to the stream now comes above this: `newest` was acknowledged to us there, and a seal is final (law 6)."""
    return max(newest, LLSN(stream.sealed_end - 1))


def ended(inflight: InflightBatch, *, closed: bool) -> VarlogError:
    """What the caller gets when no more tries are made: the log was closed, or the deadline has passed."""
    if closed:
        answer = "the log was closed"
        return OutcomeUnknown(f"{answer} before the answer came") if inflight.sent else NotAccepted(answer)
    if inflight.sent:
        return unknown(inflight.last_error, inflight.timeout_s)
    return spent(inflight.chosen, inflight.last_error, inflight.timeout_s)


def stopped(inflight: InflightBatch, topic: str, why: str) -> VarlogError:
    """Only an operator can let a stopped topic continue: no append waits for that."""
    error = TopicStopped(topic, why)
    return OutcomeUnknown(f"sent, and not ordered: {error}") if inflight.sent else error


def unknown(error: BaseException | None, timeout_s: float) -> OutcomeUnknown:
    """What the caller gets when its time is over before the outcome is known."""
    if isinstance(error, OutcomeUnknown):
        return error
    last = f" ({str(error) or type(error).__name__})" if error is not None else ""
    return OutcomeUnknown(f"sent, and not answered within {round(timeout_s, 2):g} s{last}")


def spent(chosen: LogStreamID | None, last: BaseException | None, timeout_s: float) -> Rejected:
    """What the caller gets when the deadline has passed and no try got it into the log."""
    if chosen is not None and isinstance(last, Sealed | NotInCluster | UnknownLogStream):
        return last
    where = "no log stream of the topic" if chosen is None else f"log stream {chosen} never"
    return NotAccepted(f"{where} took it within {round(timeout_s, 2):g} s" + (f" ({last})" if last else ""))
