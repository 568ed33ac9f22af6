"""TcpTransport: frames over TCP, or over a local socket where both ends are on one machine; made for uvloop. [A3 R3]

Everything that arrives in one wake-up is parsed in one go; everything that is sent in one turn of the loop goes out
together. No task is made for a request, and a payload is copied once when small and never when large.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final, cast

from varlog.model.batch import Buffer
from varlog.model.errors import InvalidRequest, NotInCluster, StartError, Unavailable, VarlogError
from varlog.model.ids import ClusterID
from varlog.model.limits import CONNECTION_WRITE_BYTES_MAX, KIB
from varlog.rpc import local
from varlog.rpc.codec import decode, encode, number_of
from varlog.rpc.endpoint import Endpoint
from varlog.rpc.framing import ONEWAY, REPLY, REQUEST, FrameReader, MalformedFrame, frame_head
from varlog.rpc.messages import Message
from varlog.rpc.status import failure_of
from varlog.rpc.transport import Connection, ConnectionLost, Handler

# Received at once at most. All connections share it: only a frame that is not whole yet has memory of its own.
SCRATCH_BYTES: Final = 256 * KIB
# Up to here a payload is copied behind its header; a larger one is handed to the kernel from where it is.
JOIN_BYTES_MAX: Final = 8 * KIB
# What was sent before a close may still go out for so long, if the other side takes it.
CLOSE_FLUSH_S: Final = 1.0
BACKLOG: Final = 1024


# Silent for 5 s, then asked every 2 s; three questions without an answer end the connection. While something is under way the
# kernel asks nothing, and would send it again for a quarter of an hour: what is not acknowledged for as long ends it, too (the
# user timeout, in ms). Linux has all four names.
_KEEPALIVE: Final = {
    getattr(socket, name): value
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 11_000),
    )
    if hasattr(socket, name)
}


class TcpTransport:
    """Connections of one process of `cluster` (0: any), in one event loop. `short_cuts`: local sockets where there are some."""

    def __init__(self, cluster: ClusterID, *, short_cuts: bool = True) -> None:
        self.cluster = cluster
        self._short_cuts = short_cuts
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    async def connect(
        self, address: str, *, handler: Handler | None = None, timeout_s: float
    ) -> TcpConnection:
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        loop = asyncio.get_running_loop()
        connection = TcpConnection(loop, self.cluster, self._scratch, address, accepting=False)
        if handler is not None:
            connection.serve_with(handler)
        name = local.name_of(host, port) if self._short_cuts else None
        try:
            async with asyncio.timeout(timeout_s):
                if name is not None and (wire := local.connect(name)) is not None:
                    await loop.create_unix_connection(lambda: connection, sock=wire)
                else:
                    await loop.create_connection(lambda: connection, host, port)
        except TimeoutError:
            raise ConnectionLost(f"{address} did not answer within {timeout_s:g} s", sent=False) from None
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {address}: {_reason(error)}", sent=False) from None
        return connection

    async def serve(self, address: str, make_handler: Callable[[Connection], Handler]) -> TcpServer:
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise StartError(str(error)) from None
        server = TcpServer(self.cluster, self._scratch, make_handler)
        try:
            await server.listen(host, port, short_cuts=self._short_cuts)
        except OSError as error:
            await server.close()
            raise StartError(f"cannot listen at {address}: {_reason(error)}. {_remedy(error)}") from None
        return server


class TcpServer:
    """A listening socket, the local one beside it, and the connections that came in by them."""

    def __init__(
        self, cluster: ClusterID, scratch: memoryview, make_handler: Callable[[Connection], Handler]
    ) -> None:
        self._cluster = cluster
        self._scratch = scratch
        self._make_handler = make_handler
        self._loop = asyncio.get_running_loop()
        self._listeners: list[asyncio.Server] = []
        self._address = ""
        self._connections: dict[TcpConnection, None] = {}
        self._closing = False
        self._all_gone: asyncio.Future[None] = self._loop.create_future()

    @property
    def address(self) -> str:
        return self._address

    async def listen(self, host: str, port: int, *, short_cuts: bool) -> None:
        listener = await self._loop.create_server(self._accept, host, port, backlog=BACKLOG)
        self._listeners.append(listener)
        port = listener.sockets[0].getsockname()[1]
        self._address = join_address(host, port)
        name = local.name_of(host, port) if short_cuts else None
        if name is not None:
            wire = local.listen(name)
            self._listeners.append(
                await self._loop.create_unix_server(self._accept, sock=wire, backlog=BACKLOG)
            )

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        # The name before its port: whoever gets the port next must find the name free.
        for listener in reversed(self._listeners):
            listener.close()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            await self._all_gone
        for listener in self._listeners:
            await listener.wait_closed()

    def _accept(self) -> TcpConnection:
        return TcpConnection(self._loop, self._cluster, self._scratch, accepting=True, server=self)

    def came(self, connection: TcpConnection) -> None:
        self._connections[connection] = None
        if self._closing:
            connection.close()
        else:
            connection.serve_with_made(self._make_handler)

    def left(self, connection: TcpConnection) -> None:
        self._connections.pop(connection, None)
        if self._closing and not self._connections and not self._all_gone.done():
            self._all_gone.set_result(None)


class TcpConnection(Endpoint, asyncio.BufferedProtocol):
    """One connection. Who dialled says to which `address`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cluster: ClusterID,
        scratch: memoryview,
        address: str = "",
        *,
        accepting: bool,
        server: TcpServer | None = None,
    ) -> None:
        super().__init__(loop, accepting=accepting)
        self._cluster = cluster
        self._dialled = address
        self._server = server
        self._reader = FrameReader(scratch, self._take_frame)
        self._transport: asyncio.Transport
        self._abort_timer: asyncio.TimerHandle | None = None

    # --- asyncio.BufferedProtocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(CONNECTION_WRITE_BYTES_MAX, CONNECTION_WRITE_BYTES_MAX // 2)
        wire = transport.get_extra_info("socket")
        if wire.family == socket.AF_UNIX:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, local.BUFFER_BYTES)
            self._peer = self._dialled or f"process {local.credentials_of(wire)[0]} of this machine"
        else:
            self._made_by_tcp(wire, transport.get_extra_info("peername"))
        if self._server is not None:
            self._server.came(self)

    def _made_by_tcp(self, wire: socket.socket, name: tuple[str, int] | None) -> None:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose machine vanished never says so, and an idle connection is silent: have the kernel ask.
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            wire.setsockopt(socket.IPPROTO_TCP, option, value)
        self._peer = join_address(*name[:2]) if name else "a peer that left at once"

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._reader.received(nbytes)
        except MalformedFrame as error:
            self._refuse(f"it sent a malformed frame: {error}")

    def eof_received(self) -> None:
        try:
            self._reader.end()
        except MalformedFrame as error:
            self._refuse(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"{exc}" if exc is not None else "the other side closed it")
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if self._server is not None:
            self._server.left(self)

    def pause_writing(self) -> None:
        self._set_writes_backed_up(True)

    def resume_writing(self) -> None:
        self._set_writes_backed_up(False)

    # --- Endpoint -----------------------------------------------------------------------------------------------------

    def _post(self, kind: int, message: Message, payload: Buffer, request: int) -> None:
        payload_bytes = len(payload)
        head = frame_head(
            kind, number_of[type(message)], request, self._cluster, encode(message), payload_bytes
        )
        if payload_bytes == 0:
            self._transport.write(head)
        elif payload_bytes <= JOIN_BYTES_MAX:
            self._transport.write(b"".join((head, payload)))
        else:
            self._transport.writelines((head, payload))

    def _set_reading(self, reading: bool) -> None:
        if reading:
            # Not from here: this may be the answer to a frame that the reader is just giving out.
            self._loop.call_soon(self._go_on_reading)
        elif not self._transport.is_closing():
            self._reader.pause()
            self._transport.pause_reading()

    def _hang_up(self) -> None:
        transport = self._transport
        if transport.get_write_buffer_size() > 0:
            # The other side may never take it, and must not keep us here.
            self._abort_timer = self._loop.call_later(CLOSE_FLUSH_S, transport.abort)
        transport.close()

    def _go_on_reading(self) -> None:
        if not self._may_read():
            return
        try:
            self._reader.resume()
        except MalformedFrame as error:
            self._refuse(f"it sent a malformed frame: {error}")
        if self._may_read():
            self._transport.resume_reading()

    def _may_read(self) -> bool:
        return not (self._reading_paused or self._closed or self._transport.is_closing())

    # --- What arrives -----------------------------------------------------------------------------------------------

    def _take_frame(
        self, kind: int, number: int, request: int, cluster: int, meta: Buffer, payload: bytearray
    ) -> None:
        if self._closed:
            return
        if kind != REPLY and cluster != self._cluster and cluster and self._cluster:
            self._refuse_frame(kind, request, NotInCluster(ClusterID(cluster), self._cluster))
            return
        try:
            message = decode(number, meta)
        except VarlogError as error:
            self._refuse_frame(kind, request, error)
            return
        if kind == REQUEST:
            self._take_request(request, message, payload)
        elif kind == REPLY:
            self._take_reply(request, message, payload)
        else:
            self._take_oneway(message, payload)

    def _refuse_frame(self, kind: int, request: int, error: VarlogError) -> None:
        """A frame that is whole but cannot be taken costs its sender that request, or, unanswerable, the connection."""
        if kind == REQUEST:
            self._post(REPLY, failure_of(error), b"", request)
        elif kind == ONEWAY:
            self._refuse(str(error))
        else:
            self._take_reply(
                request, failure_of(Unavailable(f"an answer is not understood: {error}")), bytearray()
            )


def split_address(address: str) -> tuple[str, int]:
    """host and port of `host:port` or `[host]:port`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address: give host:port, for example 127.0.0.1:7100")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    known = {errno.ECONNREFUSED: "nobody listens there", errno.EADDRINUSE: "another process listens there"}
    return known.get(error.errno or 0, error.strerror or str(error))


def _remedy(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "Stop that process, or choose another port (0 takes any free one)"
    return "Choose an address of this machine and a port above 1023"
