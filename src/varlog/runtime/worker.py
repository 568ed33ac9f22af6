"""Worker: the only door to a thread. Jobs of one worker run one after the other, in order, off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

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


def new_guard() -> contextlib.AbstractContextManager[bool]:
    """For what several threads look at and change: one at a time, within `with guard`, and only for moments."""
    return threading.Lock()


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


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
