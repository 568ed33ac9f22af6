"""Writers: what Spark calls on the driver and in its tasks to write a DataFrame, or a micro-batch of a stream, to a topic."""

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
from varlog.spark.write.task import PlacedTask, WriteTask, Written, begin_write
from varlog.spark.write.write_rules import InputColumns, Write, committed_write, input_columns, left_behind

Messages = list[WriterCommitMessage | None]

# How Spark tells a task of which query and micro-batch it is.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


logger = get_logger("spark")


class WriteFailed(VarlogError):
    """A write that did not come to its end: says what is in the log, and how to complete it."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For `df.write`. Everything that can be refused is, before a task runs."""
    if overwrite:
        raise OptionError(
            'a log is appended to, never overwritten: write with .mode("append"); to begin anew make another topic, or trim '
            "this one"
        )
    wanted, columns = _checked(options, schema)
    if wanted.writer:
        write = Write(wanted.writer, wanted.batch, kept=True)
        if not wanted.keep_positions:
            _begin(wanted, write)
        return BatchWriter(WriteTask(wanted, columns), write)
    # A name that nobody can give again: tasks of this job find each other by it, and no other job does.
    return BatchWriter(WriteTask(wanted, columns), Write(f"job-{uuid.uuid4()}", 0, kept=False))


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    """For `df.writeStream`. Spark makes one for the tasks of each micro-batch, and another one to commit it."""
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
    """Writes micro-batches: Spark numbers them, and runs one again under its number until it has noted that it was committed."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        name = self._task.options.writer or context.getLocalProperty(QUERY_PROPERTY)
        batch = context.getLocalProperty(BATCH_PROPERTY)
        if not name or batch is None:
            raise WriteFailed(
                "Spark did not say which query and batch this task is of: name the writer with option 'writer'"
            )
        return _written(self._task, Write(name, int(batch), kept=True), context.partitionId(), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        _commit(self._task.options, messages)

    def abort(self, messages: Messages, batchId: int) -> None:
        # Raised, it would stand before the reason in what the query's exception says.
        logger.warning(left_behind(self._task.options.topic, None, stream=True))


def _written(task: WriteTask, write: Write, partition: int, batches: Iterator[pa.RecordBatch]) -> Written:
    if task.options.keep_positions:
        return PlacedTask(task.options, task.columns).run(write, batches)
    return task.run(write, partition, batches)


def _checked(options: Mapping[str, str], schema: StructType) -> tuple[WriteOptions, InputColumns]:
    """What is wanted, if the columns, the topic and the streams are such that it can be done."""
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
            f"option 'topic': {topic.name!r} is a sequenced topic, and a write that is in the log once needs a committed one: make "
            "one with `varlog topic create NAME`, and write there"
        )


def _check_writer(name: str) -> None:
    try:
        check_name("a writer's name", name)
    except ValueError as error:
        raise OptionError(f"option 'writer': {error}") from None


def _log(options: WriteOptions) -> Log:
    """The log to write to, as it is now."""
    try:
        return connection_to(options.where).fresh_log(options.topic)
    except UnknownTopic as unknown:
        raise OptionError(f"option 'topic': {unknown}") from None
    except (Unavailable, InvalidRequest) as error:
        raise OptionError(f"option 'address' is {options.where.address!r}: {error}") from None


def _begin(options: WriteOptions, write: Write) -> None:
    """Here already, not only in the tasks: a batch that is over is refused before any of them runs."""
    connection = connection_to(options.where)
    try:
        connection.run(begin_write(connection.log(options.topic), options, write))
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
            f"option 'positions=keep' needs a topic with one log stream, and {options.topic!r} has {len(streams)}: make one "
            "with `varlog topic create NAME --streams 1`"
        )


def _commit(options: WriteOptions, messages: Messages) -> None:
    """All rows are in the log: whoever asks for this write again is told so."""
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
        raise RuntimeError("a task of Spark writes, and this is none")
    return context
