"""RedisWire: the Redis protocol with as little Python as it takes: commands written as bytes, answers parsed by hiredis.

Callers share one connection: commands of one turn of the loop leave in one write, and answers come in the order of the commands.
redis-py gives each caller a connection of its own and spends more processor time on a command than the server does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import hiredis


class RedisWire(asyncio.Protocol):
    """One connection, as many commands under way as its callers like."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._reader = hiredis.Reader()
        self._out: list[bytes] = []
        # Answers still missing, and the future of all of them, in the order of the commands.
        self._calls: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self._got: list[Any] = []

    @classmethod
    async def connected(cls, place: str) -> RedisWire:
        """By the server's Unix socket."""
        _, wire = await asyncio.get_running_loop().create_unix_connection(cls, place)
        return wire

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait([self._closed])

    def xadd(self, key: bytes, payload: bytes) -> asyncio.Future[list[Any]]:
        """One entry; its id comes in a list of one."""
        return self._call(self._added(key, payload), 1)

    def xadd_many(self, key: bytes, payloads: Sequence[bytes]) -> asyncio.Future[list[Any]]:
        """A pipeline: all in one write; their ids."""
        return self._call(b"".join([self._added(key, payload) for payload in payloads]), len(payloads))

    def command(self, *words: bytes) -> asyncio.Future[list[Any]]:
        """Any command; its answer in a list of one."""
        packed = b"".join(
            [b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]
        )
        return self._call(packed, 1)

    @staticmethod
    def _added(key: bytes, payload: bytes) -> bytes:
        return b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n$1\r\nd\r\n$%d\r\n%b\r\n" % (
            len(key), key, len(payload), payload,
        )  # fmt: skip

    def _call(self, packed: bytes, answers: int) -> asyncio.Future[list[Any]]:
        done: asyncio.Future[list[Any]] = self._loop.create_future()
        self._calls.append((answers, done))
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(packed)
        return done

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No check by class: uvloop's transports keep the contract without being of the class.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        lost = error or ConnectionResetError("the Redis server has closed the connection")
        if not self._closed.done():
            self._closed.set_result(None)
        while self._calls:
            _, done = self._calls.popleft()
            if not done.done():
                done.set_exception(lost)

    def data_received(self, data: bytes) -> None:
        reader, calls, got = self._reader, self._calls, self._got
        reader.feed(data)
        while (answer := reader.gets()) is not False:
            got.append(answer)
            wanted, done = calls[0]
            if len(got) == wanted:
                calls.popleft()
                self._finish(done, got)
                got = self._got = []

    @staticmethod
    def _finish(done: asyncio.Future[list[Any]], answers: list[Any]) -> None:
        if done.done():
            return
        refused = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if refused is not None:
            done.set_exception(refused)
        else:
            done.set_result(answers)
