"""[Q4] SequencedRangeQueries: where the entries of a sequenced topic's streams lie: the bytes of a range, and the place of a
time."""

from __future__ import annotations

from varlog.client.retry import Backoff
from varlog.client.sequenced.tokens import Tokens
from varlog.client.sequenced.units import Units
from varlog.model.cluster import changed
from varlog.model.errors import NotWritten, Trimmed
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN
from varlog.rpc.messages import (
    FindTimeReply,
    FindUnitTime,
    MeasureRangeReply,
    MeasureUnit,
    ReadUnit,
    ReadUnitReply,
)


class SequencedRangeQueries:
    """Questions of one client about one topic's streams, to the tails of their chains."""

    def __init__(self, units: Units, tokens: Tokens) -> None:
        self._units = units
        self._tokens = tokens

    async def measure(
        self, log_stream: LogStreamID, begin: GLSN, end: GLSN, points_max: int, timeout_s: float
    ) -> MeasureRangeReply:
        """`complete` whatever holes there are: whoever reads the range mends them."""
        backoff = Backoff(self._units.routing.environment, timeout_s)
        projection, _ = await self._units.chain_of(log_stream, backoff)
        low, high = (projection.llsn_from(log_stream, glsn) for glsn in (begin, end))
        trimmed = (await self._units.routing.tail(backoff.remaining_s)).trimmed
        if begin <= trimmed and begin < end:
            raise Trimmed(begin, trimmed + 1)
        if low >= high:
            return MeasureRangeReply(low, low, 0, (), complete=True)
        _, found, _ = await self._units.ask_tail(
            log_stream,
            lambda now: MeasureUnit(log_stream, now.epoch, low, high, points_max),
            MeasureRangeReply,
            backoff,
        )
        return changed(found, begin=low, end=high, complete=True)

    async def find_time(self, log_stream: LogStreamID, time_us: int, timeout_s: float) -> FindTimeReply:
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
            return FindTimeReply(found.llsn, newest)  # no entry is so late
        return FindTimeReply(found.llsn, projection.position(log_stream, found.llsn)[0])
