"""SingleFlight, NextFlight: one call in flight for all callers that may share it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from varlog.model.errors import Unavailable, VarlogError
from varlog.runtime.tasks import Tasks

T = TypeVar("T")

# A call that takes longer than this is not waited for any more before the next one starts.
PATIENCE_S: Final = 0.1


class SingleFlight:
    """Callers that come while a call is in flight share it. A caller that stops waiting does not end it for the others."""

    def __init__(self, tasks: Tasks, name: str) -> None:
        self._tasks = tasks
        self._name = name
        self._flight: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> bool:
        return self._flight is not None and not self._flight.done()

    def join(self, start: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """The call in flight, or a new one. Wait for it with `asyncio.shield` or `asyncio.wait`."""
        if self._flight is None or self._flight.done():
            self._flight = self._tasks.spawn(self._name, start())
            self._flight.add_done_callback(_retrieve)
        return self._flight


class NextFlight(Generic[T]):
    """A caller that comes while a call is in flight may not have its answer, which may be older than the caller's question: it
    shares the next call, with all others that came meanwhile."""

    def __init__(self, start: Callable[[], Awaitable[T]], tasks: Tasks, name: str) -> None:
        self._start = start
        self._tasks = tasks
        self._name = name
        self._in_flight: asyncio.Future[T] | None = None
        self._next: asyncio.Future[T] | None = None

    async def answer(self) -> T:
        """The answer of a call that starts after this one began."""
        shared = self._next
        if shared is None:
            shared = self._next = asyncio.get_running_loop().create_future()
            shared.add_done_callback(_retrieve)
            _ = self._tasks.spawn(self._name, self._call(shared))
        try:
            return await asyncio.shield(shared)
        except VarlogError as error:
            raise type(error)(*error.args) from None  # one each: a traceback belongs to one caller

    async def _call(self, shared: asyncio.Future[T]) -> None:
        try:
            if self._in_flight is not None and not self._in_flight.done():
                await asyncio.wait([self._in_flight], timeout=PATIENCE_S)
            self._in_flight, self._next = shared, None
            shared.set_result(await self._start())
        except VarlogError as error:
            shared.set_exception(error)
        finally:
            if self._next is shared:
                self._next = None
            if not shared.done():
                shared.set_exception(Unavailable("it was closed before the answer came"))


def _retrieve(shared: asyncio.Future[Any]) -> None:
    """All callers may have left: then asyncio must not warn that nobody retrieved the exception."""
    if not shared.cancelled():
        shared.exception()
