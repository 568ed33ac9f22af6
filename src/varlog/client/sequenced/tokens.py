"""[Q2] Tokens: positions from the sequencer, and the newest one that it gave (R-SEQ-1)."""

from __future__ import annotations

import asyncio
from typing import Final

from varlog.client.retry import Backoff
from varlog.client.routing import Routing
from varlog.client.sequenced.failure_rules import Token
from varlog.client.sequenced.projections import Projections
from varlog.model.errors import InvalidRequest, Unavailable, VarlogError
from varlog.model.lsn import GLSN
from varlog.model.projection import Projection
from varlog.rpc.messages import NextTokens, TokensAre

# One try. The sequencer has no disk on its path; who hears nothing asks again, and what was given to nobody gets filled.
TRY_S: Final = 0.5


class Tokens:
    """Of one client's topic."""

    def __init__(self, routing: Routing, projections: Projections) -> None:
        self._routing = routing
        self._projections = projections
        self._loop = asyncio.get_running_loop()

    async def take(self, projection: Projection, count: int, backoff: Backoff) -> tuple[Token, int]:
        """One try: positions, and how many before them are to be filled. What is raised was seen to: try again, under the
        projection that holds then."""
        sequencer, began = projection.sequencer, self._loop.time()
        try:
            if sequencer is None:
                raise Unavailable(
                    f"topic {self._routing.topic_name!r} has no sequencer: start one with `vseq start`"
                )
            request = NextTokens(projection.topic, projection.epoch, count)
            limit_s = min(TRY_S, backoff.remaining_s)
            given = await self._routing.ask_once(sequencer.address, request, TokensAre, limit_s)
        except InvalidRequest:
            raise
        except VarlogError as error:
            await self._projections.sequencer_failed(projection, error, began, backoff)
            raise
        self._projections.sequencer_answered(sequencer.address)
        return Token(given.first, count, projection.epoch, sequencer), given.skipped

    async def next(self, backoff: Backoff) -> GLSN:
        """The position that is given next: everything that was acknowledged is below it. Unavailable at the deadline."""
        while True:
            projection = await self._projections.get(backoff)
            try:
                token, _ = await self.take(projection, 0, backoff)
                return token.first
            except Unavailable as error:
                if backoff.spent:
                    raise Unavailable(f"the sequencer gave no answer in time: {error}") from error
