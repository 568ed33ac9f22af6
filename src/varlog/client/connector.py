"""Connector: what an engine needs of a log beyond what an application does.

Spark, the proxy, the recipes and the commands read log streams in parallel, ask for sizes and times, and coordinate writers of
many tasks. Applications use Log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from varlog.client.appender import Appender
from varlog.client.chunk import FetchPoint, Part, entries_in
from varlog.client.cursor_registry import CursorRegistry
from varlog.client.merge_rules import MergedRange
from varlog.client.node_client import NodeClient
from varlog.client.ordering import OrderedTopic, TopicSubscription, check_position
from varlog.client.routing import Routing
from varlog.model.cluster import ClusterView, NamedWriter
from varlog.model.commit import TopicMark
from varlog.model.entry import Entry, Position, StreamRange
from varlog.model.errors import Overloaded
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import FIRST_GLSN, GLSN, LLSN

if TYPE_CHECKING:
    import pyarrow as pa


class Connector:
    """Of one log, used from its event loop: `log.connector`. Calls without a `timeout_s` have the log's."""

    def __init__(
        self,
        routing: Routing,
        ordered: OrderedTopic,
        appender: Appender,
        registry: CursorRegistry,
        timeout_s: float,
    ) -> None:
        self._routing = routing
        self._ordered = ordered
        self._appender = appender
        self._registry = registry
        self._timeout_s = timeout_s
        self._owned: list[Callable[[], Awaitable[None]]] = []

    # --- Reading --------------------------------------------------------------------------------------------------------

    def merged_ranges(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> AsyncGenerator[list[MergedRange], None]:
        """As `Log.subscribe`, in the form in which it was fetched: the caller makes entries (`entry_lists`) or record batches of
        it, where it likes."""
        first = None if begin is None else GLSN(begin)
        until = None if end is None else GLSN(end)
        return self._ordered.subscription(first, until, self._timeout_s).merged_ranges()

    def follow(self, begin: GLSN | int = FIRST_GLSN) -> TailingReader:
        """As `Log.subscribe_lists`, without an end, for a caller that must know up to which position it has seen everything."""
        return TailingReader(self._ordered.subscription(GLSN(begin), None, self._timeout_s))

    def chunks(
        self,
        log_stream: LogStreamID | int,
        llsn_begin: LLSN | int,
        llsn_end: LLSN | int,
        *,
        cuts: Sequence[FetchPoint] = (),
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Part, None]:
        """Whole batches of one stream, checked end to end: rows (llsn, glsn, count) that are exactly [llsn_begin, llsn_end), and
        the chunk that they are in. Replicas are asked in turn until each fetch has succeeded or taken `timeout_s`. Trimmed,
        NotWritten: the range does not exist any more, or not yet.

        `cuts`: LLSNs in between where a batch begins, as `measure` returns them, with the bytes up to the next one, so that several
        fetches can be in flight at once.
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
        cuts: Sequence[FetchPoint] = (),
        timeout_s: float | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """As `chunks`, as record batches of about 1 MiB with the columns of `Log.arrow`."""
        from varlog.client.arrow import range_batches

        parts = self.chunks(log_stream, llsn_begin, llsn_end, cuts=cuts, timeout_s=timeout_s)
        return range_batches(log_stream, parts)

    async def mark(self, *, timeout_s: float | None = None) -> TopicMark:
        """Newest and newest trimmed position, in one request."""
        return await self._ordered.tail(self._limit(timeout_s))

    async def measure(
        self,
        log_stream: LogStreamID | int,
        begin: GLSN | int,
        end: GLSN | int,
        points_max: int = 256,
        *,
        timeout_s: float | None = None,
    ) -> StreamRange:
        """The LLSNs of those entries of a stream whose position is in [begin, end), their bytes, and LLSNs that cut these bytes
        into about equal pieces. Trimmed if `begin` is trimmed. `end` may not be beyond the tail + 1."""
        return await self._ordered.measure(
            LogStreamID(log_stream), GLSN(begin), GLSN(end), points_max, self._limit(timeout_s)
        )

    async def find_time(
        self, log_stream: LogStreamID | int, time_us: int, *, timeout_s: float | None = None
    ) -> Position:
        """Where the first entry of a stream is that was appended at or after a time, in microseconds since 1970 UTC; as exact as
        the appenders' clocks agree. One past the newest entry of the stream, and of the topic, if there is none."""
        return await self._ordered.find_time(LogStreamID(log_stream), time_us, self._limit(timeout_s))

    def on_node(self, node: NodeID | int) -> NodeClient:
        """One storage node alone, and what its own replicas hold: for maintenance of a log, not for reading it."""
        return NodeClient(self._routing, NodeID(node))

    # --- Writing --------------------------------------------------------------------------------------------------------

    def refusal(
        self, size: int, *, log_stream: LogStreamID | int | None = None, timeout_s: float | None = None
    ) -> Overloaded | None:
        """Why an append of `size` bytes would be refused now, without waiting; None: it may be tried. Unlike all others this may be
        called in any thread, so that the refusals of a blocking log cost its loop nothing."""
        stream = None if log_stream is None else LogStreamID(log_stream)
        return self._appender.refusal(size, stream, self._limit(timeout_s))

    async def begin_write(
        self,
        name: str,
        batch: int,
        streams: Iterable[LogStreamID | int] | None = None,
        *,
        kept: bool = False,
        timeout_s: float | None = None,
    ) -> NamedWriter:
        """Begin batch number `batch` of a writer that consists of many tasks, or learn how it was begun: the first call fixes the
        streams (None: those that run now) and where in the log it begins, and every later call gets the same. PreconditionFailed
        if the writer is at a later batch. `kept`: remembered when finished, until it is forgotten; else among the newest only."""
        self._ordered.check_primary("a write that is made once")
        return await self._registry.begin_write(name, batch, streams, kept, self._limit(timeout_s))

    async def end_write(self, name: str, batch: int, *, timeout_s: float | None = None) -> NamedWriter:
        """Record that everything of this batch is in the log: `begin_write` then says that it is finished."""
        return await self._registry.end_write(self._routing.topic.topic, name, batch, self._limit(timeout_s))

    async def writers(self, *, timeout_s: float | None = None) -> tuple[NamedWriter, ...]:
        """The topic's named writers, each with its newest batch."""
        return await self._registry.writers(self._routing.topic.topic, self._limit(timeout_s))

    async def forget_writer(self, name: str, *, timeout_s: float | None = None) -> None:
        """A job that uses this name later starts over. Forgetting a name that does not exist does nothing."""
        await self._registry.forget_writer(self._routing.topic.topic, name, self._limit(timeout_s))

    # --- About the log --------------------------------------------------------------------------------------------------

    @property
    def timeout_s(self) -> float:
        """The log's timeout, for every call without one of its own."""
        return self._timeout_s

    async def view(self, *, timeout_s: float | None = None) -> ClusterView:
        """A fresh view of the cluster."""
        return await self._routing.refresh(self._limit(timeout_s))

    async def wait_running(self, *, timeout_s: float | None = None) -> bool:
        """True once every log stream of the topic accepts appends; False if that takes longer than the deadline."""
        return await self._routing.wait_running(self._limit(timeout_s))

    def close_with(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` called when the log is closed: what it closes belongs to the log."""
        self._owned.append(close)

    async def close_owned(self) -> None:
        """Called by the log at its end."""
        while self._owned:
            await self._owned.pop()()

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


# [R1] TailingReader: an endless subscription that reports how far it has read.
#
# Some positions of a sequenced topic hold no entry (JunkPosition). A caller that waited for the entry at the tail could wait for
# one that never comes; it compares `position` with the tail instead.


class TailingReader:
    """One endless reading of a topic. Made by `Connector.follow`."""

    def __init__(self, subscription: TopicSubscription) -> None:
        self._subscription = subscription

    @property
    def position(self) -> GLSN:
        """Everything up to here is in the lists returned so far, the last one included."""
        return GLSN(self._subscription.next - 1)

    def expect(self, glsn: GLSN) -> None:
        """The caller waits for everything up to `glsn`, which the log's tail has reached: a position whose appender is gone is
        then filled, although nothing follows it."""
        self._subscription.expect(glsn)

    async def lists(self) -> AsyncGenerator[list[Entry], None]:
        """What has arrived, in order; an empty list where only positions without an entry were passed."""
        async with aclosing(self._subscription.merged_ranges(empty=True)) as ranges:
            async for arrived in ranges:
                yield entries_in(arrived)
