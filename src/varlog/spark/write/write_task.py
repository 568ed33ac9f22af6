"""The task of a write: record batches of one partition into chains of the log, each row once however often the task is run.

Whatever attempt of the task asks first fixes where the write goes (BeginWrite); all attempts, in turn or at once, then extend the
same chains. What an earlier attempt brought into the log is found there and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from varlog.client.idempotent_writer import IdempotentWriter, IdempotentWriteResult
from varlog.client.log import Log
from varlog.model.cluster import NamedWriter
from varlog.model.ids import LogStreamID, ProducerID
from varlog.runtime.loop_thread import Started
from varlog.spark.link import Link, link_to
from varlog.spark.options import WriteOptions
from varlog.spark.worker_process import prepare_worker
from varlog.spark.write.payload import Cutter, columns_of, entries_of, in_order, spread
from varlog.spark.write.write_rules import InputColumns, Write, producer_of


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
        link = link_to(self.options.where)
        log = link.fresh_log(self.options.topic)
        record = link.run(begin_write(log, self.options, write))
        if record.finished:
            return Written(write)
        producer = producer_of(log.topic.topic, write, partition)
        chains = _Chains(link, log, record, producer, self.columns.data)
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
    return await log.begin_write(write.name, write.batch, streams, kept=write.kept)


class _Chains:
    """The chains that a task extends: one for each stream that it writes to, which is one alone unless there is a key."""

    def __init__(self, link: Link, log: Log, record: NamedWriter, producer: ProducerID, data: str) -> None:
        self._link = link
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
        ends = [self._link.run(chain.finish()) for chain, _ in self._open.values()]
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
        self._sending = self._link.start(chain.append(columns))

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
