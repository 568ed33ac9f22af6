"""Jobs of ledgers, counters, queues, locks and elections."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable
from contextlib import aclosing
from typing import Any

import msgspec

from varlog.model.errors import VarlogError
from varlog.model.lsn import GLSN
from varlog.recipes.core.counter import Counter
from varlog.recipes.core.replicated import ReplicatedStateMachine
from varlog.recipes.errors import ClaimLost, LockBusy, StaleToken
from varlog.recipes.lock.election import Election
from varlog.recipes.lock.guard import FencedResource, LockGuard
from varlog.recipes.lock.lock import Lock
from varlog.recipes.queue.queue import Claim, Queue
from varlog.testing.sim.recipes.job import AUDIT_S, Job
from varlog.testing.sim.recipes.plan import Work
from varlog.verify.history import CallOutcome
from varlog.verify.recipe_history import HoldSeen, LeaderSeen, Passed
from varlog.verify.recipe_history import HoldSeen as Held

# While a client has an item.
LOOKS = 5


class LedgerMachine:
    """Every command, in order. What it returns is where the command is."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []

    def apply(self, at: GLSN, command: bytes) -> int:
        self.commands.append(command)
        return len(self.commands) - 1

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.commands)

    def restore(self, snapshot: bytes) -> None:
        self.commands = msgspec.msgpack.decode(snapshot, type=list[bytes])


class LedgerJob(Job):
    """Executes commands, and looks at all of them behind a barrier."""

    work = Work.LEDGER

    async def open(self, timeout_s: float) -> None:
        site = self.site
        self._replica = await ReplicatedStateMachine.open(
            site.log, LedgerMachine(), name="ledger", **site.options(timeout_s)
        )

    def replicas(self) -> list[ReplicatedStateMachine[Any]]:
        return [self._replica]

    async def step(self, client: str) -> None:
        if self.rng.random() < 0.7:
            command = self.unique(client).encode()
            await self.do(client, "ledger", "execute", self._replica.execute(command), given=command)
        else:
            await self.do(client, "ledger", "look", self._look())

    async def _look(self) -> tuple[bytes, ...]:
        await self._replica.catch_up()
        return tuple(self._replica.machine.commands)

    async def audit(self) -> None:
        await self._replica.catch_up()
        self.site.recipes.ledger = list(self._replica.machine.commands)


class CounterJob(Job):
    """Adds amounts that give themselves away in every sum, and looks."""

    work = Work.COUNTER

    async def open(self, timeout_s: float) -> None:
        site = self.site
        self._counter = await Counter.open(site.log, **site.options(timeout_s))

    def replicas(self) -> list[ReplicatedStateMachine[Any]]:
        return [self._counter.replica]

    async def step(self, client: str) -> None:
        if self.rng.random() < 0.7:
            amount = self.rng.choice((1, -1)) * self.rng.randint(1, 10**6)
            await self.do(client, "counter", "add", self._counter.add(amount), given=amount)
        else:
            await self.do(client, "counter", "get", self._counter.value())

    async def audit(self) -> None:
        await self.do(self.site.name, "counter", "get", self._counter.value(), deadline=False)


class QueueJob(Job):
    """Puts and takes; what is taken is done, given back, or forgotten by a client that keeps it for a while."""

    work = Work.QUEUE

    async def open(self, timeout_s: float) -> None:
        site = self.site
        self._queue = await Queue.open(site.log, who=site.name, **site.timed_options(timeout_s))

    def replicas(self) -> list[ReplicatedStateMachine[Any]]:
        return [self._queue.replica]

    async def close(self) -> None:
        await self._queue.close()

    async def step(self, client: str) -> None:
        if self.rng.random() < 0.4:
            item = self.unique(client).encode()
            await self.do(client, "queue", "put", self._queue.put(item), given=item)
            return
        if (claim := await self._take(client, self.site.plan.timeout_s)) is None:
            return
        work_s = self.rng.choice((0.0, 0.1, 2 * self.site.ttl_s)) * self.rng.random()
        for _ in range(LOOKS):
            await asyncio.sleep(work_s / LOOKS)
            if claim.held:
                event = self.site.history.event()
                self.site.recipes.holds.append(
                    HoldSeen(event, "queue", claim.body.decode(), client, claim.token)
                )
        if self.rng.random() < 0.8:
            await self._done(client, claim)
        else:
            await self.do(client, "queue", "give back", self._ended(claim.release()), given=_claimed(claim))

    async def _take(self, client: str, timeout_s: float) -> Claim | None:
        held: list[Claim] = []

        async def take() -> tuple[bytes, int, int] | None:
            try:
                if self.rng.random() < 0.3:
                    claim = await self._queue.take_now(ttl_s=self.site.ttl_s)
                else:
                    claim = await self._queue.take(ttl_s=self.site.ttl_s, timeout_s=timeout_s)
            except TimeoutError:
                return None
            if claim is None:
                return None
            held.append(claim)
            return claim.body, claim.token, claim.deliveries

        await self.do(client, "queue", "take", take(), deadline=timeout_s <= self.site.plan.timeout_s)
        return held[0] if held else None

    async def _done(self, client: str, claim: Claim) -> None:
        await self.do(
            client, "queue", "done", self._ended(claim.done()), given=_claimed(claim), deadline=False
        )

    async def _ended(self, ending: Any) -> bool:
        """False: another client has it."""
        try:
            await ending
        except ClaimLost:
            return False
        return True

    async def audit(self) -> None:
        """Take what is left, also what those hold who are dead: all of it is done then."""
        loop = asyncio.get_running_loop()
        until = loop.time() + AUDIT_S
        while loop.time() < until:
            try:
                size = await self._queue.size()
                if not size.ready and not size.claimed:
                    self.end(self.begin(self.site.name, "queue", "drained"))
                    self.site.recipes.calls[-1].outcome = CallOutcome.DONE
                    return
                if (claim := await self._take(self.site.name, 10.0)) is not None:
                    await self._done(self.site.name, claim)
            except VarlogError as error:
                self.site.trace(f"the queue is not drained yet: {error}")
        self.site.history.trouble.append(f"the queue is not drained within {AUDIT_S:g} s")


def _claimed(claim: Claim) -> tuple[bytes, int]:
    return claim.body, claim.token


# Jobs of locks: holders that look at their lock all the time, and go through a fence; candidates, and those who watch them.

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
        """Checked and recorded in one step: no pause can come in between."""
        if hold.held:
            event = self.site.history.event()
            self.site.recipes.holds.append(Held(event, self.work, self.key, client, hold.token))
        return hold.held

    def _go_through(self, client: str, hold: LockGuard) -> None:
        """Access the protected resource without another check: as if paused in between."""
        name = f"{self.work}/{self.key}"
        fence = self.site.recipes.fences.setdefault(name, FencedResource(name))
        try:
            fence.admit(hold.token)
        except StaleToken as stale:
            self.site.trace(f"{client} is stopped at the fence: {stale}")
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
            **site.timed_options(timeout_s),
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
            **site.timed_options(timeout_s),
        )

    def replicas(self) -> list[ReplicatedStateMachine[Any]]:
        return [self._election.replica]

    async def acquire(self, timeout_s: float) -> LockGuard:
        return await self._election.campaign(timeout_s=timeout_s)

    async def step(self, client: str) -> None:
        if self.rng.random() < 0.3:
            call = await self.do(client, "election", "leader", self._election.leader(), key=self.key)
            if call.done and call.got is not None:
                self._saw(client, call.got.term, call.got.candidate)
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
            self.site.trace(f"{self.site.name} observes no more: {error}")

    def _saw(self, client: str, term: int, leader: str) -> None:
        event = self.site.history.event()
        self.site.recipes.leaders.append(LeaderSeen(event, self.key, client, term, leader))

    async def close(self) -> None:
        await self._election.close()
