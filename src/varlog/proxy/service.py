"""ProxyService: a proxy as a service: opens its log, listens, and stops in order, so that whoever is served hears of it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from ipaddress import ip_address

import uvicorn

from varlog.model.errors import StartupError
from varlog.proxy.app import make_app
from varlog.proxy.config import ProxyConfig
from varlog.proxy.gateway import ClusterOpener, EmbeddedOpener, Gateway, Opener
from varlog.proxy.server import make_server
from varlog.rpc.tcp import join_address, split_address
from varlog.runtime.logs import get_logger, logfmt
from varlog.runtime.open_files import allow_open_files
from varlog.runtime.tasks import Tasks

_log = get_logger("proxy")

# Connections that wait to be accepted.
BACKLOG = 2048


class ProxyService:
    """One proxy. A cluster that is not up yet is no reason not to start: requests say that it cannot be reached."""

    def __init__(self, config: ProxyConfig) -> None:
        self.config = config
        self.address = ""
        self._opened = AsyncExitStack()
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._tasks = Tasks("proxy", lambda name, error: None)  # `wait_failed` tells it

    async def start(self) -> None:
        """StartupError says what is in the way: an address that cannot be had, a directory that is in use."""
        allow_open_files()
        listening = _listen(self.config.listen)
        try:
            app = make_app(Gateway(_opener(self.config)), self.config.limits, self.config.names)
            await self._opened.enter_async_context(app.router.lifespan_context(app))
        except BaseException:
            listening.close()
            raise
        host, port, *_ = listening.getsockname()
        self._server = make_server(app, lifespan=False)
        self._serving = self._tasks.spawn("serve", self._server.serve(sockets=[listening]))
        self.address = join_address(host, port)
        if not ip_address(host).is_loopback:
            _log.info(
                logfmt(
                    "requests are answered for these hosts only; --public-name NAME adds one",
                    hosts=self.config.names,
                    listen=self.address,
                )
            )

    async def stop(self) -> None:
        """Accept nothing more, let what is under way end, tell subscribers; then let go of the log."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])
        await self._tasks.close()
        await self._opened.aclose()

    async def wait_failed(self) -> BaseException:
        """Why it serves no more although nobody stopped it."""
        if self._serving is None:
            raise StartupError("the proxy has not been started")
        await asyncio.wait([self._serving])
        return self._serving.exception() or StartupError("the HTTP server ended by itself")


def _opener(config: ProxyConfig) -> Opener:
    return ClusterOpener(config.cluster) if config.data is None else EmbeddedOpener(config.data)


def _listen(address: str) -> socket.socket:
    try:
        host, port = split_address(address)
    except ValueError as error:
        raise StartupError(str(error)) from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise StartupError(
            f"cannot listen at {address}: {error.strerror or error}. Stop who listens there, or choose another --listen "
            "(port 0 takes any free one)"
        ) from None
