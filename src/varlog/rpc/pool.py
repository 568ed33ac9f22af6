"""ConnectionPool: one shared connection per address, made when first needed.

It is made again after it broke.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from varlog.model.batch import Buffer
from varlog.rpc.messages import Message
from varlog.rpc.transport import Connection, ConnectionLost, Handler, Transport
from varlog.runtime.tasks import Tasks


class ConnectionPool:
    """The connections that one process dials. `handler` handles what the other sides send without a request; `on_lost`
    is called for a connection that was not closed by the pool."""

    def __init__(
        self,
        transport: Transport,
        *,
        handler: Handler | None = None,
        owner: str = "pool",
        on_lost: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._transport = transport
        self._handler = handler
        self._on_lost = on_lost
        self._connections: dict[str, Connection] = {}
        self._dials: dict[str, asyncio.Task[Connection]] = {}
        # A dial that fails is reported to its waiters.
        self._tasks = Tasks(owner, lambda name, error: None)
        self._closed = False

    async def get(self, address: str, timeout_s: float) -> Connection:
        """The connection to `address`. ConnectionLost(sent=False) if it cannot be made in time."""
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._closed:
            raise ConnectionLost(f"{address} is not dialled: the pool is closed", sent=False)
        dial = self._dials.get(address)
        if dial is None:
            dial = self._tasks.spawn(f"dial {address}", self._dial(address, timeout_s))
            self._dials[address] = dial
        return await self._wait_dialled(address, dial, timeout_s)

    async def call(
        self, address: str, request: Message, payload: Buffer = b"", *, timeout_s: float
    ) -> tuple[Message, bytearray]:
        """Call over the connection to `address`, dialled first if need be, all within `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        connection = await self.get(address, timeout_s)
        return await connection.call(request, payload, timeout_s=deadline - loop.time())

    def drop(self, address: str) -> None:
        """Close the connection to `address`, if there is one: the next caller dials again."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Close every connection; nothing is dialled any more."""
        self._closed = True
        await self._tasks.close()
        for address in list(self._connections):
            self.drop(address)

    async def _wait_dialled(
        self, address: str, dial: asyncio.Task[Connection], timeout_s: float
    ) -> Connection:
        # Waited for without being owned: one caller that gives up must not end the dial for the others.
        done, _ = await asyncio.wait([dial], timeout=timeout_s)
        if not done:
            raise ConnectionLost(f"{address} did not answer within {timeout_s:g} s", sent=False)
        if dial.cancelled():
            raise ConnectionLost(f"{address} is not dialled: the pool is closed", sent=False)
        error = dial.exception()
        if isinstance(error, ConnectionLost):
            # A new one for each caller: an exception that several raise would accumulate their tracebacks.
            raise ConnectionLost(error.what, sent=False)
        return dial.result()

    async def _dial(self, address: str, timeout_s: float) -> Connection:
        try:
            connection = await self._transport.connect(address, handler=self._handler, timeout_s=timeout_s)
        finally:
            del self._dials[address]
        self._connections[address] = connection
        connection.on_close(lambda: self._forget(address, connection))
        return connection

    def _forget(self, address: str, connection: Connection) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]
            self._on_lost(address)
