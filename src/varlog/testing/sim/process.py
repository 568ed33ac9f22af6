"""Process: what crashes as one. Every task and callback belongs to a process, and a dead one never runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

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
        # What a process that stands still (as after SIGSTOP) would have done meanwhile; None while it runs.
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
        """Doors call this first: a dead process that is still unwinding its stack must not touch the world."""
        if not self.alive:
            raise ProcessCrashed(self.name)

    def __repr__(self) -> str:
        return f"<{self.name} {'alive' if self.alive else 'dead'}>"
