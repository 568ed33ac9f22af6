"""[Q4] SequencedRangeReader, SequencedRangeQueries: reads and measures a range."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from varlog.client.chunk import Chunk, FetchPoint, Part
from varlog.client.merge_rules import Row
from varlog.client.node_client import DamageReports
from varlog.client.range_pieces import RangePieces
from varlog.client.retry import Backoff
from varlog.client.sequenced.fetcher import Caught, SequencedFetcher
from varlog.client.sequenced.reader import SequencedReader
from varlog.client.sequenced.tokens import TokenClient
from varlog.client.sequenced.units import Units
from varlog.model.entry import Position, StreamRange
from varlog.model.errors import NotWritten, Trimmed, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import (
    FindTimeReply,
    FindUnitTime,
    MeasureRangeReply,
    MeasureUnit,
    ReadUnit,
    ReadUnitReply,
)

# How long a fetch waits for an entry that is not written yet.
WAIT_S: Final = 1.0


class SequencedRangeReader:
    """One reading of LLSNs [begin, end), from the tail of the chain. Holes at assigned positions are filled on the way.
    `cuts`: see RangePieces."""

    def __init__(
        self,
        units: Units,
        tokens: TokenClient,
        reader: SequencedReader,
        log_stream: LogStreamID,
        begin: LLSN,
        end: LLSN,
        *,
        timeout_s: float,
        cuts: Sequence[FetchPoint] = (),
    ) -> None:
        self._routing = units.routing
        self._log_stream = log_stream
        self._timeout_s = timeout_s
        self._pieces = RangePieces(self, log_stream, begin, end, cuts)
        self._units = units
        self._tokens = tokens
        self._reader = reader
        self._reports = DamageReports(units.routing)

    def parts(self) -> AsyncGenerator[Part, None]:
        """See RangePieces."""
        return self._pieces.parts()

    async def open(self) -> None:
        """Raises UnknownLogStream if the topic has no stream of this id."""
        backoff = Backoff(self._routing.environment, self._timeout_s)
        await self._units.chain_of(self._log_stream, backoff)

    async def fetch(self, begin: LLSN, end: LLSN, size: int) -> tuple[Sequence[tuple[Row, ...]], Chunk]:
        """Fetch from the tail of the chain, until the deadline."""
        backoff = Backoff(self._routing.environment, self._timeout_s)
        # One fetcher per fetch: pieces are fetched concurrently, and damage in one says nothing about the others.
        fetcher = SequencedFetcher(self._units, self._log_stream, self._reports)
        wait_s = 0.0
        while True:
            self._routing.check_open()
            caught = await fetcher.fetch(begin, size, wait_s, backoff)
            if caught is not None and caught.chunk is not None:
                return _rows(caught, caught.chunk, self._log_stream, begin, end), caught.chunk
            if caught is not None:
                await self._settle(begin, backoff)
            if backoff.spent:
                raise Unavailable(
                    f"LLSN {begin} of log stream {self._log_stream} could not be read within {self._timeout_s:g} s: "
                    f"{fetcher.trouble or 'nothing is written there yet'}"
                )
            wait_s = min(WAIT_S, backoff.remaining_s)

    async def _settle(self, llsn: LLSN, backoff: Backoff) -> None:
        """Handle an LLSN that is not written: raise NotWritten if its position was not assigned, otherwise wait for it, then fill
        it."""
        projection = self._units.projections.now
        glsn, _ = projection.position(self._log_stream, llsn)
        given = await self._tokens.next(backoff)
        if glsn >= given:
            raise NotWritten(llsn, projection.llsn_from(self._log_stream, given) - 1)
        await self._reader.settle(glsn, given, projection.locate(glsn), backoff)


def _rows(
    caught: Caught, chunk: Chunk, log_stream: LogStreamID, begin: LLSN, end: LLSN
) -> list[tuple[Row, ...]]:
    """The rows of the received entries in [begin, end), split where junk lies between them."""
    stop = min(end, chunk.end_llsn)
    if not chunk.has_junk:
        return [tuple(caught.projection.rows(log_stream, begin, LLSN(stop)))]
    return [
        tuple(caught.projection.rows(log_stream, llsn, LLSN(llsn + count)))
        for llsn, count in chunk.without_junk(begin, stop - begin)
    ]


class SequencedRangeQueries:
    """Queries of one client about the streams of one topic, sent to the tails of their chains."""

    def __init__(self, units: Units, tokens: TokenClient) -> None:
        self._units = units
        self._tokens = tokens

    async def measure(
        self, log_stream: LogStreamID, begin: GLSN, end: GLSN, points_max: int, timeout_s: float
    ) -> StreamRange:
        """Measure a range. Holes do not matter: reading the range fills them."""
        backoff = Backoff(self._units.routing.environment, timeout_s)
        projection, _ = await self._units.chain_of(log_stream, backoff)
        low, high = (projection.llsn_from(log_stream, glsn) for glsn in (begin, end))
        trimmed = (await self._units.routing.tail(backoff.remaining_s)).trimmed
        if begin <= trimmed and begin < end:
            raise Trimmed(begin, trimmed + 1)
        if low >= high:
            return StreamRange(low, low, 0)
        _, found, _ = await self._units.ask_tail(
            log_stream,
            lambda now: MeasureUnit(log_stream, now.epoch, low, high, points_max),
            MeasureRangeReply,
            backoff,
        )
        return StreamRange(low, high, found.bytes, found.points)

    async def find_time(self, log_stream: LogStreamID, time_us: int, timeout_s: float) -> Position:
        backoff = Backoff(self._units.routing.environment, timeout_s)
        newest = await self._tokens.next(backoff)
        projection, found, _ = await self._units.ask_tail(
            log_stream, lambda now: FindUnitTime(log_stream, now.epoch, time_us), FindTimeReply, backoff
        )
        try:
            await self._units.ask_tail(
                log_stream, lambda now: ReadUnit(log_stream, now.epoch, found.llsn), ReadUnitReply, backoff
            )
        except NotWritten:
            return Position(newest, found.llsn, log_stream)  # no entry was appended at or after that time
        return Position(projection.position(log_stream, found.llsn)[0], found.llsn, log_stream)
