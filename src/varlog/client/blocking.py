"""The blocking Log and Admin, over one private loop thread

Iterators move whole chunks and record batches between the threads, never entries, and fetch the next one while the last
one is used.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from varlog.client import admin as asynchronous_admin
from varlog.client import log as asynchronous_log
from varlog.client.committed.range_reader import Cut, Part
from varlog.client.log import lists_of
from varlog.client.merge_rules import Stretch
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
from varlog.model.entry import Entry, Position, Run
from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import FIRST_GLSN, GLSN, LLSN
from varlog.rpc.messages import FindTimeReply, GetClusterStatusReply, MeasureRangeReply
from varlog.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Asynchronous = asynchronous_log.Log | asynchronous_admin.Admin


class _Blocking:
    """What lives in a loop thread of its own, and ends with it: closed, left by `with`, forgotten, or at exit."""

    def __init__(self, thread: LoopThread, inner: Asynchronous) -> None:
        self._thread = thread
        # Not __del__: at exit that would come after the loop thread has been stopped in its tracks.
        self._ended = weakref.finalize(self, _end, thread, inner)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_open()
        except Unavailable:
            work.close()
            raise
        return self._thread.run(work)

    def _check_open(self) -> None:
        if not self._ended.alive:
            raise Unavailable("it is closed: open or connect again")

    def close(self) -> None:
        """Let go of everything; again is harmless."""
        self._ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Log(_Blocking):
    """One topic of a cluster, or of a directory. Safe to use from several threads: their appends share batches.

    Every call ends by its deadline (`timeout_s`, or the log's own). An append is tried until then, over lost connections, seals and
    failovers, and is in the log once however often it was tried (R-ORD-7). One that raises Rejected is certainly not in the
    log; Overloaded, a Rejected, is raised in the calling thread, after at most a tenth of the append's time. Only one that was
    sent, and of which nobody could say before the deadline what became of it, raises OutcomeUnknown: it may be in the log, or
    may still get there, once (law 10).
    """

    def __init__(self, thread: LoopThread, log: asynchronous_log.Log) -> None:
        super().__init__(thread, log)
        self._log = log
        self._refusals = RefusalPace()

    def append(
        self, data: Buffer, *, log_stream: LogStreamID | int | None = None, timeout_s: float | None = None
    ) -> Position:
        """Append one entry to a running log stream of the topic, or to the one that is named. Returns its position.

        Retries are made inside and never double it: do not repeat the call unless it raises Rejected.
        """
        # Refused here, not in the loop: two changes of threads for each refusal would take the processor from what is served.
        if type(data) is bytes and (
            refusal := self._log.refusal(len(data), log_stream=log_stream, timeout_s=timeout_s)
        ):
            self._check_open()
            limit_s = self._log.timeout_s if timeout_s is None else timeout_s
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
        """Delete every entry at or below `glsn`, on every replica, for ever (R-TRIM-1). With `respect_readers`: ReaderBehind, and
        nothing deleted, if a named reader has not read so far."""
        self._run(self._log.trim(glsn, respect_readers=respect_readers, timeout_s=timeout_s))

    def read(self, glsn: GLSN | int, *, timeout_s: float | None = None) -> Entry:
        """The entry at a position. NotWritten if nothing has it yet, Trimmed if it was trimmed (R-READ-1)."""
        return self._run(self._log.read(glsn, timeout_s=timeout_s))

    def read_stream(
        self, log_stream: LogStreamID | int, llsn: LLSN | int, *, timeout_s: float | None = None
    ) -> Entry:
        """The entry at a position of one log stream."""
        return self._run(self._log.read_stream(log_stream, llsn, timeout_s=timeout_s))

    def tail(self, *, timeout_s: float | None = None) -> GLSN:
        """The newest position; while the log is empty the one before its first, mostly 0. No acknowledged append is above it."""
        return self._run(self._log.tail(timeout_s=timeout_s))

    def trimmed(self, *, timeout_s: float | None = None) -> GLSN:
        """The newest trimmed position; 0 if nothing was. The oldest entry that can be read is the next one."""
        return self._run(self._log.trimmed(timeout_s=timeout_s))

    def mark(self, *, timeout_s: float | None = None) -> TopicMark:
        """Newest and newest trimmed position, by one question."""
        return self._run(self._log.mark(timeout_s=timeout_s))

    def subscribe(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> Generator[Entry, None, None]:
        """Entries in total order from `begin` on (None: the oldest that is there), up to but without `end` (None: for ever).

        Waits for what is not written yet; goes on over reconnects, restarts and new log streams without a skip or a repeat
        (R-READ-3). Trimmed if the next position is trimmed.
        """
        return self._entries(self._log.stretches(begin, end))

    def subscribe_lists(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> Generator[list[Entry], None, None]:
        """As `subscribe`, in lists of what has arrived, of up to about a thousand: less to do for each entry."""
        return self._lists(self._log.stretches(begin, end))

    def arrow(
        self, begin: GLSN | int | None = FIRST_GLSN, end: GLSN | int | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """As `subscribe`, as record batches with the columns glsn, llsn, log_stream, timestamp and data."""
        return self._items(self._log.arrow(begin, end))

    def measure(
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
        return self._run(self._log.measure(log_stream, begin, end, points_max, timeout_s=timeout_s))

    def find_time(
        self, log_stream: LogStreamID | int, time_us: int, *, timeout_s: float | None = None
    ) -> FindTimeReply:
        """The first entry of a stream that was appended at or after a time, in microseconds since 1970 UTC; as good as the clocks
        of those who append agree. Where there is none: one past the newest."""
        return self._run(self._log.find_time(log_stream, time_us, timeout_s=timeout_s))

    def chunks(
        self,
        log_stream: LogStreamID | int,
        llsn_begin: LLSN | int,
        llsn_end: LLSN | int,
        *,
        cuts: Sequence[Cut] = (),
        timeout_s: float | None = None,
    ) -> Generator[Part, None, None]:
        """Whole batches of one stream, checked end to end: rows (llsn, glsn, count) that are exactly [llsn_begin, llsn_end), and
        the chunk that they are in."""
        return self._items(self._log.chunks(log_stream, llsn_begin, llsn_end, cuts=cuts, timeout_s=timeout_s))

    def range(
        self,
        log_stream: LogStreamID | int,
        llsn_begin: LLSN | int,
        llsn_end: LLSN | int,
        *,
        cuts: Sequence[Cut] = (),
        timeout_s: float | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """As `chunks`, as record batches of about 1 MiB with the columns of `arrow`."""
        return self._items(self._log.range(log_stream, llsn_begin, llsn_end, cuts=cuts, timeout_s=timeout_s))

    def _entries(self, source: AsyncGenerator[list[Stretch], None]) -> Generator[Entry, None, None]:
        for entries in self._lists(source):
            yield from entries

    def _lists(self, source: AsyncGenerator[list[Stretch], None]) -> Generator[list[Entry], None, None]:
        # Whole chunks change threads, and are taken apart here: a list would cost more on its way than it takes to make.
        for taken in self._items(source):
            yield from lists_of(taken)

    def _items(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        feed = _Feed(source)
        coming = None
        try:
            if not self._ended.alive:
                raise Unavailable("it is closed: open or connect again")
            coming = self._thread.start(feed.next())
            while (item := coming.wait()) is not None:
                coming = self._thread.start(feed.next())
                yield item
        finally:
            if coming is not None and self._ended.alive:
                coming.cancel()
                self._thread.run(feed.close())

    # --- For what is built on a log and has async methods of its own: it lives in the log's loop ------------------------------

    @property
    def asynchronous(self) -> asynchronous_log.Log:
        """The log itself, which is used in its loop alone."""
        return self._log

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, which is carried out in the log's loop."""
        return self._run(work)

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """What `source` yields, which lives in the log's loop; it is closed there at the end."""
        return self._items(source)

    @property
    def closed(self) -> bool:
        return not self._ended.alive

    def set_reader(
        self, name: str, position: GLSN | int, *, back: bool = False, timeout_s: float | None = None
    ) -> NamedReader:
        """Say that the reader of this name is done with everything up to `position`: others see how far behind it is, and a trim
        can respect it. A smaller position than the one known moves nothing, unless `back` allows it."""
        return self._run(self._log.set_reader(name, position, back=back, timeout_s=timeout_s))

    def readers(self, *, timeout_s: float | None = None) -> tuple[NamedReader, ...]:
        """The topic's named readers."""
        return self._run(self._log.readers(timeout_s=timeout_s))

    def forget_reader(self, name: str, *, timeout_s: float | None = None) -> None:
        """No trim waits for this reader any more; one that is not there is forgotten already."""
        self._run(self._log.forget_reader(name, timeout_s=timeout_s))

    def begin_write(
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
        return self._run(self._log.begin_write(name, batch, streams, kept=kept, timeout_s=timeout_s))

    def end_write(self, name: str, batch: int, *, timeout_s: float | None = None) -> NamedWriter:
        """Say that everything of this batch is in the log: who begins it again is told that it is finished."""
        return self._run(self._log.end_write(name, batch, timeout_s=timeout_s))

    def writers(self, *, timeout_s: float | None = None) -> tuple[NamedWriter, ...]:
        """The topic's named writers, each with its newest batch."""
        return self._run(self._log.writers(timeout_s=timeout_s))

    def forget_writer(self, name: str, *, timeout_s: float | None = None) -> None:
        """A job that uses this name later starts over. Forgetting a name that does not exist does nothing."""
        self._run(self._log.forget_writer(name, timeout_s=timeout_s))

    @property
    def topic(self) -> Topic:
        return self._log.topic

    @property
    def streams(self) -> tuple[LogStream, ...]:
        """The topic's log streams, as of the newest view that was needed."""
        return self._log.streams

    def view(self, *, timeout_s: float | None = None) -> ClusterView:
        """A fresh view of the cluster."""
        return self._run(self._log.view(timeout_s=timeout_s))


class Admin(_Blocking):
    """Administration of one cluster."""

    def __init__(self, thread: LoopThread, admin: asynchronous_admin.Admin) -> None:
        super().__init__(thread, admin)
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
        """A topic with so many log streams of so many replicas (0: the cluster's default). One that is there already is fine.

        `first` is the position that its first entry gets: for a copy of a topic whose beginning is gone. Of a sequenced topic the
        log streams take turns, `stripe_size` positions each (0: the default), and form replica groups by `grouping` (R-SEQ-3)."""
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
        """Newest and newest trimmed position of a topic."""
        return self._run(self._admin.topic_mark(name))

    def add_stream(self, topic: str, *, replicas: int = 0) -> LogStream:
        return self._run(self._admin.add_stream(topic, replicas=replicas))

    def seal_stream(self, log_stream: LogStreamID | int) -> LogStream:
        """Stop appends to a stream, until it is unsealed by hand."""
        return self._run(self._admin.seal_stream(log_stream))

    def unseal_stream(self, log_stream: LogStreamID | int) -> LogStream:
        return self._run(self._admin.unseal_stream(log_stream))

    def streams(self, topic: str | None = None) -> tuple[LogStream, ...]:
        return self._run(self._admin.streams(topic))

    def readers(self, topic: str | None = None) -> tuple[NamedReader, ...]:
        """The named readers of a topic, or of all."""
        return self._run(self._admin.readers(topic))

    def forget_reader(self, topic: str, name: str) -> None:
        """No trim waits for this reader any more; one that is not there is forgotten already."""
        self._run(self._admin.forget_reader(topic, name))

    def writers(self, topic: str | None = None) -> tuple[NamedWriter, ...]:
        """The named writers of a topic, or of all, each with its newest batch."""
        return self._run(self._admin.writers(topic))

    def forget_writer(self, topic: str, name: str) -> None:
        """A job that uses this name later starts over. Forgetting a name that does not exist does nothing."""
        self._run(self._admin.forget_writer(topic, name))

    def add_node(self, address: str) -> None:
        """Register the storage node that listens at `address`."""
        self._run(self._admin.add_node(address))

    def remove_node(self, node: NodeID | int) -> None:
        self._run(self._admin.remove_node(node))

    def nodes(self) -> tuple[StorageNode, ...]:
        return self._run(self._admin.nodes())

    def view(self) -> ClusterView:
        """What the metadata repository knows."""
        return self._run(self._admin.view())

    def status(self) -> GetClusterStatusReply:
        """The view, what each storage node said last, and every topic's newest position, as the manager sees it."""
        return self._run(self._admin.status())


class _Feed(Generic[T]):
    """An async generator that is asked by another thread: one question at a time, and closed only between two."""

    def __init__(self, source: AsyncGenerator[T, None]) -> None:
        self._source = source
        self._lock = asyncio.Lock()

    async def next(self) -> T | None:
        """The next item, or None at the end."""
        async with self._lock:
            return await anext(self._source, None)

    async def close(self) -> None:
        async with self._lock:
            await self._source.aclose()


def start(make: Coroutine[Any, Any, T]) -> tuple[LoopThread, T]:
    """A loop thread, and what `make` made in it; no thread is left behind if that fails."""
    thread = LoopThread("varlog")
    try:
        return thread, thread.run(make)
    except BaseException:
        thread.close()
        raise


def _end(thread: LoopThread, inner: Asynchronous) -> None:
    if thread.closed:
        return
    try:
        if not thread.inside:
            thread.run(inner.close())
    finally:
        thread.close()


# [A1] PURE. RefusalPace: how long a refused thread of a blocking log waits before it is answered.
#
# Threads share one processor with the loop that serves their appends. A thread that is refused costs little, but hundreds that
# try again at once leave the loop no time: nothing is served, and all are refused. So refusals of one log are answered one after
# the other, with SPACING_S between two; none waits for longer than a tenth of its time for that.

SPACING_S: Final = 0.0001
SHARE: Final = 0.1
# A shorter pause is not worth the change of threads.
PAUSE_S_MIN: Final = 0.001


class RefusalPace:
    """Of one log. Used by any thread without a lock: two that come at once may get the same place, which does no harm."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = -math.inf  # when the last one was, or will be, answered

    def pause_s(self, now: float, timeout_s: float) -> float:
        """How long one that may take `timeout_s` waits; 0: it is answered now."""
        self._next = at = min(max(self._next + SPACING_S, now), now + SHARE * timeout_s)
        return at - now if at - now >= PAUSE_S_MIN else 0.0
