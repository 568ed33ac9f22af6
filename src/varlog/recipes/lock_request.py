"""LockRequest: one claim of ours in the line of a lock: enters, gives signs of life, expires the dead before it, leaves.

Whether it holds the lock is read off the machine and the clock each time (lease_rules.py): no task has to run in time for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from varlog.model.errors import InvalidRequest, OutcomeUnknown, Rejected, Unavailable
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.errors import ReplicaStopped
from varlog.recipes.lease_rules import Beats, Sign, Watch, belief_us, dead_before, look_again_us, renew_us
from varlog.recipes.lock_machine import Claim, Enter, Expire, Leave, LockMachine, Renew, encode
from varlog.recipes.replicated import ReplicatedStateMachine
from varlog.runtime.clock import Clock

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
