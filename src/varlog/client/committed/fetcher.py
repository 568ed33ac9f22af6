"""[R2] Fetcher: fetches one log stream from its replicas, in turn.

Replicas that failed come last. What is fetched is verified, and damage is reported. A Fetcher decides which node to ask, never what
to ask for: its user tracks the position, and a failed try returns nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from varlog.client.chunk import Chunk
from varlog.client.node_client import DamageReports
from varlog.client.retry import Backoff
from varlog.client.routing import ATTEMPT_S, Routing, expect
from varlog.client.routing_rules import in_turn
from varlog.model.cluster import LogStream
from varlog.model.errors import CorruptBatch, Trimmed, Unavailable, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import LLSN
from varlog.rpc.messages import Fetch, FetchReply
from varlog.runtime.logging import get_logger, logfmt

T = TypeVar("T")

# Converts a response, with its batches if it has any, to the result. Raises VarlogError if it cannot be used.
Accept = Callable[[FetchReply, Chunk | None], T]

logger = get_logger("client")


class Fetcher:
    """The fetches of one stream, for one reader."""

    def __init__(self, routing: Routing, log_stream: LogStreamID, reports: DamageReports) -> None:
        self.log_stream = log_stream
        self.trouble: VarlogError | None = None  # why the latest try failed
        self._routing = routing
        self._reports = reports
        self._turn = routing.turn
        self._backoff = Backoff(routing.environment, 0.0)
        self._failures = 0
        self._damaged = False  # the last fetch returned damaged batches
        self._waits: dict[int, tuple[LogStream, NodeID, asyncio.Timeout]] = {}

    async def fetch(self, request: Fetch, take: Accept[T]) -> T | None:
        """Ask one replica once and return what `take` makes of its response. None: the replica failed, or should not be waited for;
        the next call asks the next replica. Raises Trimmed."""
        stream = self._routing.view.stream(self.log_stream)
        replicas = stream.replicas if stream is not None else ()
        node = next(iter(in_turn(replicas, self._turn, self._routing.failure_detector.avoided())), None)
        try:
            if stream is None or node is None:
                raise Unavailable(f"log stream {self.log_stream} is in no view")
            taken = await self._ask_while_good(stream, node, request, take)
        except Trimmed:
            raise
        except VarlogError as error:
            await self._failed(node, error, len(replicas))
            return None
        self._failures, self._backoff = 0, Backoff(self._routing.environment, 0.0)
        return taken

    async def ask(self, node: NodeID, request: Fetch) -> tuple[FetchReply, Chunk | None]:
        """The response of this node, if every checksum is correct. A failure is not counted against the node."""
        if self._damaged:
            # Fetch one batch at a time: two replicas may be damaged near each other, and only together have everything.
            request = Fetch(request.log_stream, request.llsn, request.glsn, 1, request.wait_s)
        connection = await self._routing.connection_to(node, ATTEMPT_S)
        got, payload = await connection.call(request, timeout_s=request.wait_s + ATTEMPT_S)
        fetched = expect(got, FetchReply)
        return fetched, self._checked(node, fetched, payload) if fetched.rows else None

    async def pause(self) -> None:
        """Wait before the same request is sent again."""
        await asyncio.sleep(self._backoff.pause_s())

    def leave_worse(self) -> None:
        """Stop waiting for replicas that left their stream, missed a seal, or are suspected: others may have more."""
        avoided = self._routing.failure_detector.avoided()
        stream = self._routing.view.stream(self.log_stream)
        for asked, node, patience in list(self._waits.values()):
            if (
                stream is None
                or stream.epoch != asked.epoch
                or node not in stream.replicas
                or node in avoided
            ):
                patience.reschedule(asyncio.get_running_loop().time())

    async def _ask_while_good(
        self, stream: LogStream, node: NodeID, request: Fetch, take: Accept[T]
    ) -> T | None:
        """Ask once; give up if a new view shows that another replica should be asked instead."""
        try:
            async with asyncio.timeout(None) as patience:
                self._waits[id(patience)] = (stream, node, patience)
                try:
                    fetched, chunk = await self.ask(node, request)
                finally:
                    del self._waits[id(patience)]
        except TimeoutError:
            self._turn += 1
            return None
        taken = take(fetched, chunk)
        self._routing.failure_detector.node_answered(node)
        if chunk is None:
            self._turn += 1  # this replica has nothing: another one may have more
        return taken

    def _checked(self, node: NodeID, fetched: FetchReply, payload: bytearray) -> Chunk:
        """The received batches, if every checksum is correct. Otherwise none of them is used, and the damage is reported to the
        node."""
        first, _, _ = fetched.rows[0]
        last, _, count = fetched.rows[-1]
        try:
            chunk = Chunk(payload)
            if first < chunk.first_llsn or last + count > chunk.end_llsn:
                raise CorruptBatch(
                    f"rows [{first}, {last + count}) are not in [{chunk.first_llsn}, {chunk.end_llsn})"
                )
        except CorruptBatch as damaged:
            self._reports.report(node, self.log_stream, first, LLSN(last + count), damaged)
            raise
        self._damaged = False
        return chunk

    async def _failed(self, node: NodeID | None, error: VarlogError, replicas: int) -> None:
        self.trouble = error
        self._turn += 1
        self._failures += 1
        if isinstance(error, CorruptBatch):
            self._damaged = True  # not counted against the node: its other entries are intact
        elif node is not None:
            self._routing.report_failure(node, error)
        logger.debug(logfmt("fetch failed", log_stream=self.log_stream, node=node, error=error))
        if self._failures >= replicas:
            self._routing.refresh_soon()
            await self.pause()
