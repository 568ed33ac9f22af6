"""Election: one leader at a time among processes, with numbered terms (R-USE-2).

    async with Election.open(log, name="scheduler", candidate="10.0.0.7:9000") as election:
        async with election.leading() as leadership:        # cancelled, and LockLost, if it is not leader any more
            await schedule(term=leadership.term)

It is a lock whose holder leads: candidates wait in line, and the term is the fencing token of the grant, so it is larger than that
of every leader before. Everything that lock.py says of its holder applies to the leader.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from varlog.aio import Opening
from varlog.client.log import Log
from varlog.model.lsn import GLSN
from varlog.recipes.core.lease_rules import TTL_S, Watch
from varlog.recipes.core.replicated import TIMEOUT_S
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.lock.guard import LockGuard, heartbeats_of
from varlog.recipes.lock.lock_machine import LockMachine
from varlog.recipes.lock.participant import LockParticipant, LockRole, open_participant
from varlog.runtime.environment import Clock, Entropy


class Leader(NamedTuple):
    """The leader: the name of its candidacy, and its term."""

    candidate: str
    term: GLSN


class Leadership(LockGuard):
    """What an elected candidate has, until it resigns or loses it."""

    @property
    def term(self) -> GLSN:
        """Larger than that of every leader before: what it leads refuses requests with an older one (fenced.py)."""
        return self.token


class Election:
    """The election of one name in a topic. An observer needs no name. Close it after use."""

    def __init__(self, participant: LockParticipant[Leadership]) -> None:
        self._participant = participant
        self.replica = participant.replica

    @classmethod
    def open(
        cls,
        log: Log,
        *,
        name: str,
        candidate: str = "",
        ttl_s: float = TTL_S,
        snapshots: Snapshots | None = None,
        entropy: Entropy | None = None,
        clock: Clock | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Opening[Election]:
        """Await it, or enter it with `async with`, which also closes it. All that open the same name in a topic elect one leader.

        `candidate` is what others learn of the leader: its address, for example. A leader without a heartbeat for `ttl_s` does not
        lead any more. `clock` is the steady clock (a simulator has its own)."""

        async def make() -> Election:
            role = LockRole(Leadership, "election", name, candidate, ttl_s)
            return cls(await open_participant(log, role, snapshots, entropy, clock, timeout_s))

        return Opening(make)

    # --- For candidates -------------------------------------------------------------------------------------------------

    async def campaign(self, *, timeout_s: float | None = None) -> Leadership:
        """Wait until we are elected. LockBusy after `timeout_s`; without one it waits as long as it takes."""
        return await self._participant.acquire(timeout_s)

    async def resign(self) -> bool:
        """Stop leading, immediately; the next candidate leads. NotHeld if we do not lead."""
        return await self._participant.release()

    def leading(self, *, timeout_s: float | None = None) -> AbstractAsyncContextManager[Leadership]:
        """`async with election.leading() as leadership`: campaigns and resigns. What is done inside is cancelled as soon as we are
        not leader any more, and ends in LockLost."""
        return self._participant.holding(timeout_s)

    @property
    def leadership(self) -> Leadership | None:
        """Ours, while we lead, by our own clock."""
        leadership = self._participant.guard
        return leadership if leadership is not None and leadership.held else None

    # --- For observers --------------------------------------------------------------------------------------------------

    async def leader(self, *, stale: bool = False, timeout_s: float | None = None) -> Leader | None:
        """Who leads, as the log says now; `stale`: as far as it is applied here, without asking. A leader that died is
        returned until another candidate has expired it."""
        if not stale:
            await self.replica.catch_up(timeout_s=timeout_s)
        return _leader(self.replica.machine)

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        """The leader now, and then each change, forever; None: there is none, or it sent no heartbeat for its time to live. Terms
        that ended before they were observed are left out; those that are yielded never fall."""
        watch: Watch[str] = Watch()
        yielded: tuple[Leader | None] | None = None

        def changed(machine: LockMachine) -> tuple[Leader | None] | None:
            watch.observe(heartbeats_of(machine), self._participant.clock.steady_us())
            found = (_leader(machine) if self._due_s(watch) else None,)
            return found if found != yielded else None

        while True:
            try:
                found = await self.replica.wait(changed, timeout_s=self._due_s(watch) or None)
            except TimeoutError:
                continue
            yielded = found
            yield found[0]

    def _due_s(self, watch: Watch[str]) -> float:
        """For how long the leader leads even if it sends no more heartbeats; 0 if there is none."""
        holder, now_us = self.replica.machine.holder, self._participant.clock.steady_us()
        if holder is None or not watch.sees(holder.claim):
            return 0.0
        return max(watch.due_us(holder.claim) - now_us, 0) / 1e6

    async def checkpoint(self, *, trim: bool = False) -> GLSN:
        """Save a snapshot, so that the topic can be trimmed: see ReplicatedStateMachine.checkpoint."""
        return await self.replica.checkpoint(trim=trim)

    async def close(self) -> None:
        """Resign, stop campaigning, and close everything but the log."""
        await self._participant.close()


def _leader(machine: LockMachine) -> Leader | None:
    holder = machine.holder
    return None if holder is None else Leader(holder.who, machine.token)
