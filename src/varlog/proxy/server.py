"""make_server: the HTTP server under the proxy: uvicorn with our connections, our log, and a bounded stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from fastapi import FastAPI

from varlog.proxy.connection import HttpConnection, SocketConnection

# When it stops, what is under way has so long to end by itself.
STOP_S: Final = 5.0


class _Server(uvicorn.Server):
    """Takes no signals: the process that it is in decides when it stops."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(
    app: FastAPI, host: str = "127.0.0.1", port: int = 0, *, lifespan: bool = True
) -> uvicorn.Server:
    """A server of `app`; `await server.serve()` runs it until `server.should_exit`. Signals are for its caller, and without
    `lifespan` so is the application's start and end."""
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
            # An append holds up the messages behind it, and with them the answer to a ping.
            ws_ping_timeout=20.0 + limits.timeout_s_max,
            lifespan="on" if lifespan else "off",
            # Who is counted is who is connected: a header can name anybody.
            proxy_headers=False,
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=round(STOP_S),
        )
    )
