"""FastAPI dependencies of routes: gateway, limits, topic, deadline and others.

All of them are coroutines: FastAPI runs a plain function in a thread, which costs more than the function itself.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Query
from starlette.requests import HTTPConnection

from varlog.model.ids import ID_MAX
from varlog.model.lsn import LSN_MAX
from varlog.proxy.admission import ProxyAdmission
from varlog.proxy.feed import Followers
from varlog.proxy.gateway import Gateway
from varlog.proxy.limits import Deadline, ProxyLimits
from varlog.proxy.meters import ProxyMeters
from varlog.proxy.status_publisher import StatusPublisher

# The shortest deadline that a caller may name: less is a mistake.
TIMEOUT_S_MIN = 0.001


async def gateway_of(connection: HTTPConnection) -> Gateway:
    """The gateway of the application."""
    gateway: Gateway = connection.app.state.gateway
    return gateway


async def limits_of(connection: HTTPConnection) -> ProxyLimits:
    """The limits of the application."""
    limits: ProxyLimits = connection.app.state.limits
    return limits


async def admission_of(connection: HTTPConnection) -> ProxyAdmission:
    """The admission control of the application."""
    admission: ProxyAdmission = connection.app.state.admission
    return admission


async def followers_of(connection: HTTPConnection) -> Followers:
    """The followers of the application's topics."""
    followers: Followers = connection.app.state.followers
    return followers


async def meters_of(connection: HTTPConnection) -> ProxyMeters:
    """The metrics of the application."""
    meters: ProxyMeters = connection.app.state.meters
    return meters


async def status_publisher_of(connection: HTTPConnection) -> StatusPublisher:
    """The status publisher of the application, which keeps samples for rates."""
    publisher: StatusPublisher = connection.app.state.publisher
    return publisher


_TimeoutQuery = Annotated[
    float | None,
    Query(
        ge=TIMEOUT_S_MIN,
        allow_inf_nan=False,
        description="Deadline in seconds; cut to what the proxy allows.",
    ),
]
_TimeoutHeader = Annotated[
    float | None,
    Header(ge=TIMEOUT_S_MIN, allow_inf_nan=False, description="The same as `timeout`, which has precedence."),
]


async def _timeout_of(
    connection: HTTPConnection, timeout: _TimeoutQuery = None, varlog_timeout: _TimeoutHeader = None
) -> float:
    limits: ProxyLimits = connection.app.state.limits
    asked = timeout if timeout is not None else varlog_timeout
    return limits.timeout_s if asked is None else min(asked, limits.timeout_s_max)


async def _deadline_of(
    connection: HTTPConnection, timeout: _TimeoutQuery = None, varlog_timeout: _TimeoutHeader = None
) -> Deadline:
    return Deadline(await _timeout_of(connection, timeout, varlog_timeout))


GatewayDependency = Annotated[Gateway, Depends(gateway_of)]
LimitsDependency = Annotated[ProxyLimits, Depends(limits_of)]
AdmissionDependency = Annotated[ProxyAdmission, Depends(admission_of)]
FollowersDependency = Annotated[Followers, Depends(followers_of)]
MetersDependency = Annotated[ProxyMeters, Depends(meters_of)]
StatusDependency = Annotated[StatusPublisher, Depends(status_publisher_of)]
# The deadline of this call in seconds: `?timeout=`, or the header Varlog-Timeout, or the proxy's own.
TimeoutDependency = Annotated[float, Depends(_timeout_of)]
# The same, counted from the arrival of the request.
DeadlineDependency = Annotated[Deadline, Depends(_deadline_of)]
TopicName = Annotated[
    str,
    Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="The topic's name.", examples=["orders"]),
]
StreamNumber = Annotated[int, Path(ge=1, le=ID_MAX, description="The log stream's number.")]
NodeNumber = Annotated[int, Path(ge=1, le=ID_MAX, description="The storage node's number.")]
PositionDependency = Annotated[int, Path(ge=1, le=LSN_MAX, description="A position: 1, 2, 3 …")]
