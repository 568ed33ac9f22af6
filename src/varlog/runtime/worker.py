"""Worker: the only door to a thread. Jobs of one worker run one after the other, in order, off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
# What a job gave, or its exception: the other one is None.
Settle = Callable[[Any, BaseException | None], None]
Job = tuple[Callable[[], Any], Settle, asyncio.AbstractEventLoop]


class Worker(Protocol):
    """Runs blocking jobs in order."""

    def call(self, job: Callable[[], Any], done: Settle) -> None:
        """Start `job` after all earlier ones; then `done` is called in the loop. For the paths that count their turns of the loop:
        a future costs one more, and hands its result to the same callback in the end."""
        ...

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

    def call(self, job: Callable[[], Any], done: Settle) -> None:
        self._jobs.put((job, done, asyncio.get_running_loop()))

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.call(job, partial(settle, done))
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
                loop.call_soon_threadsafe(done, result, error)


def settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Into a future, unless nobody waits for it any more."""
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
