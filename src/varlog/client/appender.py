"""[A2] Appender: routes single appends to a batcher, whole batches to the sender."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence

from varlog.client.append_rules import InflightBatch
from varlog.client.batcher import Batcher
from varlog.client.ordering import AppendTransport
from varlog.client.routing import Routing
from varlog.model.admission import ENTRY_UNITS, SHARE, Admission
from varlog.model.batch import Buffer, pack
from varlog.model.entry import Position, Run
from varlog.model.errors import EntryTooLarge, NotAccepted, Overloaded, UnknownLogStream
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.limits import ENTRY_BYTES_MAX, SENT_BYTES_MAX


class Appender:
    """The appends of one client to one topic."""

    def __init__(self, routing: Routing, sender: AppendTransport) -> None:
        self._routing = routing
        self._clock = routing.environment.clock
        self._sender = sender
        self._sender.on_stall = self._dispatch_all
        self._producer = ProducerID(routing.environment.entropy.getrandbits(63) | 1)
        self._sequence = 0
        self._batchers: dict[LogStreamID | None, Batcher] = {}
        self._sent = Budget(SENT_BYTES_MAX)

    def append(self, data: Buffer, log_stream: LogStreamID | None, timeout_s: float) -> Awaitable[Position]:
        """Returns an awaitable of the position. It is mostly a plain future without a coroutine around it: in a large batch, half
        of the CPU time of an append is spent between its caller and the batch."""
        if type(data) is not bytes:
            data = _own(data)
        if len(data) > ENTRY_BYTES_MAX:
            raise EntryTooLarge(len(data), ENTRY_BYTES_MAX)
        if self._sender.closed:
            raise NotAccepted("the log was closed")
        batcher = self._batchers.get(log_stream)
        if batcher is None:
            return self._append_first(data, log_stream, timeout_s)
        return batcher.append(data, timeout_s)

    def refusal(self, size: int, log_stream: LogStreamID | None, timeout_s: float) -> Overloaded | None:
        """The error with which an append of `size` bytes would be refused without waiting, or None. Safe to call from any
        thread."""
        batcher = self._batchers.get(log_stream)
        return batcher.refusal(size, timeout_s) if batcher is not None else None

    async def _append_first(self, data: bytes, log_stream: LogStreamID | None, timeout_s: float) -> Position:
        """The first append to a stream: checks that the stream exists."""
        await self._check(log_stream, timeout_s)
        batcher = self._batchers.setdefault(
            log_stream, Batcher(self._sender, self._routing.tasks, self.pack, log_stream)
        )
        return await batcher.append(data, timeout_s)

    async def append_batch(
        self, entries: Iterable[Buffer], log_stream: LogStreamID | None, timeout_s: float
    ) -> Run:
        """Append one atomic batch. It is sent immediately, regardless of other batches in flight (R-ORD-5)."""
        owned = _own_all(entries)
        batch = self.pack(owned)
        if self._sender.closed:
            raise NotAccepted("the log was closed")
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self._check(log_stream, timeout_s)
        await self._sent.acquire(len(batch), deadline, timeout_s)
        served = False
        try:
            left_s = max(0.0, deadline - asyncio.get_running_loop().time())
            first = await self._sender.deliver(InflightBatch(batch, log_stream, left_s))
            served = True
        finally:
            self._sent.release(len(batch), served=served)
        return Run(first, len(owned))

    def pack(self, entries: Sequence[Buffer]) -> bytearray:
        batch = pack(
            entries, producer=self._producer, sequence=self._sequence + 1, time_us=self._clock.wall_us()
        )
        self._sequence += 1
        return batch

    async def _check(self, log_stream: LogStreamID | None, timeout_s: float) -> None:
        """Reject a stream that even a fresh view does not contain."""
        if log_stream is None or any(stream.log_stream == log_stream for stream in self._routing.streams):
            return
        await self._routing.refresh(timeout_s)
        if all(stream.log_stream != log_stream for stream in self._routing.streams):
            raise UnknownLogStream(log_stream)

    def _dispatch_all(self) -> None:
        for batcher in self._batchers.values():
            batcher.dispatch_soon()

    @property
    def sender(self) -> AppendTransport:
        return self._sender

    def close(self) -> None:
        """Send nothing more; appends that are still queued end as not accepted."""
        self._sender.closed = True
        for batcher in self._batchers.values():
            batcher.close()
        self._sent.close()


class Budget:
    """Limits the bytes in flight. A batch that does not fit waits in FIFO order; one that would be served too late is refused
    without waiting."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._admission = Admission()
        # Batches in flight or queued, and their units: the next batch waits for these.
        self._ahead = 0
        self._ahead_units = 0
        # When the batches in flight were sent, oldest first. The order of the responses does not change the sum of the times.
        self._began: deque[float] = deque()

    async def acquire(self, size: int, deadline: float, timeout_s: float) -> None:
        self._check(timeout_s)
        size = min(size, self._size)
        self._ahead += 1
        self._ahead_units += size + ENTRY_UNITS
        if not self._line and size <= self._left:
            self._out(size)
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._line.append((size, turn))
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release(size, served=False)  # it was granted in the moment in which the caller gave up
            else:
                self._forget(size)
            if isinstance(error, TimeoutError):
                raise NotAccepted(f"earlier batches were not answered within {timeout_s:g} s") from error
            raise

    def _check(self, timeout_s: float) -> None:
        ahead_s = self._admission.estimate_s(self._ahead, self._ahead_units)
        if self._ahead and ahead_s > SHARE * timeout_s:
            raise Overloaded(self._ahead, self._ahead / ahead_s, ahead_s - SHARE * timeout_s)

    def _out(self, size: int) -> None:
        self._left -= size
        self._began.append(self._loop.time())

    def _forget(self, size: int) -> None:
        self._ahead -= 1
        self._ahead_units -= size + ENTRY_UNITS

    def release(self, size: int, *, served: bool = True) -> None:
        size = min(size, self._size)
        self._left += size
        self._forget(size)
        began = self._began.popleft()
        if served:
            self._admission.served(size + ENTRY_UNITS, began, self._loop.time())
        while self._line and (self._line[0][1].done() or self._line[0][0] <= self._left):
            size, turn = self._line.popleft()
            if not turn.done():
                self._out(size)
                turn.set_result(None)

    def close(self) -> None:
        while self._line:
            _, turn = self._line.popleft()
            if not turn.done():
                turn.set_exception(NotAccepted("the log was closed"))


def _own(data: Buffer) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"an entry is bytes, not {type(data).__name__}")
    return bytes(data)


def _own_all(entries: Iterable[Buffer]) -> Sequence[Buffer]:
    if isinstance(entries, bytes | bytearray | memoryview | str):
        raise TypeError("a batch is a list of entries; for one entry there is append()")
    owned = entries if isinstance(entries, list | tuple) else list(entries)
    return owned if set(map(type, owned)) <= {bytes} else list(map(_own, owned))
