"""make_app(): the proxy as one ASGI application with its routes and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import varlog
from varlog.proxy import admin, append, health, metrics, pages, read, sse, websocket
from varlog.proxy.admission import ProxyAdmission
from varlog.proxy.feed import Followers
from varlog.proxy.gateway import Gateway
from varlog.proxy.header_rules import AcceptedNames
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.meters import MeteredApp, ProxyMeters
from varlog.proxy.middleware import BodyLimit, OriginGuard
from varlog.proxy.openapi import describe_api
from varlog.proxy.problem import answer_with_problems
from varlog.proxy.status_publisher import StatusPublisher

ROUTES = (append, read, sse, websocket, admin, health, metrics, pages)


def make_app(
    gateway: Gateway, limits: ProxyLimits | None = None, names: AcceptedNames | None = None
) -> FastAPI:
    """The application in front of `gateway`, which it opens when it starts and closes when it stops. It answers for `names`
    only; by default, for those of the loopback and the addresses that it is reached at."""
    limits, names = limits or ProxyLimits(), names or AcceptedNames()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await followers.close()
            await gateway.close()

    app = FastAPI(
        title="varlog proxy",
        version=varlog.__version__,
        description="A replicated, totally ordered log over HTTP.",
        lifespan=lifespan,
        docs_url=None,  # these pages would load their scripts from the network
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    app.state.limits = limits
    app.state.meters = meters = ProxyMeters()
    app.state.admission = admission = ProxyAdmission(limits, meters)
    app.state.followers = followers = Followers(gateway, admission)
    app.state.publisher = StatusPublisher(gateway)
    answer_with_problems(app, limits, [route for routes in ROUTES for route in routes.router.routes])
    app.add_middleware(BodyLimit, limits=limits)
    app.add_middleware(OriginGuard, limits=limits, names=names)
    app.add_middleware(MeteredApp, meters=meters)  # the outermost: it counts every answer
    describe_api(app)
    for routes in ROUTES:
        app.include_router(routes.router)
    return app
