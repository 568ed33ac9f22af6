"""The blocking Log and Admin: the async ones, run in a loop thread of their own.

The parts of a blocking log that only engines need are in `log.connector`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from varlog.client import admin as asynchronous_admin
from varlog.client import log as asynchronous_log
from varlog.client.chunk import FetchPoint, Part, entry_lists
from varlog.client.loop_bridge import LoopBridge
from varlog.client.merge_rules import MergedRange
from varlog.model.batch import Buffer
from varlog.model.cluster import (
    ClusterView,
    Grouping,
    LogStream,
    NamedReader,
    NamedWriter,
    Ordering,
    StorageNode,
    Topic,
)
from varlog.model.commit import TopicMark
from varlog.model.entry import Entry, Position, Run, StreamRange
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import FIRST_GLSN, GLSN, LLSN
from varlog.model.status import ClusterStatus
from varlog.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    import pyarrow as pa


class _Blocking:
    """The common part of both: `with` closes them."""

    def __init__(self, bridge: LoopBridge) -> None:
        self._bridge = bridge
        self._run = bridge.run

    def close(self) -> None:
        """Close it; closing again does nothing."""
        self._bridge.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Log(_Blocking):
    """One topic of a cluster, or of a directory. Safe to use from several threads: their appends share batches.

    Every call ends by its deadline (`timeout_s`, or the log's own). An append is retried until then, across lost connections, seals
    and failovers, and is in the log once however often it was tried (R-ORD-7). An append that raises Rejected is certainly not in
    the log; Overloaded, a Rejected, is raised in the calling thread, after at most a tenth of the append's time. OutcomeUnknown is
    raised only for an append that was sent and whose fate could not be determined before the deadline: it may be in the log, or
    may still get there, once (law 10).
    """

    def __init__(self, thread: LoopThread, log: asynchronous_log.Log) -> None:
        super().__init__(LoopBridge(thread, log))
        self._log = log
        self._thread = thread
        self._connector = BlockingConnector(self._bridge, log)
        self._refusals = RefusalPace()

    def append(
        self, data: Buffer, *, log_stream: LogStreamID | int | None = None, timeout_s: float | None = None
    ) -> Position:
        """Append one entry to a running log stream of the topic, or to `log_stream`. Returns its position.

        Retries happen inside and never duplicate it: do not repeat the call unless it raises Rejected.
        """
        # Refused here, not in the loop: two thread switches per refusal would take processor time from the appends in progress.
        if type(data) is bytes and (
            refusal := self._log.connector.refusal(len(data), log_stream=log_stream, timeout_s=timeout_s)
        ):
            self._bridge.check_open()
            limit_s = self._log.connector.timeout_s if timeout_s is None else timeout_s
            if pause_s := self._refusals.pause_s(self._thread.now(), limit_s):
                self._thread.pause(pause_s)
            raise refusal
        return self._run(self._log.append(data, log_stream=log_stream, timeout_s=timeout_s))

    def append_batch(
        self,
        entries: Iterable[Buffer],
        *,
        log_stream: LogStreamID | int | None = None,
        timeout_s: float | None = None,
    ) -> Run:
        """Append entries as one atomic batch: all or none, and consecutive in both orders (R-ORD-5)."""
        return self._run(self._log.append_batch(entries, log_stream=log_stream, timeout_s=timeout_s))

    def trim(
        self, glsn: GLSN | int, *, respect_readers: bool = False, timeout_s: float | None = None
    ) -> None:
        """Delete every entry at or below `glsn`, on every replica, forever (R-TRIM-1). With `respect_readers`, raises
        ReaderBehind and deletes nothing if a named reader has not read that far."""
        self._run(self._log.trim(glsn, respect_readers=respect_readers, timeout_s=timeout_s))

    def read(self, glsn: GLSN | int, *, timeout_s: float | None = None) -> Entry:
        """The entry at a position. Raises NotWritten if the position has none yet, Trimmed if it was trimmed (R-READ-1)."""
        return self._run(self._log.read(glsn, timeout_s=timeout_s))

    def read_stream(
        self, log_stream: LogStreamID | int, llsn: LLSN | int, *, timeout_s: float | None = None
    ) -> Entry:
        """The entry at a position of one log stream."""
        return self._run(self._log.read_stream(log_stream, llsn, timeout_s=timeout_s))

    def tail(self, *, timeout_s: float | None = None) -> GLSN:
        """The newest position, or one below the topic's first position while the log is empty. No acknowledged append is above
        it."""
        return self._run(self._log.tail(timeout_s=timeout_s))

    def trimmed(self, *, timeout_s: float | None = None) -> GLSN:
        """The newest trimmed position, 0 if nothing was trimmed. The next position is the oldest that can be read."""
        return self._run(self._log.trimmed(timeout_s=timeout_s))

    def subscribe(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> Generator[Entry, None, None]:
        """Yields entries in total order, from `begin` (None: the oldest that exists) up to but without `end` (None: forever).

        Waits for positions that are not written yet; continues across reconnects, restarts and new log streams without a gap or a
        repetition (R-READ-3). Raises Trimmed if the next position was trimmed.
        """
        return self._entries(self._log.connector.merged_ranges(begin, end))

    def subscribe_lists(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> Generator[list[Entry], None, None]:
        """Like `subscribe`, but yields lists of up to about a thousand arrived entries: less work per entry."""
        return self._lists(self._log.connector.merged_ranges(begin, end))

    def arrow(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Like `subscribe`, but yields record batches with the columns glsn, llsn, log_stream, timestamp and data."""
        return self._bridge.iterate(self._log.arrow(begin, end))

    def _entries(self, source: AsyncGenerator[list[MergedRange], None]) -> Generator[Entry, None, None]:
        for entries in self._lists(source):
            yield from entries

    def _lists(self, source: AsyncGenerator[list[MergedRange], None]) -> Generator[list[Entry], None, None]:
        # Whole chunks cross the threads and become entries here: passing lists would cost more than building them.
        for arrived in self._bridge.iterate(source):
            yield from entry_lists(arrived)

    def set_reader(
        self, name: str, position: GLSN | int, *, back: bool = False, timeout_s: float | None = None
    ) -> NamedReader:
        """Record that the reader of this name has processed everything up to `position`: others see how far behind it is, and a
        trim can respect it. A position below the recorded one is ignored, unless `back` allows it."""
        return self._run(self._log.set_reader(name, position, back=back, timeout_s=timeout_s))

    def readers(self, *, timeout_s: float | None = None) -> tuple[NamedReader, ...]:
        """The topic's named readers."""
        return self._run(self._log.readers(timeout_s=timeout_s))

    def forget_reader(self, name: str, *, timeout_s: float | None = None) -> None:
        """Forget a named reader, so that no trim waits for it. Forgetting a name that does not exist does nothing."""
        self._run(self._log.forget_reader(name, timeout_s=timeout_s))

    @property
    def topic(self) -> Topic:
        return self._log.topic

    @property
    def streams(self) -> tuple[LogStream, ...]:
        """The topic's log streams, by the newest view that this client has fetched."""
        return self._log.streams

    @property
    def connector(self) -> BlockingConnector:
        """The API for engines and tools: parallel reads of log streams, sizes and times, writers that consist of many tasks."""
        return self._connector

    @property
    def closed(self) -> bool:
        return self._bridge.closed


class Admin(_Blocking):
    """Administration of one cluster."""

    def __init__(self, thread: LoopThread, admin: asynchronous_admin.Admin) -> None:
        super().__init__(LoopBridge(thread, admin))
        self._admin = admin

    def create_topic(
        self,
        name: str,
        *,
        streams: int = 0,
        replicas: int = 0,
        first: GLSN | int = FIRST_GLSN,
        ordering: Ordering | str = Ordering.COMMITTED,
        stripe_size: int = 0,
        grouping: Grouping | str = Grouping.STREAM,
    ) -> Topic:
        """Create a topic with `streams` log streams of `replicas` replicas (0: the cluster's default). Returns the topic, also if
        it already exists.

        `first` is the position of its first entry; a copy of a topic whose beginning was trimmed needs it. The log streams of a
        sequenced topic take turns with `stripe_size` positions each (0: the default), and `grouping` forms replica groups
        (R-SEQ-3)."""
        return self._run(
            self._admin.create_topic(
                name,
                streams=streams,
                replicas=replicas,
                first=first,
                ordering=ordering,
                stripe_size=stripe_size,
                grouping=grouping,
            )
        )

    def delete_topic(self, name: str) -> None:
        self._run(self._admin.delete_topic(name))

    def topics(self) -> tuple[Topic, ...]:
        return self._run(self._admin.topics())

    def topic_mark(self, name: str) -> TopicMark:
        """The newest position and the newest trimmed position of a topic."""
        return self._run(self._admin.topic_mark(name))

    def add_stream(self, topic: str, *, replicas: int = 0) -> LogStream:
        return self._run(self._admin.add_stream(topic, replicas=replicas))

    def seal_stream(self, log_stream: LogStreamID | int) -> LogStream:
        """Seal a stream: it accepts no appends until an operator unseals it."""
        return self._run(self._admin.seal_stream(log_stream))

    def unseal_stream(self, log_stream: LogStreamID | int) -> LogStream:
        return self._run(self._admin.unseal_stream(log_stream))

    def streams(self, topic: str | None = None) -> tuple[LogStream, ...]:
        return self._run(self._admin.streams(topic))

    def readers(self, topic: str | None = None) -> tuple[NamedReader, ...]:
        """The named readers of a topic, or of all topics."""
        return self._run(self._admin.readers(topic))

    def forget_reader(self, topic: str, name: str) -> None:
        """Forget a named reader, so that no trim waits for it. Forgetting a name that does not exist does nothing."""
        self._run(self._admin.forget_reader(topic, name))

    def writers(self, topic: str | None = None) -> tuple[NamedWriter, ...]:
        """The named writers of a topic, or of all topics, each with its newest batch."""
        return self._run(self._admin.writers(topic))

    def forget_writer(self, topic: str, name: str) -> None:
        """Forget a named writer: a job that uses this name later starts over. Forgetting a name that does not exist does
        nothing."""
        self._run(self._admin.forget_writer(topic, name))

    def add_node(self, address: str) -> None:
        """Register the storage node that listens at `address`."""
        self._run(self._admin.add_node(address))

    def remove_node(self, node: NodeID | int) -> None:
        self._run(self._admin.remove_node(node))

    def nodes(self) -> tuple[StorageNode, ...]:
        return self._run(self._admin.nodes())

    def view(self) -> ClusterView:
        """The newest view of the metadata repository."""
        return self._run(self._admin.view())

    def status(self) -> ClusterStatus:
        """The view, the last status of each storage node, and the newest position of every topic, as the manager sees them."""
        return self._run(self._admin.status())


# [A1] PURE. RefusalPace: how long a refused thread of a blocking log waits for its answer.
#
# Threads share one interpreter with the loop that serves their appends. One refused thread costs little, but hundreds that
# retry immediately leave the loop no time: nothing is served, and all are refused. So the refusals of one log are answered one
# after the other, SPACING_S apart; none waits longer for that than a tenth of its timeout.

SPACING_S: Final = 0.0001
SHARE: Final = 0.1
# A shorter pause is not worth a thread switch.
PAUSE_S_MIN: Final = 0.001


class RefusalPace:
    """The pace of one log. Any thread uses it without a lock: two concurrent callers may get the same slot, which is harmless."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = -math.inf  # when the latest refusal was, or will be, answered

    def pause_s(self, now: float, timeout_s: float) -> float:
        """How long a refused append with this timeout waits; 0: it is answered now."""
        self._next = at = min(max(self._next + SPACING_S, now), now + SHARE * timeout_s)
        return at - now if at - now >= PAUSE_S_MIN else 0.0


# BlockingConnector: the API for engines, of a blocking log.
#
# The methods of Connector without async; and the means to run async code in the log's loop, for recipes built on the async Log.

T = TypeVar("T")


class BlockingConnector:
    """The connector of one blocking log: `log.connector`. Safe to use from several threads. It keeps the log's loop alive."""

    def __init__(self, bridge: LoopBridge, log: asynchronous_log.Log) -> None:
        self._bridge = bridge
        self._log = log
        self._connector = log.connector

    # --- Reading --------------------------------------------------------------------------------------------------------

    def chunks(
        self,
        log_stream: LogStreamID | int,
        llsn_begin: LLSN | int,
        llsn_end: LLSN | int,
        *,
        cuts: Sequence[FetchPoint] = (),
        timeout_s: float | None = None,
    ) -> Generator[Part, None, None]:
        """Yields whole batches of one stream, verified by their checksums: rows (llsn, glsn, count) that cover exactly
        [llsn_begin, llsn_end), and the chunk that holds them."""
        return self.iterate(
            self._connector.chunks(log_stream, llsn_begin, llsn_end, cuts=cuts, timeout_s=timeout_s)
        )

    def range(
        self,
        log_stream: LogStreamID | int,
        llsn_begin: LLSN | int,
        llsn_end: LLSN | int,
        *,
        cuts: Sequence[FetchPoint] = (),
        timeout_s: float | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Like `chunks`, but yields record batches of about 1 MiB with the columns of `Log.arrow`."""
        return self.iterate(
            self._connector.range(log_stream, llsn_begin, llsn_end, cuts=cuts, timeout_s=timeout_s)
        )

    def mark(self, *, timeout_s: float | None = None) -> TopicMark:
        """The newest position and the newest trimmed position, in one request."""
        return self.run(self._connector.mark(timeout_s=timeout_s))

    def measure(
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
        return self.run(self._connector.measure(log_stream, begin, end, points_max, timeout_s=timeout_s))

    def find_time(
        self, log_stream: LogStreamID | int, time_us: int, *, timeout_s: float | None = None
    ) -> Position:
        """The position of a stream's first entry that was appended at or after `time_us`, in microseconds since 1970 UTC; as
        exact as the appenders' clocks. If no such entry exists: one past the newest entry of the stream and of the topic."""
        return self.run(self._connector.find_time(log_stream, time_us, timeout_s=timeout_s))

    # --- Writing --------------------------------------------------------------------------------------------------------

    def begin_write(
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
        return self.run(self._connector.begin_write(name, batch, streams, kept=kept, timeout_s=timeout_s))

    def end_write(self, name: str, batch: int, *, timeout_s: float | None = None) -> NamedWriter:
        """Record that every entry of this batch is in the log: `begin_write` then returns it as finished."""
        return self.run(self._connector.end_write(name, batch, timeout_s=timeout_s))

    def writers(self, *, timeout_s: float | None = None) -> tuple[NamedWriter, ...]:
        """The topic's named writers, each with its newest batch."""
        return self.run(self._connector.writers(timeout_s=timeout_s))

    def forget_writer(self, name: str, *, timeout_s: float | None = None) -> None:
        """Forget a named writer: a job that uses this name later starts over. Forgetting a name that does not exist does
        nothing."""
        self.run(self._connector.forget_writer(name, timeout_s=timeout_s))

    # --- About the log --------------------------------------------------------------------------------------------------

    def view(self, *, timeout_s: float | None = None) -> ClusterView:
        """A fresh view of the cluster."""
        return self.run(self._connector.view(timeout_s=timeout_s))

    @property
    def asynchronous(self) -> asynchronous_log.Log:
        """The underlying async log; use it in its own loop only."""
        return self._log

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the log's loop and return its result."""
        return self._bridge.run(work)

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yield the items of `source`, which runs in the log's loop and is closed there at the end."""
        return self._bridge.iterate(source)
