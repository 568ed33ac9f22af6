"""Jobs of locks: holders that look at their lock all the time, and go through a fence; candidates, and those who watch them."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable
from contextlib import aclosing
from typing import Any

from varlog.model.errors import VarlogError
from varlog.recipes.election import Election
from varlog.recipes.errors import LockBusy, StaleToken
from varlog.recipes.fenced import FencedResource
from varlog.recipes.lock import Lock
from varlog.recipes.lock_guard import LockGuard
from varlog.recipes.replicated import ReplicatedStateMachine
from varlog.testing.recipe_history import Hold as Held
from varlog.testing.recipe_history import Leader, Passed
from varlog.testing.sim.recipe_job import AUDIT_S, Job
from varlog.testing.sim.recipe_plan import Work

LOOKS_A_TTL = 10


class HoldingJob(Job):
    """Acquires one thing, holds it for a while, and lets go of it."""

    key = "one"

    @abstractmethod
    async def acquire(self, timeout_s: float) -> LockGuard: ...

    async def step(self, client: str) -> None:
        if (hold := await self._acquire(client, self.site.plan.timeout_s)) is None:
            return
        until = asyncio.get_running_loop().time() + self.rng.choice((0.0, 0.3, 2.0)) * self.site.ttl_s
        while self._believes(client, hold) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(self.rng.random() * 2 * self.site.ttl_s / LOOKS_A_TTL)
            self._go_through(client, hold)
        await self.do(client, self.work, "release", hold.release(), key=self.key, deadline=False)

    async def _acquire(self, client: str, timeout_s: float) -> LockGuard | None:
        got: list[LockGuard] = []

        async def work() -> int | None:
            try:
                got.append(await self.acquire(timeout_s))
            except LockBusy:
                return None
            return got[0].token

        name = self.site.name
        patient = timeout_s <= self.site.plan.timeout_s
        await self.do(client, self.work, "acquire", work(), key=self.key, given=name, deadline=patient)
        return got[0] if got else None

    def _believes(self, client: str, hold: LockGuard) -> bool:
        """Looked at and written down in one moment: nobody can stand still in between."""
        if hold.held:
            event = self.site.history.event()
            self.site.recipes.holds.append(Held(event, self.work, self.key, client, hold.token))
        return hold.held

    def _go_through(self, client: str, hold: LockGuard) -> None:
        """To what is protected, without another look: as one who stood still in between."""
        name = f"{self.work}/{self.key}"
        fence = self.site.recipes.fences.setdefault(name, FencedResource(name))
        try:
            fence.admit(hold.token)
        except StaleToken as stale:
            self.site.tell(f"{client} is stopped at the fence: {stale}")
        else:
            self.site.recipes.passed.append(Passed(self.site.history.event(), name, client, hold.token))

    async def audit(self) -> None:
        """It can be had, however many died with it."""
        if (hold := await self._acquire(self.site.name, AUDIT_S)) is None:
            self.site.history.trouble.append(f"{self.work} cannot be had within {AUDIT_S:g} s")
        else:
            await hold.release()


class LockJob(HoldingJob):
    work = Work.LOCK

    async def open(self, timeout_s: float) -> None:
        site = self.site
        self._lock = await Lock.open(
            site.log,
            name=self.key,
            who=site.name,
            ttl_s=site.ttl_s,
            snapshots=site.snapshots,
            entropy=site.environment.entropy,
            clock=site.environment.clock,
            timeout_s=timeout_s,
        )

    def replicas(self) -> list[ReplicatedStateMachine[Any]]:
        return [self._lock.replica]

    async def acquire(self, timeout_s: float) -> LockGuard:
        return await self._lock.acquire(timeout_s=timeout_s)

    async def close(self) -> None:
        await self._lock.close()


class ElectionJob(HoldingJob):
    work = Work.ELECTION

    async def open(self, timeout_s: float) -> None:
        site = self.site
        self._election = await Election.open(
            site.log,
            name=self.key,
            candidate=site.name,
            ttl_s=site.ttl_s,
            snapshots=site.snapshots,
            entropy=site.environment.entropy,
            clock=site.environment.clock,
            timeout_s=timeout_s,
        )

    def replicas(self) -> list[ReplicatedStateMachine[Any]]:
        return [self._election.replica]

    async def acquire(self, timeout_s: float) -> LockGuard:
        return await self._election.campaign(timeout_s=timeout_s)

    async def step(self, client: str) -> None:
        if self.rng.random() < 0.3:
            deed = await self.do(client, "election", "leader", self._election.leader(), key=self.key)
            if deed.done and deed.got is not None:
                self._saw(client, deed.got.term, deed.got.candidate)
            return
        await super().step(client)

    def besides(self) -> list[Awaitable[None]]:
        return [self._observe()]

    async def _observe(self) -> None:
        try:
            async with aclosing(self._election.observe()) as leaders:
                async for leader in leaders:
                    if leader is not None:
                        self._saw(f"{self.site.name}.observe", leader.term, leader.candidate)
        except VarlogError as error:
            self.site.tell(f"{self.site.name} observes no more: {error}")

    def _saw(self, client: str, term: int, leader: str) -> None:
        event = self.site.history.event()
        self.site.recipes.leaders.append(Leader(event, self.key, client, term, leader))

    async def close(self) -> None:
        await self._election.close()
