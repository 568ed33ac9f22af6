"""[Q4] Repair: completes a position on its chain, or fills it (R-SEQ-7, R-SEQ-8).

Any client that needs the position repairs it, always from head to tail. A value at the head may have been read, and its writer
may still be writing it, so it is copied down the chain. A head without a value gets junk, and refuses a value that arrives later
(law 8).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, TypeVar

from varlog.client.chunk import Chunk
from varlog.client.node_client import DamageReports
from varlog.client.retry import Backoff
from varlog.client.sequenced.failure_rules import Token, still_ours
from varlog.client.sequenced.projections import WRITE, CallTarget
from varlog.client.sequenced.units import TRY_S, Units
from varlog.model.errors import AlreadyWritten, CorruptBatch, NotWritten, Trimmed, Unavailable, VarlogError
from varlog.model.ids import NodeID
from varlog.model.limits import BATCH_ENTRIES_MAX
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection, StripePosition
from varlog.rpc.messages import (
    Done,
    FillUnit,
    ListUnit,
    ListUnitReply,
    Message,
    ReadUnit,
    ReadUnitReply,
    WriteUnit,
)
from varlog.runtime.logging import get_logger, logfmt

M = TypeVar("M", bound=Message)

# How long the appender of an assigned position has to write it.
HOLE_WAIT_S: Final = 0.25
# Positions that their appender abandons are filled in the background: GIVEN_UP_MAX runs at a time, each for GIVE_UP_S. Up to
# GIVEN_UP_WAITING_MAX more are queued; further ones are left to their readers.
GIVEN_UP_MAX: Final = 16
GIVEN_UP_WAITING_MAX: Final = 1024
GIVE_UP_S: Final = 5.0

_log = get_logger("client")


class Repair:
    """The repairs of one client's topic."""

    def __init__(self, units: Units, reports: DamageReports) -> None:
        self._units = units
        self._projections = units.projections
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._giving_up = 0
        self._to_give_up: deque[Token] = deque(maxlen=GIVEN_UP_WAITING_MAX)

    async def repair(self, glsn: GLSN, end: GLSN, backoff: Backoff) -> None:
        """Make the tail store a value at `glsn`. All positions from there up to `end` were assigned at least HOLE_WAIT_S ago, so
        those that the head lacks are filled immediately. One try: a failure is handled here, and the next read shows the result.
        Raises Trimmed if the position is not needed any more."""
        projection = await self._projections.get(backoff)
        place = projection.locate(glsn)
        found = await self._find(projection, place, backoff)
        if found is None:
            await self._fill_hole(projection, place, min(place.run, end - glsn), backoff)
        else:
            holder, batch = found
            request = WriteUnit(place.log_stream, projection.epoch)
            await self._write(projection, place, request, holder + 1, backoff, batch)

    async def holds(self, projection: Projection, place: StripePosition, backoff: Backoff) -> bool:
        """Whether the head stores a value at a place, or did before it was trimmed."""
        try:
            return await self._find(projection, place, backoff) is not None
        except Trimmed:
            return True

    # --- In the background ------------------------------------------------------------------------------------------------

    def give_up(self, token: Token) -> None:
        """Fill positions that were assigned to this client and will not be used, so that no reader has to wait for them. Best
        effort."""
        if token.length <= 0:
            return
        self._to_give_up.append(token)
        if self._giving_up < GIVEN_UP_MAX:
            self._giving_up += 1
            self._units.spawn("give up", self._give_up_all())

    async def _give_up_all(self) -> None:
        try:
            while self._to_give_up:
                await self._give_up(self._to_give_up.popleft())
        finally:
            self._giving_up -= 1

    async def _give_up(self, token: Token) -> None:
        try:
            backoff = Backoff(self._units.routing.environment, GIVE_UP_S)
            glsn = token.first
            while glsn < token.end and not backoff.spent:
                projection = await self._projections.get(backoff)
                if not still_ours(token, projection):
                    return
                place = projection.locate(glsn)
                count = await self._fill_hole(projection, place, min(place.run, token.end - glsn), backoff)
                glsn = GLSN(glsn + count)
        except VarlogError as error:
            _log.debug(logfmt("abandoned positions not filled", first=token.first, why=error))

    # --- One place --------------------------------------------------------------------------------------------------------

    async def _find(
        self, projection: Projection, place: StripePosition, backoff: Backoff
    ) -> tuple[int, bytearray] | None:
        """The first node from the head on whose batch at this place is intact, and the batch. None: the head has none."""
        nodes = projection.chain(place.log_stream).nodes
        request = ReadUnit(place.log_stream, projection.epoch, place.llsn, whole=True)
        damage: CorruptBatch | None = None
        for index, node in enumerate(nodes):
            try:
                _, batch = await self._ask(projection, place, node, request, ReadUnitReply, backoff)
                Chunk(batch)
                return index, batch
            except CorruptBatch as error:
                damage = error
                self._reports.report(node, place.log_stream, place.llsn, LLSN(place.llsn + 1), error)
            except NotWritten:
                if damage is None:
                    return None
        await self._projections.pause(projection.epoch, backoff)
        raise Unavailable(f"LLSN {place.llsn} of log stream {place.log_stream} is damaged: {damage}")

    async def _fill_hole(
        self, projection: Projection, place: StripePosition, most: int, backoff: Backoff
    ) -> int:
        """Fill at most `most` positions from this place on that the head lacks. Returns the number of positions handled."""
        log_stream, llsn = place.log_stream, place.llsn
        head = projection.chain(log_stream).head
        most = min(most, BATCH_ENTRIES_MAX)
        listed, _ = await self._ask(
            projection, place, head, ListUnit(log_stream, llsn), ListUnitReply, backoff
        )
        first, count = next(((page[0], page[1]) for page in listed.pages), (LLSN(llsn + most), 0))
        if first <= llsn:
            return first + count - llsn  # another client was faster
        count = min(most, first - llsn)
        try:
            await self._write(
                projection, place, FillUnit(log_stream, projection.epoch, llsn, count), 0, backoff
            )
            _log.info(logfmt("filled a hole", log_stream=log_stream, llsn=llsn, count=count))
        except AlreadyWritten:
            # Another client is writing there: its value is not on disk yet, or was listed as missing before.
            await self._projections.pause(projection.epoch, backoff)
        return count

    async def _write(
        self,
        projection: Projection,
        place: StripePosition,
        request: Message,
        first: int,
        backoff: Backoff,
        batch: bytearray | bytes = b"",
    ) -> None:
        """Send the request to the nodes of the chain from number `first` on, in turn. AlreadyWritten: the head has another
        value."""
        for index, node in enumerate(projection.chain(place.log_stream).nodes):
            if index < first:
                continue
            try:
                await self._ask(projection, place, node, request, Done, backoff, batch)
            except AlreadyWritten as other:
                if index == 0:
                    raise
                _log.critical(
                    logfmt(
                        "law 8 violated: a node stores another value than the head of its chain",
                        log_stream=place.log_stream,
                        llsn=place.llsn,
                        node=node,
                    )
                )
                raise Unavailable(f"the nodes of a chain contradict each other: {other}") from other

    async def _ask(
        self,
        projection: Projection,
        place: StripePosition,
        node: NodeID,
        request: Message,
        answer: type[M],
        backoff: Backoff,
        batch: bytearray | bytes = b"",
    ) -> tuple[M, bytearray]:
        """One try. A failure that is not an answer of the unit has been handled when it is raised."""
        began = self._loop.time()
        try:
            limit_s = min(TRY_S, backoff.remaining_s)
            got = await self._units.call(node, request, answer, batch, timeout_s=limit_s, backoff=backoff)
        except (NotWritten, Trimmed, AlreadyWritten, CorruptBatch):
            raise
        except VarlogError as error:
            who = CallTarget(node, WRITE)
            await self._projections.node_failed(projection, place.log_stream, who, error, began, backoff)
            raise
        return got
