"""[A2] PURE. InflightBatch, what an error proves, the next step (law 10, R-ORD-7)."""

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

# Time too short for any response.
TRY_S_MIN: Final = 0.005


class ErrorClass(Enum):
    """What an error proves about the batch."""

    AGAIN = "certainly not in the log; another stream or a later try may accept it"
    REFUSED = "certainly not in the log; a retry will not help"
    UNKNOWN = "it may be in the log, or may still get there: resolve that before sending it anywhere else"


def classify(error: BaseException, *, sent: bool) -> ErrorClass:
    """Classify the error of one try. `sent` is False only if the request certainly never left this process."""
    if not sent:
        return ErrorClass.AGAIN
    if isinstance(error, NotInCluster | UnknownLogStream):
        # The request was wrong for its receiver, not in itself: the view is old, or another process has the address now.
        return ErrorClass.AGAIN
    if isinstance(error, InvalidRequest):
        return ErrorClass.REFUSED
    if isinstance(error, Rejected | CorruptBatch):
        # A primary checks a batch before it accepts it, so a batch that was damaged in transit is not in the log.
        return ErrorClass.AGAIN
    # This includes Unavailable: a primary that failed half-way may have written the batch.
    return ErrorClass.UNKNOWN


class Attempt(NamedTuple):
    """Where a batch was sent. If this try put it into the log, it is in this stream, in this epoch, above LLSN `min_llsn` and
    above GLSN `min_glsn`."""

    log_stream: LogStreamID
    epoch: Epoch
    min_llsn: LLSN
    min_glsn: GLSN = NO_GLSN


class InflightBatch:
    """A batch on its way into the log. `attempt` is set while the outcome of a try is unknown: that try may have put the batch
    into the log. `dropped`: all callers were answered that it is not in the log, so it must not be sent again. `on_nowhere`
    is called when an unknown outcome is resolved as "not in the log", before the batch is sent again."""

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
        """Whether the batch may be in the log."""
        return self.attempt is not None


class ResolveStep(Enum):
    """How to resolve the outcome of an attempt."""

    AGAIN = "its epoch continues: the primary accepts the same batch only once, so send it again"
    ASK = "its epoch has ended: any replica sealed since then knows whether it is in the log"
    WAIT = "the view is older than the attempt: wait for a newer one"
    GONE = "the stream was deleted: the outcome cannot be known any more"


def resolve_step(attempt: Attempt, stream: LogStream | None) -> ResolveStep:
    """The next step for an attempt whose outcome is unknown, given its stream in the newest view."""
    if stream is None:
        return ResolveStep.GONE
    if stream.epoch > attempt.epoch:
        return ResolveStep.ASK
    if stream.epoch == attempt.epoch and stream.state is StreamState.RUNNING:
        return ResolveStep.AGAIN
    return ResolveStep.WAIT


def floor_of(stream: LogStream, newest: LLSN) -> LLSN:
    """The LLSN above which every batch sent to the stream from now on lies: `newest` was acknowledged there, and a seal is final
    (law 6)."""
    return max(newest, LLSN(stream.sealed_end - 1))


def ended(inflight: InflightBatch, *, closed: bool) -> VarlogError:
    """The error for the caller when no more tries are made: the log was closed, or the deadline has passed."""
    if closed:
        answer = "the log was closed"
        return OutcomeUnknown(f"{answer} before the answer came") if inflight.sent else NotAccepted(answer)
    if inflight.sent:
        return unknown(inflight.last_error, inflight.timeout_s)
    return spent(inflight.chosen, inflight.last_error, inflight.timeout_s)


def stopped(inflight: InflightBatch, topic: str, why: str) -> VarlogError:
    """The error for an append to a stopped topic. Only an operator can resume the topic, so no append waits for that."""
    error = TopicStopped(topic, why)
    return OutcomeUnknown(f"sent, and not ordered: {error}") if inflight.sent else error


def unknown(error: BaseException | None, timeout_s: float) -> OutcomeUnknown:
    """The error for the caller when the deadline passes before the outcome is known."""
    if isinstance(error, OutcomeUnknown):
        return error
    last = f" ({str(error) or type(error).__name__})" if error is not None else ""
    return OutcomeUnknown(f"sent, and not answered within {round(timeout_s, 2):g} s{last}")


def spent(chosen: LogStreamID | None, last: BaseException | None, timeout_s: float) -> Rejected:
    """The error for the caller when the deadline has passed and no stream accepted the batch."""
    if chosen is not None and isinstance(last, Sealed | NotInCluster | UnknownLogStream):
        return last
    where = "no log stream of the topic" if chosen is None else f"log stream {chosen} never"
    return NotAccepted(f"{where} took it within {round(timeout_s, 2):g} s" + (f" ({last})" if last else ""))
