"""Claim: an item of a queue in somebody's hands; kept by signs of life in the log until it is done, given back, or lost."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any, Self

from varlog.model.errors import VarlogError
from varlog.model.lsn import GLSN
from varlog.recipes.errors import ClaimLost
from varlog.recipes.lease_rules import Beats, renew_us
from varlog.recipes.queue_codec import CodedQueueMachine, Done, GiveBack, Renew, encode_command
from varlog.recipes.queue_machine import Taken
from varlog.recipes.replicated import ReplicatedStateMachine
from varlog.runtime.clock import Clock


class Claim:
    """One item. With `async with` it is done at the end, or given back if the work raised.

    At least once: if its holder is not heard of for the time to live, somebody else gets the item. The `token` of a later claim is
    larger: whatever the work writes to can refuse a smaller one than it has seen.
    """

    def __init__(
        self, replica: ReplicatedStateMachine[CodedQueueMachine], taken: Taken, beats: Beats, clock: Clock
    ) -> None:
        self.number = taken.item.number
        self.body = taken.item.body
        self.deliveries = taken.item.deliveries  # 1: nobody had it before
        self.token: GLSN = taken.token
        self.lost = asyncio.Event()  # set as soon as somebody else may have it
        self._replica = replica
        self._beats = beats
        self._clock = clock
        self._until_us = beats.until_us(0)
        self._ending = False
        self._ended = False
        self._over = asyncio.Event()  # lost or ended

    @property
    def held(self) -> bool:
        """Nobody else has it now, by our own clock. Over as soon as it is said to be done or given back."""
        return not self._over.is_set() and not self._ending and self._left_s > 0

    @property
    def _left_s(self) -> float:
        return max(0, self._until_us - self._clock.steady_us()) / 1_000_000

    async def done(self, *, timeout_s: float | None = None) -> None:
        """The item is done with, for good. ClaimLost: it is not, and somebody else has it or will."""
        await self._end(Done(self.token), timeout_s)

    async def give_back(self, *, timeout_s: float | None = None) -> None:
        """Somebody else shall have it, before all that were put later."""
        await self._end(GiveBack(self.token), timeout_s)

    async def _end(self, command: Done | GiveBack, timeout_s: float | None) -> None:
        if self._ended:
            raise ClaimLost(self.number, self.token, "it was done or given back before")
        self._ending = True
        try:
            ended = await self._replica.execute(encode_command(command), timeout_s=timeout_s)
        finally:
            self._ending = False
        if not ended:
            self.lose()
            raise ClaimLost(self.number, self.token, "it was not heard of for its time to live")
        self._ended = True
        self._over.set()

    async def keep(self) -> None:
        """Send signs of life until it has ended or is lost. Its queue runs this."""
        pause_s = renew_us(self._beats.ttl_us) / 1_000_000
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(pause_s, self._left_s)):
                        await self._over.wait()
                if self._over.is_set() or not self._left_s:
                    return
                await self._renew()
        finally:
            self.lose()

    async def _renew(self) -> None:
        beat = self._beats.send(self._clock.steady_us())
        command = encode_command(Renew(self.token, beat))
        try:
            kept: Any = await self._replica.execute(command, timeout_s=self._left_s)
        except VarlogError:
            return  # the next one may get through, as long as there is time
        if kept:
            self._until_us = max(self._until_us, self._beats.until_us(beat))
        elif not self._ending:
            self.lose()

    def lose(self) -> None:
        """Believe in it no more, unless it has ended."""
        if not self._ended:
            self.lost.set()
            self._over.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if kind is None:
            await self.done()
        elif not self.lost.is_set():
            with contextlib.suppress(VarlogError):  # what the work raised is what its caller must hear
                await self.give_back()
