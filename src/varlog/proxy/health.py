"""Health: whether this process lives, and whether it can reach its cluster."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter
from pydantic import BaseModel

from varlog.proxy.dependencies import GatewayDependency
from varlog.proxy.errors import DeadlinePassed
from varlog.proxy.problem import Problem

# Health checks of load balancers do not wait for long.
READY_TIMEOUT_S: Final = 2.0

router = APIRouter(prefix="/health", tags=["health"])


class Liveness(BaseModel):
    """The process answers."""

    live: bool = True


class Readiness(BaseModel):
    """The metadata repository of this cluster answers."""

    ready: bool = True
    cluster: int


@router.get("/live")
async def live() -> Liveness:
    """200 as long as this process answers, whatever the state of the cluster."""
    return Liveness()


@router.get("/ready", responses={503: {"model": Problem}, 504: {"model": Problem}})
async def ready(gateway: GatewayDependency) -> Readiness:
    """200 if the cluster can be reached; else 503 or 504 with the reason."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            view = await (await gateway.admin()).view()
    except TimeoutError:
        raise DeadlinePassed(READY_TIMEOUT_S) from None
    return Readiness(cluster=view.cluster)
