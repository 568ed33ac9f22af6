"""Routes of the cluster: topics, log streams, nodes, readers and status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from varlog.model.errors import Unavailable, UnknownLogStream, UnknownTopic, VarlogError
from varlog.model.ids import LogStreamID
from varlog.proxy.admission import client_of
from varlog.proxy.dependencies import (
    AdmissionDependency,
    DeadlineDependency,
    GatewayDependency,
    LimitsDependency,
    MetersDependency,
    NodeNumber,
    StatusDependency,
    StreamNumber,
    TopicName,
)
from varlog.proxy.errors import ChangeUnknown, DeadlinePassed, NoSuchNode
from varlog.proxy.gateway import Gateway
from varlog.proxy.limits import Deadline
from varlog.proxy.openapi import problems
from varlog.proxy.problem import problem_of
from varlog.proxy.sse import MEDIA_TYPE, EventStream, event
from varlog.proxy.status_publisher import StatusPublisher
from varlog.proxy.wire import (
    CreateTopicRequest,
    LogStreamOut,
    LogStreams,
    NodeDetail,
    NodeReplicaOut,
    Nodes,
    Readers,
    StatusOut,
    TopicDetail,
    Topics,
)

router = APIRouter(prefix="/v1", tags=["cluster"])

_EVENTS: Final[dict[str, Any]] = {
    "description": "An event `status` every second with what GET /v1/status returns, or `problem` while it cannot be had.",
    "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
}


# --- topics -------------------------------------------------------------------------------------------------------------


@router.get("/topics")
async def list_topics(publisher: StatusDependency, deadline: DeadlineDependency) -> Topics:
    """All topics, with their oldest and newest positions."""
    return Topics(topics=(await _status_of(publisher, deadline)).topics)


@router.post(
    "/topics",
    status_code=201,
    responses={
        200: {"model": TopicDetail, "description": "An equal one already exists."},
        201: {"description": "Created, and accepts appends."},
    },
)
async def create_topic(
    body: CreateTopicRequest,
    response: Response,
    gateway: GatewayDependency,
    publisher: StatusDependency,
    deadline: DeadlineDependency,
) -> TopicDetail:
    """Create a topic, and wait until it accepts appends."""
    admin = await deadline.wait(gateway.admin())
    known = (await deadline.wait(admin.view())).topic_named(body.name) is not None
    work = admin.create_topic(
        body.name,
        streams=body.streams,
        replicas=body.replicas,
        first=body.first,
        ordering=body.ordering,
        stripe_size=body.stripe_size,
        grouping=body.grouping,
    )
    await _change(gateway, work, deadline)
    response.status_code = 200 if known else 201
    response.headers["Location"] = f"/v1/topics/{body.name}"
    return _topic_of(await _status_after_change(publisher, deadline), body.name)


@router.get("/topics/{topic}")
async def show_topic(
    topic: TopicName, publisher: StatusDependency, deadline: DeadlineDependency
) -> TopicDetail:
    """A topic, its log streams and its readers."""
    return _topic_of(await _status_of(publisher, deadline), topic)


@router.delete("/topics/{topic}", status_code=204)
async def delete_topic(topic: TopicName, gateway: GatewayDependency, deadline: DeadlineDependency) -> None:
    """Delete a topic and everything in it, irreversibly."""
    admin = await deadline.wait(gateway.admin())
    await _change(gateway, admin.delete_topic(topic), deadline)
    await gateway.forget(topic)


@router.get("/topics/{topic}/readers")
async def list_readers(
    topic: TopicName, publisher: StatusDependency, deadline: DeadlineDependency
) -> Readers:
    """The named readers of a topic, and how far behind each of them is."""
    return Readers(readers=_topic_of(await _status_of(publisher, deadline), topic).readers)


# --- log streams --------------------------------------------------------------------------------------------------------


@router.get("/log-streams", responses=problems(404))
async def list_log_streams(
    publisher: StatusDependency,
    deadline: DeadlineDependency,
    topic: Annotated[str | None, Query(description="Only those of this topic.")] = None,
) -> LogStreams:
    """The log streams, and the state of each replica."""
    seen = await _status_of(publisher, deadline)
    return LogStreams(log_streams=seen.log_streams if topic is None else _topic_of(seen, topic).log_streams)


@router.get("/log-streams/{log_stream}")
async def show_log_stream(
    log_stream: StreamNumber, publisher: StatusDependency, deadline: DeadlineDependency
) -> LogStreamOut:
    """One log stream."""
    return _log_stream_of(await _status_of(publisher, deadline), log_stream)


@router.post("/log-streams/{log_stream}/seal")
async def seal(
    log_stream: StreamNumber,
    gateway: GatewayDependency,
    publisher: StatusDependency,
    deadline: DeadlineDependency,
) -> LogStreamOut:
    """Stop appends to a log stream of a committed topic until it is unsealed."""
    _log_stream_of(await _status_of(publisher, deadline), log_stream)
    admin = await deadline.wait(gateway.admin())
    await _change(gateway, admin.seal_stream(log_stream), deadline)
    return _log_stream_of(await _status_after_change(publisher, deadline), log_stream)


@router.post("/log-streams/{log_stream}/unseal")
async def unseal(
    log_stream: StreamNumber,
    gateway: GatewayDependency,
    publisher: StatusDependency,
    deadline: DeadlineDependency,
) -> LogStreamOut:
    """Let a log stream accept appends again, and wait until it does."""
    _log_stream_of(await _status_of(publisher, deadline), log_stream)
    admin = await deadline.wait(gateway.admin())
    await _change(gateway, admin.unseal_stream(log_stream), deadline)
    return _log_stream_of(await _status_after_change(publisher, deadline), log_stream)


# --- nodes --------------------------------------------------------------------------------------------------------------


@router.get("/nodes")
async def list_nodes(publisher: StatusDependency, deadline: DeadlineDependency) -> Nodes:
    """The storage nodes, and whether they answer."""
    return Nodes(nodes=(await _status_of(publisher, deadline)).nodes)


@router.get("/nodes/{node}")
async def show_node(
    node: NodeNumber, publisher: StatusDependency, deadline: DeadlineDependency
) -> NodeDetail:
    """A storage node and its replicas."""
    seen = await _status_of(publisher, deadline)
    found = next((one for one in seen.nodes if one.node == node), None)
    if found is None:
        raise NoSuchNode(node)
    replicas = [
        NodeReplicaOut(**dict(replica), log_stream=stream.log_stream, topic=stream.topic)
        for stream in seen.log_streams
        for replica in stream.replicas
        if replica.node == node
    ]
    return NodeDetail(**dict(found), replicas=replicas)


# --- status -------------------------------------------------------------------------------------------------------------


@router.get("/status", response_model=StatusOut)
async def status(publisher: StatusDependency, deadline: DeadlineDependency) -> Response:
    """Everything: nodes, topics, log streams, readers, recent manager activity and rates."""
    snapshot = await deadline.wait(publisher.snapshot())
    return Response(snapshot.json, media_type="application/json")


@router.get("/status/events", response_class=Response, responses={200: _EVENTS, **problems(429)})
async def status_events(
    request: Request,
    publisher: StatusDependency,
    admission: AdmissionDependency,
    limits: LimitsDependency,
    meters: MetersDependency,
) -> Response:
    """The status as server-sent events, one every second."""
    return EventStream(
        StatusEvents(publisher, admission.subscribe(KIND, client_of(request.scope))), limits, meters
    )


# --- steps --------------------------------------------------------------------------------------------------------------


async def _status_of(publisher: StatusPublisher, deadline: Deadline) -> StatusOut:
    return (await deadline.wait(publisher.snapshot())).status


async def _change(gateway: Gateway, work: Awaitable[object], deadline: Deadline) -> None:
    """Change the cluster; later requests see it. ChangeUnknown: it may have been done, or may still be."""
    try:
        await deadline.wait(work)
    except (DeadlinePassed, Unavailable) as error:
        raise ChangeUnknown(str(error)) from error
    finally:
        gateway.status_changed()


async def _status_after_change(publisher: StatusPublisher, deadline: Deadline) -> StatusOut:
    """The status after a change that is certainly done."""
    try:
        return await _status_of(publisher, deadline)
    except (DeadlinePassed, Unavailable) as error:
        raise ChangeUnknown(f"it was done, and then the status could not be read: {error}") from error


def _topic_of(seen: StatusOut, name: str) -> TopicDetail:
    found = next((topic for topic in seen.topics if topic.name == name), None)
    if found is None:
        raise UnknownTopic(name)
    return TopicDetail(
        **dict(found),
        log_streams=[stream for stream in seen.log_streams if stream.topic == name],
        readers=[reader for reader in seen.readers if reader.topic == name],
    )


def _log_stream_of(seen: StatusOut, log_stream: int) -> LogStreamOut:
    found = next((stream for stream in seen.log_streams if stream.log_stream == log_stream), None)
    if found is None:
        raise UnknownLogStream(LogStreamID(log_stream))
    return found


# --- status events ------------------------------------------------------------------------------------------------------

KIND: Final = "status"
EVERY_S: Final = 1.0
# A status that takes longer is sent as a problem, and the next one is tried.
TIMEOUT_S: Final = 5.0


class StatusEvents:
    """The events of one page: the status every second, or a problem in its place. Pages that are open at the same time share one
    request to the manager."""

    kind = KIND

    def __init__(self, publisher: StatusPublisher, leave: Callable[[], None]) -> None:
        self._publisher = publisher
        self._leave = leave
        self._due_s = 0.0

    async def wait_text(self, gone: asyncio.Future[str], timeout_s: float) -> bytes | None:
        loop = asyncio.get_running_loop()
        await asyncio.wait([gone], timeout=max(0.0, min(timeout_s, self._due_s - loop.time())))
        if gone.done() or loop.time() < self._due_s:
            return b""
        self._due_s = loop.time() + EVERY_S
        return await self._event()

    async def close(self) -> None:
        self._leave()

    async def _event(self) -> bytes:
        try:
            return event("status", (await Deadline(TIMEOUT_S).wait(self._publisher.snapshot())).json)
        except VarlogError as error:
            return event("problem", problem_of(error).encoded())
