"""LoopBridge: runs what lives in an event loop for callers in other threads.

The blocking Log, Admin and BlockingConnector are made of it. Iterators move whole chunks and record batches between the threads,
never entries, and fetch the next one while the last one is used.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

from varlog.model.errors import Unavailable
from varlog.runtime.loop_thread import LoopThread

T = TypeVar("T")


class Closable(Protocol):
    """What lives in the loop."""

    async def close(self) -> None: ...


class LoopBridge:
    """A loop thread and what lives in it. Both end together: when it is closed, garbage collected, or at exit."""

    def __init__(self, thread: LoopThread, inner: Closable) -> None:
        self.thread = thread
        # Not __del__: at exit that would come after the loop thread has been stopped in its tracks.
        self._ended = weakref.finalize(self, _end, thread, inner)

    @property
    def closed(self) -> bool:
        return not self._ended.alive

    def check_open(self) -> None:
        if self.closed:
            raise Unavailable("it is closed: open or connect again")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which runs in the loop."""
        try:
            self.check_open()
        except Unavailable:
            work.close()
            raise
        return self.thread.run(work)

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items of `source`, which runs in the loop; it is closed there at the end."""
        feed = _Feed(source)
        coming = None
        try:
            self.check_open()
            coming = self.thread.start(feed.next())
            while (item := coming.wait()) is not None:
                coming = self.thread.start(feed.next())
                yield item
        finally:
            if coming is not None and not self.closed:
                coming.cancel()
                self.thread.run(feed.close())

    def close(self) -> None:
        """End both; closing again does nothing."""
        self._ended()


class _Feed(Generic[T]):
    """An async generator that is asked by another thread: one request at a time, and closed only between two."""

    def __init__(self, source: AsyncGenerator[T, None]) -> None:
        self._source = source
        self._lock = asyncio.Lock()

    async def next(self) -> T | None:
        """The next item, or None at the end."""
        async with self._lock:
            return await anext(self._source, None)

    async def close(self) -> None:
        async with self._lock:
            await self._source.aclose()


def start(make: Coroutine[Any, Any, T]) -> tuple[LoopThread, T]:
    """A loop thread, and what `make` made in it; no thread is left behind if that fails."""
    thread = LoopThread("varlog")
    try:
        return thread, thread.run(make)
    except BaseException:
        thread.close()
        raise


def _end(thread: LoopThread, inner: Closable) -> None:
    if thread.closed:
        return
    try:
        if not thread.inside:
            thread.run(inner.close())
    finally:
        thread.close()
