"""Errors on the wire: model.errors <-> Failure, by a stable code for each error.

An error's arguments are its facts: they travel with the code and rebuild the same error. A class may be renamed; its
code stays.
"""

from __future__ import annotations

from typing import Final

from varlog.model import errors
from varlog.model.errors import Unavailable, VarlogError
from varlog.rpc.messages import Failure
from varlog.runtime.logging import get_logger, logfmt

# The code of each error on the wire. Only add; a code is never reused. Errors that other packages derive (a lost
# connection, say) are about their own process and mean nothing elsewhere: not in here.
ERROR_CODES: Final[dict[int, type[VarlogError]]] = {
    1: errors.VarlogError, 2: errors.Rejected, 3: errors.InvalidRequest, 4: errors.OutcomeUnknown, 5: errors.Unavailable,
    10: errors.EmptyBatch, 11: errors.EntryTooLarge, 12: errors.BatchTooLarge, 13: errors.UnknownTopic,
    14: errors.UnknownLogStream, 15: errors.NotInCluster,
    20: errors.Sealed, 21: errors.NotPrimary, 22: errors.SequenceConflict, 23: errors.PositionConflict, 24: errors.StaleEpoch,
    25: errors.TopicStopped, 26: errors.AlreadyWritten, 27: errors.NotAccepted, 28: errors.Overloaded,
    40: errors.NotLeader, 41: errors.NotSequencing, 42: errors.NoLease,
    50: errors.NotWritten, 51: errors.Trimmed, 52: errors.JunkPosition, 53: errors.CorruptBatch, 54: errors.CorruptReplica,
    60: errors.PreconditionFailed, 61: errors.ReaderBehind, 62: errors.TrimBeyondTail, 63: errors.StaleTerm,
    64: errors.ProjectionConflict, 65: errors.AlreadySyncing,
    70: errors.StartupError,
}  # fmt: skip

code_of: Final[dict[type[VarlogError], int]] = {kind: code for code, kind in ERROR_CODES.items()}

_FACT_TYPES: Final = (str, int, float, bool, bytes, type(None))
_log = get_logger("rpc")


def failure_of(error: BaseException) -> Failure:
    """The reply for `error`. An exception outside the error tree is our own bug, and logged."""
    code = code_of.get(type(error)) if isinstance(error, VarlogError) else None
    if code is not None:
        return Failure(
            code, tuple(fact if isinstance(fact, _FACT_TYPES) else str(fact) for fact in error.args)
        )
    if isinstance(error, VarlogError):
        return Failure(code_of[Unavailable], (str(error),))
    name = type(error).__name__
    _log.error(logfmt("a request failed unexpectedly", error=name), exc_info=error)
    return Failure(code_of[Unavailable], (f"{name}: {error}",))


def error_of(failure: Failure) -> VarlogError:
    """Rebuild the error; Unavailable for one that this version does not know, or not with these facts."""
    kind = ERROR_CODES.get(failure.code)
    if kind is not None:
        try:
            return kind(*failure.facts)
        except TypeError:  # a newer peer gave it other facts
            pass
    name = kind.__name__ if kind is not None else f"error {failure.code}"
    return Unavailable(f"{name}: {', '.join(map(str, failure.facts))}")
