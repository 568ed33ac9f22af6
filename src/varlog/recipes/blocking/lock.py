"""Lock, LockGuard, Election and Leadership without async."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

from varlog.client.blocking import Log
from varlog.model.lsn import GLSN
from varlog.recipes.blocking.core import SyncFacade, call
from varlog.recipes.core.lease_rules import TTL_S
from varlog.recipes.core.replicated import TIMEOUT_S
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.lock import election, guard, lock
from varlog.recipes.lock.election import Leader
from varlog.recipes.lock.lock import LockHolder


class LockGuard:
    """A lock that was granted to us, from then until it is released or lost. The log's loop renews it meanwhile."""

    def __init__(self, log: Log, inner: guard.LockGuard) -> None:
        self._log = log
        self._run = log.connector.run
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
        """Release it. Returns whether the next one can have it immediately."""
        return self._run(self._inner.release())


G = TypeVar("G", bound=LockGuard)


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
            log.connector.asynchronous,
            name=name,
            who=who,
            ttl_s=ttl_s,
            snapshots=snapshots,
            timeout_s=timeout_s,
        )
        super().__init__(log, opening)

    def acquire(self, *, timeout_s: float | None = None) -> LockGuard:
        """Wait until it is ours. LockBusy after `timeout_s`; without one it waits as long as it takes."""
        return LockGuard(self._log, self._run(self._inner.acquire(timeout_s=timeout_s)))

    def release(self) -> bool:
        """Release what this Lock holds. NotHeld if it holds nothing."""
        return self._run(self._inner.release())

    @contextmanager
    def holding(self, *, timeout_s: float | None = None) -> Iterator[LockGuard]:
        """`with lock.holding() as lock_guard`: acquires and releases. A thread cannot be stopped: call `lock_guard.check()`
        before each step that needs the lock. LockLost at the end, if it was lost meanwhile."""
        with _released_after(self.acquire(timeout_s=timeout_s)) as lock_guard:
            yield lock_guard

    @property
    def held(self) -> bool:
        return self._call(lambda inner: inner.held)

    @property
    def token(self) -> GLSN | None:
        """The fencing token, while we hold it."""
        return self._call(lambda inner: inner.token)

    def holder(self, *, stale: bool = False, timeout_s: float | None = None) -> LockHolder | None:
        """Who has it, as the log says now; `stale`: as far as it is applied here, without asking."""
        return self._run(self._inner.holder(stale=stale, timeout_s=timeout_s))


class Leadership(LockGuard):
    """What an elected candidate has, until it resigns or loses it."""

    @property
    def term(self) -> GLSN:
        """Larger than that of every leader before."""
        return self.token


class Election(SyncFacade[election.Election]):
    """The election of one name in a topic. An observer needs no name. Close it after use."""

    def __init__(
        self,
        log: Log,
        *,
        name: str,
        candidate: str = "",
        ttl_s: float = TTL_S,
        snapshots: Snapshots | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        opening = election.Election.open(
            log.connector.asynchronous,
            name=name,
            candidate=candidate,
            ttl_s=ttl_s,
            snapshots=snapshots,
            timeout_s=timeout_s,
        )
        super().__init__(log, opening)

    def campaign(self, *, timeout_s: float | None = None) -> Leadership:
        """Wait until we are elected. LockBusy after `timeout_s`; without one it waits as long as it takes."""
        return Leadership(self._log, self._run(self._inner.campaign(timeout_s=timeout_s)))

    def resign(self) -> bool:
        """Stop leading, immediately; the next candidate leads. NotHeld if we do not lead."""
        return self._run(self._inner.resign())

    @contextmanager
    def leading(self, *, timeout_s: float | None = None) -> Iterator[Leadership]:
        """`with election.leading() as leadership`: campaigns and resigns. A thread cannot be stopped: call `leadership.check()`
        before each step of a leader. LockLost at the end, if we were not leader any more."""
        with _released_after(self.campaign(timeout_s=timeout_s)) as leadership:
            yield leadership

    def leader(self, *, stale: bool = False, timeout_s: float | None = None) -> Leader | None:
        """Who leads, as the log says now; `stale`: as far as it is applied here, without asking."""
        return self._run(self._inner.leader(stale=stale, timeout_s=timeout_s))

    def observe(self) -> Generator[Leader | None, None, None]:
        """The leader now, and then each change, forever; None: there is none, or it sent no heartbeat for its time to live."""
        for (leader,) in self._log.connector.iterate(_packed(self._inner.observe())):
            yield leader


@contextmanager
def _released_after(held: G) -> Iterator[G]:
    """LockLost at the end, if it was lost meanwhile."""
    try:
        yield held
        held.check()
    finally:
        held.release()


async def _packed(leaders: AsyncGenerator[Leader | None, None]) -> AsyncGenerator[tuple[Leader | None], None]:
    """Between threads None is the end."""
    async with aclosing(leaders):
        async for leader in leaders:
            yield (leader,)
