"""[Q4] Units: calls to log units by the current projection, until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from varlog.client.retry import Backoff
from varlog.client.routing import Routing, expect
from varlog.client.sequenced.projections import READ, CallTarget, Projections
from varlog.model.batch import Buffer
from varlog.model.errors import CorruptBatch, NotWritten, Trimmed, Unavailable, UnknownLogStream, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.projection import Projection
from varlog.rpc.messages import Message

M = TypeVar("M", bound=Message)
Got = tuple[M, bytearray]

# Timeout of one try. Longer than any healthy answer takes: a node that exceeds it twice is excluded.
TRY_S: Final = 1.0
DIAL_S: Final = 0.5


class Units:
    """The log units of one client's topic."""

    def __init__(self, routing: Routing, projections: Projections) -> None:
        self.routing = routing
        self.projections = projections
        self._loop = asyncio.get_running_loop()

    async def call(
        self,
        node: NodeID,
        request: Message,
        answer: type[M],
        payload: Buffer = b"",
        *,
        timeout_s: float,
        backoff: Backoff | None = None,
    ) -> Got[M]:
        """One try of one call, after connecting, which has a timeout of its own; both end by the deadline of `backoff`."""
        connection = await self.routing.connection_to(node, min(DIAL_S, timeout_s))
        if backoff is not None:
            timeout_s = min(timeout_s, backoff.remaining_s)
        got, back = await connection.call(request, payload, timeout_s=timeout_s)
        return expect(got, answer), back

    async def ask_tail(
        self,
        log_stream: LogStreamID,
        request: Callable[[Projection], Message],
        answer: type[M],
        backoff: Backoff,
        wait_s: float = 0.0,
    ) -> tuple[Projection, M, bytearray]:
        """Send `request`, which may wait at the node for `wait_s`, to the tail of a chain. Returns the projection used, the
        answer and its payload. Raises NotWritten, Trimmed and CorruptBatch as the tail's answers, Unavailable if there was none
        by the deadline."""
        trouble: VarlogError | None = None
        while True:
            projection, nodes = await self.chain_of(log_stream, backoff)
            node = nodes[-1]
            began, limit_s = self._loop.time(), min(wait_s + TRY_S, backoff.remaining_s)
            try:
                found, payload = await self.call(
                    node, request(projection), answer, timeout_s=limit_s, backoff=backoff
                )
                self.projections.answered(node, READ)
                return projection, found, payload
            except (NotWritten, Trimmed, CorruptBatch):
                self.projections.answered(node, READ)
                raise
            except VarlogError as error:
                trouble = error
                await self.projections.node_failed(
                    projection, log_stream, CallTarget(node, READ), error, began + wait_s, backoff
                )
            if backoff.spent:
                raise Unavailable(
                    f"log stream {log_stream} could not be read in time: node {node}: {trouble}"
                )

    async def chain_of(
        self, log_stream: LogStreamID, backoff: Backoff
    ) -> tuple[Projection, tuple[NodeID, ...]]:
        """The nodes of a stream, head first, and the projection that lists them. Raises UnknownLogStream if not even the newest
        view has such a stream in this topic."""
        projection = await self.projections.get(backoff)
        try:
            return projection, projection.chain(log_stream).nodes
        except KeyError:
            await self.routing.refresh(backoff.remaining_s)
        projection = self.projections.now
        try:
            return projection, projection.chain(log_stream).nodes
        except KeyError:
            raise UnknownLogStream(log_stream) from None

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background."""
        if self.routing.closed:
            work.close()
        else:
            _ = self.routing.tasks.spawn(name, work)
