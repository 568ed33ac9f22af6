"""RecipeWorld: a simulated cluster whose users use recipes.

With every fault action, and with users that are paused.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from varlog.model.cluster import Ordering
from varlog.model.limits import CLOCK_DRIFT_MAX
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.testing.sim.core.host import SimService
from varlog.testing.sim.core.limits import RECIPE_BOUNDS, tight_limits
from varlog.testing.sim.core.loop import Process
from varlog.testing.sim.core.plan import SimPlan
from varlog.testing.sim.recipes.plan import RecipePlan, cluster_plan
from varlog.testing.sim.recipes.user import RECIPE_TOPIC, SNAPSHOT_TOPIC, Auditor, RecipeUser
from varlog.testing.sim.simulate import RunResult, run_world
from varlog.testing.sim.world import World
from varlog.verify.recipe_checkers import check_recipes
from varlog.verify.recipe_history import RecipeHistory


class RecipeWorld(World):
    """One run. The log's own laws are checked as in every world, the promises of the recipes besides."""

    def __init__(
        self,
        seed: int,
        ordering: Ordering = Ordering.COMMITTED,
        *,
        trace: Callable[[str], None] | None = None,
        messages: bool = False,
    ) -> None:
        self.recipes = RecipeHistory()
        super().__init__(seed, ordering, trace=trace, messages=messages)
        self.recipe_plan = RecipePlan.of(seed, self.plan.calm)
        self.recipes.calm = self.plan.calm
        self._apart = [RECIPE_TOPIC, SNAPSHOT_TOPIC]
        if ordering is Ordering.SEQUENCED:
            # A batch must fit into a stripe: that of snapshots has up to 30 chunks.
            self.history.sequenced.update([RECIPE_TOPIC, SNAPSHOT_TOPIC][: 1 + (self.plan.stripe_size > 30)])
        self._pauses = random.Random(f"{seed}/pauses")
        if ordering is not Ordering.SEQUENCED:
            self._let_drift(random.Random(f"{seed}/drift"))

    def _let_drift(self, rng: random.Random) -> None:
        """Leases of recipes are counted by the users' own clocks."""
        drift = rng.choice((0.0, CLOCK_DRIFT_MAX))
        for host in self._users:
            host.clock.rate = 1 + drift * rng.choice((-1, 1, rng.uniform(-1, 1)))

    def _draw_plan(self, ordering: Ordering) -> SimPlan:
        return cluster_plan(self.seed, ordering)

    def _make_user(self, topic: str) -> Callable[[Environment, Transport], SimService]:
        def make(environment: Environment, transport: Transport) -> SimService:
            return RecipeUser(
                environment,
                transport,
                repository=self._repository,
                plan=self.recipe_plan,
                history=self.history,
                recipes=self.recipes,
                stopping=lambda: self._stopping,
                finished=self._user_finished,
                trace=self.trace,
            )

        return make

    def _auditor(self) -> Auditor:
        process = Process("auditor")
        environment = self._host("auditor", self._make_user("")).environment(process)
        transport = self._network.transport(process)
        return Auditor(
            process,
            environment,
            transport,
            repository=self._repository,
            plan=self.recipe_plan,
            history=self.history,
            recipes=self.recipes,
            trace=self.trace,
        )

    async def _before_work(self) -> None:
        self.trace(f"recipes: {self.recipe_plan}")
        if not await self._auditor().prepare():
            self.history.trouble.append("the recipes could not be opened before the users came")
        if self.recipe_plan.pause_rate:
            _ = asyncio.get_running_loop().create_task(self._pause_users(), name="pauses of users")

    async def _pause_users(self) -> None:
        """A paused process does not know that it was paused: the hard case of every lease."""
        rng = self._pauses
        while True:
            await asyncio.sleep(rng.expovariate(self.recipe_plan.pause_rate))
            if self._stopping:
                return
            if up := [host.process for host in self._users if host.up and host.process is not None]:
                self._pause(rng.choice(up))

    def _pause(self, process: Process) -> None:
        """For less or longer than leases last."""
        if self._faults is not None and process.held is None:
            self.recipes.paused.add(process.name)
            self._faults.actions.pause_for(
                process, self.recipe_plan.ttl_s * self._pauses.choice((0.5, 1.5, 3.0))
            )

    async def _look_apart(self) -> None:
        await self._auditor().look()

    def _has_work(self) -> bool:
        return super()._has_work() or any(
            call.ended is None and self._lives(call.client) for call in self.recipes.calls
        )

    def tighten(self, tight: ExitStack) -> None:
        tight.enter_context(tight_limits(random.Random(f"{self.seed}/recipe limits"), RECIPE_BOUNDS))

    def violations(self) -> Iterator[tuple[str, str, str]]:
        yield from super().violations()
        for checker, sentence in check_recipes(self.recipes):
            yield checker.name, checker.law, sentence

    def digest(self) -> str:
        return self.recipes.digest()

    def counts(self) -> dict[str, int]:
        return Counter(f"{call.recipe} {call.what} {call.outcome}" for call in self.recipes.calls)


def simulate_recipes(
    seed: int,
    ordering: Ordering = Ordering.COMMITTED,
    *,
    trace: Callable[[str], None] | None = None,
    messages: bool = False,
) -> tuple[RunResult, RecipeWorld]:
    """Run one seed with users of recipes, and judge it."""
    world = RecipeWorld(seed, ordering, trace=trace, messages=messages)
    return run_world(world, tracing=trace is not None), world
