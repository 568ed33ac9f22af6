"""Routes that read a topic's log: one entry, a page, or a range as a stream."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from struct import Struct
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from varlog.client.arrow import load, schema
from varlog.client.log import Log
from varlog.model.entry import Entry
from varlog.model.errors import VarlogError
from varlog.model.lsn import LSN_MAX
from varlog.proxy.admission import client_of
from varlog.proxy.backpressure_sender import BackpressureSender
from varlog.proxy.dependencies import (
    AdmissionDependency,
    DeadlineDependency,
    GatewayDependency,
    LimitsDependency,
    MetersDependency,
    PositionDependency,
    TopicName,
)
from varlog.proxy.entry_json import PageJson, entries_json, entry_json, time_json, to_json
from varlog.proxy.errors import DeadlinePassed, NotAcceptable
from varlog.proxy.frame_rules import Render
from varlog.proxy.header_rules import ARROW, JSON, NDJSON, OCTETS, TEXT, best
from varlog.proxy.limits import Deadline, paced
from varlog.proxy.meters import ProxyMeters
from varlog.proxy.openapi import problems, ref
from varlog.proxy.position_rules import PositionRange, clamped_range, entries_that_fit
from varlog.proxy.problem import problem_of
from varlog.proxy.wire import Encoding, EntryOut, EntryPage
from varlog.runtime.logging import get_logger, logfmt

router = APIRouter(prefix="/v1/topics/{topic}", tags=["log"])

Accepted = Annotated[str, Header(alias="Accept", include_in_schema=False)]
EncodingQuery = Annotated[
    Encoding,
    Query(
        description="How data is rendered in JSON: as text, base64 or a JSON value; `auto` is text where the bytes are UTF-8, else "
        "base64. Entries that cannot be rendered that way fall back to `auto`; `encoding` of the entry says which was used."
    ),
]

_BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_LINES: dict[str, Any] = {"schema": {"type": "string"}}
_NUMBER: dict[str, Any] = {"required": True, "schema": {"type": "string", "pattern": "^[0-9]+$"}}


@router.get(
    "/entries/{glsn}",
    response_model=EntryOut,
    responses={
        200: {"content": {JSON: {"schema": ref(EntryOut)}, OCTETS: _BYTES}},
        **problems(404, 406, 410),
    },
)
async def read(
    topic: TopicName,
    glsn: PositionDependency,
    gateway: GatewayDependency,
    meters: MetersDependency,
    deadline: DeadlineDependency,
    encoding: EncodingQuery = Encoding.AUTO,
    accept: Accepted = "",
) -> Response:
    """The entry at a position: as JSON, or its bytes alone, with its positions in headers."""
    media = _chosen(accept, (JSON, OCTETS))
    log = await deadline.log(gateway, topic)
    entry = await log.read(glsn, timeout_s=deadline.remaining_s)
    meters.read(1, len(entry.data))
    if media == OCTETS:
        return Response(entry.data, 200, _headers_of(entry), OCTETS)
    return Response(to_json(entry_json(entry, encoding)), 200, None, JSON)


@router.get(
    "/entries",
    response_model=EntryPage,
    responses={
        200: {
            "content": {
                JSON: {"schema": ref(EntryPage)},
                NDJSON: _LINES,
                TEXT: _LINES,
                OCTETS: _BYTES,
                ARROW: _BYTES,
            },
            "headers": {"Varlog-Next": _NUMBER, "Varlog-Tail": _NUMBER},
        },
        **problems(404, 406, 410),
    },
)
async def read_range(
    request: Request,
    topic: TopicName,
    gateway: GatewayDependency,
    limits: LimitsDependency,
    admission: AdmissionDependency,
    meters: MetersDependency,
    deadline: DeadlineDependency,
    begin: Annotated[
        int | None,
        Query(alias="from", ge=1, le=LSN_MAX, description="The first position; the oldest by default."),
    ] = None,
    until: Annotated[
        int | None,
        Query(ge=1, le=LSN_MAX, description="The position to stop before; by default the tail is the last."),
    ] = None,
    limit: Annotated[
        int | None,
        Query(ge=1, le=LSN_MAX, description="Maximum number of positions; JSON has a bound of its own."),
    ] = None,
    encoding: EncodingQuery = Encoding.AUTO,
    accept: Accepted = "",
) -> Response:
    """Entries at positions [from, until), as far as they are written; never waits for new ones.

    JSON is one page: continue with `from=next`. The others are streams up to `until`, the tail or `limit`: lines of JSON (one entry
    each), text (the data of each entry and a newline), bytes (the data of each entry after its length in four bytes, big-endian)
    and Apache Arrow's IPC stream with the columns glsn, llsn, log_stream, timestamp and data.
    """
    media = _chosen(accept, (JSON, NDJSON, TEXT, OCTETS, ARROW))
    log = await deadline.log(gateway, topic)
    mark = await log.connector.mark(timeout_s=deadline.remaining_s)
    if media == JSON:
        entries_max = min(limit or limits.page_entries, limits.page_entries_max)
        asked = clamped_range(begin, until, entries_max, mark.trimmed, mark.high_watermark)
        entries, following = await _page(log, asked, limits.page_bytes_max, deadline)
        meters.read(len(entries), sum(len(entry.data) for entry in entries))
        page = PageJson(entries_json(entries, encoding), following, asked.tail)
        return Response(to_json(page), 200, _position_headers(following, asked.tail), JSON)
    asked = clamped_range(begin, until, limit, mark.trimmed, mark.high_watermark)
    release = admission.subscribe("range", client_of(request.scope))
    try:
        pieces = await begun(streamed(log, asked, media, encoding, deadline.timeout_s, meters))
    except BaseException:
        release()
        raise
    return RangeResponse(
        pieces, media, _position_headers(asked.end, asked.tail), limits.slow_s, meters, release
    )


async def _page(
    log: Log, asked: PositionRange, room_bytes: int, deadline: Deadline
) -> tuple[list[Entry], int]:
    """As much of `asked` as fits on a page and arrives before the deadline, and the position to continue at."""
    page: list[Entry] = []
    page_bytes = 0
    if asked.empty:
        return page, asked.end
    try:
        source = paced(log.subscribe_lists(asked.begin, asked.end), deadline.remaining_s)
        async with aclosing(source) as lists:
            async for entries in lists:
                fit = entries_that_fit([len(entry.data) for entry in entries], page_bytes, room_bytes)
                page += entries[:fit]
                page_bytes += sum(len(entry.data) for entry in entries[:fit])
                if fit < len(entries):
                    return page, page[-1].glsn + 1
    except DeadlinePassed:
        if not page:
            raise
        return page, page[-1].glsn + 1
    return page, asked.end


def _chosen(accept: str, offers: tuple[str, ...]) -> str:
    chosen = best(accept, offers)
    if chosen is None:
        raise NotAcceptable(accept, offers)
    return chosen


def _position_headers(next_position: int, tail: int) -> dict[str, str]:
    return {"Varlog-Next": str(next_position), "Varlog-Tail": str(tail)}


def _headers_of(entry: Entry) -> dict[str, str]:
    return {
        "Varlog-GLSN": str(entry.glsn),
        "Varlog-LLSN": str(entry.llsn),
        "Varlog-Log-Stream": str(entry.log_stream),
        "Varlog-Timestamp": time_json(entry.time_us).isoformat(),
    }


# --- ranges as streams --------------------------------------------------------------------------------------------------
#
# A response begins with its first bytes, so that an earlier error is still answered as a problem; a later one cuts the stream
# off, and the HTTP client sees that it is incomplete.

# The length before the data of each entry in a stream of bytes.
LENGTH = Struct(">I")

logger = get_logger("proxy")


def streamed(
    log: Log, wanted: PositionRange, media: str, encoding: Encoding, step_s: float, meters: ProxyMeters
) -> AsyncGenerator[bytes, None]:
    """The entries of `wanted` in a media type, piece by piece. DeadlinePassed if none comes for `step_s`."""
    if media == ARROW:
        return _arrow(log, wanted, step_s, meters)
    renders: dict[str, Render] = {
        NDJSON: lambda entries: b"".join([to_json(entry_json(entry, encoding)) + b"\n" for entry in entries]),
        TEXT: lambda entries: b"\n".join([*(entry.data for entry in entries), b""]),
        OCTETS: lambda entries: b"".join(
            [part for entry in entries for part in (LENGTH.pack(len(entry.data)), entry.data)]
        ),
    }
    return _rendered(log, wanted, renders[media], step_s, meters)


async def _rendered(
    log: Log, wanted: PositionRange, render: Render, step_s: float, meters: ProxyMeters
) -> AsyncGenerator[bytes, None]:
    if wanted.empty:
        return
    async with aclosing(paced(log.subscribe_lists(wanted.begin, wanted.end), step_s)) as lists:
        async for entries in lists:
            if entries:
                meters.read(len(entries), sum(len(entry.data) for entry in entries))
                yield render(entries)


async def _arrow(
    log: Log, wanted: PositionRange, step_s: float, meters: ProxyMeters
) -> AsyncGenerator[bytes, None]:
    """Each record batch as it arrives, its columns as they are in memory."""
    ipc, columns = load().ipc, schema()
    sink = io.BytesIO()
    writer = ipc.new_stream(sink, columns)
    if not wanted.empty:
        async with aclosing(paced(log.arrow(wanted.begin, wanted.end), step_s)) as batches:
            async for batch in batches:
                meters.read(batch.num_rows, batch.column("data").nbytes)
                writer.write_batch(batch)
                yield _drain(sink)
    writer.close()
    yield _drain(sink)


def _drain(sink: io.BytesIO) -> bytes:
    written = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return written


class RangeResponse(StreamingResponse):
    """A stream whose reader has to keep reading: one that stalls is cut off. `release` is called at its end."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        media: str,
        headers: dict[str, str],
        slow_s: float,
        meters: ProxyMeters,
        release: Callable[[], None],
    ) -> None:
        super().__init__(pieces, 200, headers, media)
        self._pieces = pieces
        self._slow_s = slow_s
        self._meters = meters
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = BackpressureSender(scope, send, self._slow_s)
        try:
            async with aclosing(self._pieces):
                await super().__call__(scope, receive, sender.send)
        except VarlogError as error:
            self._meters.dropped("range", problem_of(error).name)
            logger.warning(logfmt("a range was cut off", error=error))
            sender.drop(b"")  # nothing more: a stream that is cut off must not look complete
        finally:
            self._release()


async def begun(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same pieces, after reading the first: what can be refused is refused before the response begins."""
    first = await anext(pieces, b"")

    async def again() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            if first:
                yield first
            async for piece in pieces:
                yield piece

    return again()
