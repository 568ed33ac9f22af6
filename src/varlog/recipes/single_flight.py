"""SingleFlight: one answer for all who asked before the question was put."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from varlog.model.errors import Unavailable, VarlogError
from varlog.runtime.tasks import Tasks

# One that is not answered for so long is not waited for any more before the next one is put.
PATIENCE_S: Final = 0.1

T = TypeVar("T")


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
