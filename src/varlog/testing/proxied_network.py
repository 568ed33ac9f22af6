"""ProxiedNetwork: a cuttable network that anybody may have: a proxy before each server of a cluster, in this process.

Who connects is told by the kernel's list of connections, so the addresses are the same for all. It differs from a cut cable in
what kernels do by themselves: nobody's keepalive or retransmission ends a connection here, so a cut is `Loss` and nothing between.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from varlog.testing.cut_ways import CutWays, Loss
from varlog.testing.cuttable_network import CLIENTS, OUTSIDE
from varlog.testing.cutting_proxy import Address, CuttingProxy
from varlog.testing.dialling_process import dialling_process
from varlog.testing.proxied_plan import ProxiedPlan


class ProxiedNetwork:
    """`pids` are those of the servers, by place; another process that we have started is a client."""

    def __init__(
        self, plan: ProxiedPlan, pids: Callable[[], Mapping[str, int]], *, loss: Loss = Loss.HELD
    ) -> None:
        self._pids = pids
        self._loss = loss
        self._ways = CutWays()
        self._proxies = [
            CuttingProxy(place, plan.front(place), plan.behind(place), self._ways, self._place_of)
            for place in plan.places
        ]

    def cut(self, source: str, target: str) -> None:
        """What `source` sends to `target` does not arrive from now on; the other direction works."""
        self._ways.cut(source, target, self._loss)
        if self._loss is Loss.BROKEN:
            for proxy in self._proxies:
                proxy.reset_between(source, target)

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        # First, or what was held would follow a gap.
        for proxy in self._proxies:
            proxy.reset_gaps()
        self._ways.heal()

    async def __aenter__(self) -> Self:
        try:
            for proxy in self._proxies:
                await proxy.start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for proxy in self._proxies:
            await proxy.stop()

    async def _place_of(self, near: Address, far: Address) -> str | None:
        pid = await asyncio.to_thread(dialling_process, near, far)
        if pid is None:
            return None
        if pid == os.getpid():
            return OUTSIDE
        return {pid: place for place, pid in self._pids().items()}.get(pid, CLIENTS)
