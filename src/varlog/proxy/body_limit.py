"""BodyLimit: no request's body is larger than allowed, whether it announces its length or not, nor slower."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from varlog.proxy.connection import connection_of
from varlog.proxy.errors import BodyTooLarge, SlowBody
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.problem import answer


class BodyLimit:
    """Stands before the application, because a route sees its body only when all of it is in memory."""

    def __init__(self, app: ASGIApp, limits: ProxyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = BodyTooLarge(self._limits.body_bytes_max)
        said = Headers(scope=scope).get("content-length", "")
        if said.isdecimal() and int(said) > too_large.limit:
            await answer(too_large, self._limits)(scope, receive, send)
            return
        taken, connection = 0, connection_of(scope)

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            if connection is not None and connection.body_too_slow and message.get("more_body"):
                slow = SlowBody(self._limits.body_bytes_s_min)
                raise HTTPException(slow.status) from slow
            taken += len(message.get("body", b""))
            if taken > too_large.limit:
                # As an HTTPException it passes through whoever reads the body, and its cause is what is told.
                raise HTTPException(too_large.status) from too_large
            return message

        await self._app(scope, counted, send)
