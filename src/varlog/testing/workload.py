"""Workload: seeded clients that append, read, subscribe and trim.

They record every call and its result.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from varlog.client.log import Log
from varlog.model.entry import Entry
from varlog.model.errors import (
    JunkPosition,
    NotWritten,
    OutcomeUnknown,
    Rejected,
    TrimBeyondTail,
    Trimmed,
    Unavailable,
    VarlogError,
)
from varlog.verify.history import (
    STOPPED,
    AppendCall,
    CallOutcome,
    ClientCall,
    History,
    ReadCall,
    Seen,
    SubscribeCall,
    TailCall,
    TrimCall,
)

O = TypeVar("O", bound=ClientCall)  # noqa: E741 - an operation


@dataclass
class Mix:
    """How often each kind of operation is chosen, how large entries are, how long a client thinks in between."""

    weights: dict[str, int] = field(
        default_factory=lambda: {
            "append": 40,
            "batch": 14,
            "stream": 8,
            "read": 12,
            "read_stream": 4,
            "bounded": 5,
            "unbounded": 3,
            "trim": 3,
            "tail": 8,
        }
    )
    entry_bytes_max: int = 300
    batch_max: int = 8
    think_s: float = 0.05
    timeout_s: float = 4.0

    @classmethod
    def seeded(cls, rng: random.Random) -> Mix:
        """Another mix each time: what a run never does cannot hide what it does."""
        mix = cls()
        for kind in mix.weights:
            if kind != "append" and rng.random() < 0.2:
                mix.weights[kind] *= rng.choice((0, 3))
        mix.entry_bytes_max = rng.choice((20, 300, 300, 1500))
        mix.batch_max = rng.choice((2, 8, 30))
        mix.think_s = rng.choice((0.01, 0.05, 0.2))
        mix.timeout_s = rng.choice((1.0, 4.0, 8.0))
        return mix


class Client:
    """One user of one log. `on_begin` and `on_end` get each operation."""

    def __init__(
        self,
        name: str,
        topic: str,
        log: Log,
        history: History,
        rng: random.Random,
        mix: Mix,
        on_begin: Callable[[ClientCall], None] = lambda operation: None,
        on_end: Callable[[ClientCall], None] = lambda operation: None,
    ) -> None:
        self.name = name
        self.topic = topic
        self.log = log
        self._history = history
        self._rng = rng
        self._mix = mix
        self._on_begin = on_begin
        self._on_end = on_end
        self._entries = 0
        self._known: list[Seen] = []
        self._trimmed = 0

    async def run(self, operations: int, stopping: Callable[[], bool]) -> None:
        """The given number of operations, one after another, unless it is time to stop."""
        actions: dict[str, Callable[[], Awaitable[ClientCall]]] = {
            "append": self.append,
            "batch": self.append_batch,
            "stream": self.append_to_stream,
            "read": self.read,
            "read_stream": self.read_stream,
            "bounded": self.subscribe_bounded,
            "unbounded": self.subscribe,
            "trim": self.trim,
            "tail": self.tail,
        }
        kinds, weights = list(self._mix.weights), list(self._mix.weights.values())
        for _ in range(operations):
            if stopping():
                return
            await actions[self._rng.choices(kinds, weights)[0]]()
            await asyncio.sleep(self._rng.expovariate(1 / self._mix.think_s))

    # --- operations ---------------------------------------------------------------------------------------------

    async def append(self, stream: int | None = None) -> AppendCall:
        operation = self._begin(
            AppendCall(topic=self.topic, client=self.name, entries=(self._entry(),), stream=stream)
        )

        async def work() -> None:
            position = await self.log.append(
                operation.entries[0], log_stream=stream, timeout_s=_patience(operation)
            )
            operation.first = Seen(position.glsn, position.llsn, position.log_stream, operation.entries[0])

        await self._end_append(operation, work())
        return operation

    async def append_to_stream(self) -> AppendCall:
        # Of a sequenced topic the position says which stream it is.
        streams = () if self.log.topic.sequenced else self.log.streams
        return await self.append(self._rng.choice(streams).log_stream if streams else None)

    async def append_batch(self) -> AppendCall:
        entries = tuple(self._entry() for _ in range(self._rng.randint(1, self._mix.batch_max)))
        operation = self._begin(AppendCall(topic=self.topic, client=self.name, entries=entries))

        async def work() -> None:
            run = await self.log.append_batch(entries, timeout_s=_patience(operation))
            first = run.first
            operation.first = Seen(first.glsn, first.llsn, first.log_stream, entries[0])

        await self._end_append(operation, work())
        return operation

    async def read(self, glsn: int | None = None) -> ReadCall:
        operation = self._begin(
            ReadCall(topic=self.topic, client=self.name, glsn=self._some_glsn() if glsn is None else glsn)
        )

        async def work() -> None:
            operation.got = _seen(await self.log.read(operation.glsn, timeout_s=_patience(operation)))

        await self._end(operation, work())
        return operation

    async def read_stream(self) -> ReadCall:
        if not self._known:
            return await self.read()
        like = self._rng.choice(self._known)
        operation = self._begin(
            ReadCall(topic=self.topic, client=self.name, stream=like.stream, llsn=like.llsn)
        )

        async def work() -> None:
            operation.got = _seen(
                await self.log.read_stream(like.stream, like.llsn, timeout_s=_patience(operation))
            )

        await self._end(operation, work())
        return operation

    async def subscribe_bounded(self) -> SubscribeCall:
        begin = self._some_glsn()
        return await self.subscribe(begin, begin + self._rng.randint(1, 40))

    async def subscribe(
        self, begin: int | None = None, end: int | None = None, patience_s: float | None = None
    ) -> SubscribeCall:
        """Take what comes until the end, or until patience is over."""
        operation = self._begin(
            SubscribeCall(
                topic=self.topic,
                client=self.name,
                begin=self._some_glsn() if begin is None else begin,
                end=end,
            )
        )
        if patience_s is None:
            patience_s = self._rng.uniform(0.05, 3.0)
        operation.deadline_s = operation.started_s + patience_s

        async def work() -> CallOutcome:
            try:
                async with (
                    asyncio.timeout(patience_s),
                    aclosing(self.log.subscribe(operation.begin, end)) as entries,
                ):
                    async for entry in entries:
                        operation.got.append((self._history.event(), _seen(entry)))
                        if self._rng.random() < 0.02:
                            await asyncio.sleep(self._rng.uniform(0, 0.3))
            except TimeoutError:
                return CallOutcome.OPEN
            return CallOutcome.DONE

        await self._end(operation, work())
        if operation.got:
            self._remember(operation.got[-1][1])
        return operation

    async def trim(self, glsn: int | None = None) -> TrimCall:
        """Mostly some way behind the newest position; now and then beyond it."""
        newest = max((seen.glsn for seen in self._known), default=1)
        if glsn is None:
            glsn = newest + 1000 if self._rng.random() < 0.05 else max(1, newest - self._rng.randint(0, 30))
        operation = self._begin(TrimCall(topic=self.topic, client=self.name, glsn=glsn))

        async def work() -> CallOutcome:
            try:
                await self.log.trim(operation.glsn, timeout_s=_patience(operation))
            except TrimBeyondTail:
                operation.beyond_tail = True
                return CallOutcome.REJECTED
            return CallOutcome.DONE

        await self._end(operation, work())
        if operation.outcome is CallOutcome.DONE:
            self._trimmed = max(self._trimmed, operation.glsn)
        return operation

    async def tail(self) -> TailCall:
        operation = self._begin(TailCall(topic=self.topic, client=self.name))

        async def work() -> None:
            operation.glsn = await self.log.tail(timeout_s=_patience(operation))

        await self._end(operation, work())
        return operation

    # --- bookkeeping --------------------------------------------------------------------------------------------

    def _begin(self, operation: O) -> O:
        operation.started = self._history.event()
        operation.started_s = asyncio.get_running_loop().time()
        # Not all alike: appends that share a batch must not have to share a deadline.
        timeout_s = self._mix.timeout_s * self._rng.choice((0.5, 1.0, 1.0))
        operation.deadline_s = operation.started_s + timeout_s
        self._history.operations.append(operation)
        self._on_begin(operation)
        return operation

    async def _end(self, operation: ClientCall, work: Awaitable[CallOutcome | None]) -> None:
        """Wait for the answer and write it down. Anything outside the error tree is a bug, and is reported as one."""
        try:
            operation.outcome = await work or CallOutcome.DONE
        except NotWritten as error:
            operation.outcome, operation.message = CallOutcome.NOT_WRITTEN, str(error)
        except Trimmed as error:
            operation.outcome, operation.message = CallOutcome.TRIMMED, str(error)
        except JunkPosition as error:
            operation.outcome, operation.message = CallOutcome.FILLED, str(error)
        except OutcomeUnknown as error:
            operation.outcome, operation.message = CallOutcome.UNKNOWN, str(error)
        except Rejected as error:
            operation.outcome, operation.message = CallOutcome.REJECTED, str(error)
        except VarlogError as error:
            operation.outcome, operation.message = CallOutcome.FAILED, f"{type(error).__name__}: {error}"
            # Whether a topic may be stopped at this moment is judged later (StoppedWhereDue).
            if not isinstance(error, Unavailable) and STOPPED not in str(error):
                self._history.complaints.append(f"an error that has no place here: {operation}")
        except Exception as error:  # noqa: BLE001 - reported to the checkers
            operation.outcome, operation.message = CallOutcome.FAILED, repr(error)
            self._history.complaints.append(f"not an error of the tree: {operation}")
        operation.ended = self._history.event()
        operation.ended_s = asyncio.get_running_loop().time()
        for _, seen in operation.seen():
            self._remember(seen)
        self._on_end(operation)

    async def _end_append(self, operation: AppendCall, work: Awaitable[CallOutcome | None]) -> None:
        await self._end(operation, work)
        if operation.outcome not in (CallOutcome.DONE, CallOutcome.REJECTED, CallOutcome.UNKNOWN):
            self._history.complaints.append(
                f"an append ends in a position, Rejected or OutcomeUnknown: {operation}"
            )

    def _entry(self) -> bytes:
        """Unique, and of any length: `<client>.<number>|` and padding."""
        self._entries += 1
        size = self._rng.randint(0, self._mix.entry_bytes_max)
        return f"{self.name}.{self._entries}|".encode().ljust(size, b".")

    def _remember(self, seen: Seen) -> None:
        self._known.append(seen)
        if len(self._known) > 50:
            del self._known[self._rng.randrange(len(self._known))]

    def _some_glsn(self) -> int:
        """Mostly one that is there, at times a little ahead, at times one that is gone."""
        if self._trimmed and self._rng.random() < 0.2:
            return max(1, self._trimmed - self._rng.randint(0, 3))
        newest = max((seen.glsn for seen in self._known), default=1)
        if self._known and self._rng.random() < 0.4:
            return self._rng.choice(self._known).glsn
        if self._rng.random() < 0.2:
            return self._rng.randint(1, newest)
        return max(1, newest + self._rng.randint(-20, 2))


def _seen(entry: Entry) -> Seen:
    return Seen(entry.glsn, entry.llsn, entry.log_stream, entry.data)


def _patience(operation: ClientCall) -> float:
    return operation.deadline_s - operation.started_s
