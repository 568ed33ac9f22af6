"""[Q2] TokenClient: requests positions from the sequencer (R-SEQ-1)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from varlog.client.retry import Backoff
from varlog.client.routing import Routing
from varlog.client.sequenced.failure_rules import Token
from varlog.client.sequenced.projections import Projections
from varlog.model.errors import InvalidRequest, Overloaded, Unavailable, VarlogError
from varlog.model.lsn import GLSN
from varlog.model.projection import Projection
from varlog.rpc.messages import NextTokens, NextTokensReply

# Timeout of one try. The sequencer has no disk on its path; a retry gets new positions, and those of a lost answer are filled.
TRY_S: Final = 0.5
# Ended batches are reported with the next request; without one, after this time.
REPORT_S: Final = 0.02


class TokenClient:
    """The token requests of one client's topic."""

    def __init__(self, routing: Routing, projections: Projections) -> None:
        self._routing = routing
        self._projections = projections
        self._loop = asyncio.get_running_loop()
        # First positions of batches that have ended and are not reported yet.
        self._written: list[tuple[GLSN, int]] = []
        self._given_up: list[GLSN] = []
        self._reporting = False

    async def request(self, projection: Projection, count: int, backoff: Backoff) -> tuple[Token, int]:
        """One try: returns a token, and how many positions before it must be filled. An error raised was handled: retry under the
        then current projection. Overloaded: the batch would be written too late, so no position was assigned."""
        sequencer, began = projection.sequencer, self._loop.time()
        try:
            if sequencer is None:
                raise Unavailable(
                    f"topic {self._routing.topic_name!r} has no sequencer: start one with `vseq start`"
                )
            remaining_s = backoff.remaining_s
            within_ms = int(1000 * remaining_s) if count else 0
            request = (
                self._request(projection, count, within_ms)
                if count
                else NextTokens(projection.topic, projection.epoch, 0)
            )
            limit_s = min(TRY_S, remaining_s)
            given = await self._routing.ask_once(sequencer.address, request, NextTokensReply, limit_s)
        except (InvalidRequest, Overloaded):
            raise
        except VarlogError as error:
            await self._projections.sequencer_failed(projection, error, began, backoff)
            raise
        self._projections.sequencer_answered(sequencer.address)
        return Token(given.first, count, projection.epoch, sequencer), given.skipped

    async def next(self, backoff: Backoff) -> GLSN:
        """The next position to be assigned: everything acknowledged is below it. Raises Unavailable at the deadline."""
        while True:
            projection = await self._projections.get(backoff)
            try:
                token, _ = await self.request(projection, 0, backoff)
                return token.first
            except Unavailable as error:
                if backoff.spent:
                    raise Unavailable(f"the sequencer did not answer in time: {error}") from error

    def written(self, token: Token, took_s: float) -> None:
        """Record that the batch at these positions is on every node: the sequencer need not count it any more."""
        self._written.append((token.first, int(1e6 * took_s)))
        self._report_soon()

    def given_up(self, token: Token) -> None:
        """Record that nothing but junk will be written at these positions."""
        self._given_up.append(token.first)
        self._report_soon()

    def _report_soon(self) -> None:
        if not self._reporting:
            self._reporting = True
            self._loop.call_later(REPORT_S, self._report)

    def _report(self) -> None:
        self._reporting = False
        if (self._written or self._given_up) and not self._routing.closed:
            _ = self._routing.tasks.spawn("report tokens", self._report_now())

    async def _report_now(self) -> None:
        """One try: a batch whose end is not reported counts until its deadline."""
        with contextlib.suppress(VarlogError):
            projection = self._projections.now
            if projection.sequencer is not None:
                request = self._request(projection, 0, 0)
                await self._routing.ask_once(projection.sequencer.address, request, NextTokensReply, TRY_S)

    def _request(self, projection: Projection, count: int, within_ms: int) -> NextTokens:
        """A token request that also reports the batches that ended since the last one."""
        written, self._written = tuple(self._written), []
        given_up, self._given_up = tuple(self._given_up), []
        return NextTokens(projection.topic, projection.epoch, count, within_ms, written, given_up)
