"""Counter without async."""

from __future__ import annotations

from varlog.client.blocking import Log
from varlog.model.lsn import GLSN
from varlog.recipes import counter
from varlog.recipes.blocking.facade import SyncFacade
from varlog.recipes.replicated import TIMEOUT_S
from varlog.recipes.snapshots import Snapshots


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
        opening = counter.Counter.open(log.asynchronous, name=name, snapshots=snapshots, timeout_s=timeout_s)
        super().__init__(log, opening)

    def add(self, amount: int = 1, *, timeout_s: float | None = None) -> int:
        """Add, or with a negative amount take away; returns the value right after it."""
        return self._log.run(self._inner.add(amount, timeout_s=timeout_s))

    def set(self, value: int, *, timeout_s: float | None = None) -> None:
        """Let it go on from `value`."""
        self._log.run(self._inner.set(value, timeout_s=timeout_s))

    def compare_and_set(self, value: int, expected: int, *, timeout_s: float | None = None) -> bool:
        """Set it if it is `expected`; False, and nothing is changed, if it is not."""
        return self._log.run(self._inner.compare_and_set(value, expected, timeout_s=timeout_s))

    def value(self, *, stale: bool = False, timeout_s: float | None = None) -> int:
        """What it is now. `stale`: what this process has heard of, without asking."""
        return self._log.run(self._inner.value(stale=stale, timeout_s=timeout_s))

    def checkpoint(self, *, trim: bool = False) -> GLSN:
        """Keep a snapshot (see ReplicatedStateMachine.checkpoint)."""
        return self._log.run(self._inner.checkpoint(trim=trim))
