"""[A1 R1] Log: append, read, subscribe, tail and trim of one topic."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Self

from varlog.client.appender import Appender
from varlog.client.chunk import Chunk
from varlog.client.merge_rules import Stretch
from varlog.client.reader import Reader, check_position
from varlog.client.routing import Routing
from varlog.client.subscriber import Subscription
from varlog.model.batch import Buffer
from varlog.model.cluster import ClusterView, LogStream, Topic
from varlog.model.entry import Entry, Position, Run
from varlog.model.ids import LogStreamID
from varlog.model.lsn import FIRST_GLSN, GLSN, LLSN
from varlog.rpc.messages import Done, TrimTopic

if TYPE_CHECKING:
    import pyarrow as pa

TIMEOUT_S = 10.0


class Log:
    """One topic of a cluster. Made by `connect_log`; used from one event loop.

    Every call ends by its deadline (`timeout_s`, or the log's own). An append is tried until then, over lost connections, seals and
    failovers, and is in the log once however often it was tried (R-ORD-7). One that raises Rejected is certainly not in the
    log. Only one that was sent, and of which nobody could say before the deadline what became of it, raises
    OutcomeUnknown: it may be in the log, or may still get there, once (law 10).
    """

    def __init__(self, routing: Routing, timeout_s: float = TIMEOUT_S) -> None:
        self._routing = routing
        self._appender = Appender(routing)
        self._reader = Reader(routing)
        self._timeout_s = timeout_s
        self._closed = False
        self._owned: list[Callable[[], Awaitable[None]]] = []

    # --- Writing --------------------------------------------------------------------------------------------------------

    async def append(
        self, data: Buffer, *, log_stream: LogStreamID | int | None = None, timeout_s: float | None = None
    ) -> Position:
        """Append one entry to a running log stream of the topic, or to the one that is named. Returns its position.

        Retries are made inside and never double it: do not repeat the call unless it raises Rejected.
        Appends that wait at the same time share a batch; their order among each other is not promised. One that starts
        after another was acknowledged gets the larger GLSN, whatever streams they go to (R-ORD-4).
        """
        return await self._appender.append(data, _stream_id(log_stream), self._limit(timeout_s))

    async def append_batch(
        self,
        entries: Iterable[Buffer],
        *,
        log_stream: LogStreamID | int | None = None,
        timeout_s: float | None = None,
    ) -> Run:
        """Append entries as one atomic batch: all or none, and consecutive in both orders (R-ORD-5)."""
        return await self._appender.append_batch(entries, _stream_id(log_stream), self._limit(timeout_s))

    async def trim(self, glsn: GLSN | int, *, timeout_s: float | None = None) -> None:
        """Delete every entry at or below `glsn`, on every replica, for ever (R-TRIM-1)."""
        check_position("GLSN", glsn)
        limit_s = self._limit(timeout_s)
        request = TrimTopic(self._routing.topic.topic, GLSN(glsn))
        await self._routing.ask_repository(request, Done, limit_s, attempt_s=limit_s)

    # --- Reading --------------------------------------------------------------------------------------------------------

    async def read(self, glsn: GLSN | int, *, timeout_s: float | None = None) -> Entry:
        """The entry at a position. NotWritten if nothing has it yet, Trimmed if it was trimmed (R-READ-1)."""
        return await self._reader.read(GLSN(glsn), self._limit(timeout_s))

    async def read_stream(
        self, log_stream: LogStreamID | int, llsn: LLSN | int, *, timeout_s: float | None = None
    ) -> Entry:
        """The entry at a position of one log stream."""
        return await self._reader.read_stream(LogStreamID(log_stream), LLSN(llsn), self._limit(timeout_s))

    async def tail(self, *, timeout_s: float | None = None) -> GLSN:
        """The newest position; 0 while the log is empty. No acknowledged append is above it."""
        return (await self._routing.tail(self._limit(timeout_s))).high_watermark

    async def trimmed(self, *, timeout_s: float | None = None) -> GLSN:
        """The newest trimmed position; 0 if nothing was. The oldest entry that can be read is the next one."""
        return (await self._routing.tail(self._limit(timeout_s))).trimmed

    def subscribe(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Entries in total order from `begin` on (None: the oldest that is there), up to but without `end` (None: for ever).

        Waits for what is not written yet; goes on over reconnects, restarts and new log streams without a skip or a repeat
        (R-READ-3). Trimmed if the next position is trimmed.
        """
        return self._entries(self._stretches(begin, end))

    def subscribe_lists(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        """As `subscribe`, in lists of whatever has arrived: less to do for each entry."""
        return self._lists(self._stretches(begin, end))

    def arrow(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """As `subscribe`, as record batches with the columns glsn, llsn, log_stream, timestamp and data."""
        from varlog.client.arrow import record_batches

        return record_batches(self._stretches(begin, end))

    def _stretches(self, begin: int | None, end: int | None) -> AsyncGenerator[list[Stretch], None]:
        first = None if begin is None else GLSN(begin)
        return Subscription(
            self._routing, first, None if end is None else GLSN(end), self._timeout_s
        ).stretches()

    async def _lists(
        self, stretches: AsyncGenerator[list[Stretch], None]
    ) -> AsyncGenerator[list[Entry], None]:
        async with aclosing(stretches):
            async for taken in stretches:
                yield _entries_of(taken)

    async def _entries(self, stretches: AsyncGenerator[list[Stretch], None]) -> AsyncGenerator[Entry, None]:
        async with aclosing(stretches):
            async for taken in stretches:
                for entry in _entries_of(taken):
                    yield entry

    # --- About it -------------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> Topic:
        return self._routing.topic

    @property
    def streams(self) -> tuple[LogStream, ...]:
        """The topic's log streams, as of the newest view that was needed."""
        return self._routing.streams

    async def view(self, *, timeout_s: float | None = None) -> ClusterView:
        """A fresh view of the cluster."""
        return await self._routing.refresh(self._limit(timeout_s))

    async def wait_running(self, *, timeout_s: float | None = None) -> bool:
        """True once every log stream of the topic takes appends; False if that takes longer than the deadline."""
        return await self._routing.wait_running(self._limit(timeout_s))

    async def close(self) -> None:
        """Let go. Appends that were sent and not answered end in OutcomeUnknown, those that were not sent in NotAccepted."""
        if not self._closed:
            self._closed = True
            self._appender.close()
            await self._routing.close()
            while self._owned:
                await self._owned.pop()()

    def close_with(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` called when the log is closed: it belongs to it."""
        self._owned.append(close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


def _stream_id(log_stream: int | None) -> LogStreamID | None:
    return None if log_stream is None else LogStreamID(log_stream)


def _entries_of(taken: list[Stretch]) -> list[Entry]:
    entries: list[Entry] = []
    for log_stream, glsn, llsn, length, source, _ in taken:
        if isinstance(source, Chunk):
            entries += source.entries(log_stream, glsn, llsn, length)
    return entries
