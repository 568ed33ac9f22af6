"""[R2] CommittedSubscription: merges all streams into one order (R-READ-3).

Each stream is fetched from its replicas, in turn. The subscription continues across reconnects, forever.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from varlog.client.chunk import Chunk
from varlog.client.committed.fetcher import Fetcher
from varlog.client.merge_loop import MergeLoop
from varlog.client.merge_rules import Merge, MergedRange
from varlog.client.node_client import DamageReports
from varlog.client.ordering import check_position
from varlog.client.routing import ATTEMPT_S, Routing
from varlog.model.errors import Trimmed, Unavailable, UnknownTopic
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.rpc.messages import Fetch, FetchReply

# How long one fetch waits for new entries. Then the next replica is asked: this one may be cut off from the repository.
WAIT_S = 5.0


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
        self._merging = MergeLoop(routing)
        self._fetchers: list[Fetcher] = []
        self._reports = DamageReports(routing)

    async def merged_ranges(self, *, empty: bool = False) -> AsyncGenerator[list[MergedRange], None]:
        """Yields the following ranges, in order, in lists of what has arrived; each range's source is a Chunk. No list is
        empty: every position of a committed topic holds an entry."""
        merge = await self._start()
        async with aclosing(self._merging.merged_ranges(merge, self._follow_view, self._wait_next)) as merged:
            async for taken in merged:
                self.next = merge.next
                yield taken

    def expect(self, glsn: GLSN) -> None:
        """Does nothing: every ordered position holds an entry."""

    async def _start(self) -> Merge:
        tail = await self._routing.tail(self._timeout_s)
        oldest = GLSN(tail.trimmed + 1)
        return Merge.starting(self._begin, self._end, oldest)

    def _follow_view(self) -> None:
        """Start a task for every stream in the view, including streams that were added later."""
        if self._routing.closed:
            self._merging.fail(Unavailable("the log was closed"))
            return
        try:
            streams = self._routing.streams
        except UnknownTopic as gone:
            self._merging.fail(gone)
            return
        for fetcher in self._fetchers:
            fetcher.leave_worse()
        for stream in streams:
            if not self._merging.has(stream.log_stream):
                self._fetchers.append(fetcher := Fetcher(self._routing, stream.log_stream, self._reports))
                self._merging.add(stream.log_stream, self._pump(fetcher))

    async def _wait_next(self) -> None:
        if self._merging.merge.elsewhere:
            await self._find_streams()
        await self._merging.news.wait()

    async def _find_streams(self) -> None:
        """Refresh the view: the next position is in a stream that is not known here."""
        try:
            await self._routing.refresh(ATTEMPT_S)
        except Unavailable:
            pass  # the fetch tasks continue, and their next answer calls this again

    # --- One stream -----------------------------------------------------------------------------------------------------

    async def _pump(self, fetcher: Fetcher) -> None:
        merge, log_stream = self._merging.merge, fetcher.log_stream
        while not merge.done:
            await self._merging.wait_room(log_stream)
            llsn, glsn = merge.cursor(log_stream)
            try:
                await fetcher.fetch(
                    Fetch(log_stream, llsn, glsn, self._merging.fetch_bytes, WAIT_S),
                    lambda fetched, chunk: self._accept(log_stream, fetched, chunk),
                )
            except Trimmed:
                await self._merging.learn_trim(ATTEMPT_S)
                await fetcher.pause()

    def _accept(self, log_stream: LogStreamID, fetched: FetchReply, chunk: Chunk | None) -> None:
        """Pass the response to the merge."""
        if chunk is not None:
            self._merging.offer(log_stream, fetched.rows, chunk)
        merge = self._merging.merge
        if fetched.next_llsn >= fetched.committed_end:
            merge.offered_up_to(log_stream, fetched.high_watermark)
        merge.trimmed_up_to(fetched.low_watermark)
        self._merging.news.set()
