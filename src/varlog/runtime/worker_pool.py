"""WorkerPool: a few threads that run the jobs of many workers.

The jobs of one worker still run one after the other, in order.

One thread per worker would be one thread per replica. Python runs one of them at a time, so that hundreds of threads
that write and sync would spend their time waking each other. Here a thread runs any worker that has a job, and the
results of several reach the loop in one wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from varlog.runtime.worker import InlineWorker, LatencyGate, Outcome, Settle, outcome_of

FinishedJob = tuple["PooledWorker", Settle, Outcome]


class WorkerPool:
    """Up to `threads_max` threads, one more with each worker. Made and used in one event loop."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._ready: SimpleQueue[PooledWorker | None] = SimpleQueue()
        self._done: deque[FinishedJob] = deque()
        self._loop = asyncio.get_running_loop()
        self._delivering = False
        # One gate per disk: what one worker measures holds for all.
        self.pace = LatencyGate()
        self._handed = 0
        self._loop_wrote = False

    def worker(self, name: str) -> PooledWorker:
        """A worker with its own order of jobs, run by any free thread."""
        if len(self._threads) < self._threads_max:
            thread_name = f"{self._name}/{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=thread_name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return PooledWorker(self)

    @property
    def can_run_inline(self) -> bool:
        """Whether the loop itself may run an inline job: one per turn, and none while threads are busy. When several
        workers have jobs, threads let their disk jobs overlap."""
        return self._handed == 0 and not self._loop_wrote

    def enqueue(self, worker: PooledWorker) -> None:
        """This worker has a job."""
        self._ready.put(worker)

    def job_submitted(self) -> None:
        self._handed += 1

    def job_run_inline(self) -> None:
        """The loop has run an inline job itself; the next turn may run another."""
        self._loop_wrote = True
        self._loop.call_soon(self._next_turn)

    async def close(self) -> None:
        """Wait for the running jobs, then end the threads."""
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            await self._loop.run_in_executor(None, thread.join)
        self._threads.clear()

    def _next_turn(self) -> None:
        self._loop_wrote = False

    def _work(self) -> None:
        while (worker := self._ready.get()) is not None:
            worker.work(self._done)
            # The flag is cleared before the queue is emptied: a thread that finds it set relies on the wake-up that is
            # scheduled.
            if not self._delivering:
                self._delivering = True
                with contextlib.suppress(RuntimeError):  # the loop is closed, and so is every waiter
                    self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        try:
            while self._done:
                worker, done, outcome = self._done.popleft()
                self._handed -= 1
                worker._on_done(done, outcome)
        finally:
            if self._done:  # one of them raised: the others must still be delivered
                self._loop.call_soon(self._deliver)


class PooledWorker(InlineWorker):
    """The jobs of one worker. While it has any, it is in the pool's queue or in one thread, never in two places."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__(pool.pace)
        self._pool = pool
        self._jobs: deque[tuple[Callable[[], Any], Settle, bool]] = deque()
        self._guard = threading.Lock()
        self._queued = False

    @property
    def can_run_inline(self) -> bool:
        return self._pool.can_run_inline and super().can_run_inline

    async def close(self) -> None:
        """Wait for the running jobs. The threads are the pool's."""
        await self.run(lambda: None)

    def _submit(self, job: Callable[[], Any], done: Settle, inline: bool) -> None:
        self._pool.job_submitted()
        with self._guard:
            self._jobs.append((job, done, inline))
            if self._queued:
                return
            self._queued = True
        self._pool.enqueue(self)

    def _do(self, job: Callable[[], Any]) -> Outcome:
        self._pool.job_run_inline()
        return super()._do(job)

    def work(self, out: deque[FinishedJob]) -> None:
        """In a thread: one job, its outcome into `out`, and only then back into the queue if there are more: outcomes keep the
        order of the jobs."""
        job, done, inline = self._jobs.popleft()
        out.append((self, done, self._timed(job) if inline else outcome_of(job)))
        with self._guard:
            again = self._queued = bool(self._jobs)
        if again:
            self._pool.enqueue(self)
