"""Tasks: every background task has an owner, a name and an end.

The owner is notified of a task that fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """The background tasks of one owner. `on_failure(name, error)` is called for a task that ended with an exception."""

    def __init__(self, owner: str, on_failure: Callable[[str, BaseException], None]) -> None:
        self._owner = owner
        self._on_failure = on_failure
        # A dict, not a set: a simulated run must cancel them in the same order every time.
        self._running: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` until it ends or the owner closes."""
        if self._closed:
            work.close()
            raise RuntimeError(f"{self._owner} is closed: {name} cannot start")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}/{name}")
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(task.get_name(), error)

    async def close(self) -> None:
        """Cancel all of them and wait until each has ended."""
        self._closed = True
        running = [task for task in self._running if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)
