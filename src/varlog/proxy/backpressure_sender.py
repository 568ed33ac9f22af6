"""BackpressureSender: the way out to one consumer: what is sent waits until it is taken, and a consumer that takes nothing for
long is dropped.

The proxy holds for it what is on the way and no more. Taking is what counts: one that is slow but takes some bytes now and then is
served at its own pace, and hears of it if the log is trimmed under it.
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
        """Nobody is there any more, as far as the server can say."""
        return self.connection is not None and self.connection.lost

    async def send(self, message: Message) -> None:
        """Send, as soon as little enough waits of what was sent before. TooSlow: nothing was taken for `slow_s`; drop it."""
        while True:
            waiting = self._waiting_bytes()
            try:
                async with asyncio.timeout(self._slow_s):
                    # The server waits first, then writes: one that was given up has written nothing, and can be sent again.
                    await self._send(message)
                return
            except TimeoutError:
                if self._waiting_bytes() >= waiting:
                    raise TooSlow(self._slow_s) from None

    async def send_text(self, text: bytes) -> None:
        """One message of a WebSocket."""
        await self.send({"type": "websocket.send", "text": text.decode()})

    def drop(self, last: bytes, code: int = 0) -> None:
        """Let go of a consumer that takes nothing; `last` is there for it if it takes something after all, soon."""
        if self.connection is not None:
            self.connection.drop(last, code)

    def _waiting_bytes(self) -> int:
        return self.connection.waiting_bytes if self.connection is not None else 0
