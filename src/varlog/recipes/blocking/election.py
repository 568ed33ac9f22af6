"""Election and Leadership without async."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, contextmanager

from varlog.client.blocking import Log
from varlog.model.lsn import GLSN
from varlog.recipes import election
from varlog.recipes.blocking.facade import SyncFacade
from varlog.recipes.blocking.lock import LockGuard
from varlog.recipes.election import Leader
from varlog.recipes.lease_rules import TTL_S
from varlog.recipes.replicated import TIMEOUT_S
from varlog.recipes.snapshots import Snapshots


class Leadership(LockGuard):
    """What an elected candidate has, until it resigns or loses it."""

    @property
    def term(self) -> GLSN:
        """Larger than that of every leader before."""
        return self.token


class Election(SyncFacade[election.Election]):
    """The election of one name in a topic. Who only looks on needs no name. Close it when it is used no more."""

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
            log.asynchronous,
            name=name,
            candidate=candidate,
            ttl_s=ttl_s,
            snapshots=snapshots,
            timeout_s=timeout_s,
        )
        super().__init__(log, opening)

    def campaign(self, *, timeout_s: float | None = None) -> Leadership:
        """Wait until we are elected. LockBusy after `timeout_s`; without one it waits as long as it takes."""
        return Leadership(self._log, self._log.run(self._inner.campaign(timeout_s=timeout_s)))

    def resign(self) -> bool:
        """Lead no more, at once; the next candidate does. NotHeld if we do not lead."""
        return self._log.run(self._inner.resign())

    @contextmanager
    def leading(self, *, timeout_s: float | None = None) -> Iterator[Leadership]:
        """`with election.leading() as leadership`: campaigns and resigns. Nobody can stop a thread: ask `leadership.check()` before
        each step of a leader. LockLost at the end, if we were not leader any more."""
        leadership = self.campaign(timeout_s=timeout_s)
        try:
            yield leadership
            leadership.check()
        finally:
            leadership.release()

    def leader(self, *, stale: bool = False, timeout_s: float | None = None) -> Leader | None:
        """Who leads, as the log says now; `stale`: as far as it is applied here, without asking."""
        return self._log.run(self._inner.leader(stale=stale, timeout_s=timeout_s))

    def observe(self) -> Generator[Leader | None, None, None]:
        """Who leads now, and then each change, for ever; None: nobody does, or nothing was heard of the leader for its time to
        live."""
        for (leader,) in self._log.iterate(_packed(self._inner.observe())):
            yield leader

    def checkpoint(self, *, trim: bool = False) -> GLSN:
        """Keep a snapshot, so that the topic can be trimmed: see ReplicatedStateMachine.checkpoint."""
        return self._log.run(self._inner.checkpoint(trim=trim))


async def _packed(leaders: AsyncGenerator[Leader | None, None]) -> AsyncGenerator[tuple[Leader | None], None]:
    """Between threads None is the end."""
    async with aclosing(leaders):
        async for leader in leaders:
            yield (leader,)
