"""LoopThread: an event loop in its own thread, for the blocking client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Started(Generic[T]):
    """Work in progress in the loop."""

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        self._future = future

    def wait(self) -> T:
        """Its result. A KeyboardInterrupt while waiting cancels it; CancelledError if the loop was closed under it."""
        try:
            return self._future.result()
        except BaseException:
            self._future.cancel()
            raise

    def cancel(self) -> None:
        self._future.cancel()


class LoopThread:
    """One daemon thread running one loop (uvloop). Safe to use from any number of other threads."""

    def __init__(self, name: str) -> None:
        import uvloop  # here, so that importing varlog alone does not load it

        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._closing = threading.Lock()
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    @property
    def inside(self) -> bool:
        """The caller is in the loop's own thread."""
        return threading.current_thread() is self._thread

    @staticmethod
    def now() -> float:
        """For threads other than the loop's: a clock that never goes back, in seconds."""
        return time.monotonic()

    @staticmethod
    def pause(seconds: float) -> None:
        """Let the calling thread wait, which is not the loop's."""
        time.sleep(seconds)

    def start(self, work: Coroutine[Any, Any, T]) -> Started[T]:
        """Start `work` in the loop, and do not wait for it."""
        if self.inside:
            work.close()
            raise RuntimeError("a blocking call inside the loop that is to carry it out would wait forever")
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("it is closed")
        return Started(asyncio.run_coroutine_threadsafe(work, self._loop))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. A KeyboardInterrupt while waiting cancels it."""
        return self.start(work).wait()

    def close(self) -> None:
        """End what is left in the loop, then the loop and its thread. Calling it again is harmless."""
        if self.inside:
            self._loop.stop()  # called by the garbage collector in this thread, which cannot wait for itself
            return
        with self._closing:
            if self._loop.is_closed():
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
