"""WriteTask: one task of an exactly-once write, which any attempt can complete.

The first attempt of any task fixes the log streams of the write (BeginWrite); all attempts, one after the other or at once, then
append the same sequences of batches. What an earlier attempt appended is found in the log and left out. What makes two attempts
the same is decided in exactly_once_rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from varlog.client.log import Log
from varlog.client.writers.idempotent import IdempotentWriter, IdempotentWriteResult
from varlog.client.writers.positioned import PositionedWriter
from varlog.model.cluster import NamedWriter
from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID, ProducerID
from varlog.runtime.loop_thread import Started
from varlog.spark.connection import SparkConnection, connection_to, prepare_worker
from varlog.spark.options import WriteOptions
from varlog.spark.write.exactly_once_rules import Write, producer_of
from varlog.spark.write.input_rules import InputColumns, InputError
from varlog.spark.write.payload import Cutter, columns_of, in_order, payload_of, spread


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The report of one task to the driver. `rows_found`: how many of its rows an earlier attempt had appended; `last`: the newest
    position of its rows, 0 if it had none."""

    write: Write
    rows: int = 0
    rows_found: int = 0
    last: int = 0


@dataclass(frozen=True)
class WriteTask:
    """What all tasks of a write have in common: created on the driver, run on executors."""

    options: WriteOptions
    columns: InputColumns

    def run(self, write: Write, partition: int, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition."""
        prepare_worker()
        connection = connection_to(self.options.where)
        log = connection.fresh_log(self.options.topic)
        record = connection.run(register_write(log, self.options, write))
        if record.finished:
            return Written(write)
        producer = producer_of(log.topic.topic, write, partition)
        writers = _StreamWriters(connection, log, record, producer, self.columns.data)
        self._append(batches, writers, partition % len(record.streams))
        return writers.finish(write)

    def _append(self, batches: Iterator[pa.RecordBatch], writers: _StreamWriters, index: int) -> None:
        data, order_by, key = self.columns.data, self.columns.order_by, self.columns.key
        for batch in in_order(batches, data, order_by, key) if order_by else batches:
            rows = payload_of(batch, data)
            parts = spread(rows, batch.column(key), writers.count) if key else ((index, rows),)
            for chosen, part in parts:
                writers.append(chosen, part)


async def register_write(log: Log, options: WriteOptions, write: Write) -> NamedWriter:
    """The log streams of the write: as it was begun, or, for the first caller, the one that the options name, or all that run."""
    chosen = options.log_stream
    streams = (LogStreamID(int(chosen)),) if chosen.isdecimal() else None
    return await log.connector.begin_write(write.name, write.batch, streams, kept=write.kept)


class _StreamWriters:
    """The idempotent writers of a task: one per log stream that it writes to, which is a single one unless there is a key."""

    def __init__(
        self, connection: SparkConnection, log: Log, record: NamedWriter, producer: ProducerID, data: str
    ) -> None:
        self._connection = connection
        self._log = log
        self._record = record
        self._producer = producer
        self._data = data
        self._open: dict[int, tuple[IdempotentWriter, Cutter]] = {}
        self._sending: Started[None] | None = None

    @property
    def count(self) -> int:
        return len(self._record.streams)

    def append(self, index: int, rows: pa.Array) -> None:
        """Send full batches. Returns before they are acknowledged, so that Spark computes the next rows in the meantime."""
        writer, cutter = self._opened(index)
        for part in cutter.add(rows):
            self._send(writer, part)

    def finish(self, write: Write) -> Written:
        """Send the rest, and wait until everything is in the log."""
        for writer, cutter in self._open.values():
            rest = cutter.rest()
            if rest is not None:
                self._send(writer, rest)
        self._wait_sent()
        ends = [self._connection.run(writer.finish()) for writer, _ in self._open.values()]
        return _report(write, ends)

    def _opened(self, index: int) -> tuple[IdempotentWriter, Cutter]:
        if index not in self._open:
            stream = self._record.streams[index]
            writer = self._log.idempotent_writer(stream, self._producer, self._record.begin)
            self._open[index] = writer, Cutter(self._data)
        return self._open[index]

    def _send(self, writer: IdempotentWriter, rows: pa.Array) -> None:
        """The writer's window bounds what is in flight; one more batch waits for room in it."""
        columns = columns_of(rows)
        self._wait_sent()
        self._sending = self._connection.start(writer.append(columns))

    def _wait_sent(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.wait()


def _report(write: Write, ends: list[IdempotentWriteResult]) -> Written:
    return Written(
        write,
        sum(end.rows_written for end in ends),
        sum(end.rows_found for end in ends),
        max((end.last.glsn for end in ends if end.last is not None), default=0),
    )


# --- writes that keep positions -----------------------------------------------------------------------------------------

# How often a task checks whether its turn has come.
TURN_S: Final = 0.05

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PositionedWriteTask:
    """A write that keeps positions: the column glsn is the position of each row, in a topic with one log stream.

    Tasks write one after the other, each behind the last row of the one before it; a task that is too early waits for its turn.
    Entries of an earlier attempt are compared and left out; a different entry at a position is an error that names it.
    """

    options: WriteOptions
    columns: InputColumns

    def run(self, write: Write, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition: rows with consecutive positions."""
        connection = connection_to(self.options.where)
        log = connection.fresh_log(self.options.topic)
        copy: _Copy | None = None
        for batch in batches:
            if batch.num_rows:
                glsns = self._numbers(batch, self.columns.glsn)
                copy = copy or _Copy(connection, log, int(glsns[0]), self.options.where.timeout_s)
                copy.append(
                    glsns, self._times_us(batch), payload_of(batch, self.columns.data), self.columns.data
                )
        return copy.finish(write) if copy is not None else Written(write)

    def _times_us(self, batch: pa.RecordBatch) -> Numbers:
        if self.columns.timestamp:
            return self._numbers(batch, self.columns.timestamp)
        return np.zeros(batch.num_rows, np.int64)

    def _numbers(self, batch: pa.RecordBatch, name: str) -> Numbers:
        column = batch.column(name)
        if column.null_count:
            raise InputError(
                f"{column.null_count} rows have no value (null) in column {name!r}: none of them was written"
            )
        numbers: Numbers = pc.cast(column, pa.int64()).to_numpy()
        return numbers


class _Copy:
    """Rows from one position on, without a gap."""

    def __init__(self, connection: SparkConnection, log: Log, first: int, timeout_s: float) -> None:
        self._connection = connection
        self._first = int(log.topic.first)
        self._next = first
        if first < self._first:
            raise InputError(
                f"a row has position {first}, and topic {log.topic.name!r} begins at {self._first}: create one that begins there "
                f"with admin.create_topic(…, streams=1, first={first})"
            )
        connection.run(_wait_turn(log, first, timeout_s))
        self._writer: PositionedWriter = log.positioned_writer(log.streams[0].log_stream)

    def append(self, glsns: Numbers, times_us: Numbers, rows: pa.Array, column: str) -> None:
        """A batch of the log has one timestamp: a new batch begins where it changes."""
        self._check(glsns)
        ends = [*(np.flatnonzero(np.diff(times_us)) + 1).tolist(), len(rows)]
        begin = 0
        for end in ends:
            cutter = Cutter(column)
            part = rows.slice(begin, end - begin)
            self._send([*cutter.add(part), cutter.rest()], int(times_us[begin]))
            begin = end

    def finish(self, write: Write) -> Written:
        end = self._connection.run(self._writer.finish())
        return Written(write, end.written, end.found, self._next - 1)

    def _send(self, parts: list[pa.Array | None], time_us: int) -> None:
        for part in parts:
            if part is not None:
                at = self._next - self._first + 1
                self._connection.run(self._writer.append(at, columns_of(part), time_us))
                self._next += len(part)

    def _check(self, glsns: Numbers) -> None:
        wanted = np.arange(self._next, self._next + len(glsns))
        wrong = np.flatnonzero(glsns != wanted)
        if len(wrong):
            at = int(wrong[0])
            raise InputError(
                f"position {wanted[at]} is next, and a row has {glsns[at]}: with 'positions=keep' the positions of a task are "
                "consecutive: df.repartitionByRange(n, 'glsn').sortWithinPartitions('glsn')"
            )


async def _wait_turn(log: Log, first: int, timeout_s: float) -> None:
    """Until everything before position `first` is in the log. Gives up when there was no progress for `timeout_s`."""
    loop = asyncio.get_running_loop()
    newest, since = -1, loop.time()
    while (tail := await log.tail()) < first - 1:
        if tail > newest:
            newest, since = tail, loop.time()
        if loop.time() - since > timeout_s:
            raise Unavailable(
                f"position {first} cannot be written: the log ends at {tail}, and nothing was appended for {timeout_s:.0f} s. The "
                "rows between are missing in the input, or their task failed"
            )
        await asyncio.sleep(TURN_S)
