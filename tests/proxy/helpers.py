"""A proxy over an embedded log, called without a socket: what the tests of this folder share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import FastAPI

from varlog.proxy.app import make_app
from varlog.proxy.gateway import Backend, EmbeddedBackend, Gateway
from varlog.proxy.limits import ProxyLimits

# Longer than anything takes here, shorter than a test may.
TEST_S = 120.0


@dataclass(frozen=True)
class Proxy:
    """A running proxy: its application, what is behind it, and a client that calls it."""

    app: FastAPI
    gateway: Gateway
    http: httpx.AsyncClient

    async def create_topic(self, name: str, *, streams: int = 1, ordering: str = "committed") -> None:
        """A topic that takes appends."""
        await (await self.gateway.admin()).create_topic(name, streams=streams, ordering=ordering)
        assert await (await self.gateway.log(name)).connector.wait_running()


@asynccontextmanager
async def running_proxy(
    path: Path, *, topic: str = "orders", limits: ProxyLimits | None = None, opener: Backend | None = None
) -> AsyncIterator[Proxy]:
    """A proxy over an embedded log in `path`, with one topic ("": none)."""
    gateway = Gateway(opener or EmbeddedBackend(path, sync=False))
    app = make_app(gateway, limits)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        proxy = Proxy(app, gateway, http)
        if topic:
            await proxy.create_topic(topic)
        yield proxy


def with_proxy(
    path: Path,
    story: Callable[[Proxy], Awaitable[None]],
    *,
    topic: str = "orders",
    limits: ProxyLimits | None = None,
) -> None:
    """Run a story against a proxy, in a loop of its own."""

    async def run() -> None:
        async with asyncio.timeout(TEST_S), running_proxy(path, topic=topic, limits=limits) as proxy:
            await story(proxy)

    asyncio.run(run())
