"""Lock: one holder at a time among many processes, first come first served, with a fencing token (R-USE-2).

    async with Lock.open(log, name="nightly-report", who="worker-3") as lock:
        async with lock as hold:               # cancelled, and LockLost, if the lock is lost meanwhile
            await write(report, token=hold.token)

A holder renews by appending. One that cannot (a crash, a cut, a pause) stops to believe in its lock before others may have it:
`ttl_s` after its last sign of life they take it from him. That rests on clocks that run at most 5 % fast or slow, and on nothing
else of them. A process that stands still can still act late: let whatever the lock protects refuse older tokens (fenced.py).
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NamedTuple

from varlog.aio import Opening
from varlog.client.log import Log
from varlog.model.lsn import GLSN
from varlog.recipes.core.lease_rules import TTL_S, ttl_us
from varlog.recipes.core.replicated import TIMEOUT_S, ReplicatedStateMachine
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.errors import NotHeld
from varlog.recipes.lock.guard import LockGuard
from varlog.recipes.lock.lock_machine import LockMachine
from varlog.recipes.lock.participant import LockParticipant
from varlog.runtime.environment import Clock, Entropy, SystemClock, system_environment


class Holder(NamedTuple):
    """Who has a lock: the name that it gave itself, and the token of its grant."""

    who: str
    token: GLSN


class Lock:
    """The lock of one name in a topic. Not reentrant; tasks that share one Lock take turns. Close it when it is used no more."""

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
        """Await it, or enter it with `async with`, which also closes it. All who open the same name in a topic share one lock.

        `who` names us for those who look who has it. `ttl_s`: a holder that is not heard of for so long has lost it.
        `clock` is whose steady time is counted by (a simulator has its own)."""
        chance = entropy or system_environment().entropy

        async def make() -> Lock:
            ttl = ttl_us(ttl_s)
            replica = await ReplicatedStateMachine.open(
                log,
                LockMachine(),
                name=f"lock:{name}",
                snapshots=snapshots,
                entropy=chance,
                timeout_s=timeout_s,
            )
            return cls(
                LockParticipant(
                    replica, LockGuard, f"lock {name!r}", who, ttl, clock or SystemClock(), chance
                )
            )

        return Opening(make)

    # --- Getting it and letting go --------------------------------------------------------------------------------------

    async def acquire(self, *, timeout_s: float | None = None) -> LockGuard:
        """Wait until it is ours. LockBusy after `timeout_s`; without one it waits as long as it takes, whatever the log does."""
        return await self._participant.acquire(timeout_s)

    async def release(self) -> bool:
        """Let go of what this Lock holds, as LockGuard.release does. NotHeld if it holds nothing."""
        if (hold := self._participant.hold) is None:
            raise NotHeld(self._participant.what)
        return await hold.release()

    def holding(self, *, timeout_s: float | None = None) -> AbstractAsyncContextManager[LockGuard]:
        """`async with lock.holding() as hold`: acquires and releases. What is done inside is cancelled as soon as the lock is lost,
        and ends in LockLost. `async with lock` is the same without a deadline."""
        return self._participant.holding(timeout_s)

    async def __aenter__(self) -> LockGuard:
        holding = self.holding()
        hold = await holding.__aenter__()
        self._inside[asyncio.current_task()] = holding
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inside.pop(asyncio.current_task()).__aexit__(kind, error, trace)

    # --- Looking --------------------------------------------------------------------------------------------------------

    @property
    def hold(self) -> LockGuard | None:
        """What we hold now, by our own clock."""
        hold = self._participant.hold
        return hold if hold is not None and hold.held else None

    @property
    def held(self) -> bool:
        return self.hold is not None

    @property
    def token(self) -> GLSN | None:
        """The fencing token, while we hold it."""
        return hold.token if (hold := self.hold) is not None else None

    async def holder(self, *, stale: bool = False, timeout_s: float | None = None) -> Holder | None:
        """Who has it, as the log says now; `stale`: as far as it is applied here, without asking. A holder that died is named until
        somebody who waits for the lock has it expired."""
        if not stale:
            await self.replica.catch_up(timeout_s=timeout_s)
        found = self.replica.machine.holder
        return None if found is None else Holder(found.who, self.replica.machine.token)

    async def checkpoint(self, *, trim: bool = False) -> GLSN:
        """Keep a snapshot, so that the topic can be trimmed: see ReplicatedStateMachine.checkpoint."""
        return await self.replica.checkpoint(trim=trim)

    async def close(self) -> None:
        """Release it, stop to wait for it, and let go of everything but the log."""
        await self._participant.close()
