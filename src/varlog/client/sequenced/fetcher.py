"""[Q4] SequencedFetcher: fetches one log stream from its chain's tail.

If the tail is damaged, it asks the nodes before it. It decides which node to ask, never what to ask for: its user tracks the
position, and a failed try returns nothing.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from varlog.client.chunk import Chunk
from varlog.client.node_client import DamageReports
from varlog.client.retry import Backoff
from varlog.client.sequenced.projections import READ, CallTarget
from varlog.client.sequenced.units import TRY_S, Units
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, NotWritten, Trimmed, Unavailable, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import LLSN
from varlog.model.projection import Projection
from varlog.rpc.messages import FetchUnit, FetchUnitReply


class Caught(NamedTuple):
    """What was fetched, and the projection of the request, which maps these entries to the order."""

    projection: Projection
    fetched: FetchUnitReply
    chunk: Chunk | None


class SequencedFetcher:
    """The fetches of one stream, for one reader."""

    def __init__(self, units: Units, log_stream: LogStreamID, reports: DamageReports) -> None:
        self.log_stream = log_stream
        self.trouble: VarlogError | None = None  # why the latest try failed
        self._units = units
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._damaged = 0  # how many nodes at the end of the chain have returned damaged batches
        self._waits: dict[int, tuple[Epoch, asyncio.Timeout]] = {}

    async def fetch(self, llsn: LLSN, bytes_max: int, wait_s: float, backoff: Backoff) -> Caught | None:
        """Ask once. None: the call failed and was handled, or there is a newer projection; ask again. Raises Trimmed."""
        projections = self._units.projections
        projection, nodes = await self._units.chain_of(self.log_stream, backoff)
        self._damaged = min(self._damaged, len(nodes) - 1)
        node = nodes[-1 - self._damaged]
        began = self._loop.time()
        # From a node before the tail, fetch one batch at a time: that batch is at the tail as well, later ones may not be.
        request = FetchUnit(
            self.log_stream, projection.epoch, llsn, 1 if self._damaged else bytes_max, wait_s
        )
        try:
            caught = await self._ask(projection, node, request, min(wait_s + TRY_S, backoff.remaining_s))
        except Trimmed:
            raise
        except CorruptBatch as error:
            self.trouble = error
            self._reports.report(node, self.log_stream, llsn, LLSN(llsn + 1), error)
            self._damaged += 1
            if self._damaged >= len(nodes):
                self._damaged = 0
                await projections.pause(projection.epoch, backoff)
            return None
        except VarlogError as error:
            self.trouble = error
            self._damaged = 0
            who = CallTarget(node, READ)
            await projections.node_failed(projection, self.log_stream, who, error, began + wait_s, backoff)
            return None
        if caught is not None:
            projections.answered(node, READ)
            self._damaged = 0
        return caught

    def leave_old(self) -> None:
        """Stop waiting for nodes of an old projection."""
        try:
            epoch = self._units.projections.now.epoch
        except VarlogError:
            return
        for asked, patience in list(self._waits.values()):
            if asked != epoch:
                patience.reschedule(self._loop.time())

    async def _ask(
        self, projection: Projection, node: NodeID, request: FetchUnit, timeout_s: float
    ) -> Caught | None:
        try:
            async with asyncio.timeout(None) as patience:
                self._waits[id(patience)] = (projection.epoch, patience)
                try:
                    fetched, payload = await self._units.call(
                        node, request, FetchUnitReply, timeout_s=timeout_s
                    )
                except NotWritten as missing:
                    raise Unavailable(str(missing)) from missing
                finally:
                    del self._waits[id(patience)]
        except TimeoutError:
            return None
        if not payload:
            return Caught(projection, fetched, None)
        chunk = Chunk(payload)
        if not chunk.first_llsn <= request.llsn < chunk.end_llsn:
            raise CorruptBatch(
                f"requested LLSN {request.llsn}, received [{chunk.first_llsn}, {chunk.end_llsn})"
            )
        return Caught(projection, fetched, chunk)
