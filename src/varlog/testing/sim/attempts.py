"""Attempts: users that write tasks, each by several attempts: in turn or at once, some broken off, some in another order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from varlog.client.idempotent_rules import IndeterminateInput
from varlog.client.log import Log
from varlog.model.errors import VarlogError
from varlog.testing.history import History, WriteTask
from varlog.testing.sim.plan import Plan

# An attempt that takes longer is killed.
ATTEMPT_S = 4.0
TIMEOUT_S = 3.0
# In a cluster that is well.
LAST_TIMEOUT_S = 20.0


class Attempts:
    """The tasks of one run. What an attempt needs to know (where the task begins, in which stream) the first one fixes for all."""

    def __init__(self, plan: Plan, rng: random.Random, history: History, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._rng = rng
        self._history = history
        self._tell = tell

    async def work(self, name: str, log: Log, topic: str, stopping: Callable[[], bool]) -> None:
        """Some attempts of one user. Others may be at the same task at the same time."""
        rng = self._rng
        for number in range(self._plan.attempts):
            await asyncio.sleep(rng.uniform(0, 0.5))
            if stopping():
                return
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    task = await self._task(log, topic)
                    told = await self._attempt(log, task, TIMEOUT_S, rng.random() < 0.4)
            except TimeoutError:
                told = "killed"
            except VarlogError as error:
                told = self._judge(error)
            self._tell(f"{name} attempt {number}: {told}")

    async def finish(self, logs: dict[str, Log]) -> None:
        """The cluster is well: the last attempt of most tasks, which must succeed."""
        for task in self._history.tasks:
            if self._rng.random() < 0.2:
                continue  # nobody comes back to this one
            try:
                told = await self._attempt(logs[task.topic], task, LAST_TIMEOUT_S, breaks_off=False)
            except VarlogError as error:
                told = task.failure = f"{type(error).__name__}: {self._judge(error)}"
            self._tell(f"last attempt at task {task.producer}: {told}")

    async def _task(self, log: Log, topic: str) -> WriteTask:
        tasks = [task for task in self._history.tasks if task.topic == topic]
        if tasks and (len(tasks) >= self._plan.tasks or self._rng.random() < 0.6):
            return self._rng.choice(tasks)
        rng, after, number = self._rng, await log.tail(), len(self._history.tasks) + 1
        rows = tuple(
            f"task{number}.{row}|".encode().ljust(rng.choice((0, 0, 60, 400)), b".")
            for row in range(rng.randint(1, 40))
        )
        stream = rng.choice(log.streams).log_stream
        task = WriteTask(topic, stream, 10**9 + number, after, rows, rng.choice((1, 3, 8)))
        self._history.tasks.append(task)
        return task

    async def _attempt(self, log: Log, task: WriteTask, timeout_s: float, breaks_off: bool) -> str:
        """In the task's own order and batches mostly; else in any."""
        rng, rows, size = self._rng, list(task.rows), task.batch_rows
        if rng.random() < 0.3:
            rng.shuffle(rows)
        if rng.random() < 0.2:
            size = rng.randint(1, 10)
        chain = log.idempotent_writer(task.stream, task.producer, task.after, timeout_s=timeout_s)
        for begin in range(0, len(rows), size):
            if breaks_off and rng.random() < 0.3:
                return "broken off"
            await chain.append(rows[begin : begin + size])
            await asyncio.sleep(rng.choice((0, 0, 0.01, 0.1)))
        end = await chain.finish()
        task.finished = True
        if end.rows_written + end.rows_found != len(rows):
            self._history.complaints.append(f"{len(rows)} rows of task {task.producer} became {end}")
        return f"task {task.producer} finished: {end}"

    def _judge(self, error: VarlogError) -> str:
        if isinstance(error, IndeterminateInput):
            self._history.complaints.append(f"the rows are the same in every attempt: {error}")
        return f"failed: {error}"
