"""[R2] RangeReader, RangeQueries: reads and measures a range of one log stream

For whoever wants one stream and no merge: a task of Spark, a chain that is looked at. What comes is dense in LLSN, and every entry
has its place in the topic's order: an answer with a gap, or one that contradicts itself, is not used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from varlog.client.chunk import Chunk
from varlog.client.committed.fetcher import Fetcher
from varlog.client.damage_reports import DamageReports
from varlog.client.retry import Backoff
from varlog.client.routing import ATTEMPT_S, Routing, expect
from varlog.client.routing_rules import in_turn
from varlog.model.cluster import LogStream
from varlog.model.entry import Position, RangeSize
from varlog.model.errors import NotWritten, Trimmed, Unavailable, UnknownLogStream, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.limits import FETCH_BYTES_MAX, MIB
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
from varlog.runtime.tasks import Tasks

# One fetch. The rows of single appends to several streams must fit beside it into one answer.
FETCH_BYTES: Final = 2 * MIB
# So many pieces are fetched at a time, and of each so many chunks wait to be taken.
PIECES_AHEAD: Final = 3
CHUNKS_AHEAD: Final = 2
# A replica that is behind its primary is given so long.
WAIT_S: Final = 1.0

Row = tuple[LLSN, GLSN, int]
# Rows (llsn, glsn, count) without a gap, cut to the range, and the batches that they are in, which may reach beyond it.
Part = tuple[tuple[Row, ...], Chunk]
# Where a batch begins, and about how many bytes there are from there to the next cut.
Cut = tuple[int, int]


class RangeReader:
    """One reading of LLSNs [begin, end). `cuts`, if known, say where in between a batch begins, and how many bytes there are about
    from there to the next cut: then fetches are under way at once, one for each."""

    def __init__(
        self,
        routing: Routing,
        log_stream: LogStreamID,
        begin: LLSN,
        end: LLSN,
        *,
        timeout_s: float,
        cuts: Sequence[Cut] = (),
    ) -> None:
        self._routing = routing
        self._log_stream = log_stream
        inside = [(LLSN(llsn), size) for llsn, size in cuts if begin <= llsn < end]
        begun = [] if inside and inside[0][0] == begin else [(begin, FETCH_BYTES)]
        self._pieces = deque(pairwise([*begun, *inside, (end, 0)]))
        self._timeout_s = timeout_s
        self._fetcher: Fetcher
        self._tasks = Tasks("range", lambda name, error: None)

    async def parts(self) -> AsyncGenerator[Part, None]:
        """What the range holds, in order. Trimmed: it was trimmed meanwhile; NotWritten: nothing is there yet."""
        await self._open()
        lanes: deque[asyncio.Queue[Part | Exception | None]] = deque()
        try:
            while lanes or self._pieces:
                while self._pieces and len(lanes) < PIECES_AHEAD:
                    (first, size), (stop, _) = self._pieces.popleft()
                    lanes.append(self._start(first, stop, size))
                part = await lanes[0].get()
                if isinstance(part, Exception):
                    raise part
                if part is None:
                    lanes.popleft()
                else:
                    yield part
        finally:
            await self._tasks.close()

    async def _open(self) -> None:
        """UnknownLogStream: the topic has none of this id."""
        await RangeQueries(self._routing).stream(self._log_stream, self._timeout_s)
        self._fetcher = Fetcher(self._routing, self._log_stream, DamageReports(self._routing))

    def _start(self, begin: LLSN, end: LLSN, size: int) -> asyncio.Queue[Part | Exception | None]:
        lane: asyncio.Queue[Part | Exception | None] = asyncio.Queue(CHUNKS_AHEAD)
        _ = self._tasks.spawn(f"fetch/ls={self._log_stream}", self._fill(lane, begin, end, size))
        return lane

    async def _fill(
        self, lane: asyncio.Queue[Part | Exception | None], begin: LLSN, end: LLSN, size: int
    ) -> None:
        """Fetch a piece that is about `size` bytes long, or, if it is longer than that, in fetches of that size."""
        left = size
        try:
            while begin < end:
                pieces, chunk = await self._ask(begin, end, min(left, FETCH_BYTES_MAX))
                begin, left = chunk.end_llsn, left - len(chunk.payload)
                if left <= 0:
                    left = size
                for rows in pieces:
                    await lane.put((rows, chunk))
            await lane.put(None)
        except Exception as error:  # noqa: BLE001 - whoever reads is owed it
            await lane.put(error)

    async def _ask(self, begin: LLSN, end: LLSN, size: int) -> tuple[Sequence[tuple[Row, ...]], Chunk]:
        """Rows from `begin` on, in pieces without a gap, and what they are in: from any replica, until the deadline."""
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
                    f"{self._fetcher.trouble or 'its replicas have not heard of it yet'}"
                )

    async def _check_written(self, llsn: LLSN, timeout_s: float) -> None:
        """NotWritten if nothing is there: only the primary knows that, and only while its epoch is the newest."""
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
        """What came, cut to [begin, end); None if nothing did. Unavailable: it cannot be true."""
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
                f"a replica of log stream {self._log_stream} gave LLSN {begin} and more with a gap"
            )
        if chunk.end_llsn > end:
            rows = tuple((llsn, glsn, min(count, end - llsn)) for llsn, glsn, count in rows if llsn < end)
        return rows, chunk


# [R2] RangeQueries: asks the replicas of a stream where entries lie: the bytes of a range, and the place of a time.

M = TypeVar("M", bound=Message)


class RangeQueries:
    """Questions of one client about one topic's streams. Any replica can answer; one that lacks entries is not believed."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def measure(
        self, log_stream: LogStreamID, begin: GLSN, end: GLSN, points_max: int, timeout_s: float
    ) -> RangeSize:
        request = MeasureRange(log_stream, begin, end, points_max)
        found = await self._ask(log_stream, request, MeasureRangeReply, lambda one: one.complete, timeout_s)
        return RangeSize(found.begin, found.end, found.bytes, found.points)

    async def find_time(self, log_stream: LogStreamID, time_us: int, timeout_s: float) -> Position:
        request = FindTime(log_stream, time_us)
        found = await self._ask(log_stream, request, FindTimeReply, lambda one: True, timeout_s)
        return Position(found.glsn, found.llsn, log_stream)

    async def stream(self, log_stream: LogStreamID, timeout_s: float) -> LogStream:
        """The stream, by a fresh view if the old one does not have it. UnknownLogStream: the topic has none of this id."""
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
        """The first good answer of the replicas, asked in turn until the deadline."""
        backoff = Backoff(self._routing.environment, timeout_s)
        trouble = "its replicas have not heard of all of it yet"
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
