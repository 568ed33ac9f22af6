"""FaultySource: the source "varlog" with planted faults: a task or a driver fails, dies or pauses where the test wants it.

Faults are requested with the options `fault` (what), `at` (a partition, or a micro-batch) and `marks` (a directory in which the
processes mark how far they are).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from varlog.spark.source import VarlogDataSource
from varlog.spark.write.writer import BatchWriter, Messages, StreamWriter, batch_writer, stream_writer

OWN = ("fault", "at", "marks")
WAIT_S = 200.0


class FaultySource(VarlogDataSource):
    @classmethod
    def name(cls) -> str:
        return "varlog-faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return FaultyWriter(batch_writer(self._others(), schema, overwrite), self._fault())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return FaultyStreamWriter(stream_writer(self._others(), schema), self._fault())

    def _others(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name.lower() not in OWN}

    def _fault(self) -> Fault:
        return Fault(
            self.options.get("fault", ""), int(self.options.get("at", "0")), Path(self.options["marks"])
        )


class Fault:
    """What goes wrong, in which partition or micro-batch, and where the processes leave their marks."""

    def __init__(self, what: str, at: int, marks: Path) -> None:
        self.what = what
        self.at = at
        self.marks = marks

    def strikes(self, what: str) -> bool:
        """Only the first attempt of one task: what comes after it must be able to succeed."""
        context = _context()
        return self.what == what and context.partitionId() == self.at and context.attemptNumber() == 0

    def mark(self, name: str) -> None:
        (self.marks / name).touch()

    def pause(self, name: str) -> None:
        """Leave a mark, and continue only if the test leaves another one. A process that is to be killed here never gets it."""
        self.mark(name)
        wait_for(self.marks / f"{name}-over")


class FaultyWriter(DataSourceArrowWriter):
    def __init__(self, inner: BatchWriter, fault: Fault) -> None:
        self._inner = inner
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _written(self._inner, self._fault, iterator)

    def commit(self, messages: Messages) -> None:
        self._inner.commit(messages)

    def abort(self, messages: Messages) -> None:
        self._inner.abort(messages)


class FaultyStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, inner: StreamWriter, fault: Fault) -> None:
        self._inner = inner
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batch = int(_context().getLocalProperty("streaming.sql.batchId") or 0)
        self._stop_at("before-write", batch)
        return self._inner.write(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        self._stop_at("before-commit", batchId)
        self._inner.commit(messages, batchId)
        self._stop_at("after-commit", batchId)

    def abort(self, messages: Messages, batchId: int) -> None:
        self._inner.abort(messages, batchId)

    def _stop_at(self, stage: str, batch: int) -> None:
        if self._fault.what == stage and self._fault.at == batch:
            self._fault.pause(stage)


def _written(inner: BatchWriter, fault: Fault, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    first = _context().attemptNumber() == 0
    if fault.what == "other-order" and not first:
        iterator = _reversed(iterator)
    result = inner.write(_struck(iterator, fault))
    if fault.strikes("fail-after") or fault.strikes("other-order"):
        raise RuntimeError("planted: the task fails when all its rows are in the log")
    if _context().attemptNumber():
        fault.mark(f"found-{getattr(result, 'rows_found')}")  # noqa: B009 - whatever a task returns
    return result


def _struck(iterator: Iterator[pa.RecordBatch], fault: Fault) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(iterator):
        if number == 3:
            if fault.strikes("kill-worker"):
                fault.pause("half-way")
                os.kill(os.getpid(), signal.SIGKILL)
            if fault.strikes("half-way"):
                fault.pause("half-way")
            if fault.strikes("fall-behind"):  # as long as this attempt is the only one
                fault.pause("fall-behind")
        if fault.what == "fall-behind" and _context().attemptNumber() and number == 1:
            fault.mark("fall-behind-over")  # the second attempt has started: now both write at once
        yield batch


def _reversed(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in reversed(list(iterator)):
        yield batch.take(pa.array(range(batch.num_rows - 1, -1, -1)))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def wait_for(mark: Path, timeout_s: float = WAIT_S) -> None:
    """Until the file exists: another process creates it."""
    wait_until(mark.exists, f"{mark.name} exists", timeout_s)


def wait_until(condition: Callable[[], bool], what: str = "it is so", timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s, without success, until {what}")
        time.sleep(0.005)
