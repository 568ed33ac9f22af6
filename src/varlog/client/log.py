"""[A1 R1 Q1] Log: append, read, subscribe, tail and trim of one topic"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Self

from varlog.client.appender import Appender
from varlog.client.chunk import CUT_ENTRIES, Chunk
from varlog.client.committed.range_reader import Cut, Part
from varlog.client.committed.reader import check_position
from varlog.client.committed.topic import CommittedTopic
from varlog.client.cursor_registry import CursorRegistry
from varlog.client.merge_rules import Stretch
from varlog.client.node_client import NodeClient
from varlog.client.ordering import OrderedTopic, Subscribed
from varlog.client.routing import Routing
from varlog.client.sequenced.topic import SequencedTopic
from varlog.client.writers.idempotent import IdempotentWriter
from varlog.client.writers.positioned import PositionedWriter
from varlog.model.batch import Buffer
from varlog.model.cluster import ClusterView, LogStream, NamedReader, NamedWriter, Topic
from varlog.model.commit import TopicMark
from varlog.model.entry import Entry, Position, Run
from varlog.model.errors import Overloaded
from varlog.model.ids import LogStreamID, NodeID, ProducerID
from varlog.model.lsn import FIRST_GLSN, GLSN, LLSN
from varlog.rpc.messages import FindTimeReply, MeasureRangeReply

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
        self._ordered: OrderedTopic = (
            SequencedTopic(routing) if routing.topic.sequenced else CommittedTopic(routing)
        )
        self._appender = Appender(routing, self._ordered.append_transport)
        self._names = CursorRegistry(routing)
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
        return await self._appender.append(
            data,
            None if log_stream is None else LogStreamID(log_stream),
            self._timeout_s if timeout_s is None else timeout_s,
        )

    def refusal(
        self, size: int, *, log_stream: LogStreamID | int | None = None, timeout_s: float | None = None
    ) -> Overloaded | None:
        """Why an append of `size` bytes would be refused now, without waiting; None: it may be tried. Unlike all others this may be
        called in any thread, so that the refusals of a blocking log cost its loop nothing."""
        return self._appender.refusal(size, _stream_id(log_stream), self._limit(timeout_s))

    async def append_batch(
        self,
        entries: Iterable[Buffer],
        *,
        log_stream: LogStreamID | int | None = None,
        timeout_s: float | None = None,
    ) -> Run:
        """Append entries as one atomic batch: all or none, and consecutive in both orders (R-ORD-5)."""
        return await self._appender.append_batch(entries, _stream_id(log_stream), self._limit(timeout_s))

    async def trim(
        self, glsn: GLSN | int, *, respect_readers: bool = False, timeout_s: float | None = None
    ) -> None:
        """Delete every entry at or below `glsn`, on every replica, for ever (R-TRIM-1). With `respect_readers`: ReaderBehind, and
        nothing deleted, if a named reader has not read so far."""
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
        """One attempt at a chain of batches in a log stream, in which each row is once however many attempts there are, in turn or
        at once (R-USE-4). `producer` (below 2^63) names the chain, and all of it is above position `after`: the same for every
        attempt. `timeout_s`: it fails when nothing gets on for so long."""
        self._ordered.check_primary("a chain of batches")
        return IdempotentWriter(
            self._routing, LogStreamID(log_stream), ProducerID(producer), GLSN(after), self._limit(timeout_s)
        )

    def positioned_writer(
        self, log_stream: LogStreamID | int, *, timeout_s: float | None = None
    ) -> PositionedWriter:
        """One attempt at a copy into a log stream, each entry at a given LLSN: for a topic with one log stream, to which nobody
        else appends. Its positions are then those of the source, from the topic's first position on."""
        self._ordered.check_primary("a copy at given places")
        return PositionedWriter(self._routing, LogStreamID(log_stream), self._limit(timeout_s))

    # --- Reading --------------------------------------------------------------------------------------------------------

    async def read(self, glsn: GLSN | int, *, timeout_s: float | None = None) -> Entry:
        """The entry at a position. NotWritten if nothing has it yet, Trimmed if it was trimmed (R-READ-1)."""
        return await self._ordered.read(GLSN(glsn), self._limit(timeout_s))

    async def read_stream(
        self, log_stream: LogStreamID | int, llsn: LLSN | int, *, timeout_s: float | None = None
    ) -> Entry:
        """The entry at a position of one log stream."""
        return await self._ordered.read_stream(LogStreamID(log_stream), LLSN(llsn), self._limit(timeout_s))

    async def tail(self, *, timeout_s: float | None = None) -> GLSN:
        """The newest position; while the log is empty the one before its first, mostly 0. No acknowledged append is above it."""
        return await self._ordered.newest(self._limit(timeout_s))

    async def trimmed(self, *, timeout_s: float | None = None) -> GLSN:
        """The newest trimmed position; 0 if nothing was. The oldest entry that can be read is the next one."""
        return await self._ordered.trimmed(self._limit(timeout_s))

    async def mark(self, *, timeout_s: float | None = None) -> TopicMark:
        """Newest and newest trimmed position, by one question."""
        topic = self._routing.topic.topic
        tail = await self._ordered.tail(self._limit(timeout_s))
        return TopicMark(topic, tail.high_watermark, tail.trimmed)

    def subscribe(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Entries in total order from `begin` on (None: the oldest that is there), up to but without `end` (None: for ever).

        Waits for what is not written yet; goes on over reconnects, restarts and new log streams without a skip or a repeat
        (R-READ-3). Trimmed if the next position is trimmed.
        """
        return self._entries(self.stretches(begin, end))

    def subscribe_lists(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        """As `subscribe`, in lists of what has arrived, of up to about a thousand: less to do for each entry."""
        return self._lists(self.stretches(begin, end))

    def follow(self, begin: GLSN | int = FIRST_GLSN) -> TailingReader:
        """As `subscribe_lists`, for ever, for who must know up to which position he has seen everything."""
        return TailingReader(self._ordered.subscription(GLSN(begin), None, self._timeout_s))

    def arrow(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """As `subscribe`, as record batches with the columns glsn, llsn, log_stream, timestamp and data."""
        from varlog.client.arrow import record_batches

        return record_batches(self.stretches(begin, end))

    async def measure(
        self,
        log_stream: LogStreamID | int,
        begin: GLSN | int,
        end: GLSN | int,
        points_max: int = 256,
        *,
        timeout_s: float | None = None,
    ) -> MeasureRangeReply:
        """The LLSNs of those entries of a stream whose position is in [begin, end), their bytes, and places that cut these bytes
        into about equal pieces. Trimmed if `begin` is trimmed. `end` may not be beyond the tail + 1."""
        return await self._ordered.measure(
            LogStreamID(log_stream), GLSN(begin), GLSN(end), points_max, self._limit(timeout_s)
        )

    async def find_time(
        self, log_stream: LogStreamID | int, time_us: int, *, timeout_s: float | None = None
    ) -> FindTimeReply:
        """The first entry of a stream that was appended at or after a time, in microseconds since 1970 UTC; as good as the clocks
        of those who append agree. Where there is none: one past the newest."""
        return await self._ordered.find_time(LogStreamID(log_stream), time_us, self._limit(timeout_s))

    def chunks(
        self,
        log_stream: LogStreamID | int,
        llsn_begin: LLSN | int,
        llsn_end: LLSN | int,
        *,
        cuts: Sequence[Cut] = (),
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Part, None]:
        """Whole batches of one stream, checked end to end: rows (llsn, glsn, count) that are exactly [llsn_begin, llsn_end), and
        the chunk that they are in. Replicas are asked in turn until each fetch has succeeded or taken `timeout_s`. Trimmed,
        NotWritten: it is not there any more, or not yet.

        `cuts`: LLSNs in between where a batch begins, as `measure` tells them, with the bytes up to the next one, so that several
        fetches can be under way at once.
        """
        check_position("LLSN", llsn_begin)
        return self._ordered.parts(
            LogStreamID(log_stream), LLSN(llsn_begin), LLSN(llsn_end), cuts, self._limit(timeout_s)
        )

    def range(
        self,
        log_stream: LogStreamID | int,
        llsn_begin: LLSN | int,
        llsn_end: LLSN | int,
        *,
        cuts: Sequence[Cut] = (),
        timeout_s: float | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """As `chunks`, as record batches of about 1 MiB with the columns of `arrow`."""
        from varlog.client.arrow import range_batches

        parts = self.chunks(log_stream, llsn_begin, llsn_end, cuts=cuts, timeout_s=timeout_s)
        return range_batches(log_stream, parts)

    def stretches(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[list[Stretch], None]:
        """As `subscribe`, as it was fetched: for who makes entries (`lists_of`) or record batches of it elsewhere."""
        first = None if begin is None else GLSN(begin)
        until = None if end is None else GLSN(end)
        return self._ordered.subscription(first, until, self._timeout_s).stretches()

    async def _lists(
        self, stretches: AsyncGenerator[list[Stretch], None]
    ) -> AsyncGenerator[list[Entry], None]:
        async with aclosing(stretches):
            async for taken in stretches:
                for entries in lists_of(taken):
                    yield entries

    async def _entries(self, stretches: AsyncGenerator[list[Stretch], None]) -> AsyncGenerator[Entry, None]:
        async with aclosing(stretches):
            async for taken in stretches:
                for entries in lists_of(taken):
                    for entry in entries:
                        yield entry

    # --- Named readers and writers --------------------------------------------------------------------------------------

    async def set_reader(
        self, name: str, position: GLSN | int, *, back: bool = False, timeout_s: float | None = None
    ) -> NamedReader:
        """Say that the reader of this name is done with everything up to `position`: others see how far behind it is, and a trim
        can respect it. A smaller position than the one known moves nothing, unless `back` allows it."""
        topic, limit_s = self._routing.topic.topic, self._limit(timeout_s)
        return await self._names.set_reader(topic, name, GLSN(position), back, limit_s)

    async def readers(self, *, timeout_s: float | None = None) -> tuple[NamedReader, ...]:
        """The topic's named readers."""
        return await self._names.readers(self._routing.topic.topic, self._limit(timeout_s))

    async def forget_reader(self, name: str, *, timeout_s: float | None = None) -> None:
        """No trim waits for this reader any more; one that is not there is forgotten already."""
        await self._names.forget_reader(self._routing.topic.topic, name, self._limit(timeout_s))

    async def begin_write(
        self,
        name: str,
        batch: int,
        streams: Iterable[LogStreamID | int] | None = None,
        *,
        kept: bool = False,
        timeout_s: float | None = None,
    ) -> NamedWriter:
        """Begin batch number `batch` of a writer that is made of many tasks, or learn how it was begun: the first to ask fixes the
        streams (None: those that run now) and where in the log it begins, and everybody after gets the same. Refused if the
        writer is at a later batch. `kept`: remembered when it is finished, until it is forgotten; else among the newest only."""
        self._ordered.check_primary("a write that is made once")
        return await self._names.begin_write(name, batch, streams, kept, self._limit(timeout_s))

    async def end_write(self, name: str, batch: int, *, timeout_s: float | None = None) -> NamedWriter:
        """Say that everything of this batch is in the log: who begins it again is told that it is finished."""
        return await self._names.end_write(self._routing.topic.topic, name, batch, self._limit(timeout_s))

    async def writers(self, *, timeout_s: float | None = None) -> tuple[NamedWriter, ...]:
        """The topic's named writers, each with its newest batch."""
        return await self._names.writers(self._routing.topic.topic, self._limit(timeout_s))

    async def forget_writer(self, name: str, *, timeout_s: float | None = None) -> None:
        """A job that uses this name later starts over. Forgetting a name that does not exist does nothing."""
        await self._names.forget_writer(self._routing.topic.topic, name, self._limit(timeout_s))

    # --- About it -------------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> Topic:
        return self._routing.topic

    @property
    def timeout_s(self) -> float:
        """Of every call that names no other."""
        return self._timeout_s

    @property
    def streams(self) -> tuple[LogStream, ...]:
        """The topic's log streams, as of the newest view that was needed."""
        return self._routing.streams

    async def view(self, *, timeout_s: float | None = None) -> ClusterView:
        """A fresh view of the cluster."""
        return await self._routing.refresh(self._limit(timeout_s))

    def on_node(self, node: NodeID | int) -> NodeClient:
        """One storage node alone, and what its own replicas hold: for who looks after the log, not for who reads it."""
        return NodeClient(self._routing, NodeID(node))

    async def wait_running(self, *, timeout_s: float | None = None) -> bool:
        """True once every log stream of the topic takes appends; False if that takes longer than the deadline."""
        return await self._routing.wait_running(self._limit(timeout_s))

    @property
    def closed(self) -> bool:
        return self._closed

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


# [R1] TailingReader: a subscription that tells up to which position everything was seen, entries or not.


class TailingReader:
    """One reading of a topic, for ever. Some positions of a sequenced topic hold no entry (JunkPosition): who waits for the entry
    at the
    tail may wait for one that never comes, and asks `position` instead."""

    def __init__(self, subscription: Subscribed) -> None:
        self._subscription = subscription

    @property
    def position(self) -> GLSN:
        """Everything up to here is in the lists given so far, as of the list given last."""
        return GLSN(self._subscription.next - 1)

    def expect(self, glsn: GLSN) -> None:
        """Somebody waits for everything up to `glsn`, which the log's tail has reached: a position whose appender is gone is then
        filled, although nothing follows it."""
        self._subscription.expect(glsn)

    async def lists(self) -> AsyncGenerator[list[Entry], None]:
        """Whatever has arrived, in order; an empty list where only positions without an entry were passed."""
        async with aclosing(self._subscription.stretches(empty=True)) as stretches:
            async for taken in stretches:
                yield entries_of(taken)


def entries_of(taken: list[Stretch]) -> list[Entry]:
    """The entries of some stretches."""
    entries: list[Entry] = []
    for log_stream, glsn, llsn, length, source, _ in taken:
        if isinstance(source, Chunk):
            entries += source.entries(log_stream, glsn, llsn, length)
    return entries


def lists_of(taken: list[Stretch]) -> Iterator[list[Entry]]:
    """The same in lists that are as long as is quick to make: see Chunk."""
    entries: list[Entry] = []
    for log_stream, glsn, llsn, length, source, _ in taken:
        if isinstance(source, Chunk):
            begin = 0
            while begin < length:
                count = min(length - begin, CUT_ENTRIES - len(entries))
                entries += source.entries(log_stream, GLSN(glsn + begin), LLSN(llsn + begin), count)
                begin += count
                if len(entries) == CUT_ENTRIES:
                    yield entries
                    entries = []
    if entries:
        yield entries
