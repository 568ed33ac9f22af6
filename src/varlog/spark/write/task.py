"""The tasks of a write: rows into the log once, or at their given positions

Whatever attempt of the task asks first fixes where the write goes (BeginWrite); all attempts, in turn or at once, then extend the
same chains. What an earlier attempt brought into the log is found there and left out.
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
from varlog.spark.connection import SparkConnection, connection_to
from varlog.spark.options import WriteOptions
from varlog.spark.worker import prepare_worker
from varlog.spark.write.payload import Cutter, columns_of, entries_of, in_order, spread
from varlog.spark.write.write_rules import InputColumns, InputError, Write, producer_of


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task says to the driver. `rows_found`: how many of its rows an earlier attempt had brought into the log; `last`: the
    newest position of its rows, 0 if it had none."""

    write: Write
    rows: int = 0
    rows_found: int = 0
    last: int = 0


@dataclass(frozen=True)
class WriteTask:
    """What is the same for all tasks of a write: made on the driver, run on executors."""

    options: WriteOptions
    columns: InputColumns

    def run(self, write: Write, partition: int, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition."""
        prepare_worker()
        connection = connection_to(self.options.where)
        log = connection.fresh_log(self.options.topic)
        record = connection.run(begin_write(log, self.options, write))
        if record.finished:
            return Written(write)
        producer = producer_of(log.topic.topic, write, partition)
        chains = _Chains(connection, log, record, producer, self.columns.data)
        self._pour(batches, chains, partition % len(record.streams))
        return chains.finish(write)

    def _pour(self, batches: Iterator[pa.RecordBatch], chains: _Chains, index: int) -> None:
        data, order_by, key = self.columns.data, self.columns.order_by, self.columns.key
        for batch in in_order(batches, data, order_by, key) if order_by else batches:
            rows = entries_of(batch, data)
            parts = spread(rows, batch.column(key), chains.count) if key else ((index, rows),)
            for chosen, part in parts:
                chains.take(chosen, part)


async def begin_write(log: Log, options: WriteOptions, write: Write) -> NamedWriter:
    """Where the write goes: as it was begun, or, for who is the first to ask, from here on, to the stream that the options name or
    to all that run."""
    chosen = options.log_stream
    streams = (LogStreamID(int(chosen)),) if chosen.isdecimal() else None
    return await log.connector.begin_write(write.name, write.batch, streams, kept=write.kept)


class _Chains:
    """The chains that a task extends: one for each stream that it writes to, which is one alone unless there is a key."""

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

    def take(self, index: int, rows: pa.Array) -> None:
        """Send what is full. Returns before it is there: Spark makes the next rows meanwhile."""
        chain, cutter = self._opened(index)
        for part in cutter.take(rows):
            self._send(chain, part)

    def finish(self, write: Write) -> Written:
        """Send the rest; everything is in the log then."""
        for chain, cutter in self._open.values():
            rest = cutter.rest()
            if rest is not None:
                self._send(chain, rest)
        self._wait_sent()
        ends = [self._connection.run(chain.finish()) for chain, _ in self._open.values()]
        return _told(write, ends)

    def _opened(self, index: int) -> tuple[IdempotentWriter, Cutter]:
        if index not in self._open:
            stream = self._record.streams[index]
            chain = self._log.idempotent_writer(stream, self._producer, self._record.begin)
            self._open[index] = chain, Cutter(self._data)
        return self._open[index]

    def _send(self, chain: IdempotentWriter, rows: pa.Array) -> None:
        """The chain's window bounds what is under way; one batch more waits for room in it."""
        columns = columns_of(rows)
        self._wait_sent()
        self._sending = self._connection.start(chain.append(columns))

    def _wait_sent(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.wait()


def _told(write: Write, ends: list[IdempotentWriteResult]) -> Written:
    return Written(
        write,
        sum(end.rows_written for end in ends),
        sum(end.rows_found for end in ends),
        max((end.last.glsn for end in ends if end.last is not None), default=0),
    )


# The task of a write that keeps positions: rows say by their column glsn where they go, in a topic with one log stream.
#
# Tasks write one after the other, each behind the last row of the one before it: whoever is too early waits for his turn. What is
# there already, from an earlier attempt, is compared and left out; something else at a position is an error that names it.

# How often a task looks whether its turn has come.
TURN_S: Final = 0.05

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlacedTask:
    """What is the same for all tasks of a write that keeps positions."""

    options: WriteOptions
    columns: InputColumns

    def run(self, write: Write, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition: rows whose positions rise one by one."""
        connection = connection_to(self.options.where)
        log = connection.fresh_log(self.options.topic)
        copy: _Copy | None = None
        for batch in batches:
            if batch.num_rows:
                glsns = self._numbers(batch, self.columns.glsn)
                copy = copy or _Copy(connection, log, int(glsns[0]), self.options.where.timeout_s)
                copy.take(
                    glsns, self._times_us(batch), entries_of(batch, self.columns.data), self.columns.data
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
                f"{column.null_count} rows have no value (null) in column {name!r}: nothing of them was written"
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
                f"a row has position {first}, and topic {log.topic.name!r} begins at {self._first}: make one that begins there "
                f"with admin.create_topic(…, streams=1, first={first})"
            )
        connection.run(_wait_turn(log, first, timeout_s))
        self._placed: PositionedWriter = log.positioned_writer(log.streams[0].log_stream)

    def take(self, glsns: Numbers, times_us: Numbers, rows: pa.Array, column: str) -> None:
        """One batch of the log has one time: a new one begins where it changes."""
        self._check(glsns)
        ends = [*(np.flatnonzero(np.diff(times_us)) + 1).tolist(), len(rows)]
        begin = 0
        for end in ends:
            cutter = Cutter(column)
            part = rows.slice(begin, end - begin)
            self._send([*cutter.take(part), cutter.rest()], int(times_us[begin]))
            begin = end

    def finish(self, write: Write) -> Written:
        end = self._connection.run(self._placed.finish())
        return Written(write, end.written, end.found, self._next - 1)

    def _send(self, parts: list[pa.Array | None], time_us: int) -> None:
        for part in parts:
            if part is not None:
                at = self._next - self._first + 1
                self._connection.run(self._placed.append(at, columns_of(part), time_us))
                self._next += len(part)

    def _check(self, glsns: Numbers) -> None:
        wanted = np.arange(self._next, self._next + len(glsns))
        wrong = np.flatnonzero(glsns != wanted)
        if len(wrong):
            at = int(wrong[0])
            raise InputError(
                f"position {wanted[at]} is next, and a row has {glsns[at]}: with 'positions=keep' the rows of a task rise one by "
                "one, without a gap: df.repartitionByRange(n, 'glsn').sortWithinPartitions('glsn')"
            )


async def _wait_turn(log: Log, first: int, timeout_s: float) -> None:
    """Until everything before position `first` is in the log. Gives up when nothing has got on for `timeout_s`."""
    loop = asyncio.get_running_loop()
    newest, since = -1, loop.time()
    while (tail := await log.tail()) < first - 1:
        if tail > newest:
            newest, since = tail, loop.time()
        if loop.time() - since > timeout_s:
            raise Unavailable(
                f"position {first} cannot be written: the log ends at {tail}, and nothing came for {timeout_s:.0f} s. What belongs "
                "between is missing in the input, or its task failed"
            )
        await asyncio.sleep(TURN_S)
