"""BatchWriter, StreamWriter: what Spark calls to write to a topic."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

from varlog.client.log import Log
from varlog.model.cluster import Topic
from varlog.model.errors import InvalidRequest, PreconditionFailed, Unavailable, UnknownTopic, VarlogError
from varlog.model.ids import check_name
from varlog.runtime.logging import get_logger
from varlog.spark.connection import connection_to
from varlog.spark.options import OptionError, WriteOptions, write_options
from varlog.spark.write.exactly_once_rules import Write, committed_write, left_behind
from varlog.spark.write.input_rules import InputColumns, input_columns
from varlog.spark.write.task import PositionedWriteTask, WriteTask, Written, register_write

Messages = list[WriterCommitMessage | None]

# Spark's properties of a task that name its query and micro-batch.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


logger = get_logger("spark")


class WriteFailed(VarlogError):
    """A write that was not completed: says what is in the log, and how to complete it."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For `df.write`. Whatever can be refused is refused before a task runs."""
    if overwrite:
        raise OptionError(
            'a log is appended to, never overwritten: write with .mode("append"); to start over create another topic, or trim '
            "this one"
        )
    wanted, columns = _checked(options, schema)
    if wanted.writer:
        write = Write(wanted.writer, wanted.batch, kept=True)
        if not wanted.keep_positions:
            _begin(wanted, write)
        return BatchWriter(WriteTask(wanted, columns), write)
    # A unique name: the tasks of this job share it, and no other job has it.
    return BatchWriter(WriteTask(wanted, columns), Write(f"job-{uuid.uuid4()}", 0, kept=False))


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    """For `df.writeStream`. Spark creates one for the tasks of each micro-batch, and another one to commit it."""
    wanted, columns = _checked(options, schema)
    return StreamWriter(WriteTask(wanted, columns))


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, task: WriteTask, write: Write) -> None:
        self._task = task
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _written(self._task, self._write, _context().partitionId(), iterator)

    def commit(self, messages: Messages) -> None:
        _commit(self._task.options, messages)

    def abort(self, messages: Messages) -> None:
        if not self._write.kept and not self._task.options.keep_positions:
            _close(self._task.options, self._write)
        raise WriteFailed(left_behind(self._task.options.topic, self._write, stream=False))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches: Spark numbers them, and repeats one under its number until it has recorded its commit."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        name = self._task.options.writer or context.getLocalProperty(QUERY_PROPERTY)
        batch = context.getLocalProperty(BATCH_PROPERTY)
        if not name or batch is None:
            raise WriteFailed(
                "Spark did not name the query and batch of this task: name the writer with option 'writer'"
            )
        return _written(self._task, Write(name, int(batch), kept=True), context.partitionId(), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        _commit(self._task.options, messages)

    def abort(self, messages: Messages, batchId: int) -> None:
        # Raising it would hide the cause in the query's exception.
        logger.warning(left_behind(self._task.options.topic, None, stream=True))


def _written(task: WriteTask, write: Write, partition: int, batches: Iterator[pa.RecordBatch]) -> Written:
    if task.options.keep_positions:
        return PositionedWriteTask(task.options, task.columns).run(write, batches)
    return task.run(write, partition, batches)


def _checked(options: Mapping[str, str], schema: StructType) -> tuple[WriteOptions, InputColumns]:
    """The options and columns, checked against the topic and its log streams."""
    wanted = write_options(options)
    if wanted.writer:
        _check_writer(wanted.writer)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    columns = input_columns(
        fields, order_by=wanted.order_by, log_stream=wanted.log_stream, keep=wanted.keep_positions
    )
    log = _log(wanted)
    _check_ordering(log.topic)
    _check_streams(wanted, [stream.log_stream for stream in log.streams])
    return wanted, columns


def _check_ordering(topic: Topic) -> None:
    if topic.sequenced:
        raise OptionError(
            f"option 'topic': {topic.name!r} is a sequenced topic, and an exactly-once write needs a committed one: create "
            "one with `varlog topic create NAME`, and write there"
        )


def _check_writer(name: str) -> None:
    try:
        check_name("a writer's name", name)
    except ValueError as error:
        raise OptionError(f"option 'writer': {error}") from None


def _log(options: WriteOptions) -> Log:
    """The log to write to, with a fresh view."""
    try:
        return connection_to(options.where).fresh_log(options.topic)
    except UnknownTopic as unknown:
        raise OptionError(f"option 'topic': {unknown}") from None
    except (Unavailable, InvalidRequest) as error:
        raise OptionError(f"option 'address' is {options.where.address!r}: {error}") from None


def _begin(options: WriteOptions, write: Write) -> None:
    """Also on the driver, not only in the tasks: a finished batch is refused before any of them runs."""
    connection = connection_to(options.where)
    try:
        connection.run(register_write(connection.log(options.topic), options, write))
    except PreconditionFailed as refused:
        raise OptionError(f"option 'batch' is {write.batch}: {refused}") from None


def _check_streams(options: WriteOptions, streams: Sequence[int]) -> None:
    chosen = options.log_stream
    if chosen.isdecimal() and int(chosen) not in streams:
        raise OptionError(
            f"option 'log_stream' is {chosen}, which is no log stream of topic {options.topic!r}: it has {sorted(streams)}"
        )
    if options.keep_positions and len(streams) != 1:
        raise OptionError(
            f"option 'positions=keep' needs a topic with one log stream, and {options.topic!r} has {len(streams)}: create "
            "one with `varlog topic create NAME --streams 1`"
        )


def _commit(options: WriteOptions, messages: Messages) -> None:
    """All rows are in the log: from now on this write is recognised as done."""
    write = committed_write([message.write if isinstance(message, Written) else None for message in messages])
    if write is not None and not options.keep_positions:
        _close(options, write)


def _close(options: WriteOptions, write: Write) -> None:
    connection = connection_to(options.where)
    connection.run(connection.log(options.topic).connector.end_write(write.name, write.batch))


def _context() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise RuntimeError("only a task of Spark can write, and this process runs none")
    return context
