"""A range of the log as a stream of bytes: lines of JSON, lines of data, framed bytes, or Arrow's IPC stream.

An answer begins when its first bytes are there, so that an error is still answered as a problem; one that comes later cuts the
stream off, and the HTTP client sees that it is not complete.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from struct import Struct

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from varlog.client.arrow import load, schema
from varlog.client.log import Log
from varlog.model.entry import Entry
from varlog.model.errors import VarlogError
from varlog.proxy.backpressure_sender import BackpressureSender
from varlog.proxy.deadline import paced
from varlog.proxy.entry_json import entry_json, to_json
from varlog.proxy.media_rules import ARROW, NDJSON, OCTETS, TEXT
from varlog.proxy.meters import ProxyMeters
from varlog.proxy.problem import problem_of
from varlog.proxy.range_rules import Span
from varlog.proxy.wire import Encoding
from varlog.runtime.logs import get_logger, logfmt

# Before the data of each entry in a stream of bytes: how many they are.
LENGTH = Struct(">I")

logger = get_logger("proxy")

Render = Callable[[Sequence[Entry]], bytes]


def streamed(
    log: Log, span: Span, media: str, encoding: Encoding, step_s: float, meters: ProxyMeters
) -> AsyncGenerator[bytes, None]:
    """The entries of `span` in a media type, piece by piece. DeadlinePassed if nothing comes for `step_s`."""
    if media == ARROW:
        return _arrow(log, span, step_s, meters)
    renders: dict[str, Render] = {
        NDJSON: lambda entries: b"".join([to_json(entry_json(entry, encoding)) + b"\n" for entry in entries]),
        TEXT: lambda entries: b"\n".join([*(entry.data for entry in entries), b""]),
        OCTETS: lambda entries: b"".join(
            [part for entry in entries for part in (LENGTH.pack(len(entry.data)), entry.data)]
        ),
    }
    return _rendered(log, span, renders[media], step_s, meters)


async def _rendered(
    log: Log, span: Span, render: Render, step_s: float, meters: ProxyMeters
) -> AsyncGenerator[bytes, None]:
    if span.empty:
        return
    async with aclosing(paced(log.subscribe_lists(span.begin, span.end), step_s)) as lists:
        async for entries in lists:
            if entries:
                meters.read(len(entries), sum(len(entry.data) for entry in entries))
                yield render(entries)


async def _arrow(log: Log, span: Span, step_s: float, meters: ProxyMeters) -> AsyncGenerator[bytes, None]:
    """Each record batch as it comes, its columns as they are in memory."""
    ipc, columns = load().ipc, schema()
    sink = io.BytesIO()
    writer = ipc.new_stream(sink, columns)
    if not span.empty:
        async with aclosing(paced(log.arrow(span.begin, span.end), step_s)) as batches:
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
    """A stream whose reader has to take something now and then: one that does not is cut off. `release` is called at its end."""

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
            sender.drop(b"")  # no last word: a stream that is cut off must not look complete
        finally:
            self._release()


async def begun(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same pieces, the first of them read already: what can be refused is refused before the answer begins."""
    first = await anext(pieces, b"")

    async def again() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            if first:
                yield first
            async for piece in pieces:
                yield piece

    return again()
