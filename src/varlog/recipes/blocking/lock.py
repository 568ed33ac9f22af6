"""Lock and LockGuard without async."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from varlog.client.blocking import Log
from varlog.model.lsn import GLSN
from varlog.recipes import lock, lock_guard
from varlog.recipes.blocking.facade import SyncFacade, call
from varlog.recipes.lease_rules import TTL_S
from varlog.recipes.lock import Holder
from varlog.recipes.replicated import TIMEOUT_S
from varlog.recipes.snapshots import Snapshots


class LockGuard:
    """A lock that was granted to us, from then until it is released or lost. The log's loop renews it meanwhile."""

    def __init__(self, log: Log, inner: lock_guard.LockGuard) -> None:
        self._log = log
        self._inner = inner
        self.token = inner.token

    @property
    def held(self) -> bool:
        """Whether we hold it at this moment, by our own clock. Once False, it stays so."""
        return call(self._log, lambda: self._inner.held)

    @property
    def left_s(self) -> float:
        """For how long we hold it even if nothing more can be renewed."""
        return call(self._log, lambda: self._inner.left_s)

    @property
    def lost(self) -> bool:
        """It is over without having been released."""
        return call(self._log, self._inner.lost.is_set)

    def check(self) -> None:
        """LockLost unless we hold it now: ask before each step that needs it."""
        call(self._log, self._inner.check)

    def release(self) -> bool:
        """Let go of it. Tells whether the next one can have it at once."""
        return self._log.run(self._inner.release())


class Lock(SyncFacade[lock.Lock]):
    """The lock of one name in a topic. Not reentrant; threads that share one Lock take turns. `with Lock(...) as lock` closes it at
    the end; `with lock.holding()` is what acquires it."""

    def __init__(
        self,
        log: Log,
        *,
        name: str,
        who: str = "",
        ttl_s: float = TTL_S,
        snapshots: Snapshots | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        opening = lock.Lock.open(
            log.asynchronous, name=name, who=who, ttl_s=ttl_s, snapshots=snapshots, timeout_s=timeout_s
        )
        super().__init__(log, opening)

    def acquire(self, *, timeout_s: float | None = None) -> LockGuard:
        """Wait until it is ours. LockBusy after `timeout_s`; without one it waits as long as it takes."""
        return LockGuard(self._log, self._log.run(self._inner.acquire(timeout_s=timeout_s)))

    def release(self) -> bool:
        """Let go of what this Lock holds. NotHeld if it holds nothing."""
        return self._log.run(self._inner.release())

    @contextmanager
    def holding(self, *, timeout_s: float | None = None) -> Iterator[LockGuard]:
        """`with lock.holding() as lock_guard`: acquires and releases. Nobody can stop a thread: ask `lock_guard.check()` before
        each step that
        needs the lock. LockLost at the end, if it was lost meanwhile."""
        held = self.acquire(timeout_s=timeout_s)
        try:
            yield held
            held.check()
        finally:
            held.release()

    @property
    def held(self) -> bool:
        return self._call(lambda inner: inner.held)

    @property
    def token(self) -> GLSN | None:
        """The fencing token, while we hold it."""
        return self._call(lambda inner: inner.token)

    def holder(self, *, stale: bool = False, timeout_s: float | None = None) -> Holder | None:
        """Who has it, as the log says now; `stale`: as far as it is applied here, without asking."""
        return self._log.run(self._inner.holder(stale=stale, timeout_s=timeout_s))

    def checkpoint(self, *, trim: bool = False) -> GLSN:
        """Keep a snapshot, so that the topic can be trimmed: see ReplicatedStateMachine.checkpoint."""
        return self._log.run(self._inner.checkpoint(trim=trim))
