"""Lease: how long this process may believe that it leads (law 7), by its own monotonic clock and nobody else's.

The time of a lease is counted here from before its renewal was sent, there from when it arrived: it ends here first. A process
that stood still finds its lease over when it next looks, before it has answered anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from varlog.model.errors import Unavailable

# What two clocks may differ by while they measure one lease, as a share of it. Real ones differ by a thousandth of that.
MARGIN_SHARE: Final = 0.1
# So many renewals fit into a lease: one member that hangs and one election do not end it.
RENEWALS_PER_LEASE: Final = 6
# After a silence there is no time to lose: the next try follows almost at once.
RETRIES_PER_LEASE: Final = 30


class Lease:
    """One lease. `sent_at` is when it was asked for, in the loop's time."""

    def __init__(self, number: int, ttl_s: float, sent_at: float) -> None:
        self.number = number
        self.ttl_s = ttl_s
        self._until = sent_at + ttl_s * (1 - MARGIN_SHARE)
        self._lost = asyncio.Event()
        self._why = ""

    @property
    def holds(self) -> bool:
        return not self._lost.is_set() and asyncio.get_running_loop().time() < self._until

    def renewed(self, ttl_s: float, sent_at: float) -> None:
        """It was alive when the renewal that was sent then arrived. One that is over here stays over: others may have heard so."""
        if self.holds:
            self._until = max(self._until, sent_at + ttl_s * (1 - MARGIN_SHARE))

    def lose(self, why: str) -> None:
        if not self._lost.is_set():
            self._why = why
            self._lost.set()

    async def wait_lost(self) -> str:
        """Why it is over, once it is."""
        while self.holds:
            try:
                async with asyncio.timeout_at(self._until):
                    await self._lost.wait()
            except TimeoutError:
                pass  # renewed meanwhile, or not: `holds` knows
        self.lose(f"it was not renewed within {self.ttl_s:g} s")
        return self._why

    async def keep(self, renew: Callable[[], Awaitable[float]]) -> None:
        """Renew it until it is lost. `renew` returns the time it has left, 0 if it is gone, or raises Unavailable."""
        loop = asyncio.get_running_loop()
        pause_s = self.ttl_s / RENEWALS_PER_LEASE
        while self.holds:
            await asyncio.sleep(pause_s)
            sent_at = loop.time()
            try:
                ttl_s = await renew()
            except Unavailable:
                # Another member may answer; whether it is too late is a matter of time alone.
                pause_s = self.ttl_s / RETRIES_PER_LEASE
                continue
            pause_s = self.ttl_s / RENEWALS_PER_LEASE
            if ttl_s <= 0:
                self.lose("it has ended where it was granted")
            else:
                self.renewed(ttl_s, sent_at)
