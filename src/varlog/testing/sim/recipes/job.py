"""Job: what every user of a recipe does: open it, call it in loops, record it."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypedDict

from varlog.client.log import Log
from varlog.model.errors import OutcomeUnknown, Rejected, VarlogError
from varlog.recipes.core.replicated import ReplicatedStateMachine
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.errors import ReplicaStopped
from varlog.runtime.environment import Clock, Entropy, Environment
from varlog.testing.sim.recipes.plan import RecipePlan, Work
from varlog.verify.history import CallOutcome, History
from varlog.verify.recipe_history import RecipeCall, RecipeHistory

# The auditor looks at a cluster that is well, and is patient.
AUDIT_S: Final = 60.0
AUDIT_CALL_S: Final = 20.0
AUDIT_TTL_S: Final = 10.0  # where appends take long, nobody keeps a shorter lease


class RecipeOptions(TypedDict):
    """What `open` of every recipe accepts."""

    snapshots: Snapshots | None
    entropy: Entropy
    timeout_s: float


class TimedOptions(RecipeOptions):
    """What `open` of a recipe with leases accepts."""

    clock: Clock


@dataclass
class Site:
    """Where a job is done: by which process, on which log, and where it is recorded."""

    name: str
    environment: Environment
    log: Log
    snapshots: Snapshots | None
    plan: RecipePlan
    history: History
    recipes: RecipeHistory
    stopping: Callable[[], bool]
    trace: Callable[[str], None]
    ttl_s: float

    def options(self, timeout_s: float) -> RecipeOptions:
        """With which every recipe is opened here."""
        return {"snapshots": self.snapshots, "entropy": self.environment.entropy, "timeout_s": timeout_s}

    def timed_options(self, timeout_s: float) -> TimedOptions:
        """Of a recipe that has a clock, too."""
        return {**self.options(timeout_s), "clock": self.environment.clock}


class Job(ABC):
    """One recipe in one process. Several loops of it share one replica."""

    work: ClassVar[Work]

    def __init__(self, site: Site) -> None:
        self.site = site
        self.rng = random.Random(site.environment.entropy.getrandbits(64))
        self._numbers = 0

    # --- of each recipe -------------------------------------------------------------------------------------------

    @abstractmethod
    async def open(self, timeout_s: float) -> None:
        """Open the recipe."""

    @abstractmethod
    def replicas(self) -> list[ReplicatedStateMachine[Any]]:
        """Those that are open: their states are compared."""

    @abstractmethod
    async def step(self, client: str) -> None:
        """One operation of a loop."""

    @abstractmethod
    async def audit(self) -> None:
        """All is well, and nobody else is at it: look at what is there."""

    async def close(self) -> None:
        for replica in self.replicas():
            await replica.close()

    def besides(self) -> list[Awaitable[None]]:
        """What runs beside the loops."""
        return []

    # --- the same for all -----------------------------------------------------------------------------------------

    async def open_somehow(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Try until it is open, or nobody wants it any more."""
        while not until():
            try:
                await self.open(timeout_s)
                return True
            except ReplicaStopped as error:
                self.complain(error)
                return False
            except VarlogError as error:
                self.site.trace(f"{self.site.name} cannot open {self.work} yet: {error}")
                await asyncio.sleep(0.1)
        return False

    async def run(self) -> None:
        """All loops, to their end."""
        site = self.site
        if not await self.open_somehow(site.stopping, site.plan.timeout_s):
            return
        looking = [asyncio.ensure_future(self._compare(replica)) for replica in self.replicas()]
        looking += [asyncio.ensure_future(work) for work in self.besides()]
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(site.plan.loops):
                    _ = group.create_task(self._loop(f"{site.name}.{self.work}.{number}"))
        finally:
            for look in looking:
                look.cancel()
            await asyncio.gather(*looking, return_exceptions=True)
        await self._check_going()
        await self.close()

    async def _check_going(self) -> None:
        """Whatever went wrong before, a replica continues as long as its log is open."""
        for replica in self.replicas():
            try:
                await replica.wait(lambda _: True)
            except VarlogError as error:
                if not self.site.log.closed:
                    self.complain(error)

    async def _loop(self, client: str) -> None:
        plan = self.site.plan
        for _ in range(plan.operations):
            if self.site.stopping():
                return
            if self.rng.random() < plan.checkpoint_share:
                await self.checkpoint(client)
            await self.step(client)
            await asyncio.sleep(self.rng.expovariate(1 / plan.think_s))

    async def checkpoint(self, client: str) -> None:
        replica = self.rng.choice(self.replicas())
        trim = self.site.plan.trims and self.rng.random() < 0.7
        work = replica.checkpoint(trim=trim)
        await self.do(client, "checkpoint", "save", work, key=self.work, deadline=False)

    async def _compare(self, replica: ReplicatedStateMachine[Any]) -> None:
        """After each batch of entries that is applied: the state, for all who have one of the same position."""

        def look(machine: Any) -> None:
            self.site.recipes.record_state(replica.name, replica.applied, machine.snapshot(), self.site.name)

        try:
            await replica.wait(look)
        except ReplicaStopped as error:
            self.complain(error)
        except VarlogError as error:
            self.site.trace(f"{self.site.name} compares no more: {error}")

    async def do(
        self,
        client: str,
        recipe: str,
        what: str,
        work: Awaitable[Any],
        *,
        key: str = "",
        given: Any = None,
        deadline: bool = True,
        slack_s: float = 0.0,
    ) -> RecipeCall:
        """Wait for one call, and write it down. `got` is what it returned."""
        call = self.begin(client, recipe, what, key=key, given=given)
        if deadline:
            call.deadline_s = call.started_s + self.site.plan.timeout_s + slack_s
        try:
            call.got = await work
            call.outcome = CallOutcome.DONE
        except OutcomeUnknown as error:
            call.outcome, call.message = CallOutcome.UNKNOWN, str(error)
        except Rejected as error:
            call.outcome, call.message = CallOutcome.REJECTED, str(error)
        except ReplicaStopped as error:
            call.outcome, call.message = CallOutcome.FAILED, str(error)
            self.complain(error)
        except VarlogError as error:
            call.outcome, call.message = CallOutcome.FAILED, f"{type(error).__name__}: {error}"
        self.end(call)
        return call

    def begin(self, client: str, recipe: str, what: str, *, key: str = "", given: Any = None) -> RecipeCall:
        call = RecipeCall(recipe=recipe, client=client, what=what, key=key, given=given)
        call.started, call.started_s = self.site.history.event(), asyncio.get_running_loop().time()
        self.site.recipes.calls.append(call)
        return call

    def end(self, call: RecipeCall) -> None:
        call.ended, call.ended_s = self.site.history.event(), asyncio.get_running_loop().time()
        self.site.trace(str(call))

    def unique(self, client: str) -> str:
        """A word that no other call of the run has."""
        self._numbers += 1
        return f"{client}.{self._numbers}"

    def complain(self, error: Exception) -> None:
        self.site.history.complaints.append(f"{self.site.name} {self.work}: {error!r} {error}")
