"""HttpConnection, SocketConnection: server connections with bounds.

uvicorn's protocols, with what ASGI does not offer. An ASGI application can wait until its bytes are sent, and no more: it cannot
see whether they move, nor send a last message past those that do not, nor disconnect a peer that reads nothing. A connection
adds these to the scope of each request. Without it (another server, a test) a consumer that is too slow is just left.

What a peer may cost before the application sees it is bounded here: connections in total and per client address, the bytes of a
head and the time until it is complete, the rate of a body, unfinished WebSocket messages, and responses that are not read. In
the usual case, where a request arrives in one piece, no timer is set for any of this.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from varlog.proxy.admission import AppendReservation, ProxyAdmission
from varlog.proxy.errors import HeadTooLarge, MalformedRequest, ProxyError, SlowHead, SlowMessage, TooBusy
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.problem import CLOSE_PROBLEM, CLOSE_REASON_BYTES_MAX, MEDIA_TYPE, problem_of

KEY: Final = "varlog.connection"
# A peer that is dropped has this long to read what is buffered, with the reason at its end; then the connection is aborted.
LINGER_S: Final = 5.0
# A message of a WebSocket in more frames than this is refused: each frame costs memory, whatever its size.
FRAGMENTS_MAX: Final = 1024


class PeerConnection(Protocol):
    """What a connection of the server offers to one request or socket, beyond ASGI."""

    @property
    def lost(self) -> bool:
        """The connection is closed or closing."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Bytes sent and not read by the peer yet."""
        ...

    @property
    def body_too_slow(self) -> bool:
        """The body arrives below the minimum rate: its rest is not waited for."""
        ...

    def drop(self, last: bytes, code: int) -> None:
        """Append `last` to the buffered bytes without waiting, and end: the last part of a body, or a close frame's reason. A body
        without a last part is cut off, and its reader sees that it is incomplete."""
        ...

    def on_stop(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called when the server stops, until the returned function is called."""
        ...


def connection_of(scope: Scope) -> PeerConnection | None:
    """The connection of a request or socket, if its server is ours."""
    connection: PeerConnection | None = scope.get("extensions", {}).get(KEY)
    return connection


class _Watch:
    """Checks a number regularly while it is above zero; calls `stalled` if it does not fall for `every_s`."""

    def __init__(
        self, loop: Any, every_s: float, left: Callable[[], int], stalled: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._every_s = every_s
        self._left = left
        self._stalled = stalled
        self._before = 0
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._before = self._left()
            self._timer = self._loop.call_later(self._every_s, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        left = self._left()
        if not left:
            return
        if left >= self._before:
            self._stalled()
        else:
            self.start()


class HttpConnection(HttpToolsProtocol):
    """HTTP/1.1, one request after the other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stops: dict[int, Callable[[], None]] = {}
        self._limits: ProxyLimits = self.config.app.state.limits  # type: ignore[union-attr]
        self._admission: ProxyAdmission = self.config.app.state.admission  # type: ignore[union-attr]
        self._counted = False  # it is counted among the connections
        self._refused = False  # what still arrives is ignored
        self._in_head = False  # a request has begun, and its head is not complete
        self._in_body = False  # its head is complete, and its body is not
        self._head_bytes = 0
        self._oversized = False  # a head was too large: nothing is parsed any more, and it is refused
        self._body_bytes = 0  # since the last check of the rate
        self._arrival: TimerHandle | None = None  # ends a head, or checks the rate of a body
        self._exchange: HttpExchange | None = None
        # Twice the time after which a subscription itself drops a consumer, with a last message.
        self._write_watch = _Watch(self.loop, 2 * self._limits.slow_s, self._unread_bytes, self._abort)

    # --- begin and end -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        try:
            self._admission.connect(self.client[0] if self.client else "")
        except TooBusy as busy:
            self._refuse(busy)
            return
        self._counted = True
        self._set_arrival(self._limits.head_s, self._end_head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def _leave(self) -> None:
        """It ends, or becomes a WebSocket, which is counted on its own."""
        self._stop_arrival()
        self._write_watch.stop()
        if self._counted:
            self._counted = False
            self._admission.disconnect(self.client[0] if self.client else "")

    def handle_websocket_upgrade(self) -> None:
        if not self._oversized:
            self._leave()
            super().handle_websocket_upgrade()

    def shutdown(self) -> None:
        super().shutdown()
        for callback in list(self.stops.values()):
            callback()

    # --- receiving -----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        within_head = self._in_head
        super().data_received(data)
        if not self._counted or self.transport.is_closing():
            return  # it is a WebSocket now, or closed
        if within_head and self._in_head:
            self._head_bytes += len(data)
        if self._oversized or self._head_bytes > self._limits.head_bytes_max:
            self._refuse(HeadTooLarge(self._limits.head_bytes_max))
        elif self._in_body:
            if self._arrival is None:
                self._body_bytes = 0
                self._set_arrival(self._limits.body_window_s, self._check_body_rate)
        elif self._arrival is None and (self._in_head or self._idle()):
            # Also between requests: an empty line has stopped the idle timer.
            self._set_arrival(self._limits.head_s, self._end_head)

    def _idle(self) -> bool:
        """No request is being answered, and no timer runs."""
        return not self._answering() and self.timeout_keep_alive_task is None

    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def on_message_begin(self) -> None:
        if not self._oversized:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        if not self._oversized:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._oversized:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
        self._oversized = self._oversized or size > self._limits.head_bytes_max
        if self._oversized:
            return
        self._in_head, self._in_body = False, True
        self._stop_arrival()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # unchanged: it becomes a WebSocket
            self._exchange = HttpExchange(self, self.cycle)
            self.scope["extensions"] = {KEY: self._exchange}  # type: ignore[dict-item]

    def on_body(self, body: bytes) -> None:
        if not self._oversized:
            self._body_bytes += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._oversized:
            self._in_body = False
            self._stop_arrival()
            super().on_message_complete()

    # --- slow peers -------------------------------------------------------------------------------------------------------

    def _set_arrival(self, after_s: float, act: Callable[[], None]) -> None:
        self._arrival = self.loop.call_later(after_s, act)

    def _stop_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _end_head(self) -> None:
        self._arrival = None
        self._refuse(SlowHead(self._limits.head_s))

    def _check_body_rate(self) -> None:
        self._arrival = None
        limits, arrived, self._body_bytes = self._limits, self._body_bytes, 0
        if self.flow.read_paused or arrived >= limits.body_bytes_s_min * limits.body_window_s:
            # While the application does not read, the peer cannot send.
            self._set_arrival(limits.body_window_s, self._check_body_rate)
        elif self._exchange is None or self.cycle.response_complete:
            self._abort()
        else:
            self._exchange.body_too_slow = True
            self.cycle.message_event.set()  # wake the application that waits for the body
            self._set_arrival(LINGER_S, self._abort)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete:
            # The response did not wait for the whole body: read the rest for a moment, so that a reset does not lose the response.
            self._stop_arrival()
            self._set_arrival(LINGER_S, self._abort)
        if self.transport.is_closing():
            self._write_watch.start()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._write_watch.start()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_watch.start()

    def _unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def _abort(self) -> None:
        self._stop_arrival()
        self.transport.abort()

    # --- refusals before a request exists -----------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(MalformedRequest(msg))

    def _refuse(self, error: ProxyError) -> None:
        """Respond without the application, unless a response has begun, and close."""
        self._refused = True
        self._stop_arrival()
        if self.transport.is_closing():
            return
        if self._answering() and not self.cycle.response_started and not self.pipeline:
            # Its head was valid, and what followed was not: the application must not respond as well.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not self._answering() or self.cycle.disconnected:
            problem = problem_of(error)
            body = problem.encoded()
            self.transport.write(
                b"%bcontent-type: %b\r\ncontent-length: %d\r\nretry-after: %d\r\nconnection: close\r\n\r\n%b"
                % (
                    STATUS_LINE[problem.status],
                    MEDIA_TYPE.encode(),
                    len(body),
                    max(1, round(self._limits.retry_after_s)),
                    body,
                )
            )
        if self._counted and self.transport.can_write_eof():
            # Read and discard what still arrives for a moment: a reset because of it would lose the response.
            self.transport.write_eof()
            self._set_arrival(LINGER_S, self._abort)
        else:
            _abort_soon(self.transport, self.loop)


class HttpExchange:
    """One request and its response."""

    def __init__(self, connection: HttpConnection, cycle: RequestResponseCycle) -> None:
        self.body_too_slow = False
        self._connection = connection
        self._cycle = cycle

    @property
    def lost(self) -> bool:
        return self._connection.transport.is_closing()

    @property
    def waiting_bytes(self) -> int:
        return self._connection.transport.get_write_buffer_size()

    def drop(self, last: bytes, code: int) -> None:
        cycle, transport = self._cycle, self._connection.transport
        if cycle.response_complete or transport.is_closing():
            return
        if (
            cycle.chunked_encoding and last
        ):  # without a last part the body stays incomplete, and its reader sees that
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last)
        # The body has ended: nothing that the application still sends may follow.
        cycle.disconnected = True
        transport.write(last)
        _abort_soon(transport, self._connection.loop)

    def on_stop(self, callback: Callable[[], None]) -> Callable[[], None]:
        stops = self._connection.stops
        stops[id(self)] = callback

        def forget() -> None:
            stops.pop(id(self), None)

        return forget


class SocketConnection(WebSocketsSansIOProtocol):
    """WebSocket. Its handshake arrived as a request; a message that was begun must be finished."""

    body_too_slow = False  # its handshake has none

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits: ProxyLimits = self.config.app.state.limits  # type: ignore[union-attr]
        self._admission: ProxyAdmission = self.config.app.state.admission  # type: ignore[union-attr]
        self._counted = False
        self._unfinished: AppendReservation | None = None  # the bytes of a message that is not complete
        self._rate: TimerHandle | None = None
        self._rate_bytes = 0  # of it, at the last check of its rate
        self._write_watch = _Watch(
            self.loop,
            2 * self._limits.slow_s,
            lambda: self.transport.get_write_buffer_size(),
            lambda: self.transport.abort(),
        )

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # This cannot be refused: the connection of its handshake has just been released.
        self._admission.connect(self.client[0] if self.client else "")
        self._counted = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._finished()
        self._write_watch.stop()
        if self._counted:
            self._counted = False
            self._admission.disconnect(self.client[0] if self.client else "")
        super().connection_lost(exc)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if (scope := getattr(self, "scope", None)) is not None:  # None if the handshake was refused
            scope["extensions"][KEY] = self

    # --- messages -----------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.close_sent or self.transport.is_closing():
            return
        buffered = len(self.conn.reader.buffer)
        if not buffered and not self.frames:
            self._finished()
        elif len(self.frames) > FRAGMENTS_MAX:
            self._drop_for(SlowMessage(f"it is in more than {FRAGMENTS_MAX} frames"))
        else:
            self._grow(buffered + sum(map(len, self.frames)))

    def send_receive_event_to_app(self) -> None:
        super().send_receive_event_to_app()
        self._finished()

    def _grow(self, size: int) -> None:
        if self._unfinished is None:
            self._unfinished = AppendReservation(self._admission, self.client[0] if self.client else "")
        try:
            # The buffer also holds a frame's header until it is parsed: a message never shrinks.
            self._unfinished.add(max(0, size - self._unfinished.size))
        except TooBusy as busy:
            self._drop_for(busy)
            return
        if self._rate is None:
            self._rate_bytes = size
            self._rate = self.loop.call_later(self._limits.body_window_s, self._check_message_rate)

    def _check_message_rate(self) -> None:
        self._rate = None
        limits = self._limits
        if self._unfinished is None:
            return
        arrived, self._rate_bytes = self._unfinished.size - self._rate_bytes, self._unfinished.size
        if self.read_paused or arrived >= limits.body_bytes_s_min * limits.body_window_s:
            self._rate = self.loop.call_later(limits.body_window_s, self._check_message_rate)
        else:
            self._drop_for(SlowMessage(f"less than {limits.body_bytes_s_min} bytes of it arrive in a second"))

    def _finished(self) -> None:
        if self._rate is not None:
            self._rate.cancel()
            self._rate = None
        if self._unfinished is not None:
            self._unfinished.release()
            self._unfinished = None

    def _drop_for(self, error: ProxyError) -> None:
        problem = problem_of(error)
        self._finished()
        self.drop(problem.detail.encode()[:CLOSE_REASON_BYTES_MAX], CLOSE_PROBLEM + problem.status)

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # a peer that reads nothing gets no more pongs buffered for it

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_watch.start()

    # --- PeerConnection --------------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        return self.transport.is_closing()

    @property
    def waiting_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def drop(self, last: bytes, code: int) -> None:
        if self.close_sent or self.transport.is_closing():
            return
        self.stop_keepalive()
        with suppress(InvalidState):  # the peer began to close it, and does not read the rest either
            self.conn.send_close(code, last.decode(errors="ignore"))
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        _abort_soon(self.transport, self.loop)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        _abort_soon(self.transport, self.loop)  # it answers no ping: what is buffered need not wait for it

    def on_stop(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None  # uvicorn itself closes a socket with 1012 when it stops


def _abort_soon(transport: Any, loop: Any) -> None:
    """Send what is buffered for a while. A closed transport would wait for its peer forever."""
    transport.close()
    loop.call_later(LINGER_S, transport.abort)
