"""BackpressureSender: sends to one consumer, and gives up on one that stalls.

The proxy buffers for a consumer what is in flight and no more. A slow consumer that reads some bytes now and then is served at
its own pace, and is notified if the log is trimmed under it; one that reads nothing for too long is dropped.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Scope, Send

from varlog.proxy.connection import connection_of
from varlog.proxy.errors import TooSlow


class BackpressureSender:
    """The sending side of one request or socket."""

    def __init__(self, scope: Scope, send: Send, slow_s: float) -> None:
        self.connection = connection_of(scope)
        self._send = send
        self._slow_s = slow_s

    @property
    def lost(self) -> bool:
        """The peer is gone, as far as the server knows."""
        return self.connection is not None and self.connection.lost

    async def send(self, message: Message) -> None:
        """Send once the buffer has room. TooSlow: the consumer read nothing for `slow_s`, and is to be dropped."""
        while True:
            waiting = self._waiting_bytes()
            try:
                async with asyncio.timeout(self._slow_s):
                    # The server waits first, then writes: a cancelled send has written nothing, and can be repeated.
                    await self._send(message)
                return
            except TimeoutError:
                if self._waiting_bytes() >= waiting:
                    raise TooSlow(self._slow_s) from None

    async def send_text(self, text: bytes) -> None:
        """One message of a WebSocket."""
        await self.send({"type": "websocket.send", "text": text.decode()})

    def drop(self, last: bytes, code: int = 0) -> None:
        """Disconnect a consumer that reads nothing; it gets `last` if it reads again soon."""
        if self.connection is not None:
            self.connection.drop(last, code)

    def _waiting_bytes(self) -> int:
        return self.connection.waiting_bytes if self.connection is not None else 0
