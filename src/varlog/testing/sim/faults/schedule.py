"""Faults: a seeded schedule of fault actions, one at a time and in pairs.

A host that is down comes back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import copy_context

from varlog.testing.sim.core.host import Host
from varlog.testing.sim.core.network import SimNetwork
from varlog.testing.sim.core.plan import PAIR_RATE, FaultKind, SimPlan
from varlog.testing.sim.faults.fault_actions import FaultActions
from varlog.testing.sim.faults.survivor_check import SurvivorCheck

# The second of two faults comes so soon, at most, that the first is still felt.
OVERLAP_S = 0.5


class Faults:
    """Injects faults until it is stopped, then brings every host back."""

    def __init__(
        self,
        plan: SimPlan,
        rng: random.Random,
        network: SimNetwork,
        hosts: Sequence[Host],
        survivors: SurvivorCheck,
        trace: Callable[[str], None],
        said: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.actions = FaultActions(plan, rng, network, hosts, survivors, trace, said)
        self._plan = plan
        self._rng = rng
        self._hosts = list(hosts)
        self._active = False
        self._making: list[asyncio.Task[None]] = []
        # A crash is noticed inside the process that crashes; who brings it back must not belong to that one.
        self._outside = copy_context()
        for host in self._hosts:
            host.on_crash = self._crashed

    def start(self) -> None:
        """Make trouble until `stop`."""
        if not self._active:
            self._active = True
            if {
                FaultKind.HARM,
                FaultKind.REWIND,
                FaultKind.STORE_REWIND,
                FaultKind.BEYOND,
            } & self._plan.kinds():
                self.actions.harms.watch()
            loop = asyncio.get_running_loop()
            self._making = [
                loop.create_task(self._one_by_one(), name="faults"),
                loop.create_task(self._in_pairs(), name="pairs of faults"),
            ]

    async def _one_by_one(self) -> None:
        rates = self._plan.rates
        total = sum(rates.values())
        while total > 0:
            await asyncio.sleep(self._rng.expovariate(total))
            _ = self.actions.serve(self._rng.choices(list(rates), list(rates.values()))[0])

    async def _in_pairs(self) -> None:
        while self._plan.pair is not None:
            await asyncio.sleep(self._rng.expovariate(PAIR_RATE))
            one, two = self._rng.sample(self._plan.pair, 2)
            hit = self.actions.serve(one)
            await asyncio.sleep(self._rng.random() ** 2 * OVERLAP_S)
            _ = self.actions.serve(two, beside=hit if self._rng.random() < 0.5 else None)

    def stop(self) -> None:
        """No more faults. Everyone who is down comes back now."""
        self._active = False
        for making in self._making:
            making.cancel()
        self.actions.clear()
        for host in self._hosts:
            if host.started:
                self._back(host)

    def end(self) -> None:
        """A process that ends now stays down."""
        for host in self._hosts:
            host.on_crash = lambda _: None

    # --- coming back ----------------------------------------------------------------------------------------------

    def _crashed(self, host: Host) -> None:
        delay = self._rng.expovariate(1 / self._plan.down_s) if self._active else self._rng.uniform(0, 0.2)
        delay = max(delay, self.actions.away.pop(host.name, 0.0))
        asyncio.get_running_loop().call_later(delay, self._back, host, context=self._outside)

    def _back(self, host: Host) -> None:
        if not host.up and host.name not in self.actions.harms.beyond.given_up:
            host.boot()
