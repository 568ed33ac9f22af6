"""Connector: the API of a log for engines, beyond what applications need.

Spark, the proxy, the recipes and the commands read log streams in parallel, query sizes and times, and coordinate writers that
consist of many tasks. Applications use Log.
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
    """The connector of one log: `log.connector`. Used from the log's event loop. Calls without `timeout_s` use the log's
    timeout."""

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
        """Like `Log.subscribe`, but yields what was fetched, unparsed: the caller converts it to entries (`entry_lists`) or to
        record batches, in a thread of its choice."""
        first = None if begin is None else GLSN(begin)
        until = None if end is None else GLSN(end)
        return self._ordered.subscription(first, until, self._timeout_s).merged_ranges()

    def follow(self, begin: GLSN | int = FIRST_GLSN) -> TailingReader:
        """Like `Log.subscribe_lists` without an end, for a caller that must know up to which position it has seen everything."""
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
        """Yields whole batches of one stream, verified by their checksums: rows (llsn, glsn, count) that cover exactly
        [llsn_begin, llsn_end), and the chunk that holds them. Replicas are asked in turn until each fetch has succeeded or taken
        `timeout_s`. Raises Trimmed if the range was trimmed, NotWritten if it is not written yet.

        `cuts`: LLSNs within the range at which a batch begins, as `measure` returns them, with the bytes up to the next one. They
        allow several concurrent fetches.
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
        """Like `chunks`, but yields record batches of about 1 MiB with the columns of `Log.arrow`."""
        from varlog.client.arrow import range_batches

        parts = self.chunks(log_stream, llsn_begin, llsn_end, cuts=cuts, timeout_s=timeout_s)
        return range_batches(log_stream, parts)

    async def mark(self, *, timeout_s: float | None = None) -> TopicMark:
        """The newest position and the newest trimmed position, in one request."""
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
        """The LLSNs of a stream's entries with a position in [begin, end), their size in bytes, and LLSNs that split these bytes
        into about equal pieces. Raises Trimmed if `begin` is trimmed. `end` must not exceed the tail + 1."""
        return await self._ordered.measure(
            LogStreamID(log_stream), GLSN(begin), GLSN(end), points_max, self._limit(timeout_s)
        )

    async def find_time(
        self, log_stream: LogStreamID | int, time_us: int, *, timeout_s: float | None = None
    ) -> Position:
        """The position of a stream's first entry that was appended at or after `time_us`, in microseconds since 1970 UTC; as
        exact as the appenders' clocks. If no such entry exists: one past the newest entry of the stream and of the topic."""
        return await self._ordered.find_time(LogStreamID(log_stream), time_us, self._limit(timeout_s))

    def on_node(self, node: NodeID | int) -> NodeClient:
        """A client of a single storage node that reads only that node's replicas: for maintenance of a log, not for reading it."""
        return NodeClient(self._routing, NodeID(node))

    # --- Writing --------------------------------------------------------------------------------------------------------

    def refusal(
        self, size: int, *, log_stream: LogStreamID | int | None = None, timeout_s: float | None = None
    ) -> Overloaded | None:
        """The error with which an append of `size` bytes would be refused without waiting, or None. Unlike the other methods it
        may be called from any thread, so that refusals of a blocking log do not cost its loop any time."""
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
        """Begin batch number `batch` of a writer that consists of many tasks, or return how it was begun: the first call fixes
        the streams (None: those that run now) and where in the log the batch begins, and every later call returns the same.
        Raises PreconditionFailed if the writer is at a later batch. `kept`: a finished writer is remembered until it is
        forgotten; otherwise only the newest are."""
        self._ordered.check_primary("a write that is made once")
        return await self._registry.begin_write(name, batch, streams, kept, self._limit(timeout_s))

    async def end_write(self, name: str, batch: int, *, timeout_s: float | None = None) -> NamedWriter:
        """Record that every entry of this batch is in the log: `begin_write` then returns it as finished."""
        return await self._registry.end_write(self._routing.topic.topic, name, batch, self._limit(timeout_s))

    async def writers(self, *, timeout_s: float | None = None) -> tuple[NamedWriter, ...]:
        """The topic's named writers, each with its newest batch."""
        return await self._registry.writers(self._routing.topic.topic, self._limit(timeout_s))

    async def forget_writer(self, name: str, *, timeout_s: float | None = None) -> None:
        """Forget a named writer: a job that uses this name later starts over. Forgetting a name that does not exist does
        nothing."""
        await self._registry.forget_writer(self._routing.topic.topic, name, self._limit(timeout_s))

    # --- About the log --------------------------------------------------------------------------------------------------

    @property
    def timeout_s(self) -> float:
        """The timeout of every call that passes none."""
        return self._timeout_s

    async def view(self, *, timeout_s: float | None = None) -> ClusterView:
        """A fresh view of the cluster."""
        return await self._routing.refresh(self._limit(timeout_s))

    async def wait_running(self, *, timeout_s: float | None = None) -> bool:
        """True once every log stream of the topic accepts appends; False if that takes longer than the deadline."""
        return await self._routing.wait_running(self._limit(timeout_s))

    def close_with(self, close: Callable[[], Awaitable[None]]) -> None:
        """Register `close`, to be awaited when the log is closed: the log owns what it closes."""
        self._owned.append(close)

    async def close_owned(self) -> None:
        """Close everything that the log owns. Called by the log when it is closed."""
        while self._owned:
            await self._owned.pop()()

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


# [R1] TailingReader: an endless subscription that reports how far it has read.
#
# Some positions of a sequenced topic hold no entry (JunkPosition). A caller that waits for the entry at the tail could wait
# forever; it compares `position` with the tail instead.


class TailingReader:
    """One endless subscription to a topic. Created by `Connector.follow`."""

    def __init__(self, subscription: TopicSubscription) -> None:
        self._subscription = subscription

    @property
    def position(self) -> GLSN:
        """The position up to which every entry is in the lists yielded so far, including the last one."""
        return GLSN(self._subscription.next - 1)

    def expect(self, glsn: GLSN) -> None:
        """Announce that the caller waits for everything up to `glsn`, which the log's tail has reached. A position whose appender
        has died is then filled even if nothing follows it."""
        self._subscription.expect(glsn)

    async def lists(self) -> AsyncGenerator[list[Entry], None]:
        """Yields the arrived entries, in order; an empty list if only positions without an entry were passed."""
        async with aclosing(self._subscription.merged_ranges(empty=True)) as ranges:
            async for arrived in ranges:
                yield entries_in(arrived)
