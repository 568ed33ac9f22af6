"""model.errors <-> Failure: one total table, by class name. An error's arguments are its facts and rebuild it."""

from __future__ import annotations

from typing import Final

from varlog.model import errors
from varlog.model.errors import Unavailable, VarlogError
from varlog.rpc.messages import Failure
from varlog.runtime.logs import get_logger, logfmt

# Errors that others derive (a lost connection, say) are about their own place and mean nothing elsewhere: not in here.
ERRORS: Final[dict[str, type[VarlogError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, VarlogError)
}

_FACT_TYPES: Final = (str, int, float, bool, bytes, type(None))
_log = get_logger("rpc")


def failure_of(error: BaseException) -> Failure:
    """What is told of `error` to the other side. An exception that is not of the tree is our own bug, and logged."""
    name = type(error).__name__
    if ERRORS.get(name) is type(error):
        return Failure(
            name, tuple(fact if isinstance(fact, _FACT_TYPES) else str(fact) for fact in error.args)
        )
    if isinstance(error, VarlogError):
        return Failure("Unavailable", (str(error),))
    _log.error(logfmt("a request failed unexpectedly", error=name), exc_info=error)
    return Failure("Unavailable", (f"{name}: {error}",))


def error_of(failure: Failure) -> VarlogError:
    """The same error again; Unavailable for one that this version does not know, or not with these facts."""
    kind = ERRORS.get(failure.name)
    if kind is not None:
        try:
            return kind(*failure.facts)
        except TypeError:  # a newer peer gave it other facts
            pass
    return Unavailable(f"{failure.name}: {', '.join(map(str, failure.facts))}")
