"""[A2] InflightWindow: batches in flight to one stream's primary, in order.

Several batches are in flight over one connection. The window sends and waits, and decides nothing: its owner knows what an error
means, and what to send again. Requests must be repeatable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar

from varlog.client.routing import ATTEMPT_S, Routing, expect
from varlog.model.batch import BatchHeader, parse_header
from varlog.model.cluster import LogStream, StreamState
from varlog.model.epoch import Epoch
from varlog.model.errors import Sealed, Unavailable, UnknownLogStream
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.limits import KIB, MIB
from varlog.rpc.messages import AppendAt, AppendIdempotent, AppendReply, Message
from varlog.rpc.transport import CallTimeout, Connection, ConnectionLost
from varlog.runtime.tasks import Tasks

# The maximum number of bytes in flight. A primary gathers concurrent batches into one write, so more would only wait there.
WINDOW_BYTES: Final = 8 * MIB
WINDOW_BYTES_MIN: Final = 64 * KIB
WINDOW_BATCHES: Final = 256
# After this time without an answer, check whether the primary is still the same.
SLOW_S: Final = 0.5
TRY_S: Final = 3.0
DIAL_S: Final = 1.0


# The request of one kind of writer. It must be repeatable.
RequestT = TypeVar("RequestT", bound=AppendIdempotent | AppendAt)


class PipelinedBatch(Generic[RequestT]):
    """One packed batch and its request. `sent`: it may be in the log."""

    __slots__ = ("answer", "batch", "header", "request", "sent")

    def __init__(self, request: RequestT, batch: bytearray) -> None:
        self.request = request
        self.batch = batch
        self.header: BatchHeader = parse_header(batch, signed=False)
        self.answer: asyncio.Task[tuple[Message, bytearray]] | None = None
        self.sent = False


class InflightWindow(Generic[RequestT]):
    """The batches in flight, oldest first. The owner may replace `batches` while nothing is in flight."""

    def __init__(self, routing: Routing, log_stream: LogStreamID) -> None:
        self.batches: deque[PipelinedBatch[RequestT]] = deque()
        self.log_stream = log_stream
        self._routing = routing
        # An error is raised where the oldest batch is awaited.
        self._tasks = Tasks(f"window/ls={log_stream}", lambda name, error: None)
        self._bytes_max = WINDOW_BYTES
        self._primary: tuple[NodeID, Epoch] = NodeID(0), Epoch(0)

    @property
    def full(self) -> bool:
        in_flight = sum(len(one.batch) for one in self.batches)
        return len(self.batches) >= WINDOW_BATCHES or in_flight >= self._bytes_max

    def shrink(self) -> None:
        """Reduce the window: the primary has too much in flight."""
        self._bytes_max = max(WINDOW_BYTES_MIN, self._bytes_max // 2)

    async def send(self, outgoing: PipelinedBatch[RequestT]) -> None:
        """Send a batch after all earlier ones. Returns before there is an answer."""
        connection = await self._connection()
        outgoing.sent = True
        call = connection.call(outgoing.request, outgoing.batch, timeout_s=TRY_S)
        outgoing.answer = self._tasks.spawn(f"batch {outgoing.header.sequence}", call)
        await asyncio.sleep(0)  # so that this batch is posted before the next one

    async def wait_oldest(self) -> AppendReply:
        """The answer for the oldest batch, or its error. Raises Unavailable if the stream has another primary by now, or none."""
        answer = self.batches[0].answer
        if answer is None:
            raise Unavailable("it was not sent yet")
        while not (await asyncio.wait([answer], timeout=SLOW_S))[0]:
            self._check_primary()
        if answer.cancelled():
            raise ConnectionLost("the call was given up")
        if (error := answer.exception()) is not None:
            self._report_failure(error)
            raise error
        self._routing.failure_detector.node_answered(self._primary[0])
        return expect(answer.result()[0], AppendReply)

    def pop(self) -> PipelinedBatch[RequestT]:
        """Remove the oldest batch, which is in the log."""
        oldest = self.batches.popleft()
        self._bytes_max = min(WINDOW_BYTES, self._bytes_max + len(oldest.batch))
        return oldest

    def reset(self) -> None:
        """Stop waiting for answers; everything is to be sent again."""
        for outgoing in self.batches:
            if outgoing.answer is not None:
                outgoing.answer.cancel()
                outgoing.answer = None

    async def primary(self) -> LogStream:
        """The stream with its primary, if it runs, as far as is known."""
        stream = self._routing.view.stream(self.log_stream)
        if stream is None:
            stream = (await self._routing.refresh(ATTEMPT_S)).stream(self.log_stream)
        if stream is None:
            raise UnknownLogStream(self.log_stream)
        if stream.state is not StreamState.RUNNING:
            self._routing.refresh_soon()
            raise Sealed(self.log_stream)
        return stream

    async def _connection(self) -> Connection:
        self._routing.check_open()
        self._routing.use()
        stream = await self.primary()
        self._primary = stream.primary, stream.epoch
        try:
            connection = await self._routing.connection_to(stream.primary, DIAL_S)
            await self._wait_writable(connection)
        except (ConnectionLost, CallTimeout) as lost:
            self._report_failure(lost)
            raise
        return connection

    async def _wait_writable(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(TRY_S):
                await connection.wait_writable()
        except TimeoutError:
            raise CallTimeout(f"{connection.peer} accepted nothing within {TRY_S:g} s", sent=False) from None

    def _check_primary(self) -> None:
        stream = self._routing.view.stream(self.log_stream)
        if stream is not None and (stream.primary, stream.epoch) != self._primary:
            raise Unavailable(f"epoch {self._primary[1]} of log stream {self.log_stream} is over")
        self._routing.refresh_soon()

    def _report_failure(self, error: BaseException) -> None:
        node = self._primary[0]
        if isinstance(error, ConnectionLost | CallTimeout):
            self._routing.report_failure(node, error)
        if isinstance(error, CallTimeout):
            self._routing.disconnect(node)
