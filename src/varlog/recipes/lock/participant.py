"""LockParticipant: one process's part in a lock or an election.

It enters the line, keeps what it is granted, releases it, and leaves nothing behind. The claim of an acquire that failed is removed
from the line as soon as the log can be reached. Until then it sends no heartbeats, and others expire it after its time to live: it
delays them by that much at most, and blocks none forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from varlog.client.log import Log
from varlog.model.errors import Unavailable
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.core.lease_rules import ttl_us
from varlog.recipes.core.replicated import ReplicatedStateMachine
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.errors import LockBusy, LockLost, NotHeld
from varlog.recipes.lock.guard import LockGuard, LockRequest
from varlog.recipes.lock.lock_machine import LockMachine
from varlog.runtime.environment import Clock, Entropy, SystemClock, system_environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

CLAIM_BYTES: Final = 16
# The deadline of the commands that enter and leave, also if the caller has gone meanwhile.
COMMAND_S: Final = 10.0
# Before a failed claim is made again.
PAUSE_S: Final = 0.1
# Closing does not wait longer for a log that does not answer.
CLOSE_S: Final = 5.0

_log = get_logger("recipes")

H = TypeVar("H", bound=LockGuard)


@dataclass(frozen=True, slots=True)
class LockRole(Generic[H]):
    """Which lock or election it is, and who we are in it."""

    guard: type[H]  # what a grant is
    kind: str  # "lock" or "election": two of one name do not meet
    name: str
    who: str
    ttl_s: float

    @property
    def what(self) -> str:
        """Its name for people."""
        return f"{self.kind} {self.name!r}"


async def open_participant(
    log: Log,
    role: LockRole[H],
    snapshots: Snapshots | None,
    entropy: Entropy | None,
    clock: Clock | None,
    timeout_s: float,
) -> LockParticipant[H]:
    """Open a replica of the lock, and take part in it. Without an entropy and a clock it has those of the system."""
    chance = entropy or system_environment().entropy
    checked_us = ttl_us(role.ttl_s)
    replica = await ReplicatedStateMachine.open(
        log,
        LockMachine(),
        name=f"{role.kind}:{role.name}",
        snapshots=snapshots,
        entropy=chance,
        timeout_s=timeout_s,
    )
    return LockParticipant(replica, role, checked_us, clock or SystemClock(), chance)


class LockParticipant(Generic[H]):
    """Tasks that share a participant take turns: it has one claim at a time."""

    def __init__(
        self,
        replica: ReplicatedStateMachine[LockMachine],
        role: LockRole[H],
        ttl_us: int,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.replica = replica
        self.what = role.what
        self.clock = clock
        self.guard: H | None = None
        self._role = role
        self._ttl_us = ttl_us
        self._entropy = entropy
        self._turn = asyncio.Lock()
        self._tasks = Tasks(role.what, self._task_failed)
        # Our claims in the line, each with its tasks: the first enters, the others keep it.
        self._standing: dict[LockRequest, list[asyncio.Task[Any]]] = {}
        self._leaving: dict[LockRequest, asyncio.Task[bool]] = {}
        self._closed = False

    # --- Getting it -----------------------------------------------------------------------------------------------------

    async def acquire(self, timeout_s: float | None) -> H:
        """Wait for it. LockBusy after `timeout_s`; without one it waits as long as it takes, whatever the log does."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._turn.acquire()
                try:
                    return await self._claim_until_granted()
                except BaseException:
                    self._turn.release()
                    raise
        except TimeoutError:
            raise self._busy(timeout_s or 0.0) from None

    async def _claim_until_granted(self) -> H:
        while True:
            await self._check_open()
            if (guard := await self._claim()) is not None:
                return guard
            await asyncio.sleep(PAUSE_S)

    async def _claim(self) -> H | None:
        """None: it failed this time."""
        claim = self._entropy.getrandbits(8 * CLAIM_BYTES).to_bytes(CLAIM_BYTES).hex()
        lock_request = LockRequest(self.replica, self.clock, claim, self._role.who, self._ttl_us)
        # A task of its own: when we are cancelled half way, `_leave_line` must know how it ended.
        entering = self._tasks.spawn("enter", lock_request.enter(COMMAND_S))
        self._standing[lock_request] = [entering]
        guard: H | None = None
        try:
            if await asyncio.shield(entering):
                self._standing[lock_request].append(self._tasks.spawn("keep", lock_request.keep()))
                if (token := await lock_request.wait_granted()) != NO_GLSN:
                    guard = self._granted(lock_request, token)
            return guard
        finally:
            if guard is None and lock_request in self._standing:  # closing has done it otherwise
                _ = self._leave(lock_request)

    def _granted(self, lock_request: LockRequest, token: GLSN) -> H:
        def ended() -> asyncio.Task[bool]:
            self.guard = None
            self._turn.release()
            return self._leave(lock_request)

        self.guard = guard = self._role.guard(self.what, lock_request, token, ended)
        self._standing[lock_request].append(self._tasks.spawn("watch", guard.watch()))
        return guard

    @asynccontextmanager
    async def holding(self, timeout_s: float | None) -> AsyncGenerator[H, None]:
        """Acquire it, and release it at the end. What is done in between is cancelled if it is lost, and ends in LockLost."""
        guard = await self.acquire(timeout_s)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                guard.cancel_when_lost(limit)
                try:
                    yield guard
                finally:
                    guard.cancel_when_lost(None)
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            await guard.release()
        if guard.lost.is_set():
            raise LockLost(guard.what, guard.token)

    # --- Releasing it ---------------------------------------------------------------------------------------------------

    async def release(self) -> bool:
        """Release what is held, as LockGuard.release does. NotHeld if nothing is."""
        if self.guard is None:
            raise NotHeld(self.what)
        return await self.guard.release()

    def _leave(self, lock_request: LockRequest) -> asyncio.Task[bool]:
        """Remove a claim from the line, in the background."""
        entering, *keeping = self._standing.pop(lock_request)
        for task in keeping:
            task.cancel()
        leaving = self._leaving[lock_request] = self._tasks.spawn(
            "leave", self._leave_line(lock_request, entering)
        )
        leaving.add_done_callback(lambda _: self._leaving.pop(lock_request, None))
        return leaving

    async def _leave_line(self, lock_request: LockRequest, entering: asyncio.Task[bool]) -> bool:
        # Of two commands in flight the later one may be ordered first: then we would enter after we have left.
        await asyncio.wait([entering])
        return await lock_request.leave(min(COMMAND_S, self._ttl_us / 1e6))

    async def close(self) -> None:
        """Release it, stop waiting for it, and close the replica."""
        self._closed = True
        if self.guard is not None:
            _ = await self.guard.release()
        for lock_request in list(self._standing):
            _ = self._leave(lock_request)
        if self._leaving:
            await asyncio.wait(self._leaving.values(), timeout=CLOSE_S)
        await self._tasks.close()
        await self.replica.close()

    # --- What can go wrong ----------------------------------------------------------------------------------------------

    async def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.what} was closed: open it again")
        await self.replica.wait(lambda _: True)  # raises if it has stopped

    def _busy(self, waited_s: float) -> LockBusy:
        holder, token = self.replica.machine.holder, self.replica.machine.token
        return LockBusy(self.what, waited_s, holder.who if holder is not None else "", token)

    def _task_failed(self, name: str, error: BaseException) -> None:
        _log.warning(logfmt("failed", task=name, why=error))
        if self.guard is not None:
            self.guard.lose()
