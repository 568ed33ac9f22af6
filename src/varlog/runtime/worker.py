"""Worker: runs blocking jobs off the event loop, one after the other, in order.

A job that is marked *inline* (a small write with its sync) may run in the loop itself, in its turn, while such jobs
have recently been quick: passing it to a thread and back costs as much as a good disk takes for it. A slow one blocks
the loop once; those after it go to the thread until they are quick again (decision 18).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")
# The result of a job, or its exception: the other one is None.
Outcome = tuple[Any, BaseException | None]
Settle = Callable[[Any, BaseException | None], None]
WorkerJob = tuple[Callable[[], Any], Settle, bool, asyncio.AbstractEventLoop]


class Worker(Protocol):
    """Runs blocking jobs in order."""

    @property
    def can_run_inline(self) -> bool:
        """True if an inline job would run now, before `call` or `run` returns."""
        ...

    def call(self, job: Callable[[], Any], done: Settle, *, inline: bool = False) -> None:
        """Run `job` after all earlier ones; then `done` is called in the loop, maybe before this returns. For the paths
        that count their turns of the loop: a future costs one more."""
        ...

    def run(self, job: Callable[[], T], *, inline: bool = False) -> asyncio.Future[T]:
        """Run `job` after all earlier ones; the future has its result or its exception. Not cancelled with its waiter."""
        ...

    async def close(self) -> None:
        """Wait for the running jobs, then end."""
        ...


def new_guard() -> contextlib.AbstractContextManager[bool]:
    """A lock for state that several threads read and change: use `with guard`, for short sections only."""
    return threading.Lock()


# An inline job that takes longer is slow. A thread and back is about 0.1 ms on a busy machine.
QUICK_S: Final = 0.001
# After a slow one, this many in a row must be quick in the thread before the loop runs them again.
QUICK_IN_A_ROW: Final = 8


class LatencyGate:
    """Whether inline jobs are quick, by those that were done last."""

    def __init__(self) -> None:
        self._missing = 0

    @property
    def quick(self) -> bool:
        return self._missing == 0

    def took(self, seconds: float) -> None:
        if seconds > QUICK_S:
            self._missing = QUICK_IN_A_ROW
        elif self._missing:
            self._missing -= 1


class InlineWorker:
    """What workers with threads share: inline jobs in the loop while they are quick, the others in a thread, none overtaken."""

    def __init__(self, gate: LatencyGate) -> None:
        self._gate = gate
        # Jobs that were passed to a thread and whose end the loop does not know yet: nothing may overtake them.
        self._submitted = 0

    @property
    def can_run_inline(self) -> bool:
        return self._submitted == 0 and self._gate.quick

    def call(self, job: Callable[[], Any], done: Settle, *, inline: bool = False) -> None:
        if inline and self.can_run_inline:
            done(*self._do(job))
        else:
            self._submitted += 1
            self._submit(job, done, inline)

    def run(self, job: Callable[[], T], *, inline: bool = False) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.call(job, partial(settle, done), inline=inline)
        return done

    def _on_done(self, done: Settle, outcome: Outcome) -> None:
        """In the loop: a job that was passed to a thread has ended."""
        self._submitted -= 1
        done(*outcome)

    def _submit(self, job: Callable[[], Any], done: Settle, inline: bool) -> None:
        """To a thread, behind all earlier ones; then `_on_done`."""
        raise NotImplementedError

    def _do(self, job: Callable[[], Any]) -> Outcome:
        """An inline job, in the loop."""
        return self._timed(job)

    def _timed(self, job: Callable[[], Any]) -> Outcome:
        begin = time.perf_counter()
        outcome = outcome_of(job)
        self._gate.took(time.perf_counter() - begin)
        return outcome


class ThreadWorker(InlineWorker):
    """One thread, one queue."""

    def __init__(self, name: str) -> None:
        super().__init__(LatencyGate())
        self._jobs: SimpleQueue[WorkerJob | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def close(self) -> None:
        self._jobs.put(None)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._thread.join)

    def _submit(self, job: Callable[[], Any], done: Settle, inline: bool) -> None:
        self._jobs.put((job, done, inline, asyncio.get_running_loop()))

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done, inline, loop = item
            outcome = self._timed(job) if inline else outcome_of(job)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so is every waiter
                loop.call_soon_threadsafe(self._on_done, done, outcome)


def outcome_of(job: Callable[[], Any]) -> Outcome:
    try:
        return job(), None
    except BaseException as failure:  # noqa: BLE001 - the waiter decides what it means; the thread must continue
        return None, failure


def settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Set the result of a future, unless it was cancelled."""
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
