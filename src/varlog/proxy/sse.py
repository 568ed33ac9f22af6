"""EventStream: server-sent events, and the route that follows a topic.

Unless the consumer leaves, the last event says why the stream ended, with the problem as data: `trimmed`, `dropped` (the consumer
read nothing), or `end`. A consumer that reconnects with Last-Event-ID loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from varlog.model.entry import Entry
from varlog.model.errors import Trimmed, VarlogError
from varlog.model.lsn import LSN_MAX
from varlog.proxy.admission import client_of
from varlog.proxy.backpressure_sender import BackpressureSender
from varlog.proxy.dependencies import (
    DeadlineDependency,
    FollowersDependency,
    LimitsDependency,
    MetersDependency,
    TopicName,
)
from varlog.proxy.entry_json import entry_json, to_json
from varlog.proxy.errors import BadParameter, Stopping, SubscriptionOver, TooSlow
from varlog.proxy.feed import Follower
from varlog.proxy.frame_rules import Render
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.meters import ProxyMeters
from varlog.proxy.openapi import problems
from varlog.proxy.position_rules import OLDEST, PATTERN, Start
from varlog.proxy.problem import problem_of
from varlog.proxy.wire import Encoding

MEDIA_TYPE: Final = "text/event-stream"
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # intermediaries shall not buffer them
]
# Sent first: how long a browser waits before it reconnects.
RETRY: Final = b"retry: 2000\n\n"
KEEP_ALIVE: Final = b": nothing new\n\n"

# Why a stream ends from outside: its consumer left, or the server stops.
LEFT, STOPPING = "left", "stopping"


class EventSource(Protocol):
    """Where the events come from."""

    kind: str

    async def wait_text(self, gone: asyncio.Future[str], timeout_s: float) -> bytes | None:
        """What to send next; empty if nothing came in time, or `gone` is done; None: the end. Raises the error that ended it."""
        ...

    async def close(self) -> None: ...


def event(name: str, data: bytes, last_id: int | None = None) -> bytes:
    """One event that is not an entry. `data` has no line break; a consumer reconnects behind `last_id`, if it is set."""
    id_line = b"" if last_id is None else b"id: %d\n" % last_id
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), id_line, data)


class EventStream(Response):
    """The stream of one source, which it closes."""

    media_type = MEDIA_TYPE

    def __init__(self, source: EventSource, limits: ProxyLimits, meters: ProxyMeters) -> None:
        super().__init__()
        self._source = source
        self._limits = limits
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = BackpressureSender(scope, send, self._limits.slow_s)
        gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        listening = asyncio.create_task(_wait_left(receive, gone), name=f"proxy/{self._source.kind}/left")
        forget = (
            sender.connection.on_stop(lambda: _resolve(gone, STOPPING)) if sender.connection else _nothing
        )
        try:
            await sender.send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._send_events(sender, gone)
        except TooSlow as slow:
            sender.drop(self._last_event(slow))
        finally:
            forget()
            listening.cancel()
            await self._source.close()

    async def _send_events(self, sender: BackpressureSender, gone: asyncio.Future[str]) -> None:
        """Until the consumer leaves, or the source ends."""
        over_s = asyncio.get_running_loop().time() + self._limits.subscription_s
        text: bytes | None = RETRY
        try:
            while text is not None:
                await sender.send(_body(text or KEEP_ALIVE))
                # A fast consumer shall not keep the others waiting.
                await asyncio.sleep(0)
                if sender.lost:
                    return
                left_s = over_s - asyncio.get_running_loop().time()
                if left_s <= 0:
                    raise SubscriptionOver(self._limits.subscription_s)
                text = await self._source.wait_text(gone, min(left_s, self._limits.keep_alive_s))
                if gone.done():
                    break
        except TooSlow:
            raise
        except VarlogError as error:
            await sender.send(_body(self._last_event(error), more=False))
            return
        if text is None:
            await sender.send(_body(event("end", b"{}"), more=False))
        elif gone.result() == STOPPING:
            await sender.send(_body(self._last_event(Stopping()), more=False))

    def _last_event(self, error: Exception) -> bytes:
        problem = problem_of(error)
        self._meters.dropped(self._source.kind, problem.name)
        name = "trimmed" if isinstance(error, Trimmed) else "dropped" if isinstance(error, TooSlow) else "end"
        return event(name, problem.encoded())


async def _wait_left(receive: Receive, gone: asyncio.Future[str]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _resolve(gone, LEFT)


def _resolve(gone: asyncio.Future[str], why: str) -> None:
    if not gone.done():
        gone.set_result(why)


def _nothing() -> None:
    pass


def _body(text: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": text, "more_body": more}


# --- the route ----------------------------------------------------------------------------------------------------------

KIND: Final = "events"
router = APIRouter(prefix="/v1/topics/{topic}", tags=["log"])

_EVENTS: dict[str, Any] = {
    "description": "Each entry is a message with the position as `id` and the entry in JSON as `data`. Comments keep it alive. The "
    "last event says why it ended, with the problem as data: `trimmed`, `dropped` (the consumer read nothing), `end`.",
    "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
}


@router.get(
    "/events",
    response_class=Response,
    responses={
        200: _EVENTS,
        204: {"description": "Everything before `until` was sent: a browser does not reconnect."},
        **problems(404, 410, 429),
    },
)
async def follow(
    request: Request,
    topic: TopicName,
    followers: FollowersDependency,
    limits: LimitsDependency,
    meters: MetersDependency,
    deadline: DeadlineDependency,
    begin: Annotated[
        str,
        Query(
            alias="from",
            pattern=PATTERN,
            description="Where to begin: a position, `oldest`, `next` (new entries only), or -10 for the last ten.",
        ),
    ] = OLDEST,
    until: Annotated[
        int | None,
        Query(ge=1, le=LSN_MAX, description="The position to stop before; by default it never stops."),
    ] = None,
    encoding: Annotated[Encoding, Query(description="How data is rendered.")] = Encoding.AUTO,
    skip_trimmed: Annotated[
        bool,
        Query(
            description="Where the log is trimmed, send an event `trimmed` and continue at the oldest entry instead of ending."
        ),
    ] = False,
    last_event_id: Annotated[
        str | None,
        Header(
            pattern="^[0-9]{1,19}$",
            description="Resume after this position; a browser sends it when it reconnects.",
        ),
    ] = None,
) -> Response:
    """Follow a topic: its entries in total order as server-sent events, the existing ones and then new ones."""
    start = start_of(begin, last_event_id)
    follower = await deadline.wait(
        followers.follow(topic, start, KIND, client_of(request.scope), skip_trimmed=skip_trimmed)
    )
    if until is not None and follower.position >= until:
        await follower.close()
        return Response(status_code=204)
    source = EntryEvents(follower, RENDERS[encoding], until, skip_trimmed, meters)
    return EventStream(source, limits, meters)


def start_of(begin: str, last_event_id: str | None = None) -> Start:
    """Where a follower begins; where it was before, if it reconnects."""
    try:
        return Start(begin) if last_event_id is None else Start.behind(int(last_event_id))
    except ValueError as error:
        raise BadParameter(
            "query from" if last_event_id is None else "header last-event-id", str(error)
        ) from error


class EntryEvents:
    """The events of one follower."""

    kind = KIND

    def __init__(
        self, follower: Follower, render: Render, until: int | None, skip_trimmed: bool, meters: ProxyMeters
    ) -> None:
        self._follower = follower
        self._render = render
        self._until = until
        self._skip_trimmed = skip_trimmed
        self._meters = meters

    async def wait_text(self, gone: asyncio.Future[str], timeout_s: float) -> bytes | None:
        follower, until = self._follower, self._until
        if until is not None and follower.position >= until:
            return None
        try:
            frames = await follower.wait_frames(gone, timeout_s, until)
        except Trimmed as trimmed:
            if not self._skip_trimmed:
                raise
            follower.position = trimmed.oldest
            return event("trimmed", problem_of(trimmed).encoded(), trimmed.oldest - 1)
        for frame in frames:
            self._meters.read(len(frame.entries), frame.size)
        return b"".join([frame.text(self._render) for frame in frames])

    async def close(self) -> None:
        await self._follower.close()


def _events(encoding: Encoding, entries: Sequence[Entry]) -> bytes:
    return b"".join(
        [b"id: %d\ndata: %b\n\n" % (entry.glsn, to_json(entry_json(entry, encoding))) for entry in entries]
    )


# One function per encoding, created once: frames cache what they rendered by it.
RENDERS: Final[dict[Encoding, Render]] = {encoding: partial(_events, encoding) for encoding in Encoding}
