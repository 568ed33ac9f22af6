"""LoopBridge: runs coroutines in a loop thread for callers in other threads.

The blocking Log, Admin and BlockingConnector are built on it. Iterators pass whole chunks and record batches between the threads,
never single entries, and fetch the next one while the caller uses the last one.
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
    """An object that lives in the loop."""

    async def close(self) -> None: ...


class LoopBridge:
    """A loop thread and the object in it. Both end together: on close, on garbage collection, or at exit."""

    def __init__(self, thread: LoopThread, inner: Closable) -> None:
        self.thread = thread
        # Not __del__: at exit it would run after the loop thread was stopped.
        self._ended = weakref.finalize(self, _end, thread, inner)

    @property
    def closed(self) -> bool:
        return not self._ended.alive

    def check_open(self) -> None:
        if self.closed:
            raise Unavailable("it is closed: open or connect again")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and return its result."""
        try:
            self.check_open()
        except Unavailable:
            work.close()
            raise
        return self.thread.run(work)

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yield the items of `source`, which runs in the loop and is closed there at the end."""
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
        """Close the object and end the thread; closing again does nothing."""
        self._ended()


class _Feed(Generic[T]):
    """An async generator driven by another thread: one request at a time, and closed only between two requests."""

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
    """Returns a new loop thread and what `make` created in it; if that fails, no thread is left behind."""
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
