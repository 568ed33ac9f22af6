"""[A1 R1 Q1] Log: append, read, subscribe, tail and trim of one topic.

These are the methods that an application needs. The API for engines is `log.connector`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Self

from varlog.client.appender import Appender
from varlog.client.chunk import entry_lists
from varlog.client.committed.topic import CommittedTopic
from varlog.client.connector import Connector
from varlog.client.cursor_registry import CursorRegistry
from varlog.client.merge_rules import MergedRange
from varlog.client.ordering import OrderedTopic, check_position
from varlog.client.routing import Routing
from varlog.client.sequenced.topic import SequencedTopic
from varlog.client.writers.idempotent import IdempotentWriter
from varlog.client.writers.positioned import PositionedWriter
from varlog.model.batch import Buffer
from varlog.model.cluster import LogStream, NamedReader, Topic
from varlog.model.entry import Entry, Position, Run
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.lsn import FIRST_GLSN, GLSN, LLSN

if TYPE_CHECKING:
    import pyarrow as pa

TIMEOUT_S = 10.0


class Log:
    """One topic of a cluster. Created by `connect_log`; used from one event loop.

    Every call ends by its deadline (`timeout_s`, or the log's own). An append is retried until then, across lost connections, seals
    and failovers, and is in the log once however often it was tried (R-ORD-7). An append that raises Rejected is certainly not in
    the log. OutcomeUnknown is raised only for an append that was sent and whose fate could not be determined before the deadline:
    it may be in the log, or may still get there, once (law 10).
    """

    def __init__(self, routing: Routing, timeout_s: float = TIMEOUT_S) -> None:
        self._routing = routing
        self._ordered: OrderedTopic = (
            SequencedTopic(routing) if routing.topic.sequenced else CommittedTopic(routing)
        )
        self._appender = Appender(routing, self._ordered.append_transport)
        self._registry = CursorRegistry(routing)
        self._connector = Connector(routing, self._ordered, self._appender, self._registry, timeout_s)
        self._timeout_s = timeout_s
        self._closed = False

    # --- Writing --------------------------------------------------------------------------------------------------------

    async def append(
        self, data: Buffer, *, log_stream: LogStreamID | int | None = None, timeout_s: float | None = None
    ) -> Position:
        """Append one entry to a running log stream of the topic, or to `log_stream`. Returns its position.

        Retries happen inside and never duplicate it: do not repeat the call unless it raises Rejected.
        Appends that wait at the same time share a batch; their order relative to each other is not promised. An append that
        starts after another was acknowledged gets the larger GLSN, whatever streams they go to (R-ORD-4).
        """
        return await self._appender.append(
            data,
            None if log_stream is None else LogStreamID(log_stream),
            self._timeout_s if timeout_s is None else timeout_s,
        )

    async def append_batch(
        self,
        entries: Iterable[Buffer],
        *,
        log_stream: LogStreamID | int | None = None,
        timeout_s: float | None = None,
    ) -> Run:
        """Append entries as one atomic batch: all or none, and consecutive in both orders (R-ORD-5)."""
        stream = None if log_stream is None else LogStreamID(log_stream)
        return await self._appender.append_batch(entries, stream, self._limit(timeout_s))

    async def trim(
        self, glsn: GLSN | int, *, respect_readers: bool = False, timeout_s: float | None = None
    ) -> None:
        """Delete every entry at or below `glsn`, on every replica, forever (R-TRIM-1). With `respect_readers`, raises
        ReaderBehind and deletes nothing if a named reader has not read that far."""
        check_position("GLSN", glsn)
        await self._ordered.trim(GLSN(glsn), respect_readers, self._limit(timeout_s))

    def idempotent_writer(
        self,
        log_stream: LogStreamID | int,
        producer: ProducerID | int,
        after: GLSN | int,
        *,
        timeout_s: float | None = None,
    ) -> IdempotentWriter:
        """One attempt at writing a sequence of batches to a log stream, in which each row appears once, no matter how many
        attempts are made in sequence or concurrently (R-USE-4). `producer` (below 2^63) names the sequence, all of which lies
        above position `after`: both are the same for every attempt. The attempt fails if it makes no progress for `timeout_s`."""
        self._ordered.check_primary("an idempotent writer")
        return IdempotentWriter(
            self._routing, LogStreamID(log_stream), ProducerID(producer), GLSN(after), self._limit(timeout_s)
        )

    def positioned_writer(
        self, log_stream: LogStreamID | int, *, timeout_s: float | None = None
    ) -> PositionedWriter:
        """One attempt at copying into a log stream, each entry at a given LLSN: for a topic with one log stream and no other
        appender. Its positions then equal those of the source, from the topic's first position on."""
        self._ordered.check_primary("a positioned writer")
        return PositionedWriter(self._routing, LogStreamID(log_stream), self._limit(timeout_s))

    # --- Reading --------------------------------------------------------------------------------------------------------

    async def read(self, glsn: GLSN | int, *, timeout_s: float | None = None) -> Entry:
        """The entry at a position. Raises NotWritten if the position has none yet, Trimmed if it was trimmed (R-READ-1)."""
        return await self._ordered.read(GLSN(glsn), self._limit(timeout_s))

    async def read_stream(
        self, log_stream: LogStreamID | int, llsn: LLSN | int, *, timeout_s: float | None = None
    ) -> Entry:
        """The entry at a position of one log stream."""
        return await self._ordered.read_stream(LogStreamID(log_stream), LLSN(llsn), self._limit(timeout_s))

    async def tail(self, *, timeout_s: float | None = None) -> GLSN:
        """The newest position, or one below the topic's first position while the log is empty. No acknowledged append is above
        it."""
        return await self._ordered.newest(self._limit(timeout_s))

    async def trimmed(self, *, timeout_s: float | None = None) -> GLSN:
        """The newest trimmed position, 0 if nothing was trimmed. The next position is the oldest that can be read."""
        return await self._ordered.trimmed(self._limit(timeout_s))

    def subscribe(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Yields entries in total order, from `begin` (None: the oldest that exists) up to but without `end` (None: forever).

        Waits for positions that are not written yet; continues across reconnects, restarts and new log streams without a gap or a
        repetition (R-READ-3). Raises Trimmed if the next position was trimmed.
        """
        return _entries(self._connector.merged_ranges(begin, end))

    def subscribe_lists(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        """Like `subscribe`, but yields lists of up to about a thousand arrived entries: less work per entry."""
        return _lists(self._connector.merged_ranges(begin, end))

    def arrow(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Like `subscribe`, but yields record batches with the columns glsn, llsn, log_stream, timestamp and data."""
        from varlog.client.arrow import record_batches

        return record_batches(self._connector.merged_ranges(begin, end))

    # --- Named readers --------------------------------------------------------------------------------------------------

    async def set_reader(
        self, name: str, position: GLSN | int, *, back: bool = False, timeout_s: float | None = None
    ) -> NamedReader:
        """Record that the reader of this name has processed everything up to `position`: others see how far behind it is, and a
        trim can respect it. A position below the recorded one is ignored, unless `back` allows it."""
        topic, limit_s = self._routing.topic.topic, self._limit(timeout_s)
        return await self._registry.set_reader(topic, name, GLSN(position), back, limit_s)

    async def readers(self, *, timeout_s: float | None = None) -> tuple[NamedReader, ...]:
        """The topic's named readers."""
        return await self._registry.readers(self._routing.topic.topic, self._limit(timeout_s))

    async def forget_reader(self, name: str, *, timeout_s: float | None = None) -> None:
        """Forget a named reader, so that no trim waits for it. Forgetting a name that does not exist does nothing."""
        await self._registry.forget_reader(self._routing.topic.topic, name, self._limit(timeout_s))

    # --- About the log --------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> Topic:
        return self._routing.topic

    @property
    def streams(self) -> tuple[LogStream, ...]:
        """The topic's log streams, by the newest view that this client has fetched."""
        return self._routing.streams

    @property
    def connector(self) -> Connector:
        """The API for engines and tools: parallel reads of log streams, sizes and times, writers that consist of many tasks."""
        return self._connector

    @property
    def closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        """Close the log. Appends that were sent and not answered end in OutcomeUnknown, those that were not sent in NotAccepted."""
        if not self._closed:
            self._closed = True
            self._appender.close()
            await self._routing.close()
            await self._connector.close_owned()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


async def _lists(ranges: AsyncGenerator[list[MergedRange], None]) -> AsyncGenerator[list[Entry], None]:
    async with aclosing(ranges):
        async for arrived in ranges:
            for entries in entry_lists(arrived):
                yield entries


async def _entries(ranges: AsyncGenerator[list[MergedRange], None]) -> AsyncGenerator[Entry, None]:
    async with aclosing(ranges):
        async for arrived in ranges:
            for entries in entry_lists(arrived):
                for entry in entries:
                    yield entry
