"""RegistryClient: uses named readers and writers, and checks every answer.

It works while users work, and holds the repository to everything that it answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from varlog.client.connect import connect_log
from varlog.client.log import Log
from varlog.model.cluster import NamedWriter
from varlog.model.errors import ReaderBehind, TrimBeyondTail, Unavailable, VarlogError
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.testing.sim.core.plan import SimPlan
from varlog.verify.history import STOPPED, CallOutcome, History, KnownTail, TailCall, TrimCall

READER, WRITER = "bookkeeper", "bookkeeper"
PATIENCE_S = 3.0


class RegistryClient:
    """One call at a time, so the last reply must hold. Where no reply came, either state may."""

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        repository: str,
        topic: str,
        plan: SimPlan,
        rng: random.Random,
        history: History,
        trace: Callable[[str], None],
    ) -> None:
        self._environment = environment
        self._transport = transport
        self._repository = repository
        self._topic = topic
        self._plan = plan
        self._sequenced = topic in history.sequenced
        self._rng = rng
        self._history = history
        self._trace = trace
        # How far the reader is: at least, and at most. Nothing before a first word was given.
        self._certain: int | None = None
        self._possible: int | None = None
        self._trimmed_freely = 0  # by itself, while there may have been no reader to respect
        self._batch = 0
        self._begun: dict[int, NamedWriter] = {}
        self._ended: set[int] = set()
        self._asked_first: dict[int, int] = {}

    async def work(self) -> None:
        """About as many actions as the plan has, in its time; fewer where replies take long."""
        calls = [self._read, self._trim, self._begin, self._begin, self._end]
        if self._sequenced:  # writers under a name need a primary
            calls = [self._read, self._trim]
        loop, plan = asyncio.get_running_loop(), self._plan
        end = loop.time() + plan.duration_s
        while plan.registry_actions and loop.time() < end:
            await self._try(self._rng.choice(calls))
            await asyncio.sleep(self._rng.uniform(0, 2 * plan.duration_s / plan.registry_actions))

    async def settle(self) -> None:
        """The cluster is well: every word that was given is asked for once more."""
        if self._plan.registry_actions:
            await self._try(self._read)
            if not self._sequenced:
                await self._try(self._begin)

    async def _try(self, call: Callable[[Log], Coroutine[Any, Any, str]]) -> None:
        asked = TailCall(topic=self._topic, client="bookkeeper", started=self._history.event())
        try:
            async with await connect_log(
                self._transport,
                self._environment,
                self._repository,
                topic=self._topic,
                create=False,
                timeout_s=PATIENCE_S,
            ) as log:
                self._trace(f"the registry client {await call(log)}")
        except Unavailable as error:
            self._trace(f"the registry client got no answer: {error}")
        except VarlogError as error:
            if STOPPED in str(error):
                # Whether a topic may be stopped at this moment is judged later (StoppedWhereDue).
                asked.outcome, asked.message, asked.ended = (
                    CallOutcome.FAILED,
                    str(error),
                    self._history.event(),
                )
                self._history.operations.append(asked)
                self._trace(f"the registry client is refused: {error}")
                return
            self._break(f"an error that has no place here: {type(error).__name__}: {error}")

    # --- a reader -----------------------------------------------------------------------------------------------------

    async def _read(self, log: Log) -> str:
        position = max(0, await log.tail() - self._rng.randint(0, 20))
        self._possible = max(self._possible or 0, position)
        found = await log.set_reader(READER, position)
        self._check_position(found.position, "after it was set")
        if found.position < position:
            self._break(f"the reader said {position}, and is at {found.position}")
        self._certain = found.position
        return f"has read up to {found.position}"

    def _check_position(self, position: int, when: str) -> None:
        if not (self._certain or 0) <= position <= (self._possible or 0):
            self._break(
                f"the reader is at {position} {when}: it had said between {self._certain} and {self._possible}"
            )

    async def _trim(self, log: Log) -> str:
        """With respect for the reader: refused where it has not read so far."""
        glsn = max(1, await log.tail() - self._rng.randint(0, 10))
        operation = TrimCall(
            topic=self._topic, client="bookkeeper", glsn=glsn, respectful=True, binding=self._sequenced
        )
        if self._certain is None:
            self._trimmed_freely = max(self._trimmed_freely, glsn)
        operation.started = self._history.event()
        operation.started_s = asyncio.get_running_loop().time()
        self._history.operations.append(operation)
        try:
            await log.trim(glsn, respect_readers=True)
            operation.outcome = CallOutcome.DONE
        except ReaderBehind as behind:
            operation.outcome = CallOutcome.REJECTED
            self._check_position(behind.position, "by a refused trim")
        except TrimBeyondTail:
            operation.outcome, operation.beyond_tail = CallOutcome.REJECTED, True
        except VarlogError as error:
            if not isinstance(error, Unavailable) and STOPPED not in str(error):
                raise
            operation.outcome, operation.message = CallOutcome.FAILED, str(error)
        operation.ended = self._history.event()
        operation.ended_s = asyncio.get_running_loop().time()
        if operation.outcome is CallOutcome.DONE:
            self._check_trim(operation)
        return f"trimmed up to {glsn}: {operation.outcome}"

    def _check_trim(self, trim: TrimCall) -> None:
        """Done above the reader only if as much was asked for without respect, or without a reader."""
        others = [
            one.glsn
            for one in self._history.of(self._topic)
            if isinstance(one, TrimCall) and not one.respectful and one.outcome is not CallOutcome.REJECTED
        ]
        allowed = max([self._possible or 0, self._trimmed_freely, *others])
        if trim.glsn > allowed:
            self._break(f"{trim}, but the reader has read up to {self._possible} only")

    # --- a writer -----------------------------------------------------------------------------------------------------

    async def _begin(self, log: Log) -> str:
        """Mostly the open batch, as a retried task of it; sometimes the next one."""
        if self._batch in self._begun and self._rng.random() < 0.3:
            self._batch += 1
        batch, before = self._batch, self._history.event()
        self._asked_first.setdefault(batch, before)
        found = await log.connector.begin_write(WRITER, batch, kept=True)
        known = self._begun.setdefault(batch, found)
        if (known.batch, known.begin, known.streams) != (found.batch, found.begin, found.streams):
            self._break(f"batch {batch} was begun as {known}, and as {found}")
        if batch in self._ended and not found.finished:
            self._break(f"batch {batch} was finished, and is not: {found}")
        newest = KnownTail(self._history, self._topic).before(self._asked_first[batch])
        if found.begin < newest:
            self._break(f"batch {batch} begins above {found.begin}, but position {newest} was known before")
        if found.begin > (tail := await log.tail()):
            self._break(f"batch {batch} begins above {found.begin}, but the newest position is {tail}")
        return f"began batch {batch}: above {found.begin} in {found.streams}"

    async def _end(self, log: Log) -> str:
        if self._batch not in self._begun:
            return "has nothing to end"
        found = await log.connector.end_write(WRITER, self._batch)
        if found.batch != self._batch or not found.finished:
            self._break(f"batch {self._batch} was ended, and the answer is {found}")
        self._ended.add(self._batch)
        return f"ended batch {self._batch}"

    def _break(self, what: str) -> None:
        self._trace(f"the registry client complains: {what}")
        self._history.broken_words.append(what)
