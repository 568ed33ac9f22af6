"""EventStream: an answer that is a stream of server-sent events: sent as they are taken, kept alive, ended with a reason.

Whatever ends it but the consumer itself is its last event, with the problem as data: `trimmed`, `dropped` (it took nothing), or
`end`. A consumer that connects again with Last-Event-ID loses nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from varlog.model.errors import Trimmed, VarlogError
from varlog.proxy.backpressure_sender import BackpressureSender
from varlog.proxy.errors import Stopping, SubscriptionOver, TooSlow
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.meters import ProxyMeters
from varlog.proxy.problem import problem_of

MEDIA_TYPE: Final = "text/event-stream"
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy on the way shall not gather them
]
# Before anything else: how long a browser waits until it connects again.
RETRY: Final = b"retry: 2000\n\n"
KEEP_ALIVE: Final = b": nothing new\n\n"

# Why a stream's consumer is not there any more, or shall not be.
LEFT, STOPPING = "left", "stopping"


class EventSource(Protocol):
    """Where the events come from."""

    kind: str

    async def wait_text(self, gone: asyncio.Future[str], timeout_s: float) -> bytes | None:
        """What is to be sent next; empty if nothing came in time, or `gone` is done; None: that was all. Raises what ended it."""
        ...

    async def close(self) -> None: ...


def event(name: str, data: bytes, last_id: int | None = None) -> bytes:
    """One event that is no entry. `data` has no line break; whoever connects again does so behind `last_id`, if there is one."""
    place = b"" if last_id is None else b"id: %d\n" % last_id
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), place, data)


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
        forget = sender.connection.on_stop(lambda: _settle(gone, STOPPING)) if sender.connection else _nothing
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
        """Until the consumer leaves, or something ends it."""
        over_s = asyncio.get_running_loop().time() + self._limits.subscription_s
        text: bytes | None = RETRY
        try:
            while text is not None:
                await sender.send(_body(text or KEEP_ALIVE))
                # A consumer that takes everything at once shall not keep the others waiting.
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
    _settle(gone, LEFT)


def _settle(gone: asyncio.Future[str], why: str) -> None:
    if not gone.done():
        gone.set_result(why)


def _nothing() -> None:
    pass


def _body(text: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": text, "more_body": more}
