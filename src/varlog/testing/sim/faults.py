"""Faults: a seeded schedule of crashes, clean stops, broken connections and blackouts. A host that is down comes back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import copy_context

from varlog.rpc.messages import Message
from varlog.testing.sim.connection import SimConnection
from varlog.testing.sim.host import Host
from varlog.testing.sim.loop import SimLoop
from varlog.testing.sim.network import SimNetwork
from varlog.testing.sim.plan import Plan
from varlog.testing.sim.process import Process


class Faults:
    """Makes trouble until it is told to stop, then brings everyone back."""

    def __init__(
        self,
        plan: Plan,
        rng: random.Random,
        network: SimNetwork,
        hosts: Sequence[Host],
        tell: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._rng = rng
        self._network = network
        self._hosts = list(hosts)
        self._tell = tell
        self._active = False
        self._making: asyncio.Task[None] | None = None
        # A crash is noticed inside the process that crashes; who brings it back must not belong to that one.
        self._outside = copy_context()
        self._armed: dict[Process, int] = {}
        for host in self._hosts:
            host.on_crash = self._crashed

    def start(self) -> None:
        """Make trouble until `stop`."""
        if not self._active:
            self._active = True
            self._making = asyncio.get_running_loop().create_task(self._run(), name="faults")

    async def _run(self) -> None:
        plan, rng = self._plan, self._rng
        rates = {
            self._crash_one: plan.crash_rate,
            self._stop_one: plan.stop_rate,
            self._cut_one: plan.cut_rate,
            self._pause_one: plan.pause_rate,
            self._cut_off_one: plan.partition_rate,
            self._blackout: plan.blackout_rate,
        }
        total = sum(rates.values())
        while total > 0:
            await asyncio.sleep(rng.expovariate(total))
            rng.choices(list(rates), list(rates.values()))[0]()

    def stop(self) -> None:
        """No more faults. Everyone who is down comes back now."""
        self._active = False
        if self._making is not None:
            self._making.cancel()
        self._armed.clear()
        self._network.reunite()
        for host in self._hosts:
            self._resume(host.process)
            if host.disk is not None:
                host.disk.crash_at = None
            if not host.up and host.started:
                host.boot()

    def blackout(self) -> None:
        """Everything loses power at once; comes back one by one."""
        self._tell("blackout")
        for host in self._hosts:
            host.crash()

    # --- kinds ----------------------------------------------------------------------------------------------------

    def _pick(self) -> Host | None:
        up = [host for host in self._hosts if host.up]
        if not up:
            return None
        weights = [{"sn": 5, "mr": 5, "mc": 1}.get(host.name[:2], 1) for host in up]
        return self._rng.choices(up, weights)[0]

    def _crash_one(self) -> None:
        host = self._pick()
        if host is None or host.disk is None or host.process is None:
            return
        how = self._rng.random()
        if how < self._plan.disk_crash_share and host.name.startswith("sn"):
            host.disk.crash_at = host.disk.operations + self._rng.randint(1, 12)
        elif how < self._plan.disk_crash_share + self._plan.message_crash_share:
            self._armed[host.process] = self._rng.randint(1, 10)
        else:
            host.crash()

    def _stop_one(self) -> None:
        host = self._pick()
        if host is not None:
            _ = asyncio.get_running_loop().create_task(host.stop(), name=f"stop/{host.name}")

    def _cut_one(self) -> None:
        if told := self._network.cut_one():
            self._tell(f"connection cut: {told}")

    def _pause_one(self) -> None:
        """A server stands still, then goes on as if nothing had happened. (A client that does cannot keep its deadlines.)"""
        host = self._pick()
        if host is None or host.process is None or host.process.held is not None or host.name[0] == "c":
            return
        pause_s = self._rng.choice((0.3, 1.5, 4.0)) * self._rng.random()
        self._tell(f"{host.process.name} stands still for {pause_s:.3f} s")
        host.process.held = []
        loop = asyncio.get_running_loop()
        loop.call_later(pause_s, self._resume, host.process)

    def _resume(self, process: Process | None) -> None:
        loop = asyncio.get_running_loop()
        if process is not None and process.held is not None and isinstance(loop, SimLoop):
            loop.resume(process)

    def _cut_off_one(self) -> None:
        host, other = self._pick(), self._pick()
        if host is None or other is None:
            return
        for_s = self._rng.choice((0.3, 1.5, 4.0)) * self._rng.random()
        whom = other.name if other is not host and self._rng.random() < 0.7 else ""
        self._tell(f"{host.name} is cut off from {whom or 'all'} for {for_s:.3f} s")
        self._network.cut_off(host.name, whom, asyncio.get_running_loop().time() + for_s)

    def _blackout(self) -> None:
        self.blackout()

    def on_message(self, connection: SimConnection, _: Message) -> None:
        """Count down for processes that are to crash while they send."""
        left = self._armed.get(connection.process)
        if left is None:
            return
        if left > 1:
            self._armed[connection.process] = left - 1
            return
        del self._armed[connection.process]
        for host in self._hosts:
            if host.process is connection.process:
                host.crash()

    # --- coming back ----------------------------------------------------------------------------------------------

    def _crashed(self, host: Host) -> None:
        delay = self._rng.expovariate(1 / self._plan.down_s) if self._active else self._rng.uniform(0, 0.2)
        asyncio.get_running_loop().call_later(delay, self._back, host, context=self._outside)

    def _back(self, host: Host) -> None:
        if not host.up:
            host.boot()
