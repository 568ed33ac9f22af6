"""OriginGuard, BodyLimit: ASGI middleware that refuses before any route runs.

A browser sends requests of any page to any server: a plain POST without a preflight, and, once a foreign name resolves to this
machine, everything. The request names the server (Host) and the page's site (Sec-Fetch-Site, Origin). Programs send
no Origin and no Sec-Fetch-Site, and need only the right Host. There are no CORS headers: no other site is ever allowed to read.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from varlog.proxy.connection import connection_of
from varlog.proxy.errors import BodyTooLarge, ForeignOrigin, Misdirected, SlowBody
from varlog.proxy.header_rules import TEXT, AcceptedNames
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.problem import answer

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# The page itself, or an address that a person typed.
_OWN_SITES: Final = frozenset({"same-origin", "none"})
# What a form or a script of any page can send without a preflight. Old browsers add neither Origin nor Sec-Fetch-Site.
_FORM_TYPES: Final = frozenset({"", TEXT, "application/x-www-form-urlencoded", "multipart/form-data"})
# An answer is what its Content-Type says, and no other site may embed it.
_ANSWER_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def check_request(headers: Headers, scope: Scope, names: AcceptedNames) -> None:
    """Misdirected or ForeignOrigin, if a page of another site may have made this request."""
    host = _check_host(headers, scope, names)
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and _server_of(origin) != host.lower():
        raise ForeignOrigin(origin, host)
    if site is not None and site.lower() not in _OWN_SITES and not _opens_dashboard(headers, scope):
        raise ForeignOrigin(origin or "another site", host)
    if origin is None and site is None and _is_form_of_a_browser(headers, scope):
        raise ForeignOrigin("an unknown site", host)


def _check_host(headers: Headers, scope: Scope, names: AcceptedNames) -> str:
    hosts = headers.getlist("host")
    if not hosts and scope.get("http_version") == "1.0":
        return ""  # health checks of load balancers; there is no browser that sends none
    server = scope.get("server")
    if len(hosts) != 1 or not names.accepts(hosts[0], server[0] if server else None):
        raise Misdirected(", ".join(hosts), str(names))
    return hosts[0]


def _opens_dashboard(headers: Headers, scope: Scope) -> bool:
    """A link on another site may open the dashboard in a tab of its own."""
    return (
        scope["type"] == "http"
        and scope["method"] in ("GET", "HEAD")
        and scope["path"] == "/"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _is_form_of_a_browser(headers: Headers, scope: Scope) -> bool:
    """Every browser calls itself Mozilla, and no page can change that; a program that does so names a media type of its own."""
    if scope["type"] != "http" or scope["method"] in _SAFE_METHODS:
        return False
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    return media in _FORM_TYPES and headers.get("user-agent", "").startswith("Mozilla/")


def _server_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


class OriginGuard:
    """Refuses requests that a page of another site may have made."""

    def __init__(self, app: ASGIApp, limits: ProxyLimits, names: AcceptedNames) -> None:
        self._app = app
        self._limits = limits
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_ANSWER_HEADERS]
            await send(message)

        try:
            check_request(Headers(scope=scope), scope, self._names)
        except (ForeignOrigin, Misdirected) as refused:
            # For a socket this is the response to its handshake.
            await answer(refused, self._limits)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


class BodyLimit:
    """Refuses bodies that are too large, with or without Content-Length, or too slow. A route gets its body only once all of it
    is in memory, which is too late."""

    def __init__(self, app: ASGIApp, limits: ProxyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = BodyTooLarge(self._limits.body_bytes_max)
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > too_large.limit:
            await answer(too_large, self._limits)(scope, receive, send)
            return
        received, connection = 0, connection_of(scope)

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if connection is not None and connection.body_too_slow and message.get("more_body"):
                slow = SlowBody(self._limits.body_bytes_s_min)
                raise HTTPException(slow.status) from slow
            received += len(message.get("body", b""))
            if received > too_large.limit:
                # An HTTPException passes through the code that reads the body; the response is made from its cause.
                raise HTTPException(too_large.status) from too_large
            return message

        await self._app(scope, counted, send)
