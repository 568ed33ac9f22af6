"""[Q4] SequencedRangeReader: the batches of one log stream of a sequenced topic between two LLSNs, without the junk among them."""

from __future__ import annotations

from collections.abc import Sequence

from varlog.client.chunk import Chunk
from varlog.client.damage_reports import DamageReports
from varlog.client.range_reader import WAIT_S, Cut, RangeReader, Row
from varlog.client.retry import Backoff
from varlog.client.sequenced.fetcher import Caught, SequencedFetcher
from varlog.client.sequenced.reader import SequencedReader
from varlog.client.sequenced.tokens import Tokens
from varlog.client.sequenced.units import Units
from varlog.model.errors import NotWritten, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.lsn import LLSN


class SequencedRangeReader(RangeReader):
    """One reading of LLSNs [begin, end). Holes that were given to somebody are mended on the way."""

    def __init__(
        self,
        units: Units,
        tokens: Tokens,
        reader: SequencedReader,
        log_stream: LogStreamID,
        begin: LLSN,
        end: LLSN,
        *,
        timeout_s: float,
        cuts: Sequence[Cut] = (),
    ) -> None:
        super().__init__(units.routing, log_stream, begin, end, timeout_s=timeout_s, cuts=cuts)
        self._units = units
        self._tokens = tokens
        self._reader = reader
        self._reports = DamageReports(units.routing)

    async def _open(self) -> None:
        backoff = Backoff(self._routing.environment, self._timeout_s)
        await self._units.chain_of(self._log_stream, backoff)

    async def _ask(self, begin: LLSN, end: LLSN, size: int) -> tuple[Sequence[tuple[Row, ...]], Chunk]:
        """From the tail of the chain, until the deadline."""
        backoff = Backoff(self._routing.environment, self._timeout_s)
        # One for each fetch: pieces are fetched at once, and damage in one says nothing of the others.
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
                    f"{fetcher.trouble or 'nothing is there yet'}"
                )
            wait_s = min(WAIT_S, backoff.remaining_s)

    async def _settle(self, llsn: LLSN, backoff: Backoff) -> None:
        """Nothing is there: NotWritten if nobody was given it, else it is waited for, and mended."""
        projection = self._units.projections.now
        glsn, _ = projection.position(self._log_stream, llsn)
        given = await self._tokens.next(backoff)
        if glsn >= given:
            raise NotWritten(llsn, projection.llsn_from(self._log_stream, given) - 1)
        await self._reader.settle(glsn, given, projection.locate(glsn), backoff)


def _rows(
    caught: Caught, chunk: Chunk, log_stream: LogStreamID, begin: LLSN, end: LLSN
) -> list[tuple[Row, ...]]:
    """Where the entries of [begin, end) that came are in the order, cut where junk is between them."""
    stop = min(end, chunk.end_llsn)
    if not chunk.has_junk:
        return [tuple(caught.projection.rows(log_stream, begin, LLSN(stop)))]
    return [
        tuple(caught.projection.rows(log_stream, llsn, LLSN(llsn + count)))
        for llsn, count in chunk.without_junk(begin, stop - begin)
    ]
