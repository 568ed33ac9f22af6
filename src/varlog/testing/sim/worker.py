"""SimWorker: jobs in order, each after a delay and answered after another. A job happens at one moment."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from varlog.runtime.worker import Settle, settle
from varlog.testing.sim.process import Process, ProcessCrashed

T = TypeVar("T")

# Of the brief jobs that could run in the loop so many do.
AT_ONCE_SHARE = 0.4

Delay = Callable[[random.Random], float]


def worker_delay(rng: random.Random) -> float:
    """Mostly a fraction of a millisecond; now and then a disk that hangs for a while."""
    return rng.uniform(0.0001, 0.001) if rng.random() < 0.97 else rng.uniform(0.005, 0.15)


def hanging_delay(rng: random.Random) -> float:
    """A disk that hangs every other time: something is always on its way to it."""
    return rng.uniform(0.0001, 0.001) if rng.random() < 0.6 else rng.uniform(0.005, 0.1)


class SimWorker:
    """Stands in for a thread of one process. Between a job and its answer there is time in which the process can crash,
    or in which the next job runs: as with a thread, the loop hears of a job later than it happened, but in order."""

    def __init__(self, process: Process, rng: random.Random, delay: Delay = worker_delay) -> None:
        self._process = process
        self._rng = rng
        self._delay = delay
        self._jobs: deque[tuple[Callable[[], Any], Settle]] = deque()
        self._answers: deque[tuple[Settle, Any, BaseException | None]] = deque()
        self._busy = False
        self._answered_at = 0.0
        self._idle: list[asyncio.Future[None]] = []

    @property
    def can_run_inline(self) -> bool:
        """Now and then, where nothing is under way: a real one is so as long as its disk is quick."""
        return not self._busy and not self._answers and self._rng.random() < AT_ONCE_SHARE

    def call(self, job: Callable[[], Any], done: Settle, *, brief: bool = False) -> None:
        self._process.check()
        if brief and self.can_run_inline:
            self._run_inline(job, done)
            return
        self._jobs.append((job, done))
        if not self._busy:
            self._busy = True
            loop = asyncio.get_running_loop()
            loop.call_later(self._delay(self._rng), self._work, context=self._process.context)

    def run(self, job: Callable[[], T], *, brief: bool = False) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.call(job, partial(settle, done), brief=brief)
        return done

    def _run_inline(self, job: Callable[[], Any], done: Settle) -> None:
        error: BaseException | None = None
        result: Any = None
        try:
            result = job()
        except ProcessCrashed:
            raise  # it died in the middle of its job, and whoever asked for it with it
        except BaseException as failure:  # noqa: BLE001 - the waiter decides what it means
            error = failure
        done(result, error)

    def _work(self) -> None:
        job, done = self._jobs.popleft()
        error: BaseException | None = None
        result: Any = None
        try:
            result = job()
        except ProcessCrashed:
            return  # it died in the middle of its job: nobody hears of it
        except BaseException as failure:  # noqa: BLE001 - the waiter decides what it means
            error = failure
        loop = asyncio.get_running_loop()
        self._answers.append((done, result, error))
        self._answered_at = max(self._answered_at, loop.time() + self._delay(self._rng))
        loop.call_at(self._answered_at, self._answer, context=self._process.context)
        self._busy = bool(self._jobs)
        if self._busy:
            loop.call_later(self._delay(self._rng), self._work, context=self._process.context)

    def _answer(self) -> None:
        done, result, error = self._answers.popleft()
        try:
            done(result, error)
        finally:
            if not self._busy and not self._answers:
                waiting, self._idle = self._idle, []
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_result(None)

    async def close(self) -> None:
        """Wait for the jobs under way."""
        if self._busy or self._answers:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter
