"""Lock: one holder at a time among many processes, with a fencing token (R-USE-2).

    async with Lock.open(log, name="nightly-report", who="worker-3") as lock:
        async with lock as guard:               # cancelled, and LockLost, if the lock is lost meanwhile
            await write(report, token=guard.token)

A holder renews its lease by appending heartbeats. If it cannot (a crash, a partition, a pause), its lease ends before others may
have the lock: they expire it `ttl_s` after its last heartbeat. That assumes clocks that run at most 5 % fast or slow, and nothing
else of them. A paused process can still act late: let the resource that the lock protects refuse older tokens (fenced.py).
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NamedTuple

from varlog.aio import Opening
from varlog.client.log import Log
from varlog.model.lsn import GLSN
from varlog.recipes.core.lease_rules import TTL_S
from varlog.recipes.core.replicated import TIMEOUT_S
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.lock.guard import LockGuard
from varlog.recipes.lock.participant import LockParticipant, LockRole, open_participant
from varlog.runtime.environment import Clock, Entropy


class LockHolder(NamedTuple):
    """The holder of a lock: the name that it gave itself, and the token of its grant."""

    who: str
    token: GLSN


class Lock:
    """The lock of one name in a topic. Not reentrant; tasks that share one Lock take turns. Close it after use."""

    def __init__(self, participant: LockParticipant[LockGuard]) -> None:
        self._participant = participant
        self.replica = participant.replica
        self._inside: dict[asyncio.Task[Any] | None, AbstractAsyncContextManager[LockGuard]] = {}

    @classmethod
    def open(
        cls,
        log: Log,
        *,
        name: str,
        who: str = "",
        ttl_s: float = TTL_S,
        snapshots: Snapshots | None = None,
        entropy: Entropy | None = None,
        clock: Clock | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Opening[Lock]:
        """Await it, or enter it with `async with`, which also closes it. All that open the same name in a topic share one lock.

        `who` names us to those that ask for the holder. `ttl_s`: a holder whose last heartbeat is older has lost it.
        `clock` is the steady clock (a simulator has its own)."""

        async def make() -> Lock:
            role = LockRole(LockGuard, "lock", name, who, ttl_s)
            return cls(await open_participant(log, role, snapshots, entropy, clock, timeout_s))

        return Opening(make)

    # --- Acquiring and releasing ----------------------------------------------------------------------------------------

    async def acquire(self, *, timeout_s: float | None = None) -> LockGuard:
        """Wait until it is ours. LockBusy after `timeout_s`; without one it waits as long as it takes, whatever the log does."""
        return await self._participant.acquire(timeout_s)

    async def release(self) -> bool:
        """Release what this Lock holds, as LockGuard.release does. NotHeld if it holds nothing."""
        return await self._participant.release()

    def holding(self, *, timeout_s: float | None = None) -> AbstractAsyncContextManager[LockGuard]:
        """`async with lock.holding() as guard`: acquires and releases. What is done inside is cancelled as soon as the lock is
        lost, and ends in LockLost. `async with lock` is the same without a deadline."""
        return self._participant.holding(timeout_s)

    async def __aenter__(self) -> LockGuard:
        holding = self.holding()
        guard = await holding.__aenter__()
        self._inside[asyncio.current_task()] = holding
        return guard

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inside.pop(asyncio.current_task()).__aexit__(kind, error, trace)

    # --- Reading --------------------------------------------------------------------------------------------------------

    @property
    def guard(self) -> LockGuard | None:
        """What we guard now, by our own clock."""
        guard = self._participant.guard
        return guard if guard is not None and guard.held else None

    @property
    def held(self) -> bool:
        return self.guard is not None

    @property
    def token(self) -> GLSN | None:
        """The fencing token, while we hold it."""
        return guard.token if (guard := self.guard) is not None else None

    async def holder(self, *, stale: bool = False, timeout_s: float | None = None) -> LockHolder | None:
        """Who has it, as the log says now; `stale`: as far as it is applied here, without asking. A holder that died is returned
        until a waiter for the lock has expired it."""
        if not stale:
            await self.replica.catch_up(timeout_s=timeout_s)
        found = self.replica.machine.holder
        return None if found is None else LockHolder(found.who, self.replica.machine.token)

    async def checkpoint(self, *, trim: bool = False) -> GLSN:
        """Save a snapshot, so that the topic can be trimmed: see ReplicatedStateMachine.checkpoint."""
        return await self.replica.checkpoint(trim=trim)

    async def close(self) -> None:
        """Release it, stop waiting for it, and close everything but the log."""
        await self._participant.close()
