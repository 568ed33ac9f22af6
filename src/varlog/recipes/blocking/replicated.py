"""ReplicatedStateMachine without async."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from varlog.client.blocking import Log
from varlog.model.lsn import GLSN
from varlog.recipes import replicated
from varlog.recipes.blocking.facade import SyncFacade
from varlog.recipes.replicated import TIMEOUT_S, StateMachine
from varlog.recipes.snapshots import Snapshots

M = TypeVar("M", bound=StateMachine)
T = TypeVar("T")


class ReplicatedStateMachine(SyncFacade[replicated.ReplicatedStateMachine[M]], Generic[M]):
    """One replica of the machine `name` in a topic. The machine is fed by the log's loop: look at it with `look` alone."""

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
            log.asynchronous, machine, name=name, snapshots=snapshots, timeout_s=timeout_s
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
        return self._log.run(self._inner.execute(command, timeout_s=timeout_s))

    def catch_up(self, *, timeout_s: float | None = None) -> GLSN:
        """Wait until everything is applied here that was acknowledged to anybody before this call."""
        return self._log.run(self._inner.catch_up(timeout_s=timeout_s))

    def look(self, function: Callable[[M], T]) -> T:
        """What `function` sees in the machine, while nothing is applied. It gives copies, and is quick: the loop waits for it."""
        return self._call(lambda inner: function(inner.machine))

    def wait(self, look: Callable[[M], T | None], *, timeout_s: float | None = None) -> T:
        """What `look` gives, as soon as that is something else than None. TimeoutError after `timeout_s`."""
        return self._log.run(self._inner.wait(look, timeout_s=timeout_s))

    def checkpoint(self, *, trim: bool = False) -> GLSN:
        """Keep a snapshot, and say so by a named reader; `trim`: also trim the topic, up to where every named reader is."""
        return self._log.run(self._inner.checkpoint(trim=trim))
