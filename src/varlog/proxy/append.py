"""Routes that append to a topic's log, trim it and show its tail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from varlog.client.log import Log
from varlog.model.entry import Run
from varlog.model.errors import Overloaded
from varlog.model.ids import ID_MAX
from varlog.proxy.admission import AppendReservation, ProxyAdmission, client_of
from varlog.proxy.dependencies import DeadlineDependency, FollowersDependency, GatewayDependency, TopicName
from varlog.proxy.entry_json import entries_of_json
from varlog.proxy.errors import BadBody, CompressedBody, UnsupportedMedia
from varlog.proxy.header_rules import JSON, NDJSON, OCTETS, TEXT, media_type
from varlog.proxy.limits import Deadline
from varlog.proxy.meters import ProxyMeters
from varlog.proxy.openapi import problems, ref
from varlog.proxy.wire import Appended, AppendRequest, TopicTail, TrimRequest

router = APIRouter(prefix="/v1/topics/{topic}", tags=["log"])

_BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}

# The body of an append is parsed by hand, so FastAPI cannot describe it.
_APPEND_BODY = {
    "required": True,
    "content": {
        JSON: {
            "schema": ref(AppendRequest),
            "example": {"entries": [{"text": "hello"}, {"json": {"order": 7}}, {"base64": "AP8="}]},
        },
        OCTETS: _BYTES,
        NDJSON: {"schema": {"type": "string", "minLength": 1}, "example": '{"order":7}\n{"order":8}\n'},
        TEXT: {"schema": {"type": "string", "minLength": 1}, "example": "one\ntwo\n"},
    },
}


@router.post(
    "/entries",
    status_code=201,
    response_model=Appended,
    responses={
        201: {"headers": {"Location": {"required": True, "schema": {"type": "string"}}}},
        **problems(404, 413, 415, 429),
    },
    openapi_extra={"requestBody": _APPEND_BODY},
)
async def append(
    request: Request,
    topic: TopicName,
    deadline: DeadlineDependency,
    log_stream: Annotated[
        int | None, Query(ge=1, le=ID_MAX, description="Append to this log stream; without it, to any.")
    ] = None,
) -> Response:
    """Append entries as one atomic batch: all or none, at consecutive positions.

    JSON lists the entries. A body of bytes is one entry. In lines of text or of JSON every line is one entry, without its newline;
    empty lines of JSON are skipped. The response comes when the batch is durable and ordered, with its first position.
    """
    # Read from the state directly: injecting each as a dependency costs more than the rest of a small append.
    state = request.app.state
    admission: ProxyAdmission = state.admission
    with admission.reserve_append(client_of(request.scope)) as reservation:
        body = await deadline.wait(_body_of(request, reservation))
        reservation.count_append()
        entries = entries_of_body(request.headers.get("content-type", ""), body)
        log = await deadline.log(state.gateway, topic)
        run = await append_entries(log, entries, log_stream, deadline, state.meters)
    first = run.first
    appended = Appended(
        topic=topic, log_stream=first.log_stream, glsn=first.glsn, llsn=first.llsn, count=run.count
    )
    location = f"/v1/topics/{topic}/entries/{first.glsn}"
    return Response(appended.model_dump_json(), 201, {"Location": location}, JSON)


async def _body_of(request: Request, reservation: AppendReservation) -> bytes:
    """The whole body, counted piece by piece as it arrives, whatever Content-Length announces."""
    if coding := request.headers.get("content-encoding"):
        raise CompressedBody(coding)
    pieces = []
    async for piece in request.stream():
        reservation.add(len(piece))
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@router.get("/tail", responses=problems(404))
async def tail(topic: TopicName, gateway: GatewayDependency, deadline: DeadlineDependency) -> TopicTail:
    """The newest and the oldest position. Every append acknowledged before is at or below the newest."""
    return await _tail(await deadline.log(gateway, topic), topic, deadline)


@router.post("/trim", responses=problems(404, 409, 413))
async def trim(
    body: TrimRequest,
    topic: TopicName,
    gateway: GatewayDependency,
    followers: FollowersDependency,
    deadline: DeadlineDependency,
) -> TopicTail:
    """Delete every entry at or below `until`, on every replica, irreversibly. Refused if a named reader has not read that far,
    unless `force` is true."""
    log = await deadline.log(gateway, topic)
    await log.trim(body.until, respect_readers=not body.force, timeout_s=deadline.remaining_s)
    followers.forget_frames(topic)
    return await _tail(log, topic, deadline)


async def _tail(log: Log, topic: str, deadline: Deadline) -> TopicTail:
    mark = await log.connector.mark(timeout_s=deadline.remaining_s)
    return TopicTail(topic=topic, newest=mark.high_watermark, oldest=mark.trimmed + 1)


# --- appending ----------------------------------------------------------------------------------------------------------

# In `varlog_proxy_requests_refused_total`: the log has more to do than it can serve before the deadline.
OVERLOADED: Final = "overloaded"


async def append_entries(
    log: Log, entries: list[bytes], log_stream: int | None, deadline: Deadline, meters: ProxyMeters
) -> Run:
    """Append one atomic batch, and count it; Overloaded is counted as well. A single entry may share its batch with those of other
    callers."""
    try:
        run = await _append(log, entries, log_stream, deadline)
    except Overloaded:
        meters.refused(OVERLOADED)
        raise
    meters.appended(run.count, sum(map(len, entries)))
    return run


async def _append(log: Log, entries: list[bytes], log_stream: int | None, deadline: Deadline) -> Run:
    if len(entries) == 1:
        return Run(await log.append(entries[0], log_stream=log_stream, timeout_s=deadline.remaining_s), 1)
    return await log.append_batch(entries, log_stream=log_stream, timeout_s=deadline.remaining_s)


# --- entries of a body --------------------------------------------------------------------------------------------------


def _lines(body: bytes) -> list[bytes]:
    """Every line is an entry, also an empty one; the newline is no part of it, and the last one may lack it."""
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _json_lines(body: bytes) -> list[bytes]:
    """Every line is an entry, stored as it is; empty lines are skipped, as is usual for NDJSON."""
    return [line for line in _lines(body) if line.strip()]


_READERS: dict[str, Callable[[bytes], list[bytes]]] = {
    JSON: entries_of_json,
    OCTETS: lambda body: [body],
    NDJSON: _json_lines,
    TEXT: _lines,
}


def entries_of_body(content_type: str, body: bytes) -> list[bytes]:
    """The entries that a body holds. UnsupportedMedia, BadBody."""
    if not content_type and not body:
        # An entry may be empty, but then the request must name its Content-Type.
        raise BadBody("it is missing")
    read = _READERS.get(media_type(content_type))
    if read is None:
        raise UnsupportedMedia(content_type, list(_READERS))
    return read(body)
