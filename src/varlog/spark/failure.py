"""SparkFailure: the cause of a failed Spark action, in one sentence.

In whichever process it began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from varlog.model.errors import VarlogError


def spark_failure(error: BaseException) -> SparkFailure:
    """An error of ours says it itself; one of Spark's carries ours as text, somewhere inside."""
    if isinstance(error, VarlogError):
        return SparkFailure(type(error).__name__, str(error))
    found = failure_in(_text(error))
    if found.kind or _is_sparks(error):
        return found
    return SparkFailure(type(error).__name__, str(error) or type(error).__name__)


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def _text(error: BaseException) -> str:
    """All that the error and its causes in Java say."""
    java = getattr(error, "java_exception", None)  # of py4j: its own text begins with its own frames
    own = str(java.toString()) if java is not None else ""
    stack = getattr(error, "_stackTrace", None)
    return "\n".join([own, str(error), str(stack or "")]).strip()


# --- the cause, from stack traces of two languages ------------------------------------------------------------------------------

_CAUSED = "Caused by: "
_SUPPRESSED = "Suppressed: "
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?")
# What follows the sentence of an exception: Java's frames, the next exception of a chain, or what Spark says of its own.
_AFTER = re.compile(
    r"\s*$|\s+at [\w.$]+|Caused by: |Driver stacktrace|JVM stacktrace|\s*SQLSTATE: |\t|=== |"
    r"(?:[a-z]\w*\.)+[A-Z]\w*: |.*Traceback \(most recent"
)
# What failed in turn when Spark cleared up: it says what is left behind, not what is wrong.
_BESIDE = "\tSuppressed: "
_CONDITION = re.compile(r"^\[(?P<condition>[A-Z0-9_.]+)\] ")
_JAVA = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): ")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+.*$")


@dataclass(frozen=True, slots=True)
class SparkFailure:
    """`kind`: the exception's class without its module, "" if Spark itself says what is wrong."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class _Raised:
    kind: str
    message: str
    suppressed: bool


def failure_in(text: str) -> SparkFailure:
    """The innermost cause in what an exception of Spark says: one of our own if there is one, else Python's, else Java's.
    What an aborted write adds (Java: suppressed) follows it."""
    lines = text.splitlines()
    raised = list(_raised_in(lines))
    cause = _cause([one for one in raised if not one.suppressed]) or SparkFailure("", _of_java(lines))
    after = _cause([one for one in raised if one.suppressed])
    if after is None:
        return cause
    return SparkFailure(cause.kind or after.kind, f"{cause.message}; {after.message}")


def _cause(raised: Sequence[_Raised]) -> SparkFailure | None:
    ours = [one for one in raised if one.kind.startswith("varlog.")]
    for one in reversed(ours or raised):
        short = one.kind.rpartition(".")[2]
        return SparkFailure(short, _sentence(one.message) or short)
    return None


def _of_java(lines: Sequence[str]) -> str:
    """The innermost cause, else the first line."""
    causes = [line.removeprefix(_CAUSED) for line in lines if line.startswith(_CAUSED)]
    first = next((line for line in lines if line.strip()), "")
    return _sentence(causes[-1] if causes else first)


def _raised_in(lines: Sequence[str]) -> Iterator[_Raised]:
    """What is at the end of each Python traceback."""
    for number, line in enumerate(lines):
        if not line.endswith(_TRACEBACK):
            continue
        indent = " " * (len(line) - len(line.lstrip(" ")))
        below = [later.removeprefix(indent) for later in lines[number + 1 :]]
        end = next((at for at, later in enumerate(below) if _ends_traceback(later)), None)
        found = _RAISED.fullmatch(below[end].rstrip()) if end is not None else None
        if found is not None and end is not None:
            more = takewhile(lambda later: not _AFTER.match(later), below[end + 1 :])
            message = " ".join([found["message"] or "", *(later.strip() for later in more)]).strip()
            yield _Raised(found["kind"], message, _SUPPRESSED in line)


def _ends_traceback(line: str) -> bool:
    """Frames are indented; the exception is not."""
    return bool(line) and not line.startswith((" ", "\t"))


def _sentence(text: str) -> str:
    """Without the names of classes and conditions that Spark puts around it."""
    text = text.strip()
    while (shorter := _JAVA.sub("", _CONDITION.sub("", text))) != text:
        text = shorter
    return _SQLSTATE.sub("", text).rstrip("; ")
