"""ProxyService: one proxy process: its configuration, HTTP server, start and stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI

from varlog.model.errors import StartupError
from varlog.proxy.app import make_app
from varlog.proxy.connection import HttpConnection, SocketConnection
from varlog.proxy.gateway import Backend, ClusterBackend, EmbeddedBackend, Gateway
from varlog.proxy.header_rules import AcceptedNames
from varlog.proxy.limits import ProxyLimits
from varlog.rpc.tcp import join_address, split_address
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.process import allow_open_files
from varlog.runtime.tasks import Tasks

_log = get_logger("proxy")

# Connections that wait to be accepted.
BACKLOG = 2048


class ProxyService:
    """One proxy. It starts without its cluster as well: until that is up, requests report that it cannot be reached."""

    def __init__(self, config: ProxyConfig) -> None:
        self.config = config
        self.address = ""
        self._opened = AsyncExitStack()
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._tasks = Tasks("proxy", lambda name, error: None)  # `wait_failed` reports it

    async def start(self) -> None:
        """StartupError says what is wrong: an address that is not available, a directory that is in use."""
        allow_open_files()
        listening = _listen(self.config.listen)
        try:
            app = make_app(Gateway(_backend(self.config)), self.config.limits, self.config.names)
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
        """Accept nothing more, finish requests in flight, notify subscribers, then close the log."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])
        await self._tasks.close()
        await self._opened.aclose()

    async def wait_failed(self) -> BaseException:
        """Why it no longer serves although it was not stopped."""
        if self._serving is None:
            raise StartupError("the proxy has not been started")
        await asyncio.wait([self._serving])
        return self._serving.exception() or StartupError("the HTTP server ended by itself")


def _backend(config: ProxyConfig) -> Backend:
    return ClusterBackend(config.cluster) if config.data is None else EmbeddedBackend(config.data)


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
            f"cannot listen at {address}: {error.strerror or error}. Stop the process that listens there, or choose another "
            "--listen (port 0 uses any free one)"
        ) from None


# --- the HTTP server: uvicorn with our connections and a bounded stop -----------------------------------------------------

# When it stops, requests in flight have this long to end.
STOP_S: Final = 5.0


class _Server(uvicorn.Server):
    """Handles no signals: its process decides when it stops."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(
    app: FastAPI, host: str = "127.0.0.1", port: int = 0, *, lifespan: bool = True
) -> uvicorn.Server:
    """A server of `app`; `await server.serve()` runs it until `server.should_exit`. The caller handles signals, and
    without `lifespan` also the application's start and end."""
    limits = app.state.limits
    return _Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=HttpConnection,
            ws=SocketConnection,
            ws_max_size=limits.body_bytes_max,
            # Compressing costs more than it saves between machines that are near each other.
            ws_per_message_deflate=False,
            # An append delays the messages behind it, and with them the answer to a ping.
            ws_ping_timeout=20.0 + limits.timeout_s_max,
            lifespan="on" if lifespan else "off",
            # Clients are counted by their connection: a header can name any address.
            proxy_headers=False,
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=round(STOP_S),
        )
    )


# --- configuration ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """`cluster`: where the metadata repositories listen; `data`, if set: a directory instead, which this process opens.
    `names`: the hosts that it answers for."""

    listen: str
    cluster: str
    data: Path | None = None
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    names: AcceptedNames = field(default_factory=AcceptedNames)
