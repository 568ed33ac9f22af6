"""Deadline: how much time one request has left; every wait ends by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from varlog.client.log import Log
from varlog.proxy.errors import DeadlinePassed
from varlog.proxy.gateway import Gateway

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
