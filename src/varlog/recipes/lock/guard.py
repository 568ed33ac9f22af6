"""LockGuard, a granted lock; LockRequest, the same request before it is granted

It holds as long as our own clock says so, which is over before anybody else can have the lock (lease_rules.py). What a process
does with it after it stood still (a pause, a swapped-out page) only a fencing token can stop: see fenced.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from varlog.model.errors import InvalidRequest, OutcomeUnknown, Rejected, Unavailable, VarlogError
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.core.lease_rules import (
    Beats,
    Sign,
    Watch,
    belief_us,
    dead_before,
    look_again_us,
    renew_us,
)
from varlog.recipes.core.replicated import ReplicatedStateMachine
from varlog.recipes.errors import LockLost, ReplicaStopped
from varlog.recipes.lock.lock_machine import Claim, Enter, Expire, Leave, LockMachine, Renew, encode
from varlog.runtime.environment import Clock
from varlog.runtime.logging import get_logger, logfmt

# The loop's time stands still while the machine sleeps, our clock does not: it is looked at this often at least.
LOOK_S: Final = 1.0

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
        """Let go of it: we believe in it no more as soon as this is called. Tells whether the next one can have it at once. If not
        (it was lost before, or the log does not answer), others have to wait until our time to live is over."""
        if not self.held:
            return False
        self._over = True
        # It goes on if we are cancelled: nobody is to wait for a lock that nobody holds.
        return await asyncio.shield(self._ended())

    # --- For who keeps it -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Until it is over: lost as soon as our clock says so, or the log."""
        try:
            while (left_s := self.left_s) > 0:
                with suppress(TimeoutError):  # its signs may have been renewed meanwhile
                    await self._lock_request.wait_removed(min(left_s, LOOK_S))
                    break
        except VarlogError as error:
            _log.warning(logfmt("cannot be kept", what=self.what, why=error))
        self.lose()

    def lose(self) -> None:
        """It is over, or something of ours is broken: better lost than held wrongly."""
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


# LockRequest: one claim of ours in the line of a lock: enters, gives signs of life, expires the dead before it, leaves.
#
# Whether it holds the lock is read off the machine and the clock each time (lease_rules.py): no task has to run in time for that.

# What the log may say for a while: the command is sent again, or was not needed.
PASSING = (Rejected, OutcomeUnknown, Unavailable)


def signs(machine: Iterable[Claim]) -> list[tuple[str, Sign]]:
    """The last signs of all in the line."""
    return [(one.claim, Sign(one.sign, one.ttl_us)) for one in machine]


class LockRequest:
    """`claim` is a new id; `clock` is the steady one of this machine."""

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
        self._enter = encode(Enter(claim, ttl_us, who))
        self._beats = Beats(ttl_us, clock.steady_us())
        self._watch: Watch[str] = Watch()

    # --- What is so now -------------------------------------------------------------------------------------------------

    @property
    def stands(self) -> bool:
        """Whether we are in the line, as far as it is applied here."""
        return self._replica.machine.find(self.claim) is not None

    @property
    def left_us(self) -> int:
        """For how long we may still believe that we hold the lock; 0: not any more, or not yet."""
        holder = self._replica.machine.holder
        if holder is None or holder.claim != self.claim:
            return 0
        return max(self._beats.until_us(holder.beat) - self._clock.steady_us(), 0)

    # --- From entering to leaving ---------------------------------------------------------------------------------------

    async def enter(self, timeout_s: float) -> bool:
        """Whether we are in the line for certain. If not, we may still get there."""
        # Not when it arrives: what we believe counts from before our sign was sent.
        self._beats = Beats(self.ttl_us, self._clock.steady_us())
        try:
            await self._replica.execute(self._enter, timeout_s=timeout_s)
        except InvalidRequest:
            raise
        except (*PASSING, ReplicaStopped):
            return False
        return True

    async def wait_granted(self) -> GLSN:
        """The token of the grant. NO_GLSN: we stand in the line no more, because others saw no sign of us for too long.

        Who is granted the lock when its last sign is old does not believe it yet: the next sign must be applied first."""

        def look(machine: LockMachine) -> GLSN | None:
            if not self.stands:
                return NO_GLSN
            return machine.token if self.left_us > 0 else None

        return await self._replica.wait(look)

    async def wait_removed(self, timeout_s: float) -> None:
        """Until we stand in the line no more. TimeoutError if we still do."""
        await self._replica.wait(lambda _: None if self.stands else True, timeout_s=timeout_s)

    async def keep(self) -> None:
        """Give signs of life, and look after those before us, for as long as we stand in the line."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._give_signs(), name=f"renew/{self._replica.name}")
                tasks.create_task(self._expire_dead(), name=f"expire/{self._replica.name}")
        except* ReplicaStopped:
            pass  # who waits hears of it; who holds stops to believe in time

    async def leave(self, timeout_s: float) -> bool:
        """Whether we are out of the line for certain. If not, others expire us: we give no more signs."""
        with suppress(*PASSING, ReplicaStopped):
            await self._replica.execute(encode(Leave(self.claim)), timeout_s=timeout_s)
            return True
        return False

    # --- While we stand there -------------------------------------------------------------------------------------------

    async def _give_signs(self) -> None:
        every_us = renew_us(self.ttl_us)
        while True:
            wait_us = max(self._beats.sent_us + every_us - self._clock.steady_us(), every_us // 4)
            await asyncio.sleep(wait_us / 1e6)
            if not self.stands:
                return
            renewal = encode(Renew(self.claim, self._beats.send(self._clock.steady_us())))
            with suppress(*PASSING):
                await self._replica.execute(renewal, timeout_s=belief_us(self.ttl_us) / 1e6)

    async def _expire_dead(self) -> None:
        ttl_s = self.ttl_us / 1e6
        while self.stands:
            with suppress(*PASSING):
                await self._wait_dead()
                # What is in the log and not applied here yet may be a sign of life.
                await self._replica.catch_up(timeout_s=ttl_s)
                self._look(self._replica.machine)
                for dead in self._dead():
                    expire = encode(Expire(dead.claim, dead.sign))
                    await self._replica.execute(expire, timeout_s=ttl_s)
            await asyncio.sleep(ttl_s / 50)

    async def _wait_dead(self) -> None:
        """Until somebody is on us to expire, or we stand in the line no more."""

        def look(machine: LockMachine) -> bool | None:
            self._look(machine)
            return True if self._dead() or not self.stands else None

        while True:
            try:
                await self._replica.wait(look, timeout_s=self._look_again_s())
            except TimeoutError:
                continue
            return

    def _look(self, machine: LockMachine) -> None:
        self._watch.look(signs(machine), self._clock.steady_us())

    def _dead(self) -> list[Claim]:
        line = [one.claim for one in self._replica.machine]
        dead = dead_before(self.claim, line, self._watch, self._clock.steady_us())
        return [found for claim in dead if (found := self._replica.machine.find(claim)) is not None]

    def _look_again_s(self) -> float | None:
        self._look(self._replica.machine)
        line, now_us = [one.claim for one in self._replica.machine], self._clock.steady_us()
        again_us = look_again_us(self.claim, line, self._watch, now_us)
        return None if again_us is None else max(again_us - now_us, 1) / 1e6
