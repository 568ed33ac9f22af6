"""Route of server-sent events: a topic's entries as they come, one event each, from any position on, with resume."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from varlog.model.entry import Entry
from varlog.model.errors import Trimmed
from varlog.model.lsn import LSN_MAX
from varlog.proxy.admission import client_of
from varlog.proxy.dependencies import (
    DeadlineDependency,
    FollowersDependency,
    LimitsDependency,
    MetersDependency,
    TopicName,
)
from varlog.proxy.entry_json import entry_json, to_json
from varlog.proxy.errors import BadParameter
from varlog.proxy.event_stream import MEDIA_TYPE, EventStream, event
from varlog.proxy.followers import Follower
from varlog.proxy.frame_rules import Render
from varlog.proxy.meters import ProxyMeters
from varlog.proxy.openapi import problems
from varlog.proxy.problem import problem_of
from varlog.proxy.start_rules import OLDEST, PATTERN, Start
from varlog.proxy.wire import Encoding

KIND: Final = "events"
router = APIRouter(prefix="/v1/topics/{topic}", tags=["log"])

_EVENTS: dict[str, Any] = {
    "description": "Each entry is a message with the position as `id` and the entry in JSON as `data`. Comments keep it alive. The "
    "last event says why it ended, with the problem as data: `trimmed`, `dropped` (nothing was taken), `end`.",
    "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
}


@router.get(
    "/events",
    response_class=Response,
    responses={
        200: _EVENTS,
        204: {"description": "Everything before `until` has arrived: a browser does not come back."},
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
            description="Where to begin: a position, `oldest`, `next` (what comes from now on), or -10 for the last ten.",
        ),
    ] = OLDEST,
    until: Annotated[
        int | None,
        Query(ge=1, le=LSN_MAX, description="The position to end before; without it, it goes on for ever."),
    ] = None,
    encoding: Annotated[Encoding, Query(description="How data is told.")] = Encoding.AUTO,
    skip_trimmed: Annotated[
        bool,
        Query(description="Go on at the oldest entry, after an event `trimmed`, where else it would end."),
    ] = False,
    last_event_id: Annotated[
        str | None,
        Header(
            pattern="^[0-9]{1,19}$",
            description="Go on behind this position; a browser sends it when it comes back.",
        ),
    ] = None,
) -> Response:
    """Follow a topic: its entries in total order as server-sent events, those that are there and those to come."""
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
    """Where a follower begins; where it was before, if it comes back."""
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


# One function an encoding, made once: frames know by it what they have rendered already.
RENDERS: Final[dict[Encoding, Render]] = {encoding: partial(_events, encoding) for encoding in Encoding}
