"""WorkerPool: a few threads that do the jobs of many workers; the jobs of one worker still run one after the other, in order.

A thread a worker would be a thread a replica. Python lets one of them run at a time, so that hundreds of them that write and sync
spend their time on waking each other. Here a thread takes whichever worker has something to do, and what several have done reaches
the loop as one wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
# What a job gave, or its exception: the other one is None.
Settle = Callable[[Any, BaseException | None], None]
Done = tuple[Settle, Any, BaseException | None]


class WorkerPool:
    """Up to `threads_max` threads, one more with each worker. Made and used in one event loop."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._ready: SimpleQueue[PooledWorker | None] = SimpleQueue()
        self._done: deque[Done] = deque()
        self._loop = asyncio.get_running_loop()
        self._telling = False

    def worker(self, name: str) -> PooledWorker:
        """A worker of its own order, done by whichever thread is free."""
        if len(self._threads) < self._threads_max:
            thread_name = f"{self._name}/{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=thread_name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return PooledWorker(self._ready)

    async def close(self) -> None:
        """Wait for the jobs under way, then end the threads."""
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            await self._loop.run_in_executor(None, thread.join)
        self._threads.clear()

    def _work(self) -> None:
        while (worker := self._ready.get()) is not None:
            worker.work(self._done)
            # The flag falls before the queue is emptied: whoever finds it up is told of by the wake-up that is on its way.
            if not self._telling:
                self._telling = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._telling = False
        try:
            while self._done:
                settled, result, error = self._done.popleft()
                settled(result, error)
        finally:
            if self._done:  # one of them raised: that is not the others' fault
                self._loop.call_soon(self._tell)


class PooledWorker:
    """The jobs of one worker. It is in the pool's queue, or in one thread's hands, while it has any: never in two."""

    def __init__(self, ready: SimpleQueue[PooledWorker | None]) -> None:
        self._ready = ready
        self._jobs: deque[tuple[Callable[[], Any], Settle]] = deque()
        self._guard = threading.Lock()
        self._queued = False

    def call(self, job: Callable[[], Any], done: Settle) -> None:
        """Start `job` after all earlier ones; then `done` is called in the loop."""
        with self._guard:
            self._jobs.append((job, done))
            if self._queued:
                return
            self._queued = True
        self._ready.put(self)

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """As of any Worker."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.call(job, partial(_settle, done))
        return done

    async def close(self) -> None:
        """Wait for the jobs under way. The threads are the pool's."""
        await self.run(lambda: None)

    def work(self, out: deque[Done]) -> None:
        """In a thread: one job, its outcome into `out`, and only then back into the queue if there are more: outcomes keep the
        order of the jobs."""
        job, done = self._jobs.popleft()
        try:
            result, error = job(), None
        except BaseException as failure:  # noqa: BLE001 - the waiter decides what it means; the thread must go on
            result, error = None, failure
        out.append((done, result, error))
        with self._guard:
            again = self._queued = bool(self._jobs)
        if again:
            self._ready.put(self)


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
