"""[R2] RangeReader, RangeQueries: reads and measures a range of one log stream.

For readers of one stream that need no merge: Spark tasks, idempotent writers. The result is dense in LLSN, and every entry has its
position in the topic's order. A response with a gap, or one that contradicts itself, is discarded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from varlog.client.chunk import Chunk, FetchPoint, Part
from varlog.client.committed.fetcher import Fetcher
from varlog.client.merge_rules import Row
from varlog.client.node_client import DamageReports
from varlog.client.range_pieces import RangePieces
from varlog.client.retry import Backoff
from varlog.client.routing import ATTEMPT_S, Routing, expect
from varlog.client.routing_rules import in_turn
from varlog.model.cluster import LogStream
from varlog.model.entry import Position, StreamRange
from varlog.model.errors import NotWritten, Trimmed, Unavailable, UnknownLogStream, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import (
    Fetch,
    FetchReply,
    FindTime,
    FindTimeReply,
    MeasureRange,
    MeasureRangeReply,
    Message,
)

# How long to wait for a replica that lags behind its primary.
WAIT_S: Final = 1.0


class RangeReader:
    """One reading of LLSNs [begin, end), from any replica. `cuts`: see RangePieces."""

    def __init__(
        self,
        routing: Routing,
        log_stream: LogStreamID,
        begin: LLSN,
        end: LLSN,
        *,
        timeout_s: float,
        cuts: Sequence[FetchPoint] = (),
    ) -> None:
        self._routing = routing
        self._log_stream = log_stream
        self._timeout_s = timeout_s
        self._pieces = RangePieces(self, log_stream, begin, end, cuts)
        self._fetcher: Fetcher

    def parts(self) -> AsyncGenerator[Part, None]:
        """See RangePieces."""
        return self._pieces.parts()

    async def open(self) -> None:
        """Raises UnknownLogStream if the topic has no stream of this id."""
        await RangeQueries(self._routing).stream(self._log_stream, self._timeout_s)
        self._fetcher = Fetcher(self._routing, self._log_stream, DamageReports(self._routing))

    async def fetch(self, begin: LLSN, end: LLSN, size: int) -> tuple[Sequence[tuple[Row, ...]], Chunk]:
        """Fetch from any replica, until the deadline."""
        backoff = Backoff(self._routing.environment, self._timeout_s)
        request = Fetch(self._log_stream, begin, bytes_max=size, wait_s=WAIT_S)
        while True:
            self._routing.check_open()
            part = await self._fetcher.fetch(
                request, lambda fetched, chunk: self._part(fetched, chunk, begin, end)
            )
            if part is not None:
                return [part[0]], part[1]
            await self._check_written(begin, backoff.remaining_s)
            if backoff.spent:
                raise Unavailable(
                    f"LLSN {begin} of log stream {self._log_stream} could not be read within {self._timeout_s:g} s: "
                    f"{self._fetcher.trouble or 'its replicas do not have it yet'}"
                )

    async def _check_written(self, llsn: LLSN, timeout_s: float) -> None:
        """Raise NotWritten if the LLSN is not written: only the primary knows that, and only while its epoch is the newest."""
        stream = self._routing.view.stream(self._log_stream)
        if stream is None:
            return
        try:
            fetched, _ = await self._fetcher.ask(stream.primary, Fetch(self._log_stream, llsn, bytes_max=1))
            view = await self._routing.refresh(timeout_s)
        except VarlogError:
            return
        now = view.stream(self._log_stream)
        if fetched.committed_end <= llsn and now is not None and now.epoch == stream.epoch:
            raise NotWritten(llsn, fetched.committed_end - 1)

    def _part(self, fetched: FetchReply, chunk: Chunk | None, begin: LLSN, end: LLSN) -> Part | None:
        """The response cut to [begin, end), or None if it is empty. Raises Unavailable if it contradicts itself."""
        rows = fetched.rows
        if chunk is None:
            return None
        whole = (
            rows[0][0] == begin
            and rows[-1][0] + rows[-1][2] == chunk.end_llsn
            and all(
                later[0] == row[0] + row[2] and later[1] >= row[1] + row[2] for row, later in pairwise(rows)
            )
        )
        if not whole:
            raise Unavailable(
                f"a replica of log stream {self._log_stream} returned LLSNs from {begin} on with a gap"
            )
        if chunk.end_llsn > end:
            rows = tuple((llsn, glsn, min(count, end - llsn)) for llsn, glsn, count in rows if llsn < end)
        return rows, chunk


M = TypeVar("M", bound=Message)


class RangeQueries:
    """Queries of one client about the streams of one topic. Any replica can answer; a replica that lacks entries is skipped."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def measure(
        self, log_stream: LogStreamID, begin: GLSN, end: GLSN, points_max: int, timeout_s: float
    ) -> StreamRange:
        request = MeasureRange(log_stream, begin, end, points_max)
        found = await self._ask(log_stream, request, MeasureRangeReply, lambda one: one.complete, timeout_s)
        return StreamRange(found.begin, found.end, found.bytes, found.points)

    async def find_time(self, log_stream: LogStreamID, time_us: int, timeout_s: float) -> Position:
        request = FindTime(log_stream, time_us)
        found = await self._ask(log_stream, request, FindTimeReply, lambda one: True, timeout_s)
        return Position(found.glsn, found.llsn, log_stream)

    async def stream(self, log_stream: LogStreamID, timeout_s: float) -> LogStream:
        """The stream, by a fresh view if the cached one does not contain it. Raises UnknownLogStream if the topic has no such
        stream."""
        for fresh in (False, True):
            if fresh:
                await self._routing.refresh(timeout_s)
            found = next((s for s in self._routing.streams if s.log_stream == log_stream), None)
            if found is not None:
                return found
        raise UnknownLogStream(log_stream)

    async def _ask(
        self,
        log_stream: LogStreamID,
        request: Message,
        answer: type[M],
        good: Callable[[M], bool],
        timeout_s: float,
    ) -> M:
        """The first usable response of the replicas, asked in turn until the deadline."""
        backoff = Backoff(self._routing.environment, timeout_s)
        trouble = "its replicas do not have all of it yet"
        while True:
            self._routing.check_open()
            stream = await self.stream(log_stream, backoff.remaining_s)
            for node in in_turn(
                stream.replicas, self._routing.turn, self._routing.failure_detector.avoided()
            ):
                try:
                    attempt_s = min(backoff.remaining_s, ATTEMPT_S)
                    connection = await self._routing.connection_to(node, attempt_s)
                    got, _ = await connection.call(request, timeout_s=attempt_s)
                    found = expect(got, answer)
                    self._routing.failure_detector.node_answered(node)
                    if good(found):
                        return found
                except Trimmed:
                    raise
                except VarlogError as error:
                    self._routing.report_failure(node, error)
                    trouble = str(error)
            if backoff.spent:
                raise Unavailable(
                    f"log stream {log_stream} could not be measured within {timeout_s:g} s: {trouble}"
                )
            self._routing.refresh_soon()
            await backoff.wait()
