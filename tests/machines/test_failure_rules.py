"""The sentence that matters, out of what Spark says when something failed."""

from __future__ import annotations

import pytest

from varlog.spark.failure_rules import Failure, failure_in

IN_A_WORKER = """An error occurred while calling o83.save.
: org.apache.spark.SparkException: Writing job failed.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.writingJobFailedError(QueryExecutionErrors.scala:943)
Caused by: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] It was thrown: Traceback (most recent call last):
  File "/lib/varlog/spark/payload.py", line 34, in entries_of
    raise InputError(
    ^^^^^^^^^^^^^^^^^
varlog.spark.write.write_rules.InputError: 1 of 2 rows have no value:
leave them out
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\t... 19 more
"""
ABORTED = """\tSuppressed: org.apache.spark.X: [PYTHON_DATA_SOURCE_ERROR] Failed to abort: Traceback (most recent call last):
  File "/lib/varlog/spark/writer.py", line 79, in abort
    raise WriteFailed(why)
varlog.spark.write.writer.WriteFailed: run it again
 SQLSTATE: 38000
\tat org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource.commit(X.scala:1)
"""
IN_JAVA = """An error occurred while calling o83.save.
: org.apache.spark.SparkException: Writing job failed.
\tat org.apache.spark.sql.errors.X(Y.scala:1)
Caused by: org.apache.spark.SparkException: Task failed.
\tat org.apache.spark.sql.errors.X(Y.scala:1)
Caused by: org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] the disk is gone SQLSTATE: P0001
\t... 19 more
"""
OURS_BELOW_ANOTHERS = """Traceback (most recent call last):
  File "a.py", line 1, in f
    raise Trimmed(4, 9)
varlog.model.errors.Trimmed: position 4 is trimmed

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 1, in g
    raise ValueError("x")
ValueError: x
"""


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (IN_A_WORKER, Failure("InputError", "1 of 2 rows have no value: leave them out")),
        (
            IN_A_WORKER + ABORTED,
            Failure("InputError", "1 of 2 rows have no value: leave them out; run it again"),
        ),
        (IN_JAVA, Failure("", "the disk is gone")),
        (IN_JAVA + ABORTED, Failure("WriteFailed", "the disk is gone; run it again")),
        (OURS_BELOW_ANOTHERS, Failure("Trimmed", "position 4 is trimmed")),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/no. SQLSTATE: 42K03\n\nJVM stacktrace:\norg.apache.X",
            Failure("", "Path does not exist: file:/no."),
        ),
        ("org.apache.spark.SparkException: java.io.IOException: no room", Failure("", "no room")),
        ("Traceback (most recent call last):\n  File\nKeyError", Failure("KeyError", "KeyError")),
        ("Traceback (most recent call last):\n  File", Failure("", "Traceback (most recent call last):")),
        ("", Failure("", "")),
    ],
)
def test_the_cause_is_found(text: str, failure: Failure) -> None:
    assert failure_in(text) == failure
