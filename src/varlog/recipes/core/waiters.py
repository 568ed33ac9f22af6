"""Watchers, SingleFlight: callers that wait for a replica's position or answer"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final, Generic, TypeVar

from varlog.model.errors import Unavailable, VarlogError
from varlog.model.lsn import GLSN
from varlog.runtime.tasks import Tasks

T = TypeVar("T")


class Watchers:
    """Told after each stretch that was applied: nobody is woken in vain."""

    def __init__(self) -> None:
        self._positions: list[tuple[GLSN, int, asyncio.Future[None]]] = []  # a heap
        self._looks: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        self._numbers = count()
        self._over: Callable[[], Exception] | None = None

    def reach(self, position: GLSN) -> asyncio.Future[None]:
        """Done when everything up to `position` is applied."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._over is not None:
            reached.set_exception(self._over())
        else:
            heapq.heappush(self._positions, (position, next(self._numbers), reached))
        return reached

    def see(self, look: Callable[[], T | None]) -> asyncio.Future[T]:
        """Done when `look` gives something, with that."""
        seen: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._over is not None:
            seen.set_exception(self._over())
        else:
            self._looks[seen] = look
            seen.add_done_callback(lambda _: self._looks.pop(seen, None))
        return seen

    def moved(self, applied: GLSN) -> None:
        """Everything up to `applied` is applied."""
        while self._positions and self._positions[0][0] <= applied:
            _, _, reached = heapq.heappop(self._positions)
            if not reached.done():
                reached.set_result(None)
        for seen, look in list(self._looks.items()):
            if seen.done():
                continue
            try:
                found = look()
            except Exception as error:  # noqa: BLE001 - it is the waiter's own, and told to him
                seen.set_exception(error)
                continue
            if found is not None:
                seen.set_result(found)

    def end(self, error: Callable[[], Exception]) -> None:
        """Nothing more is applied: all hear why, also those who come later."""
        self._over = error
        waiting: list[asyncio.Future[Any]] = [reached for _, _, reached in self._positions]
        waiting += self._looks
        self._positions.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error())


# SingleFlight: one answer for all who asked before the question was put.

# One that is not answered for so long is not waited for any more before the next one is put.
PATIENCE_S: Final = 0.1


class SingleFlight(Generic[T]):
    """Who comes while a question is under way may not have its answer, which may be of a time before he came: he shares the next
    one, with everybody else who came meanwhile."""

    def __init__(self, put: Callable[[], Awaitable[T]], tasks: Tasks, name: str) -> None:
        self._put = put
        self._tasks = tasks
        self._name = name
        self._under_way: asyncio.Future[T] | None = None
        self._next: asyncio.Future[T] | None = None

    async def answer(self) -> T:
        """The answer to a question that is put after this call began."""
        shared = self._next
        if shared is None:
            shared = self._next = asyncio.get_running_loop().create_future()
            shared.add_done_callback(_heard)
            _ = self._tasks.spawn(self._name, self._ask(shared))
        try:
            return await asyncio.shield(shared)
        except VarlogError as error:
            raise type(error)(*error.args) from None  # one each: a traceback belongs to one caller

    async def _ask(self, shared: asyncio.Future[T]) -> None:
        try:
            if self._under_way is not None and not self._under_way.done():
                await asyncio.wait([self._under_way], timeout=PATIENCE_S)
            self._under_way, self._next = shared, None
            shared.set_result(await self._put())
        except VarlogError as error:
            shared.set_exception(error)
        finally:
            if self._next is shared:
                self._next = None
            if not shared.done():
                shared.set_exception(Unavailable("it was closed before the answer came"))


def _heard(shared: asyncio.Future[T]) -> None:
    """All who asked may have left: then nobody is to be told that nobody listened."""
    if not shared.cancelled():
        shared.exception()
