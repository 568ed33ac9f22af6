"""[A3 R3] TcpTransport: frames over TCP, or over a local socket on one machine.

Made for uvloop.
Everything that arrives in one wake-up is parsed in one go; everything that is sent in one turn of the loop goes out
together. No task is made for a request, and a payload is copied once when small and never when large.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Callable
from typing import Final, cast

from varlog.model.batch import Buffer
from varlog.model.errors import InvalidRequest, NotInCluster, StartupError, Unavailable, VarlogError
from varlog.model.ids import ClusterID
from varlog.model.limits import (
    CONNECTION_WRITE_BYTES_MAX,
    FRAME_BYTES_MAX,
    KIB,
    UNKNOWN_PEER_FRAME_BYTES_MAX,
)
from varlog.rpc import local
from varlog.rpc.codec import decode, encode, number_of
from varlog.rpc.connection_limits import ConnectionGuard, ConnectionLimits
from varlog.rpc.endpoint import Endpoint
from varlog.rpc.error_codes import failure_of
from varlog.rpc.framing import (
    HELLO,
    ONEWAY,
    REPLY,
    REQUEST,
    CorruptFrame,
    FrameReader,
    MalformedFrame,
    frame_head,
)
from varlog.rpc.messages import Message
from varlog.rpc.transport import Connection, ConnectionLost, Handler
from varlog.runtime.logging import LineLimit, get_logger, logfmt

# Received at once at most. All connections share it: only a frame that is not whole yet has memory of its own.
SCRATCH_BYTES: Final = 256 * KIB
# Up to here a payload is copied behind its header; a larger one is handed to the kernel from where it is.
JOIN_BYTES_MAX: Final = 8 * KIB
# How long what was sent before a close may still go out, if the other side reads it.
CLOSE_FLUSH_S: Final = 1.0
BACKLOG: Final = 1024
# How often a server that has connections checks for those whose time is up.
SWEEP_S: Final = 1.0

_log = get_logger("rpc")

# Silent for 5 s, then asked every 2 s; three questions without an answer end the connection. While something is in
# flight the kernel asks nothing, and would send it again for a quarter of an hour: what is not acknowledged for as long
# ends it, too (the user timeout, in ms). Linux has all four names.
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
    """Connections of one process of `cluster` (0: any), in one event loop. `short_cuts`: local sockets where there are some.
    `limits` bound what the peers of its servers can make it keep."""

    def __init__(
        self, cluster: ClusterID, *, short_cuts: bool = True, limits: ConnectionLimits | None = None
    ) -> None:
        self.cluster = cluster
        self.counts = RefusalCounts()
        self._short_cuts = short_cuts
        self._limits = limits or ConnectionLimits()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    @property
    def corrupt_frames(self) -> int:
        return self.counts.corrupt_frames

    async def connect(
        self, address: str, *, handler: Handler | None = None, timeout_s: float
    ) -> TcpConnection:
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        loop = asyncio.get_running_loop()
        connection = TcpConnection(loop, self.cluster, self._scratch, self.counts, address)
        if handler is not None:
            connection.serve_with(handler)
        name = local.name_of(host, port) if self._short_cuts else None
        try:
            async with asyncio.timeout(timeout_s):
                if name is not None and (wire := local.connect_local(name)) is not None:
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
            raise StartupError(str(error)) from None
        server = TcpServer(self.cluster, self._scratch, make_handler, self._limits, self.counts)
        try:
            await server.listen(host, port, short_cuts=self._short_cuts)
        except OSError as error:
            await server.close()
            raise StartupError(f"cannot listen at {address}: {_reason(error)}. {_remedy(error)}") from None
        return server


class RefusalCounts:
    """What a transport refused from its peers since it was made, and how often that may be logged."""

    def __init__(self) -> None:
        self.corrupt_frames = 0
        self.malformed_frames = 0
        self.connections = 0  # that were closed because of a bound
        self.lines = LineLimit()


class TcpServer:
    """A listening socket, the local one beside it, and the connections that came in by them."""

    def __init__(
        self,
        cluster: ClusterID,
        scratch: memoryview,
        make_handler: Callable[[Connection], Handler],
        limits: ConnectionLimits,
        counts: RefusalCounts,
    ) -> None:
        self._cluster = cluster
        self._scratch = scratch
        self._make_handler = make_handler
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._listeners: list[asyncio.Server] = []
        self._address = ""
        self._local_name = ""  # of the local socket, if there is one
        self._connections: dict[TcpConnection, None] = {}
        self._guard: ConnectionGuard[TcpConnection] = ConnectionGuard(limits)
        self._sweep_timer: asyncio.TimerHandle | None = None
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
            wire = local.listen(name, BACKLOG)
            self._local_name = name
            self._listeners.append(
                await self._loop.create_unix_server(self._accept, sock=wire, backlog=BACKLOG)
            )

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        # The name before its port: the next process that gets the port must find the name free.
        if self._local_name:
            local.forget(self._local_name)
        for listener in reversed(self._listeners):
            listener.close()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            await self._all_gone
        for listener in self._listeners:
            await listener.wait_closed()

    def _accept(self) -> TcpConnection:
        return TcpConnection(self._loop, self._cluster, self._scratch, self._counts, server=self)

    def came(self, connection: TcpConnection, host: str) -> None:
        """A connection was made; `host` is the peer's, "" for a process of this machine that came by the local socket."""
        self._connections[connection] = None
        if self._closing:
            connection.close()
        elif not connection.trusted:
            self._turn_away(connection, "users", "it is a process of another user")
        elif broken := self._guard.admit(connection, host, self._loop.time()):
            self._turn_away(connection, "connections", broken)
        else:
            if self._sweep_timer is None:
                self._sweep_timer = self._loop.call_later(SWEEP_S, self._sweep)
            connection.serve_with_made(self._make_handler)

    def left(self, connection: TcpConnection) -> None:
        self._guard.leave(connection)
        self._connections.pop(connection, None)
        if self._closing and not self._connections and not self._all_gone.done():
            self._all_gone.set_result(None)

    def held(self, connection: TcpConnection, held_bytes: int) -> None:
        """A frame of `connection` that is not whole yet occupies this much memory from now on."""
        while (oldest := self._guard.set_held(connection, held_bytes, self._loop.time())) is not None:
            bound = self._guard.limits.unread_bytes_max
            # Leaves the guard at once: its memory is dropped, whenever the connection is gone.
            self._turn_away(
                oldest,
                "unread bytes",
                f"frames that are not whole hold more than {bound} bytes, its is the oldest",
            )
            if oldest is connection:
                return

    def _sweep(self) -> None:
        self._sweep_timer = None
        for connection, why in self._guard.overdue(self._loop.time()):
            self._turn_away(connection, "deadline", why)
        if self._connections and not self._closing:
            self._sweep_timer = self._loop.call_later(SWEEP_S, self._sweep)

    def _turn_away(self, connection: TcpConnection, bound: str, why: str) -> None:
        self._counts.connections += 1
        self._guard.leave(connection)
        connection.turn_away(bound, why)


class TcpConnection(Endpoint, asyncio.BufferedProtocol):
    """One connection. The dialling end has an `address`, the accepting one a `server`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cluster: ClusterID,
        scratch: memoryview,
        counts: RefusalCounts,
        address: str = "",
        *,
        server: TcpServer | None = None,
    ) -> None:
        super().__init__(loop, accepting=server is not None)
        self._cluster = cluster
        self._dialled = address
        self._server = server
        self._counts = counts
        # The one that we dialled is known: we chose its address. One that dialled us is known by its first good frame.
        self._known = server is None
        self._reader = (
            FrameReader(scratch, self._take_frame)
            if server is None
            else FrameReader(
                scratch,
                self._take_frame,
                frame_bytes_max=UNKNOWN_PEER_FRAME_BYTES_MAX,
                held_changed=lambda held_bytes: server.held(self, held_bytes),
            )
        )
        self._transport: asyncio.Transport
        self._ending: (
            select.poll
        )  # of its socket, asked whether the other side has ended or reset the connection
        self._abort_timer: asyncio.TimerHandle | None = None
        self.trusted = True  # False: a process of another user of this machine, by the local socket

    @property
    def known(self) -> bool:
        """Whether a good frame of this cluster has come."""
        return self._known

    @property
    def reading_paused(self) -> bool:
        return self._reading_paused

    def turn_away(self, bound: str, why: str) -> None:
        """Close because of a bound of this server, without waiting for what is still to be sent."""
        if not self._closed:
            self._log_closing(bound, why, None)
            self._end(why)
        self._reader.drop()
        self._transport.abort()

    # --- asyncio.BufferedProtocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(CONNECTION_WRITE_BYTES_MAX, CONNECTION_WRITE_BYTES_MAX // 2)
        wire = transport.get_extra_info("socket")
        self._ending = select.poll()
        self._ending.register(wire.fileno(), select.POLLRDHUP)
        host = ""
        if wire.family == socket.AF_UNIX:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, local.BUFFER_BYTES)
            self._peer = self._dialled or f"process {local.credentials_of(wire)[0]} of this machine"
            self.trusted = local.is_trusted(wire)
        else:
            name = transport.get_extra_info("peername")
            host = name[0] if name else "unknown"
            self._made_by_tcp(wire, name)
        if self._server is not None:
            self._server.came(self, host)
        else:
            # Without waiting for anything: it is ahead of the first request, and makes this end known.
            self._transport.write(frame_head(HELLO, 0, 0, self._cluster, b""))

    def _made_by_tcp(self, wire: socket.socket, name: tuple[str, int] | None) -> None:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose machine vanished sends nothing, and an idle connection is silent: let the kernel probe.
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
            self._refuse_malformed(error)

    def eof_received(self) -> None:
        try:
            self._reader.end()
        except MalformedFrame as error:
            self._refuse(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.drop()
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
        head = frame_head(kind, number_of[type(message)], request, self._cluster, encode(message), payload)
        if payload_bytes == 0:
            self._transport.write(head)
        elif payload_bytes <= JOIN_BYTES_MAX:
            self._transport.write(b"".join((head, payload)))
        else:
            self._transport.writelines((head, payload))

    def _is_cut(self) -> bool:
        # One question to the kernel per request: a reset that is known there already is no reason for an unknown
        # outcome (law 10).
        return self._transport.is_closing() or bool(self._ending.poll(0))

    def _set_reading(self, reading: bool) -> None:
        if reading:
            # Not from here: this may be the answer to a frame that the reader is just delivering.
            self._loop.call_soon(self._go_on_reading)
        elif not self._transport.is_closing():
            self._reader.pause()
            self._transport.pause_reading()

    def _disconnect(self) -> None:
        transport = self._transport
        if transport.get_write_buffer_size() > 0:
            # The other side may never read it, and must not block us here.
            self._abort_timer = self._loop.call_later(CLOSE_FLUSH_S, transport.abort)
        transport.close()

    def _go_on_reading(self) -> None:
        if not self._may_read():
            return
        try:
            self._reader.resume()
        except MalformedFrame as error:
            self._refuse_malformed(error)
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
            if kind != HELLO:  # which has no answer: what comes behind it is refused, and says so
                self._refuse_frame(kind, request, NotInCluster(ClusterID(cluster), self._cluster))
            return
        if kind == HELLO:
            self._get_to_know()
            return
        try:
            message = decode(number, meta)
        except VarlogError as error:
            self._refuse_frame(kind, request, error)
            return
        if not self._known:
            self._get_to_know()
        if kind == REQUEST:
            self._take_request(request, message, payload)
        elif kind == REPLY:
            self._take_reply(request, message, payload)
        else:
            self._take_oneway(message, payload)

    def _get_to_know(self) -> None:
        self._known = True
        self._reader.frame_bytes_max = FRAME_BYTES_MAX

    def _refuse_malformed(self, error: MalformedFrame) -> None:
        if isinstance(error, CorruptFrame):
            self._counts.corrupt_frames += 1
            self._refuse(f"corrupt frame {self._counts.corrupt_frames} of this process: {error}")
        else:
            self._counts.malformed_frames += 1
            self._refuse(f"it sent a malformed frame: {error}")

    def _log_closing(self, kind: str, why: str, error: BaseException | None) -> None:
        if self._counts.lines.allows(kind, self._loop.time()):
            left_out = self._counts.lines.left_out(kind)
            more = {"more_since_the_last_line": left_out} if left_out else {}
            _log.warning(logfmt("closing a connection", peer=self._peer, why=why, **more), exc_info=error)

    def _refuse_frame(self, kind: int, request: int, error: VarlogError) -> None:
        """A frame that is whole but not acceptable costs its sender that request or, if it cannot be answered, the connection."""
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
