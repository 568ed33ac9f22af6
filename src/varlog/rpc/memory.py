"""MemoryTransport: connections inside one process, for embedded use and tests.

Nothing is encoded; payloads are copied.

Frames wait in the receiver's inbox and are handled in a later turn of the loop, in order, so that a sender never runs
inside its receiver, exactly as over a wire.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from varlog.model.batch import Buffer
from varlog.model.errors import InvalidRequest, StartupError
from varlog.model.limits import CONNECTION_WRITE_BYTES_MAX, FRAME_BYTES_MAX
from varlog.rpc.endpoint import Endpoint
from varlog.rpc.framing import REPLY, REQUEST
from varlog.rpc.messages import Message
from varlog.rpc.transport import Connection, ConnectionLost, Handler

# What one frame holds besides its payload: as with requests, very many small ones count as well.
FRAME_OVERHEAD_BYTES: Final = 512


class MemoryTransport:
    """The network of one embedded cluster. An address is any string; one that ends in `:0` gets a number of its own."""

    corrupt_frames = 0  # nothing is between the two ends

    def __init__(self) -> None:
        self._servers: dict[str, MemoryServer] = {}
        self._ports = count(1)

    async def connect(
        self, address: str, *, handler: Handler | None = None, timeout_s: float
    ) -> MemoryConnection:
        server = self._servers.get(address)
        if server is None:
            raise ConnectionLost(f"cannot connect to {address}: nobody listens there", sent=False)
        return server.admit(handler)

    async def serve(self, address: str, make_handler: Callable[[Connection], Handler]) -> MemoryServer:
        if address.endswith(":0"):
            address = f"{address.removesuffix('0')}{next(self._ports)}"
        if address in self._servers:
            raise StartupError(
                f"cannot listen at {address}: another service listens there. Stop it, or choose another address"
            )
        server = MemoryServer(address, make_handler, self._forget)
        self._servers[address] = server
        return server

    def _forget(self, address: str) -> None:
        self._servers.pop(address, None)


class MemoryServer:
    """A listening address and the connections that came in by it."""

    def __init__(
        self, address: str, make_handler: Callable[[Connection], Handler], forget: Callable[[str], None]
    ) -> None:
        self._address = address
        self._make_handler = make_handler
        self._forget = forget
        self._accepted: dict[MemoryConnection, None] = {}

    @property
    def address(self) -> str:
        return self._address

    def admit(self, handler: Handler | None) -> MemoryConnection:
        """A new pair of ends; the dialling one is returned."""
        loop = asyncio.get_running_loop()
        dialling = MemoryConnection(loop, self._address, accepting=False)
        accepting = MemoryConnection(loop, f"a client of {self._address}", accepting=True)
        dialling.join(accepting)
        accepting.join(dialling)
        if handler is not None:
            dialling.serve_with(handler)
        self._accepted[accepting] = None
        accepting.on_close(lambda: self._leave(accepting))
        accepting.serve_with_made(self._make_handler)
        return dialling

    async def close(self) -> None:
        self._forget(self._address)
        for connection in list(self._accepted):
            connection.close()

    def _leave(self, connection: MemoryConnection) -> None:
        self._accepted.pop(connection, None)


class MemoryConnection(Endpoint):
    """One end; the other end is an object in the same process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str, *, accepting: bool) -> None:
        super().__init__(loop, accepting=accepting)
        self._peer = peer
        self._other: MemoryConnection
        self._inbox: deque[tuple[int, int, Message, bytearray]] = deque()
        self._inbox_bytes = 0
        self._delivery_planned = False
        self._other_hung_up = False

    def join(self, other: MemoryConnection) -> None:
        self._other = other

    # --- Endpoint ---------------------------------------------------------------------------------------------------

    def _post(self, kind: int, message: Message, payload: Buffer, request: int) -> None:
        if len(payload) > FRAME_BYTES_MAX:
            raise InvalidRequest(
                f"a payload of {len(payload)} bytes is over the limit of {FRAME_BYTES_MAX}: ask or send less at once"
            )
        # A copy: the sender may continue to use its bytes (a primary sends the same ones to every backup).
        self._other.put(kind, request, message, bytearray(payload))

    def _is_cut(self) -> bool:
        return self._other._closed

    def _set_reading(self, reading: bool) -> None:
        if reading:
            self._plan_delivery()

    def _disconnect(self) -> None:
        self._inbox.clear()
        self._other.put_disconnect()

    # --- The other end puts, this end takes ------------------------------------------------------------------------

    def put(self, kind: int, request: int, message: Message, payload: bytearray) -> None:
        if self._closed:  # it is closed, and the sender does not know yet
            return
        self._inbox.append((kind, request, message, payload))
        self._inbox_bytes += len(payload) + FRAME_OVERHEAD_BYTES
        self._plan_delivery()
        if self._inbox_bytes > CONNECTION_WRITE_BYTES_MAX and not self._other._writes_backed_up:
            self._other._set_writes_backed_up(True)

    def put_disconnect(self) -> None:
        self._other_hung_up = True
        self._plan_delivery()

    def _plan_delivery(self) -> None:
        if not self._delivery_planned:
            self._delivery_planned = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivery_planned = False
        # Only what waits now: what follows from it waits for the next turn, or two ends would occupy the loop.
        for _ in range(len(self._inbox)):
            if self._reading_paused or not self._inbox:
                break
            kind, request, message, payload = self._inbox.popleft()
            self._inbox_bytes -= len(payload) + FRAME_OVERHEAD_BYTES
            if kind == REQUEST:
                self._take_request(request, message, payload)
            elif kind == REPLY:
                self._take_reply(request, message, payload)
            else:
                self._take_oneway(message, payload)
        if self._other._writes_backed_up and self._inbox_bytes <= CONNECTION_WRITE_BYTES_MAX // 2:
            self._other._set_writes_backed_up(False)
        if self._other_hung_up and not self._inbox:
            self._end("the other side closed it")
