"""Parties: processes that share one log in virtual time, each with a clock that drifts and a link to the log that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from tests.recipes.scripted_log import ScriptedFollowing, ScriptedLog
from varlog.client.log import Log
from varlog.model.entry import Entry, Position
from varlog.model.errors import NotAccepted, OutcomeUnknown, Unavailable
from varlog.model.lsn import GLSN
from varlog.recipes.lock.election import Election
from varlog.recipes.lock.lock import Lock
from varlog.testing.sim.core import loop

DEADLINE_S = 3600.0


@dataclass
class DriftingClock:
    """Counts from some moment of its own, at its own rate."""

    rate: float = 1.0
    zero_us: int = 0

    def steady_us(self) -> int:
        return self.zero_us + int(asyncio.get_running_loop().time() * 1e6 * self.rate)

    def monotonic_us(self) -> int:
        return self.steady_us()

    def wall_us(self) -> int:
        return self.steady_us()


@dataclass
class Link:
    """One party's link to a log that all share. While it is cut, nothing is delivered in either direction."""

    of: ScriptedLog
    slow_s: float = 0.0
    closed: bool = False
    cut: bool = False
    _restored: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def log(self) -> Log:
        return cast(Log, self)

    @property
    def topic(self) -> Any:
        return self.of.topic

    def restore(self) -> None:
        self.cut = False
        restored, self._restored = self._restored, asyncio.Event()
        restored.set()

    async def append(self, data: bytes, *, timeout_s: float) -> Position:
        """An append in flight when the link is cut arrives; its reply does not."""
        if self.cut:
            await asyncio.sleep(timeout_s)
            raise NotAccepted("the link is cut")
        await asyncio.sleep(min(self.slow_s / 2, timeout_s))
        position = await self.of.append(data, timeout_s=timeout_s)
        await asyncio.sleep(min(self.slow_s / 2, timeout_s))
        await self._answer(timeout_s)
        return position

    async def _answer(self, timeout_s: float) -> None:
        if self.cut:
            await asyncio.sleep(timeout_s)
            raise OutcomeUnknown("no answer came")

    async def tail(self, *, timeout_s: float = 10.0) -> GLSN:
        if self.cut:
            await asyncio.sleep(timeout_s)
            raise Unavailable("the link is cut")
        return await self.of.tail(timeout_s=timeout_s)

    async def set_reader(self, name: str, position: GLSN) -> Any:
        return await self.of.set_reader(name, position)

    @property
    def connector(self) -> Link:
        return self

    def follow(self, begin: int) -> CutFollowing:
        return CutFollowing(self, self.of.follow(begin))

    async def wait_restored(self) -> None:
        while self.cut:
            await self._restored.wait()


@dataclass
class CutFollowing:
    """As TailingReader: while the link is cut, what was on it waits."""

    link: Link
    inner: ScriptedFollowing

    @property
    def position(self) -> GLSN:
        return self.inner.position

    def expect(self, glsn: GLSN) -> None:
        self.inner.expect(glsn)

    async def lists(self) -> AsyncGenerator[list[Entry], None]:
        async for entries in self.inner.lists():
            await self.link.wait_restored()
            yield entries


class Party:
    """One process."""

    def __init__(self, log: ScriptedLog, number: int, rate: float = 1.0) -> None:
        self.name = f"party-{number}"
        self.link = Link(log)
        self.clock = DriftingClock(rate, 1_000_000_007 * number)
        self._entropy = Random(number)

    async def lock(self, ttl_s: float = 10.0, name: str = "left") -> Lock:
        return await Lock.open(
            self.link.log, name=name, who=self.name, ttl_s=ttl_s, entropy=self._entropy, clock=self.clock
        )

    async def election(self, ttl_s: float = 10.0) -> Election:
        return await Election.open(
            self.link.log,
            name="head",
            candidate=self.name,
            ttl_s=ttl_s,
            entropy=self._entropy,
            clock=self.clock,
        )


def run_parties(
    body: Callable[..., Awaitable[None]], *rates: float, log: Callable[[], ScriptedLog] = ScriptedLog
) -> None:
    """Run a test's body with a party for each rate, in virtual time, with an end."""

    async def run() -> None:
        common = log()
        parties = [Party(common, number, rate) for number, rate in enumerate(rates, 1)]
        async with asyncio.timeout(DEADLINE_S):
            await body(*parties)

    loop.run_simulated(run())


async def passed(seconds: float) -> None:
    """So much virtual time: nobody waits for it."""
    await asyncio.sleep(seconds)
