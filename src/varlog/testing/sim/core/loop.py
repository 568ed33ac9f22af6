"""SimLoop: an asyncio loop with virtual time, and the processes that run in it."""

from __future__ import annotations

import asyncio
import gc
import heapq
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from itertools import count
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_serials = count(1)


class SimulationStuck(Exception):
    """The simulation cannot continue: no task will ever wake up, or it runs without end."""


class SimFuture(asyncio.Future[T]):
    """A future whose hash is a number in order of use, not an address: sets of futures iterate alike in every run."""

    _serial = 0

    def __hash__(self) -> int:
        if not self._serial:
            self._serial = next(_serials)
        return self._serial


class SimTask(asyncio.Task[T]):
    """A task with the same kind of hash."""

    _serial = 0
    process: Process | None = None

    def __hash__(self) -> int:
        if not self._serial:
            self._serial = next(_serials)
        return self._serial


class SimLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in the order they were scheduled; timers in the order of their time, then of their making."""

    def __init__(self, *, steps_max: int = 5_000_000) -> None:
        self.steps = 0
        self.complaints: list[str] = []
        self._steps_max = steps_max
        self._now = 0.0
        self._ready: deque[tuple[Process | None, asyncio.Handle]] = deque()
        self._timers: list[tuple[float, int, Process | None, asyncio.TimerHandle]] = []
        self._timer_serials = count(1)
        self._task_serials = count(1)
        self._running = False
        self._closed = False
        self._hung = ""  # where the processor time was used up
        self._graveyard: list[asyncio.Task[Any]] = []

    # --- running ------------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Run until `future` ends. The garbage collector rests meanwhile: when it would run depends on the past."""
        collecting = gc.isenabled()
        gc.disable()
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finalize)
        asyncio._set_running_loop(self)
        self._running = True
        try:
            main = asyncio.ensure_future(future, loop=self)
            while not main.done():
                self._turn()
            return main.result()
        finally:
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()

    def _turn(self) -> None:
        ready = self._ready
        if not ready:
            self._jump()
        for _ in range(len(ready)):
            process, handle = ready.popleft()
            if handle.cancelled():
                continue
            if process is not None:
                if not process.alive:
                    continue
                if process.held is not None:
                    process.held.append(handle)
                    continue
            self.steps += 1
            handle._run()
        if self._hung:
            raise SimulationStuck(self._hung)
        if self.steps > self._steps_max:
            raise SimulationStuck(f"no end after {self.steps} steps, at {self._now:.3f} s: {self._waiting()}")

    @contextmanager
    def limit_processor_time(self, seconds: float) -> Iterator[None]:
        """SimulationStuck once it is used up: inside a callback that never returns no steps count. In the main thread only."""

        def stop(_: int, frame: FrameType | None) -> None:
            where = "".join(traceback.format_stack(frame, limit=8))
            self._hung = f"no end after {seconds:g} s of processor time, at {self._now:.3f} s:\n{where}"
            # A running task may catch this and answer with it; `_turn` ends the run all the same.
            raise SimulationStuck(self._hung)

        before = signal.signal(signal.SIGVTALRM, stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)

    def _jump(self) -> None:
        """Everyone waits: go to the next timer. All timers of that moment become ready, in their order."""
        timers = self._timers
        while timers:
            when, _, process, handle = heapq.heappop(timers)
            if handle.cancelled() or (process is not None and not process.alive):
                continue
            self._now = max(self._now, when)
            self._ready.append((process, handle))
            while timers and timers[0][0] <= self._now:
                _, _, process, handle = heapq.heappop(timers)
                self._ready.append((process, handle))
            return
        raise SimulationStuck(f"nothing is left to happen, at {self._now:.3f} s: {self._waiting()}")

    def _waiting(self) -> str:
        names = sorted(task.get_name() for task in asyncio.all_tasks(self))
        return f"{len(names)} tasks are unfinished: {', '.join(names[:20])}"

    def close(self) -> None:
        """Let go of every unfinished task without a word, whatever its `finally` blocks try."""
        if self._closed:
            return
        self._closed = True
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        # A `finally` block that asks for its loop must not be given a new, real one.
        asyncio._set_running_loop(self)
        try:
            self._ready.clear()
            self._timers.clear()
            for task in asyncio.all_tasks(self):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                try:
                    task.get_coro().close()
                except BaseException:  # noqa: BLE001, S110 - a dead process has nothing to say
                    pass
            self._graveyard.clear()
            gc.collect()
        finally:
            asyncio._set_running_loop(None)
            sys.unraisablehook = hook

    def resume(self, process: Process) -> None:
        """A paused process continues: everything that was due in the meantime happens now, in order."""
        held, process.held = process.held or [], None
        self._ready.extend((process, handle) for handle in held)

    def bury(self, process: Process) -> None:
        """Keep the unfinished tasks of a dead process: one that is forgotten would still run its `finally` blocks."""
        for task in asyncio.all_tasks(self):
            if isinstance(task, SimTask) and task.process is process:
                self._graveyard.append(task)

    def _finalize(self, generator: Any) -> None:
        """An async generator was dropped before its end."""
        process = CURRENT.get()
        if not self._closed and (process is None or process.alive):
            _ = self.create_task(generator.aclose(), name="aclose")

    # --- scheduling ---------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("the simulated loop is closed")
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append((context.get(CURRENT), handle))
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("the simulated loop is closed")
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._timer_serials), context.get(CURRENT), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio reports each; ours are skipped when their time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        if self._closed:
            coro.close()
            raise RuntimeError("the simulated loop is closed")
        task = SimTask(coro, loop=self, name=name or f"task-{next(self._task_serials)}", context=context)
        task.process = CURRENT.get() if context is None else context.get(CURRENT)
        return task

    # --- what asyncio asks of a loop besides --------------------------------------------------------------------

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback failed, or a task's exception was never looked at: a bug, unless its process is dead."""
        error = context.get("exception")
        process = CURRENT.get()
        if self._closed or isinstance(error, ProcessCrashed) or (process is not None and not process.alive):
            return
        of = f" in {process.name}" if process is not None else ""
        self.complaints.append(f"{context.get('message')}{of}: {error!r}")

    async def shutdown_asyncgens(self) -> None:
        """Nothing to shut down: dropped generators were closed at once."""


def make_loop(*, steps_max: int = 5_000_000) -> SimLoop:
    """A loop whose time is 0. Hashes count from 1 again, so that a run does not depend on the ones before it."""
    global _serials  # noqa: PLW0603
    _serials = count(1)
    return SimLoop(steps_max=steps_max)  # type: ignore[abstract]  # pipes, sockets and signals are not in this world


def run_simulated(work: Coroutine[Any, Any, T], *, steps_max: int = 5_000_000) -> T:
    """Run one coroutine to its end in a new virtual world."""
    loop = make_loop(steps_max=steps_max)
    try:
        result: T = loop.run_until_complete(work)
        return result
    finally:
        loop.close()


# Process: what crashes as one. Every task and callback belongs to a process, and a dead one never runs again.

# The process that the running code belongs to; None is the simulator itself. asyncio hands contexts on to every task
# and callback that a task makes, so whatever a process starts stays its own.
CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)


class ProcessCrashed(BaseException):
    """Unwinds the stack of a process that crashed in the middle of a step. Not an Exception: nobody may survive it."""


class Process:
    """One incarnation of a process on a host. A restart is a new Process over the same host's disk."""

    def __init__(self, host: str, incarnation: int = 1) -> None:
        self.host = host
        self.incarnation = incarnation
        self.name = f"{host}#{incarnation}"
        self.alive = True
        # What a paused process (as after SIGSTOP) would have done in the meantime; None while it runs.
        self.held: list[Any] | None = None
        self._on_death: list[Callable[[], None]] = []
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)

    def spawn(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a task of this process."""
        loop = asyncio.get_running_loop()
        # A copy, or what one task sets another one would see.
        return loop.create_task(work, name=f"{self.name}/{name}", context=self.context.copy())

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call back when the process ends: locks are released, connections break."""
        self._on_death.append(callback)

    def die(self) -> None:
        """End here and now. Nothing of it runs again: no handler, no `finally`, as after kill -9."""
        if not self.alive:
            return
        self.alive = False
        if bury := getattr(asyncio._get_running_loop(), "bury", None):
            bury(self)
        callbacks, self._on_death = self._on_death, []
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """The simulated environment calls this first: a dead process that is still unwinding its stack must not touch the world."""
        if not self.alive:
            raise ProcessCrashed(self.name)

    def __repr__(self) -> str:
        return f"<{self.name} {'alive' if self.alive else 'dead'}>"
