"""User: a client process that works on topics, writes tasks and copies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from varlog.client.connect import connect_log
from varlog.client.log import Log
from varlog.client.writers.idempotent_rules import IndeterminateInput
from varlog.client.writers.positioned import OtherEntry
from varlog.model.errors import Trimmed, VarlogError
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.testing.sim.core.loop import CURRENT
from varlog.testing.sim.core.plan import SimPlan
from varlog.testing.workload import Client, Mix
from varlog.verify.history import ClientCall, History, IdempotentWrite

# Called by the task that runs it: a process that dies before that task's first step leaves no coroutine that nobody awaited.
UserWork = Callable[[], Coroutine[Any, Any, None]]
# What a user does besides its loops of operations: given its name, its environment and transport, and its log.
Besides = Callable[[str, Environment, Transport, Log], Sequence[UserWork]]


class User:
    """The service of a client host: several loops of operations on one topic, and what it does `besides`."""

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        *,
        topic: str,
        repository: str,
        plan: SimPlan,
        history: History,
        stopping: Callable[[], bool],
        finished: Callable[[], None],
        on_begin: Callable[[ClientCall], None],
        on_end: Callable[[ClientCall], None],
        besides: Besides,
    ) -> None:
        self._environment = environment
        self._transport = transport
        self._topic = topic
        self._repository = repository
        self._plan = plan
        self._history = history
        self._stopping = stopping
        self._finished = finished
        self._on_begin = on_begin
        self._on_end = on_end
        self._besides = besides
        self._log: Log | None = None
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._work = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        process = CURRENT.get()
        name = process.name if process is not None else "?"
        log = self._log = await self._connect()
        if log is not None:
            mix = self._plan.mix or Mix()
            async with asyncio.TaskGroup() as group:
                for number in range(self._plan.loops):
                    rng = random.Random(self._environment.entropy.getrandbits(64))
                    client = Client(
                        f"{name}.{number}",
                        self._topic,
                        log,
                        self._history,
                        rng,
                        mix,
                        self._on_begin,
                        self._on_end,
                    )
                    _ = group.create_task(client.run(self._plan.operations, self._stopping))
                for work in self._besides(name, self._environment, self._transport, log):
                    _ = group.create_task(self._watched(work))
            await log.close()
        self._finished()

    async def _watched(self, work: UserWork) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - reported to the checkers
            self._history.complaints.append(f"not an error of the tree: {error!r}")

    async def _connect(self) -> Log | None:
        while not self._stopping():
            try:
                return await connect_log(
                    self._transport,
                    self._environment,
                    self._repository,
                    topic=self._topic,
                    create=False,
                    timeout_s=2.0,
                )
            except VarlogError:
                await asyncio.sleep(0.1)
        return None

    async def stop(self) -> None:
        """Stop in the middle: what is in flight is abandoned."""
        if self._log is not None:
            await self._log.close()


# Attempts: users that write tasks, each by several attempts: in turn or at once, some broken off, some in another order.

# An attempt that takes longer is killed.
ATTEMPT_S = 4.0
TIMEOUT_S = 3.0
# In a cluster that is well.
LAST_TIMEOUT_S = 20.0


class Attempts:
    """The tasks of one run. What an attempt needs to know (where the task begins, in which stream) the first one fixes for all."""

    def __init__(
        self, plan: SimPlan, rng: random.Random, history: History, trace: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._rng = rng
        self._history = history
        self._trace = trace

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
                    outcome = await self._attempt(log, task, TIMEOUT_S, rng.random() < 0.4)
            except TimeoutError:
                outcome = "killed"
            except VarlogError as error:
                outcome = self._explain(error)
            self._trace(f"{name} attempt {number}: {outcome}")

    async def finish(self, logs: dict[str, Log]) -> None:
        """The cluster is well: the last attempt of most tasks, which must succeed."""
        for task in self._history.tasks:
            if self._rng.random() < 0.2:
                continue  # nobody comes back to this one
            try:
                outcome = await self._attempt(logs[task.topic], task, LAST_TIMEOUT_S, breaks_off=False)
            except VarlogError as error:
                outcome = task.failure = f"{type(error).__name__}: {self._explain(error)}"
            self._trace(f"last attempt at task {task.producer}: {outcome}")

    async def _task(self, log: Log, topic: str) -> IdempotentWrite:
        tasks = [task for task in self._history.tasks if task.topic == topic]
        if tasks and (len(tasks) >= self._plan.tasks or self._rng.random() < 0.6):
            return self._rng.choice(tasks)
        rng, after, number = self._rng, await log.tail(), len(self._history.tasks) + 1
        rows = tuple(
            f"task{number}.{row}|".encode().ljust(rng.choice((0, 0, 60, 400)), b".")
            for row in range(rng.randint(1, 40))
        )
        stream = rng.choice(log.streams).log_stream
        task = IdempotentWrite(topic, stream, 10**9 + number, after, rows, rng.choice((1, 3, 8)))
        self._history.tasks.append(task)
        return task

    async def _attempt(self, log: Log, task: IdempotentWrite, timeout_s: float, breaks_off: bool) -> str:
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

    def _explain(self, error: VarlogError) -> str:
        if isinstance(error, IndeterminateInput):
            self._history.complaints.append(f"the rows are the same in every attempt: {error}")
        return f"failed: {error}"


# Copier: users that copy a topic into another one at equal positions, several at once, each broken off and begun again.

COPY = "copy"

# A user that takes longer over one attempt is killed.
COPY_ATTEMPT_S = 3.0
COPY_TIMEOUT_S = 2.0
# In a cluster that is well.
LAST_COPY_TIMEOUT_S = 20.0


class Copier:
    """The copy of one run. Its topic has one log stream, and begins where its source begins."""

    def __init__(
        self, first: int, rng: random.Random, history: History, trace: Callable[[str], None]
    ) -> None:
        self._first = first
        self._rng = rng
        self._history = history
        self._trace = trace

    async def work(self, name: str, source: Log, copy: Log, stopping: Callable[[], bool]) -> None:
        while not stopping():
            try:
                async with asyncio.timeout(self._rng.uniform(0.1, COPY_ATTEMPT_S)):
                    outcome = await self._copy(source, copy, COPY_TIMEOUT_S)
            except TimeoutError:
                outcome = "was killed"
            except VarlogError as error:
                outcome = self._explain(error)
            self._trace(f"{name} copies: {outcome}")
            await asyncio.sleep(self._rng.uniform(0, 0.5))

    async def finish(self, source: Log, copy: Log) -> None:
        """The cluster is well: what is not copied yet is copied, unless it is trimmed."""
        try:
            self._trace(f"the last copy: {await self._copy(source, copy, LAST_COPY_TIMEOUT_S)}")
        except Trimmed as trimmed:
            self._trace(f"the last copy ends early: {trimmed}")
        except VarlogError as error:
            self._history.complaints.append(f"the copy cannot be finished: {self._explain(error)}")

    async def _copy(self, source: Log, copy: Log, timeout_s: float) -> str:
        """From the end of what is there, or from a little before it: what is there is compared then."""
        if len(copy.streams) != 1:
            return "nothing: a second manager made another stream"
        rng, newest = self._rng, await copy.tail()
        begin = max(self._first, newest + 1 - rng.choice((0, 0, 3, 20)))
        end = await source.tail() + 1
        placed = copy.positioned_writer(copy.streams[0].log_stream, timeout_s=timeout_s)
        async with aclosing(source.subscribe_lists(begin, end)) as lists:
            async for entries in lists:
                size = rng.choice((1, 5, 50))
                for at in range(0, len(entries), size):
                    part = entries[at : at + size]
                    llsn = part[0].glsn - self._first + 1
                    await placed.append(llsn, [entry.data for entry in part], part[0].time_us)
        return f"[{begin}, {end}) {await placed.finish()}"

    def _explain(self, error: VarlogError) -> str:
        if isinstance(error, OtherEntry):
            self._history.complaints.append(f"only copies of one source were written: {error}")
        return f"failed: {error}"
