"""[R1 Q4] SequencedReader: point reads from the chain's tail (R-SEQ-6).

A read of a hole waits for its appender, and then fills the hole.
"""

from __future__ import annotations

import asyncio

from varlog.client.chunk import Chunk
from varlog.client.node_client import DamageReports
from varlog.client.ordering import check_position
from varlog.client.retry import Backoff
from varlog.client.sequenced.repair import HOLE_WAIT_S, Repair
from varlog.client.sequenced.tokens import TokenClient
from varlog.client.sequenced.units import TRY_S, Units
from varlog.model.entry import Entry
from varlog.model.errors import CorruptBatch, JunkPosition, NotWritten, Trimmed, Unavailable, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection, StripePosition
from varlog.rpc.messages import FetchUnit, FetchUnitReply, ReadUnit, ReadUnitReply
from varlog.runtime.logging import get_logger, logfmt

_log = get_logger("client")


class SequencedReader:
    """The point reads of one client of one topic."""

    def __init__(self, units: Units, tokens: TokenClient, repair: Repair, reports: DamageReports) -> None:
        self._units = units
        self._routing = units.routing
        self._projections = units.projections
        self._tokens = tokens
        self._repair = repair
        self._reports = reports
        self._loop = asyncio.get_running_loop()

    async def read(self, glsn: GLSN, timeout_s: float) -> Entry:
        """The entry at a position. NotWritten: not assigned yet. JunkPosition: abandoned by its appender. Trimmed: trimmed."""
        check_position("GLSN", glsn)
        backoff = Backoff(self._routing.environment, timeout_s)
        while True:
            projection = await self._projections.get(backoff)
            if glsn < projection.first:
                raise Trimmed(glsn, projection.first)
            place = projection.locate(glsn)
            trouble: VarlogError
            try:
                return await self._read(glsn, place, backoff)
            except NotWritten as missing:
                given = await self._tokens.next(backoff)
                if glsn >= given:
                    raise NotWritten(glsn, given - 1) from None
                trouble = missing
                await self.settle(glsn, given, place, backoff)
            except Trimmed:
                raise Trimmed(glsn, await self._oldest(glsn, backoff)) from None
            except CorruptBatch as damaged:
                if (
                    entry := await self._read_elsewhere(glsn, projection, place, backoff, damaged)
                ) is not None:
                    return entry
                trouble = damaged
            if backoff.spent:
                raise Unavailable(f"position {glsn} could not be read within {timeout_s:g} s: {trouble}")

    async def read_stream(self, log_stream: LogStreamID, llsn: LLSN, timeout_s: float) -> Entry:
        """The same, by the stream's own LLSN."""
        check_position("LLSN", llsn)
        backoff = Backoff(self._routing.environment, timeout_s)
        projection, _ = await self._units.chain_of(log_stream, backoff)
        glsn, _ = projection.position(log_stream, llsn)
        try:
            return await self.read(glsn, backoff.remaining_s)
        except NotWritten as missing:
            newest = projection.llsn_from(log_stream, GLSN(missing.newest + 1)) - 1
            raise NotWritten(llsn, newest) from None
        except Trimmed as trimmed:
            raise Trimmed(llsn, projection.llsn_from(log_stream, GLSN(trimmed.oldest))) from None

    async def _read(self, glsn: GLSN, place: StripePosition, backoff: Backoff) -> Entry:
        _, _, payload = await self._units.ask_tail(
            place.log_stream,
            lambda projection: ReadUnit(place.log_stream, projection.epoch, place.llsn),
            ReadUnitReply,
            backoff,
        )
        return entry_of(payload, glsn, place)

    async def settle(self, glsn: GLSN, given: GLSN, place: StripePosition, backoff: Backoff) -> None:
        """Wait for the appender of an assigned position to write it, then repair the position."""
        patience = self._loop.time() + min(HOLE_WAIT_S, backoff.remaining_s)
        pause = Backoff(self._routing.environment, HOLE_WAIT_S)
        try:
            while (left_s := patience - self._loop.time()) > 0:
                _, _, payload = await self._units.ask_tail(
                    place.log_stream,
                    lambda projection: FetchUnit(place.log_stream, projection.epoch, place.llsn, 1, left_s),
                    FetchUnitReply,
                    backoff,
                    left_s,
                )
                if payload:
                    return
                await pause.wait()
            await self._repair.repair(glsn, given, backoff)
        except VarlogError as error:
            # The failure was handled, or is the outcome that the next read will show.
            _log.debug(logfmt("hole not repaired yet", position=glsn, why=error))

    async def _read_elsewhere(
        self,
        glsn: GLSN,
        projection: Projection,
        place: StripePosition,
        backoff: Backoff,
        damaged: CorruptBatch,
    ) -> Entry | None:
        """Read an entry that is damaged at the tail from the nodes before it: they store the same bytes, and one copy may be
        intact."""
        *others, tail = projection.chain(place.log_stream).nodes
        self._reports.report(tail, place.log_stream, place.llsn, LLSN(place.llsn + 1), damaged)
        request = ReadUnit(place.log_stream, projection.epoch, place.llsn)
        for node in reversed(others):
            try:
                limit_s = min(TRY_S, backoff.remaining_s)
                _, payload = await self._units.call(
                    node, request, ReadUnitReply, timeout_s=limit_s, backoff=backoff
                )
                return entry_of(payload, glsn, place)
            except CorruptBatch as error:
                self._reports.report(node, place.log_stream, place.llsn, LLSN(place.llsn + 1), error)
            except JunkPosition:
                raise
            except VarlogError:
                continue
        await self._projections.pause(projection.epoch, backoff)
        return None

    async def _oldest(self, glsn: GLSN, backoff: Backoff) -> GLSN:
        """The oldest position of the topic. A unit knows only its own LLSNs: the repository knows how far the topic is trimmed."""
        return GLSN(max(glsn, (await self._routing.tail(backoff.remaining_s)).trimmed) + 1)


def entry_of(payload: bytearray, glsn: GLSN, place: StripePosition) -> Entry:
    """The one requested entry. Raises JunkPosition if it is junk."""
    chunk = Chunk(payload)
    if chunk.first_llsn != place.llsn or chunk.end_llsn != place.llsn + 1:
        raise CorruptBatch(f"requested LLSN {place.llsn}, received [{chunk.first_llsn}, {chunk.end_llsn})")
    if chunk.has_junk:
        raise JunkPosition(glsn)
    return chunk.entries(place.log_stream, glsn, place.llsn, 1)[0]
