"""Users: client processes of the simulated world. Each connects to a topic and works; one that crashes comes back anew."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from varlog.client.connect import connect_log
from varlog.client.log import Log
from varlog.model.errors import VarlogError
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.testing.history import History, Operation
from varlog.testing.sim.plan import Plan
from varlog.testing.sim.process import CURRENT
from varlog.testing.workload import Client, Mix

# Called by the task that runs it: a process that dies before that task's first step leaves no coroutine that nobody awaited.
Work = Callable[[], Coroutine[Any, Any, None]]
# What a user does besides its loops of operations: given its name, its doors and transport, and its log.
Besides = Callable[[str, Environment, Transport, Log], Sequence[Work]]


class User:
    """The service of a client host: so many loops of operations on one topic, and what it does `besides`."""

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        *,
        topic: str,
        repository: str,
        plan: Plan,
        history: History,
        stopping: Callable[[], bool],
        finished: Callable[[], None],
        on_begin: Callable[[Operation], None],
        on_end: Callable[[Operation], None],
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

    async def _watched(self, work: Work) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - told to the checkers
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
        """Leave in the middle of it: what is under way is abandoned."""
        if self._log is not None:
            await self._log.close()
