"""Connections of the HTTP server that can drop a consumer, and tell it to end: uvicorn's protocols with what ASGI has no word for.

An application can wait until its bytes have left, and no more: it cannot see whether they move, nor send a last word past those
that do not, nor let go of a peer that takes nothing. A connection puts a way to do that into the scope of each request. Without it
(another server, a test) a consumer that is too slow is just left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

KEY: Final = "varlog.connection"
# A peer that is dropped has so long to take what is left for it, the reason at its end; then the connection is cut.
LINGER_S: Final = 5.0


class Connection(Protocol):
    """What a server's connection can do for one request or socket, beside ASGI."""

    @property
    def lost(self) -> bool:
        """Nothing that is sent arrives any more."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """What was sent and not taken yet."""
        ...

    def drop(self, last: bytes, code: int) -> None:
        """Send `last` behind everything that waits, waiting for nothing, and end: the last of a body, or a close frame's reason. A
        body without a last word is cut off, and whoever reads it sees that it is not complete."""
        ...

    def on_stop(self, told: Callable[[], None]) -> Callable[[], None]:
        """Have `told` called when the server wants this to end, until what comes back is called."""
        ...


def connection_of(scope: Scope) -> Connection | None:
    """The connection that a request or socket came by, if its server is one of ours."""
    connection: Connection | None = scope.get("extensions", {}).get(KEY)
    return connection


class HttpConnection(HttpToolsProtocol):
    """HTTP/1.1, one after the other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stops: dict[int, Callable[[], None]] = {}

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # the same as before: it becomes a WebSocket
            self.scope["extensions"] = {KEY: HttpExchange(self, self.cycle)}  # type: ignore[dict-item]

    def shutdown(self) -> None:
        super().shutdown()
        for told in list(self.stops.values()):
            told()


class HttpExchange:
    """One request and its answer."""

    def __init__(self, connection: HttpConnection, cycle: RequestResponseCycle) -> None:
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
        ):  # without a last word the body stays incomplete, and its reader sees that
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last)
        # From now on nothing that the application still sends may follow: the body has ended.
        cycle.disconnected = True
        transport.write(last)
        _cut_soon(transport, self._connection.loop)

    def on_stop(self, told: Callable[[], None]) -> Callable[[], None]:
        stops = self._connection.stops
        stops[id(self)] = told

        def forget() -> None:
            stops.pop(id(self), None)

        return forget


class SocketConnection(WebSocketsSansIOProtocol):
    """WebSocket."""

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if (scope := getattr(self, "scope", None)) is not None:  # there is none if the handshake was refused
            scope["extensions"][KEY] = self

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
        with suppress(InvalidState):  # the peer began to close it, and does not take the rest either
            self.conn.send_close(code, last.decode())
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        _cut_soon(self.transport, self.loop)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        _cut_soon(self.transport, self.loop)  # it answers nothing: it need not take what waits for it either

    def on_stop(self, told: Callable[[], None]) -> Callable[[], None]:
        return lambda: None  # uvicorn itself closes a socket with 1012 when it stops


def _cut_soon(transport: Any, loop: Any) -> None:
    """Let what waits go out for a while. A transport that is closed would wait for its peer for ever."""
    transport.close()
    loop.call_later(LINGER_S, transport.abort)
