"""spark_failure(): the cause of a failure on Spark, in one sentence.

In whichever process it began.
"""

from __future__ import annotations

from varlog.model.errors import VarlogError
from varlog.spark.failure_rules import SparkFailure, failure_in


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
