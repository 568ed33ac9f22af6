"""SyncFacade: an async recipe in the loop of a blocking log, and its end."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from varlog.aio import Opening
from varlog.client import blocking
from varlog.client.loop_bridge import Closable

I = TypeVar("I", bound=Closable)  # noqa: E741 - the inner one
T = TypeVar("T")


class SyncFacade(Generic[I]):
    """Opens the inner one; `with` closes it."""

    def __init__(self, log: blocking.Log, opening: Opening[I]) -> None:
        async def make() -> I:
            return await opening

        self._log = log
        self._run = log.connector.run
        self._inner = self._run(make())

    def _call(self, function: Callable[[I], T]) -> T:
        return call(self._log, lambda: function(self._inner))

    def close(self) -> None:
        """Close it; the log stays open. Repeated, or after the log, it does nothing."""
        if not self._log.closed:
            self._run(self._close())

    async def _close(self) -> None:
        await self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def call(log: blocking.Log, function: Callable[[], T]) -> T:
    """What `function` returns, called in the loop of `log`: nothing is applied meanwhile."""

    async def called() -> T:
        return function()

    return log.connector.run(called())
