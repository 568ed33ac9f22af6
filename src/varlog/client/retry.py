"""Backoff: growing pauses with jitter between tries, under one deadline."""

from __future__ import annotations

import asyncio

from varlog.runtime.environment import Environment


class Backoff:
    """The tries of one call. `remaining_s` never grows; `wait` sleeps less than what remains."""

    def __init__(
        self, environment: Environment, timeout_s: float, *, first_s: float = 0.01, most_s: float = 0.3
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._entropy = environment.entropy
        self._first_s = first_s
        self._next_s = first_s
        self._most_s = most_s
        self.deadline = self._loop.time() + timeout_s

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.deadline - self._loop.time())

    @property
    def spent(self) -> bool:
        return self._loop.time() >= self.deadline

    def pause_s(self) -> float:
        """How long to wait before the next try: half fixed, half random, so that many clients do not retry at the same moment."""
        pause = self._next_s * (0.5 + self._entropy.random() / 2)
        self._next_s = min(self._next_s * 2, self._most_s)
        return pause

    def restart(self) -> None:
        """Reset the pause to its first length, because something changed. The deadline stays."""
        self._next_s = self._first_s

    async def wait(self) -> None:
        await asyncio.sleep(min(self.pause_s(), self.remaining_s))
