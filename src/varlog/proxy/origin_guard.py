"""OriginGuard: pages of other servers cannot change anything here through the browser of somebody who can.

A browser sends what any page asks for to anywhere, a plain POST without even asking first, and says only where the page is from.
Programs send no Origin, and are let through.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from varlog.proxy.errors import ForeignOrigin
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.problem import answer

# What changes nothing may be asked for by anybody: another page cannot read the answer.
_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})


def check_origin(headers: Headers) -> None:
    """ForeignOrigin if these are of a request that a page of another server made."""
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is not None and _server_of(origin) != host.lower():
        raise ForeignOrigin(origin, host)


def _server_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


class OriginGuard:
    """Stands before the application. Sockets are checked by their own route, which can say why it closes them."""

    def __init__(self, app: ASGIApp, limits: ProxyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in _HARMLESS:
            try:
                check_origin(Headers(scope=scope))
            except ForeignOrigin as foreign:
                await answer(foreign, self._limits)(scope, receive, send)
                return
        await self._app(scope, receive, send)
