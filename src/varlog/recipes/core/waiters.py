"""Watchers: callers that wait for a position of a replica, or for a condition."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from varlog.model.lsn import GLSN

T = TypeVar("T")


class Watchers:
    """Checked after each batch that was applied: only those whose position or condition is reached are woken."""

    def __init__(self) -> None:
        self._positions: list[tuple[GLSN, int, asyncio.Future[None]]] = []  # a heap
        self._predicates: dict[asyncio.Future[Any], Callable[[], Any]] = {}
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

    def see(self, predicate: Callable[[], T | None]) -> asyncio.Future[T]:
        """Done when `predicate` returns something, with that."""
        seen: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._over is not None:
            seen.set_exception(self._over())
        else:
            self._predicates[seen] = predicate
            seen.add_done_callback(lambda _: self._predicates.pop(seen, None))
        return seen

    def moved(self, applied: GLSN) -> None:
        """Everything up to `applied` is applied."""
        while self._positions and self._positions[0][0] <= applied:
            _, _, reached = heapq.heappop(self._positions)
            if not reached.done():
                reached.set_result(None)
        for seen, predicate in list(self._predicates.items()):
            if seen.done():
                continue
            try:
                found = predicate()
            except Exception as error:  # noqa: BLE001 - it is the waiter's own, which gets it
                seen.set_exception(error)
                continue
            if found is not None:
                seen.set_result(found)

    def end(self, error: Callable[[], Exception]) -> None:
        """Nothing more is applied: all waiters get the error, also those that come later."""
        self._over = error
        waiting: list[asyncio.Future[Any]] = [reached for _, _, reached in self._positions]
        waiting += self._predicates
        self._positions.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error())
