"""Endpoint: one end of a connection: calls in flight, answers owed, back-pressure.

What TCP and memory share, so that they cannot differ in it. A transport posts frames for it, passes on what arrives,
and notifies it when its writes are backed up and when the connection ends.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from varlog.model.batch import Buffer
from varlog.model.errors import Unavailable, VarlogError
from varlog.model.invariant import invariant
from varlog.model.limits import CONNECTION_REQUEST_BYTES_MAX
from varlog.rpc.error_codes import error_of, failure_of
from varlog.rpc.framing import ONEWAY, REPLY, REQUEST
from varlog.rpc.messages import Failure, Message
from varlog.rpc.transport import Call, CallTimeout, Connection, ConnectionLost, Handler
from varlog.runtime.logging import get_logger, logfmt

# A request without a payload occupies memory as well: this many of them stop a connection, too.
REQUEST_OVERHEAD_BYTES: Final = 512
REQUEST_ID_MAX: Final = 2**32 - 1

_log = get_logger("rpc")


class OwedAnswer:
    """The Call of a request that came in. Until it is answered, its payload counts against the connection."""

    __slots__ = ("_endpoint", "_held_bytes", "_request")

    def __init__(self, endpoint: Endpoint, request: int, held_bytes: int) -> None:
        self._endpoint = endpoint
        self._request = request
        self._held_bytes = held_bytes

    @property
    def connection(self) -> Connection:
        return self._endpoint

    @property
    def answered(self) -> bool:
        return self._held_bytes == 0

    def reply(self, message: Message, payload: Buffer = b"") -> None:
        held_bytes, self._held_bytes = self._held_bytes, 0
        if held_bytes == 0:
            invariant(False, "a call is answered once", answer=type(message).__name__)
        self._endpoint.answer(self._request, message, payload, held_bytes)

    def fail(self, error: BaseException) -> None:
        self.reply(failure_of(error))


class Endpoint(ABC):
    """One end of a connection. An `accepting` end stops reading while its writes are backed up: a peer that sends
    requests and does not read the answers must not fill our memory. A dialling end continues to read: two ends must
    never wait for each other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, accepting: bool) -> None:
        self._loop = loop
        self._accepting = accepting
        self._peer = "nobody yet"
        self._handler: Handler = _serve_nothing
        self._closed = False
        self._why_closed = ""
        self._calls: dict[int, asyncio.Future[tuple[Message, bytearray]]] = {}
        self._last_request = 0
        self._owed_bytes = 0
        self._writes_backed_up = False
        self._reading_paused = False
        self._writable_waiters: list[asyncio.Future[None]] = []
        self._close_callbacks: list[Callable[[], None]] = []

    def serve_with(self, handler: Handler) -> None:
        """Set the handler for what the other side sends without a request of ours."""
        self._handler = handler

    def serve_with_made(self, make_handler: Callable[[Connection], Handler]) -> None:
        """As serve_with. If a service fails to make a handler, this connection ends, not the listener."""
        try:
            self._handler = make_handler(self)
        except Exception as error:  # noqa: BLE001 - logged by _refuse
            self._refuse(f"no handler could be made: {error}", error)

    # --- What a transport provides ---------------------------------------------------------------------------------

    @abstractmethod
    def _post(self, kind: int, message: Message, payload: Buffer, request: int) -> None:
        """Put a frame on the wire, after all earlier ones. Raises, and posts nothing, if it cannot be encoded."""

    @abstractmethod
    def _set_reading(self, reading: bool) -> None:
        """Pause or resume reading frames from the wire."""

    @abstractmethod
    def _disconnect(self) -> None:
        """End the connection after what was posted; the other side is notified."""

    def _is_cut(self) -> bool:
        """The other side has ended the connection, and this end has not read that far yet: what is sent now is lost."""
        return False

    # --- Connection ------------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def closed(self) -> bool:
        return self._closed

    async def call(
        self, request: Message, payload: Buffer = b"", *, timeout_s: float
    ) -> tuple[Message, bytearray]:
        if self._writes_backed_up:
            timeout_s = await self._wait_turn(request, timeout_s)
        if self._closed:
            raise ConnectionLost(self._why_closed, sent=False)
        if self._is_cut():
            # Not ended here: answers to earlier calls may have come before the end, and are still to be read.
            raise ConnectionLost(
                f"the connection to {self._peer} is closed: the other side ended it", sent=False
            )
        number = self._new_request()
        answer: asyncio.Future[tuple[Message, bytearray]] = self._loop.create_future()
        self._post(REQUEST, request, payload, number)
        self._calls[number] = answer
        timer = self._loop.call_later(timeout_s, self._expire, number, request, timeout_s)
        try:
            return await answer
        finally:
            timer.cancel()
            self._calls.pop(number, None)

    def send(self, message: Message, payload: Buffer = b"") -> None:
        if self._closed:
            raise ConnectionLost(self._why_closed, sent=False)
        self._post(ONEWAY, message, payload, 0)

    async def wait_writable(self) -> None:
        while self._writes_backed_up and not self._closed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._writable_waiters.append(waiter)
            await waiter
        if self._closed:
            raise ConnectionLost(self._why_closed, sent=False)

    def on_close(self, callback: Callable[[], None]) -> None:
        if self._closed:
            self._loop.call_soon(callback)
        else:
            self._close_callbacks.append(callback)

    def close(self) -> None:
        if not self._closed:
            self._end("it was closed here")
            self._disconnect()

    # --- For OwedAnswer --------------------------------------------------------------------------------------------

    def answer(self, request: int, message: Message, payload: Buffer, held_bytes: int) -> None:
        """Answer a request, if the connection still exists, and subtract its payload."""
        if not self._closed:
            try:
                self._post(REPLY, message, payload, request)
            except (VarlogError, OverflowError, TypeError) as error:  # too large, or not to be encoded
                self._post(REPLY, failure_of(error), b"", request)
        self._owed_bytes -= held_bytes
        if self._reading_paused:
            self._settle_reading()

    # --- For the transport: what arrives, and what becomes of the wire ----------------------------------------------

    def _take_request(self, request: int, message: Message, payload: bytearray) -> None:
        held_bytes = len(payload) + REQUEST_OVERHEAD_BYTES
        call = OwedAnswer(self, request, held_bytes)
        self._owed_bytes += held_bytes
        if self._owed_bytes > CONNECTION_REQUEST_BYTES_MAX:
            self._settle_reading()
        try:
            self._handler(call, message, payload)
        except Exception as error:  # noqa: BLE001 - sent to the caller, and logged if it is our own bug
            if call.answered:
                _log.exception(logfmt("a handler failed after its answer", request=type(message).__name__))
            else:
                call.fail(error)

    def _take_oneway(self, message: Message, payload: bytearray) -> None:
        try:
            self._handler(None, message, payload)
        except Exception as error:  # noqa: BLE001 - logged by _refuse
            # No answer is expected, and what follows may depend on it: only ending the connection shows that it failed.
            self._refuse(f"{type(message).__name__} failed: {error}", error)

    def _take_reply(self, request: int, message: Message, payload: bytearray) -> None:
        answer = self._calls.get(request)
        if answer is None or answer.done():  # its caller has given up
            return
        if type(message) is Failure:
            answer.set_exception(error_of(message))
        else:
            answer.set_result((message, payload))

    def _set_writes_backed_up(self, backed_up: bool) -> None:
        self._writes_backed_up = backed_up
        if self._accepting:
            self._settle_reading()
        if not backed_up:
            self._wake_writers()

    def _refuse(self, why: str, error: BaseException | None = None) -> None:
        """Close because of what the other side sent."""
        if self._closed:
            return
        ours = error if error is not None and not isinstance(error, VarlogError) else None
        self._log_closing("refused", why, ours)
        self._end(why)
        self._disconnect()

    def _log_closing(self, kind: str, why: str, error: BaseException | None) -> None:
        """Log why this end closes; a transport may bound the number of lines of a `kind`."""
        _log.warning(logfmt("closing a connection", peer=self._peer, why=why), exc_info=error)

    def _end(self, why: str) -> None:
        """The connection is over: every call in flight ends, and each `on_close` callback is called once."""
        if self._closed:
            return
        self._closed = True
        self._why_closed = f"the connection to {self._peer} is closed: {why}"
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(self._why_closed))
        self._wake_writers()
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            # Not from here: a caller that closes must not be interrupted by its own callback.
            self._loop.call_soon(callback)

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _new_request(self) -> int:
        number = self._last_request
        while True:
            number = number + 1 if number < REQUEST_ID_MAX else 1
            if number not in self._calls:
                self._last_request = number
                return number

    async def _wait_turn(self, request: Message, timeout_s: float) -> float:
        """Wait until there is room to send; returns how much of the time is left."""
        deadline = self._loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self.wait_writable()
        except TimeoutError:
            what = f"{self._peer} took no {type(request).__name__} within {timeout_s:g} s: its connection is full"
            raise CallTimeout(what, sent=False) from None
        return deadline - self._loop.time()

    def _expire(self, number: int, request: Message, timeout_s: float) -> None:
        answer = self._calls.pop(number, None)
        if answer is not None and not answer.done():
            what = f"{self._peer} did not answer {type(request).__name__} within {timeout_s:g} s"
            answer.set_exception(CallTimeout(what))

    def _settle_reading(self) -> None:
        pause = self._owed_bytes > CONNECTION_REQUEST_BYTES_MAX or (
            self._accepting and self._writes_backed_up
        )
        if pause != self._reading_paused and not self._closed:
            self._reading_paused = pause
            self._set_reading(not pause)

    def _wake_writers(self) -> None:
        waiters, self._writable_waiters = self._writable_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _serve_nothing(call: Call | None, message: Message, payload: bytearray) -> None:
    raise Unavailable(f"{type(message).__name__} is not served on this side of the connection")
