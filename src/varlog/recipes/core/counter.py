"""Counter: a shared number; every add counts exactly once (R-USE-2)."""

from __future__ import annotations

import operator

from varlog.aio import Opening
from varlog.client.log import Log
from varlog.recipes.core.counter_machine import CounterMachine, add_command, set_command, swap_command
from varlog.recipes.core.recipe import Recipe
from varlog.recipes.core.replicated import TIMEOUT_S, ReplicatedStateMachine
from varlog.recipes.core.snapshots import Snapshots
from varlog.runtime.environment import Entropy


class Counter(Recipe[CounterMachine]):
    """The counter of one name in a topic. It begins at 0; integers have no limit.

    A change that ends in OutcomeUnknown was made once, or will be, or never: read the value before you repeat it.
    """

    @classmethod
    def open(
        cls,
        log: Log,
        *,
        name: str = "counter",
        snapshots: Snapshots | None = None,
        entropy: Entropy | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Opening[Counter]:
        """Await it, or enter it with `async with`. All that open the same name in the same topic share one counter."""

        async def make() -> Counter:
            return cls(
                await ReplicatedStateMachine.open(
                    log,
                    CounterMachine(),
                    name=name,
                    snapshots=snapshots,
                    entropy=entropy,
                    timeout_s=timeout_s,
                )
            )

        return Opening(make)

    async def add(self, amount: int = 1, *, timeout_s: float | None = None) -> int:
        """Add, or with a negative amount subtract; returns the value right after it. No two adds of 1 return the same, unless
        it was set or reduced in between."""
        value: int = await self.replica.execute(add_command(operator.index(amount)), timeout_s=timeout_s)
        return value

    async def set(self, value: int, *, timeout_s: float | None = None) -> None:
        """Set it to `value`."""
        await self.replica.execute(set_command(operator.index(value)), timeout_s=timeout_s)

    async def compare_and_set(self, value: int, expected: int, *, timeout_s: float | None = None) -> bool:
        """Set it if it is `expected`; False, and nothing is changed, if it is not."""
        command = swap_command(operator.index(expected), operator.index(value))
        return await self.replica.execute(command, timeout_s=timeout_s) is not None

    async def value(self, *, stale: bool = False, timeout_s: float | None = None) -> int:
        """Its value now: every acknowledged add is in it. `stale`: as far as it is applied here, without asking."""
        if not stale:
            await self.replica.catch_up(timeout_s=timeout_s)
        return self.replica.machine.value
