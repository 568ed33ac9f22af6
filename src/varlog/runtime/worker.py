"""Worker: the only door to a thread. Jobs of one worker run one after the other, in order, off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")
Job = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class Worker(Protocol):
    """Runs blocking jobs in order."""

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Start `job` after all earlier ones; the future has its result or its exception. Not cancelled with its waiter."""
        ...

    async def close(self) -> None:
        """Wait for the jobs under way, then end."""
        ...


class ThreadWorker:
    """One thread, one queue."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._jobs.put((job, done, loop))
        return done

    async def close(self) -> None:
        self._jobs.put(None)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._thread.join)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done, loop = item
            try:
                result, error = job(), None
            except BaseException as failure:  # noqa: BLE001 - the waiter decides what it means; the thread must go on
                result, error = None, failure
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, done, result, error)


class QuickWorker:
    """Runs a job right where it is asked for while such jobs have been quicker than a thread is worth; else in its thread.

    Handing a job to a thread and its result back costs two wake-ups, a good part of a small write to a fast disk. A disk that is
    slow, or jobs that are large, show in the time of the last jobs: then the event loop must not wait for them.
    """

    # A wait of this length in the event loop is not noticed by anyone.
    QUICK_S: Final = 0.0003
    # How much the newest job counts in the running average of their times.
    WEIGHT: Final = 0.1

    def __init__(self, name: str) -> None:
        self._thread = ThreadWorker(name)
        self._in_thread = 0
        # Unknown is slow: the first job of a worker opens a store, and may read a lot.
        self._typical_s = 4 * self.QUICK_S

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        if self._in_thread == 0 and self._typical_s < self.QUICK_S:
            return self._run_here(job)
        self._in_thread += 1
        done = self._thread.run(lambda: self._timed(job))
        done.add_done_callback(self._left_thread)
        return done

    async def close(self) -> None:
        await self._thread.close()

    def _run_here(self, job: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(self._timed(job))
        except Exception as failure:  # noqa: BLE001 - the waiter decides what it means, as with a thread
            done.set_exception(failure)
        return done

    def _timed(self, job: Callable[[], T]) -> T:
        begin = time.perf_counter()
        try:
            return job()
        finally:
            took_s = time.perf_counter() - begin
            self._typical_s += self.WEIGHT * (took_s - self._typical_s)

    def _left_thread(self, _: asyncio.Future[T]) -> None:
        self._in_thread -= 1


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
