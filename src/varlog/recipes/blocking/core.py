"""ReplicatedStateMachine, Counter and TopicSnapshots without async."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from varlog.aio import Opening
from varlog.client import blocking
from varlog.client.blocking import Log
from varlog.client.loop_bridge import Closable
from varlog.model.lsn import GLSN
from varlog.recipes.core import counter, replicated, topic_snapshots
from varlog.recipes.core.replicated import TIMEOUT_S, StateMachine
from varlog.recipes.core.snapshots import Snapshots
from varlog.runtime.environment import system_environment

# SyncFacade: an async recipe in the loop of a blocking log, and its end.


class AsyncRecipe(Closable, Protocol):
    """The inner one of a facade."""

    async def checkpoint(self, *, trim: bool = False) -> GLSN: ...


I = TypeVar("I", bound=AsyncRecipe)  # noqa: E741 - the inner one


class SyncFacade(Generic[I]):
    """Opens the inner one; `with` closes it."""

    def __init__(self, log: blocking.Log, opening: Opening[I]) -> None:
        async def make() -> I:
            return await opening

        self._log = log
        self._run = log.connector.run
        self._inner = self._run(make())

    def _call(self, function: Callable[[I], T]) -> T:
        return call(self._log, lambda: function(self._inner))

    def checkpoint(self, *, trim: bool = False) -> GLSN:
        """Save a snapshot, and record it with a named reader; `trim`: also trim the topic, up to where every named reader is."""
        return self._run(self._inner.checkpoint(trim=trim))

    def close(self) -> None:
        """Close it; the log stays open. Repeated, or after the log, it does nothing."""
        if not self._log.closed:
            self._run(self._close())

    async def _close(self) -> None:
        await self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def call(log: blocking.Log, function: Callable[[], T]) -> T:
    """What `function` returns, called in the loop of `log`: nothing is applied meanwhile."""

    async def called() -> T:
        return function()

    return log.connector.run(called())


M = TypeVar("M", bound=StateMachine)
T = TypeVar("T")


class ReplicatedStateMachine(SyncFacade[replicated.ReplicatedStateMachine[M]], Generic[M]):
    """One replica of the machine `name` in a topic. The log's loop applies commands: read the machine with `read` only."""

    def __init__(
        self,
        log: Log,
        machine: M,
        *,
        name: str,
        snapshots: Snapshots | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        opening = replicated.ReplicatedStateMachine[M].open(
            log.connector.asynchronous, machine, name=name, snapshots=snapshots, timeout_s=timeout_s
        )
        super().__init__(log, opening)

    @property
    def applied(self) -> GLSN:
        """Everything up to here is applied."""
        return self._inner.applied

    def execute(self, command: bytes, *, timeout_s: float | None = None) -> Any:
        """Append a command, wait until it is applied here, and return what apply() returned.

        Rejected: it certainly is not applied, and never will be. OutcomeUnknown: the deadline passed, and it may have been applied
        or may still be, once.
        """
        return self._run(self._inner.execute(command, timeout_s=timeout_s))

    def catch_up(self, *, timeout_s: float | None = None) -> GLSN:
        """Wait until everything is applied here that was acknowledged before this call."""
        return self._run(self._inner.catch_up(timeout_s=timeout_s))

    def read(self, function: Callable[[M], T]) -> T:
        """What `function` returns for the machine, while nothing is applied. It returns copies, fast: the loop waits for it."""
        return self._call(lambda inner: function(inner.machine))

    def wait(self, predicate: Callable[[M], T | None], *, timeout_s: float | None = None) -> T:
        """What `predicate` returns, as soon as that is not None. TimeoutError after `timeout_s`."""
        return self._run(self._inner.wait(predicate, timeout_s=timeout_s))


class Counter(SyncFacade[counter.Counter]):
    """The counter of one name in a topic. It begins at 0; integers have no limit."""

    def __init__(
        self,
        log: Log,
        *,
        name: str = "counter",
        snapshots: Snapshots | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        opening = counter.Counter.open(
            log.connector.asynchronous, name=name, snapshots=snapshots, timeout_s=timeout_s
        )
        super().__init__(log, opening)

    def add(self, amount: int = 1, *, timeout_s: float | None = None) -> int:
        """Add, or with a negative amount subtract; returns the value right after it."""
        return self._run(self._inner.add(amount, timeout_s=timeout_s))

    def set(self, value: int, *, timeout_s: float | None = None) -> None:
        """Set it to `value`."""
        self._run(self._inner.set(value, timeout_s=timeout_s))

    def compare_and_set(self, value: int, expected: int, *, timeout_s: float | None = None) -> bool:
        """Set it if it is `expected`; False, and nothing is changed, if it is not."""
        return self._run(self._inner.compare_and_set(value, expected, timeout_s=timeout_s))

    def value(self, *, stale: bool = False, timeout_s: float | None = None) -> int:
        """Its value now. `stale`: as far as it is applied here, without asking."""
        return self._run(self._inner.value(stale=stale, timeout_s=timeout_s))


class TopicSnapshots:
    """In the topic of `log`, which holds nothing else, and is closed after the recipes that use it. Its loop is another one than
    theirs."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._inner = topic_snapshots.TopicSnapshots(log.connector.asynchronous)
        self._environment = system_environment()

    async def save(self, name: str, position: GLSN, content: bytes) -> None:
        """As the inner one."""
        await self._there(self._inner.save(name, position, content))

    async def newest(self, name: str) -> tuple[GLSN, bytes] | None:
        """As the inner one."""
        return await self._there(self._inner.newest(name))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """In the log's loop, while this one continues."""
        worker = self._environment.make_worker("snapshots")
        try:
            return await worker.run(lambda: self._log.connector.run(work))
        finally:
            await worker.close()
