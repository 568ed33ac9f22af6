"""ProxyLimits: every bound of a proxy in one place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, fields
from math import inf
from typing import TypeVar

from varlog.client.log import Log
from varlog.model.limits import BATCH_BODY_BYTES_MAX, MIB
from varlog.proxy.errors import DeadlinePassed
from varlog.proxy.gateway import Gateway


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What one proxy allows. A bound names its unit; every one of them is above zero."""

    # One request's body. A full batch also fits as base64 in JSON, which makes it larger by more than a third.
    body_bytes_max: int = BATCH_BODY_BYTES_MAX * 3 // 2
    # One page of a range as JSON; a page ends early when its entries reach this size. Streams have no such bound.
    page_entries: int = 1_000
    page_entries_max: int = 10_000
    page_bytes_max: int = 8 * MIB
    # Subscriptions (server-sent events and WebSockets) and streamed ranges at a time.
    subscriptions_max: int = 4_096
    # Appends in flight: more are refused with 429, so that no client waits in a queue that it cannot see.
    appends_max: int = 1_024
    append_bytes_max: int = 64 * MIB
    # The deadline of a call that names none, and the longest that one may name.
    timeout_s: float = 10.0
    timeout_s_max: float = 60.0
    # Connections at a time, and how much of these, of appends, their bytes and subscriptions one client address may have.
    connections_max: int = 8_192
    client_share: float = 0.75
    # The head of a request: its bytes, and the time until it is complete, also of a connection that sends nothing yet.
    head_bytes_max: int = 64 * 1024
    head_s: float = 10.0
    # A body, or a message of a WebSocket, that arrives more slowly than this on the average of a window is refused.
    body_bytes_s_min: int = 1_024
    body_window_s: float = 5.0
    # Retry-After of a refusal.
    retry_after_s: float = 1.0
    # A consumer that reads nothing for this long is dropped.
    slow_s: float = 30.0
    # An idle subscription gets a comment this often, so that no intermediary closes it.
    keep_alive_s: float = 15.0
    # A subscription ends after this time, and its consumer reconnects: so consumers spread over proxies that come and go.
    subscription_s: float = inf

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"{field.name} must be above zero, not {value}")
        if self.client_share > 1:
            raise ValueError(f"client_share is at most 1, not {self.client_share}")
        if self.page_entries > self.page_entries_max:
            raise ValueError(
                f"page_entries ({self.page_entries}) is over page_entries_max ({self.page_entries_max})"
            )
        if self.timeout_s > self.timeout_s_max:
            raise ValueError(f"timeout_s ({self.timeout_s}) is over timeout_s_max ({self.timeout_s_max})")


# Deadline: how much time one request has left; every wait ends by then.

T = TypeVar("T")

# The shortest timeout of a client call: where it can, the client itself shall report the error.
REMAINING_S_MIN = 0.001


class Deadline:
    """`timeout_s` from now on."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._at = asyncio.get_running_loop().time() + timeout_s

    @property
    def remaining_s(self) -> float:
        return max(self._at - asyncio.get_running_loop().time(), REMAINING_S_MIN)

    @asynccontextmanager
    async def within(self) -> AsyncIterator[None]:
        """DeadlinePassed if the block takes longer. Not for an append: the client reports its outcome."""
        try:
            async with asyncio.timeout_at(self._at):
                yield
        except TimeoutError as late:
            raise DeadlinePassed(self.timeout_s) from late

    async def wait(self, work: Awaitable[T]) -> T:
        async with self.within():
            return await work

    async def log(self, gateway: Gateway, topic: str) -> Log:
        """The log of a topic, which may have to be opened first."""
        return await self.wait(gateway.log(topic))


async def paced(source: AsyncGenerator[T, None], step_s: float) -> AsyncGenerator[T, None]:
    """The items of `source`; DeadlinePassed if none comes for `step_s`. Closes it."""
    async with aclosing(source):
        while True:
            try:
                async with asyncio.timeout(step_s):
                    item = await anext(source)
            except StopAsyncIteration:
                return
            except TimeoutError as late:
                raise DeadlinePassed(step_s) from late
            yield item
