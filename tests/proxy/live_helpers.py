"""A proxy on a real socket, and a consumer of its events that reads as fast or as slowly as a test wants."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from websockets.asyncio.client import connect

from tests.proxy.helpers import TEST_S, Proxy
from varlog.client.log import Log
from varlog.proxy.app import make_app
from varlog.proxy.feed import Followers
from varlog.proxy.gateway import EmbeddedBackend, Gateway
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.server import make_server


async def wait_until(holds: Callable[[], object]) -> None:
    """Wait for a condition; the test's own deadline ends it."""
    while not holds():
        await asyncio.sleep(0.005)


@dataclass(frozen=True)
class LiveProxy:
    """A proxy that listens."""

    app: Any
    gateway: Gateway
    server: uvicorn.Server
    port: int

    @property
    def followers(self) -> Followers:
        followers: Followers = self.app.state.followers
        return followers

    async def log(self, topic: str = "orders") -> Log:
        return await self.gateway.log(topic)

    def metric(self, name: str, **labels: str) -> float:
        return self.app.state.meters.registry.get_sample_value(name, labels) or 0.0

    def socket(self, query: str = "", **options: Any) -> connect:
        """A WebSocket of the topic `orders`."""
        patience = {"open_timeout": TEST_S, "close_timeout": TEST_S, "ping_timeout": TEST_S}
        return connect(f"ws://127.0.0.1:{self.port}/v1/topics/orders/socket?{query}", **(patience | options))

    @asynccontextmanager
    async def events(
        self, query: str = "", *, last_event_id: str | None = None, receive_bytes: int = 0
    ) -> AsyncIterator[EventReader]:
        """Follow the topic `orders`. `receive_bytes`: what the kernel holds for us, small for one who is to be slow."""
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(
            sock=connection, limit=4096 if receive_bytes else 2**24
        )
        resume = f"Last-Event-ID: {last_event_id}\r\n" if last_event_id is not None else ""
        writer.write(
            f"GET /v1/topics/orders/events?{query} HTTP/1.1\r\nHost: localhost\r\n{resume}\r\n".encode()
        )
        try:
            yield EventReader(reader, writer)
        finally:
            writer.close()


class EventReader:
    """The client's side of one stream of events."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._buffer = b""
        self._over = False

    async def status(self) -> int:
        """The status of the answer; its headers are read."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1])

    async def body(self) -> dict[str, Any]:
        """A problem that was answered in place of events."""
        body: dict[str, Any] = json.loads(await self.reader.readuntil(b"}}"))
        return body

    async def next(self) -> tuple[str, int | None, Any]:
        """(name, id, data) of the next event; comments and the like are passed over. EOFError: there is none."""
        while True:
            while b"\n\n" not in self._buffer:
                await self._chunk()
            block, _, self._buffer = self._buffer.partition(b"\n\n")
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
            if b"data" in fields:
                place = int(fields[b"id"]) if b"id" in fields else None
                return fields.get(b"event", b"message").decode(), place, json.loads(fields[b"data"])

    async def ids(self, count: int) -> list[int]:
        """The positions of the next entries."""
        found = []
        for _ in range(count):
            name, place, _ = await self.next()
            assert name == "message" and place is not None
            found.append(place)
        return found

    async def comment(self) -> bytes:
        """The next comment."""
        while True:
            while b"\n\n" not in self._buffer:
                await self._chunk()
            block, _, self._buffer = self._buffer.partition(b"\n\n")
            if block.startswith(b":"):
                return block

    async def _chunk(self) -> None:
        if self._over:
            raise EOFError
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        self._buffer += (await self.reader.readexactly(size + 2))[:-2]
        self._over = size == 0


@asynccontextmanager
async def live_proxy(path: Path, limits: ProxyLimits | None = None) -> AsyncIterator[LiveProxy]:
    """A proxy over an embedded log, listening on a port of its own, with the topic `orders`."""
    gateway = Gateway(EmbeddedBackend(path, sync=False))
    app = make_app(gateway, limits)
    server = make_server(app)
    serving = asyncio.create_task(server.serve())
    try:
        await wait_until(lambda: server.started or serving.done())
        await Proxy(app, gateway, None).create_topic("orders")  # type: ignore[arg-type]  # without a client of its own
        yield LiveProxy(app, gateway, server, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        await serving


def with_live_proxy(
    path: Path,
    story: Callable[[LiveProxy], Awaitable[None]],
    *,
    limits: ProxyLimits | None = None,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a story against a proxy that listens. `loop`: on another kind of event loop than asyncio's own."""

    async def run() -> None:
        async with asyncio.timeout(TEST_S), live_proxy(path, limits) as proxy:
            await story(proxy)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
