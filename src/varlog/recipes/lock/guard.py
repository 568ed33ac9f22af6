"""LockGuard, a granted lock; LockRequest, its claim in the line.

A guard is held as long as our own clock says so, which ends before another process can have the lock (lease_rules.py). What a
process does after it was paused (by a scheduler, or a swapped-out page) only a fencing token can stop: see fenced.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from varlog.model.errors import InvalidRequest, OutcomeUnknown, Rejected, Unavailable, VarlogError
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.core.lease_rules import (
    HeartbeatSeen,
    SentHeartbeats,
    Watch,
    dead_before,
    next_check_us,
    renew_us,
    validity_us,
)
from varlog.recipes.core.replicated import ReplicatedStateMachine
from varlog.recipes.errors import LockLost, ReplicaStopped, StaleToken
from varlog.recipes.lock.lock_machine import (
    Enter,
    Expire,
    Leave,
    LockClaim,
    LockMachine,
    Renew,
    encode_lock_command,
)
from varlog.runtime.environment import Clock
from varlog.runtime.logging import get_logger, logfmt

# The loop's time stops while the machine sleeps, our clock does not: it is checked at least this often.
CHECK_S: Final = 1.0

_log = get_logger("recipes")


class LockGuard:
    """`token` is the position of the grant in the log: larger than that of every grant before. `lost` is set if it is over without
    having been released. `ended` is called once, when it is over either way, and leaves the line."""

    def __init__(
        self, what: str, lock_request: LockRequest, token: GLSN, ended: Callable[[], asyncio.Task[bool]]
    ) -> None:
        self.what = what
        self.token = token
        self.lost = asyncio.Event()
        self._lock_request = lock_request
        self._ended = ended
        self._over = False
        self._guard: asyncio.Timeout | None = None

    def __repr__(self) -> str:
        state = "held" if self.held else "lost" if self.lost.is_set() else "released"
        return f"<{type(self).__name__} of {self.what}, token {self.token}, {state}>"

    @property
    def held(self) -> bool:
        """Whether we hold it at this moment, by our own clock. Once False, it stays so."""
        return self.left_s > 0

    @property
    def left_s(self) -> float:
        """For how long we hold it even if nothing more can be renewed."""
        left_us = 0 if self._over else self._lock_request.left_us
        if not self._over and not left_us:
            self.lose()
        return left_us / 1e6

    def check(self) -> None:
        """LockLost unless we hold it now: ask before each step that needs it."""
        if not self.held:
            raise LockLost(self.what, self.token)

    async def release(self) -> bool:
        """Release it: it is not held any more as soon as this is called. Returns whether the next one can have it immediately. If
        not (it was lost before, or the log does not answer), others have to wait until our time to live is over."""
        if not self.held:
            return False
        self._over = True
        # It continues if we are cancelled: no process should wait for a lock that is not held.
        return await asyncio.shield(self._ended())

    # --- For its participant ---------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Until it is over: lost as soon as our clock says so, or the log."""
        try:
            while (left_s := self.left_s) > 0:
                with suppress(TimeoutError):  # it may have been renewed meanwhile
                    await self._lock_request.wait_removed(min(left_s, CHECK_S))
                    break
        except VarlogError as error:
            _log.warning(logfmt("cannot be kept", what=self.what, why=error))
        self.lose()

    def lose(self) -> None:
        """It is over, or a task of ours failed: better lost than held wrongly."""
        if self._over:
            return
        self._over = True
        _log.warning(logfmt("lost", what=self.what, token=self.token))
        self.lost.set()
        self._end_guarded()
        _ = self._ended()

    def cancel_when_lost(self, guard: asyncio.Timeout | None) -> None:
        """End what is done under `guard` as soon as this is lost."""
        self._guard = guard
        if self.lost.is_set():
            self._end_guarded()

    def _end_guarded(self) -> None:
        if self._guard is not None:
            self._guard.reschedule(asyncio.get_running_loop().time())


# Errors that pass: the command is sent again, or was not needed.
PASSING = (Rejected, OutcomeUnknown, Unavailable)


def heartbeats_of(machine: Iterable[LockClaim]) -> list[tuple[str, HeartbeatSeen]]:
    """The last heartbeats of all claims in the line."""
    return [(one.claim, HeartbeatSeen(one.heartbeat, one.ttl_us)) for one in machine]


class LockRequest:
    """One claim of ours in the line of a lock: enters, sends heartbeats, expires the dead before it, leaves. `claim` is a new id;
    `clock` is the steady one of this machine.

    Whether it holds the lock is computed from the machine and the clock each time (lease_rules.py): no task has to run in time
    for that."""

    def __init__(
        self,
        replica: ReplicatedStateMachine[LockMachine],
        clock: Clock,
        claim: str,
        who: str,
        ttl_us: int,
    ) -> None:
        self.claim = claim
        self.ttl_us = ttl_us
        self._replica = replica
        self._clock = clock
        self._enter = encode_lock_command(Enter(claim, ttl_us, who))
        self._beats = SentHeartbeats(ttl_us, clock.steady_us())
        self._watch: Watch[str] = Watch()

    # --- State --------------------------------------------------------------------------------------------------------

    @property
    def stands(self) -> bool:
        """Whether we are in the line, as far as it is applied here."""
        return self._replica.machine.find(self.claim) is not None

    @property
    def left_us(self) -> int:
        """For how long our lease is still valid; 0: not any more, or not yet."""
        holder = self._replica.machine.holder
        if holder is None or holder.claim != self.claim:
            return 0
        return max(self._beats.until_us(holder.beat) - self._clock.steady_us(), 0)

    # --- From entering to leaving ---------------------------------------------------------------------------------------

    async def enter(self, timeout_s: float) -> bool:
        """Whether we are in the line for certain. If not, we may still get there."""
        # Not when it arrives: a lease counts from before its heartbeat was sent.
        self._beats = SentHeartbeats(self.ttl_us, self._clock.steady_us())
        try:
            await self._replica.execute(self._enter, timeout_s=timeout_s)
        except InvalidRequest:
            raise
        except (*PASSING, ReplicaStopped):
            return False
        return True

    async def wait_granted(self) -> GLSN:
        """The token of the grant. NO_GLSN: we are not in the line any more, because others saw no heartbeat of us for too long.

        If our last heartbeat is old when the lock is granted, it is not held yet: the next heartbeat must be applied first."""

        def granted(machine: LockMachine) -> GLSN | None:
            if not self.stands:
                return NO_GLSN
            return machine.token if self.left_us > 0 else None

        return await self._replica.wait(granted)

    async def wait_removed(self, timeout_s: float) -> None:
        """Until we are not in the line any more. TimeoutError if we still are."""
        await self._replica.wait(lambda _: None if self.stands else True, timeout_s=timeout_s)

    async def keep(self) -> None:
        """Send heartbeats, and expire the dead before us, for as long as we are in the line."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send_heartbeats(), name=f"renew/{self._replica.name}")
                tasks.create_task(self._expire_dead(), name=f"expire/{self._replica.name}")
        except* ReplicaStopped:
            pass  # waiters get the error from the replica; a lease ends by itself

    async def leave(self, timeout_s: float) -> bool:
        """Whether we are out of the line for certain. If not, others expire us: we send no more heartbeats."""
        with suppress(*PASSING, ReplicaStopped):
            await self._replica.execute(encode_lock_command(Leave(self.claim)), timeout_s=timeout_s)
            return True
        return False

    # --- While we are in it --------------------------------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        every_us = renew_us(self.ttl_us)
        while True:
            wait_us = max(self._beats.sent_us + every_us - self._clock.steady_us(), every_us // 4)
            await asyncio.sleep(wait_us / 1e6)
            if not self.stands:
                return
            renewal = encode_lock_command(Renew(self.claim, self._beats.send(self._clock.steady_us())))
            with suppress(*PASSING):
                await self._replica.execute(renewal, timeout_s=validity_us(self.ttl_us) / 1e6)

    async def _expire_dead(self) -> None:
        ttl_s = self.ttl_us / 1e6
        while self.stands:
            with suppress(*PASSING):
                await self._wait_dead()
                # What is in the log and not applied here yet may be a heartbeat.
                await self._replica.catch_up(timeout_s=ttl_s)
                self._observe(self._replica.machine)
                for dead in self._dead():
                    expire = encode_lock_command(Expire(dead.claim, dead.heartbeat))
                    await self._replica.execute(expire, timeout_s=ttl_s)
            await asyncio.sleep(ttl_s / 50)

    async def _wait_dead(self) -> None:
        """Until there is a claim for us to expire, or we are not in the line any more."""

        def found(machine: LockMachine) -> bool | None:
            self._observe(machine)
            return True if self._dead() or not self.stands else None

        while True:
            try:
                await self._replica.wait(found, timeout_s=self._next_check_s())
            except TimeoutError:
                continue
            return

    def _observe(self, machine: LockMachine) -> None:
        self._watch.observe(heartbeats_of(machine), self._clock.steady_us())

    def _dead(self) -> list[LockClaim]:
        line = [one.claim for one in self._replica.machine]
        dead = dead_before(self.claim, line, self._watch, self._clock.steady_us())
        return [found for claim in dead if (found := self._replica.machine.find(claim)) is not None]

    def _next_check_s(self) -> float | None:
        self._observe(self._replica.machine)
        line, now_us = [one.claim for one in self._replica.machine], self._clock.steady_us()
        again_us = next_check_us(self.claim, line, self._watch, now_us)
        return None if again_us is None else max(again_us - now_us, 1) / 1e6


# FencedResource: refuses requests with an older fencing token.
#
# A process that pauses between checking its lock and acting acts too late. No lock can prevent that; the resource that the lock
# protects can, because tokens grow from grant to grant. Put one where all requests pass, and store `newest` with the data:
#
#     files = FencedResource("reports", newest=stored_token)
#     files.admit(request.token)      # StaleToken: a newer token was seen


class FencedResource:
    """The newest token that was seen, which only grows. Its holder may use it again and again."""

    def __init__(self, what: str, newest: GLSN | int = NO_GLSN) -> None:
        self.what = what
        self.newest = GLSN(newest)

    def admit(self, token: GLSN | int) -> GLSN:
        """The token, which is the newest from now on. StaleToken, and nothing may be done, if a newer one was seen."""
        if token <= 0:
            raise InvalidRequest(f"{token} is no fencing token: use that of the guard")
        if token < self.newest:
            raise StaleToken(self.what, GLSN(token), self.newest)
        self.newest = GLSN(token)
        return self.newest
