"""[R2] CommittedSubscription: merges all streams into one order (R-READ-3).

One task per stream fetches the next chunk while the last one is consumed: at most two chunks per stream. The subscription continues
across reconnects, forever. merge_rules alone decides what is consumed, so a repeated or torn fetch can neither skip nor repeat an
entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from varlog.client.chunk import Chunk
from varlog.client.committed.fetcher import Fetcher
from varlog.client.merge_rules import CHUNKS_PER_STREAM, Merge, MergedRange, fetch_bytes
from varlog.client.node_client import DamageReports
from varlog.client.ordering import check_position
from varlog.client.routing import ATTEMPT_S, Routing
from varlog.model.errors import Trimmed, Unavailable, UnknownTopic
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.rpc.messages import Fetch, FetchReply
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

# How long one fetch waits for new entries. Then the next replica is asked: this one may be cut off from the repository.
WAIT_S = 5.0

logger = get_logger("client")


class CommittedSubscription:
    """One subscription to a topic from `begin` (None: the oldest entry) up to but without `end` (None: forever)."""

    def __init__(self, routing: Routing, begin: GLSN | None, end: GLSN | None, timeout_s: float) -> None:
        if begin is not None:
            check_position("GLSN", begin)
        if end is not None:
            check_position("GLSN", end)
        self._routing = routing
        self._timeout_s = timeout_s
        self._begin = begin
        self._end = end
        self.next: GLSN = NO_GLSN
        self._tasks = Tasks("subscription", self._pump_failed)
        self._news = asyncio.Event()
        self._room: dict[LogStreamID, asyncio.Event] = {}
        self._fetchers: list[Fetcher] = []
        self._failure: BaseException | None = None
        self._reports = DamageReports(routing)

    async def merged_ranges(self, *, empty: bool = False) -> AsyncGenerator[list[MergedRange], None]:
        """Yields the following ranges, in order, in lists of what has arrived; each range's source is a Chunk. No list is
        empty: every position of a committed topic holds an entry."""
        merge = await self._start()
        stop_watching = self._routing.watch(lambda: self._follow_view(merge))
        try:
            self._follow_view(merge)
            while not merge.done:
                self._news.clear()
                if taken := merge.pop_ready():
                    for log_stream in {merged.log_stream: None for merged in taken}:
                        self._room[log_stream].set()
                    self.next = merge.next
                    yield taken
                    # Yield to the loop, so that the next chunks arrive: a consumer that never waits would starve the tasks that
                    # feed it.
                    await asyncio.sleep(0)
                    continue
                self._raise_if_over(merge)
                if merge.elsewhere:
                    await self._find_streams()
                await self._news.wait()
        finally:
            stop_watching()
            await self._tasks.close()

    def expect(self, glsn: GLSN) -> None:
        """Does nothing: every ordered position holds an entry."""

    async def _start(self) -> Merge:
        tail = await self._routing.tail(self._timeout_s)
        oldest = GLSN(tail.trimmed + 1)
        return Merge.starting(self._begin, self._end, oldest)

    def _raise_if_over(self, merge: Merge) -> None:
        if self._failure is not None:
            raise self._failure
        merge.raise_if_trimmed()

    def _follow_view(self, merge: Merge) -> None:
        """Start a task for every stream in the view, including streams that were added later."""
        if self._routing.closed:
            self._fail(Unavailable("the log was closed"))
            return
        try:
            streams = self._routing.streams
        except UnknownTopic as gone:
            self._fail(gone)
            return
        for fetcher in self._fetchers:
            fetcher.leave_worse()
        for stream in streams:
            if stream.log_stream not in self._room:
                merge.add(stream.log_stream)
                self._room[stream.log_stream] = asyncio.Event()
                self._fetchers.append(fetcher := Fetcher(self._routing, stream.log_stream, self._reports))
                _ = self._tasks.spawn(f"pump/ls={stream.log_stream}", self._pump(merge, fetcher))

    async def _find_streams(self) -> None:
        """Refresh the view: the next position is in a stream that is not known here."""
        try:
            await self._routing.refresh(ATTEMPT_S)
        except Unavailable:
            pass  # the fetch tasks continue, and their next answer calls this again

    # --- One stream -----------------------------------------------------------------------------------------------------

    async def _pump(self, merge: Merge, fetcher: Fetcher) -> None:
        log_stream = fetcher.log_stream
        room = self._room[log_stream]
        while not merge.done:
            while merge.sources(log_stream) >= CHUNKS_PER_STREAM:
                room.clear()
                await room.wait()
            llsn, glsn = merge.cursor(log_stream)
            try:
                await fetcher.fetch(
                    Fetch(log_stream, llsn, glsn, fetch_bytes(len(self._room)), WAIT_S),
                    lambda fetched, chunk: self._accept(merge, log_stream, fetched, chunk),
                )
            except Trimmed:
                await self._learn_trim(merge)
                await fetcher.pause()

    def _accept(
        self, merge: Merge, log_stream: LogStreamID, fetched: FetchReply, chunk: Chunk | None
    ) -> None:
        """Pass the response to the merge."""
        if chunk is not None:
            try:
                merge.offer(log_stream, fetched.rows, chunk)
            except ValueError as contradiction:
                logger.error(
                    logfmt("a storage node contradicts the order", log_stream=log_stream, error=contradiction)
                )
                raise Unavailable(str(contradiction)) from contradiction
        if fetched.next_llsn >= fetched.committed_end:
            merge.offered_up_to(log_stream, fetched.high_watermark)
        merge.trimmed_up_to(fetched.low_watermark)
        self._news.set()

    async def _learn_trim(self, merge: Merge) -> None:
        """A stream's next entry is trimmed, so the topic's next position is too: ask the repository for the trimmed position."""
        try:
            tail = await self._routing.tail(ATTEMPT_S)
        except Unavailable:
            return  # the fetch task retries, and then calls this again
        merge.trimmed_up_to(tail.trimmed)
        self._news.set()

    def _pump_failed(self, name: str, error: BaseException) -> None:
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._news.set()
