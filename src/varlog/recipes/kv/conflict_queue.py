"""ConflictQueue: those in one process whose transactions clash over a key try again one after the other, in the order they came.

All at once they would clash again, all but one of them, round after round. Nobody has more than one turn at a time, so nobody
waits for somebody who waits for him. It is no lock: the log decides who commits, whoever's turn it is.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

TURN_S = 1.0


class ConflictQueue:
    """The turns of all keys over which somebody clashed and is not done yet."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def lock(self, key: str) -> asyncio.Lock:
        """Hold on to the key's lock; `drop` lets go of it."""
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        return lock

    def drop(self, key: str) -> None:
        lock, users = self._locks[key]
        if users > 1:
            self._locks[key] = (lock, users - 1)
        else:
            del self._locks[key]

    def __len__(self) -> int:
        return len(self._locks)


class ConflictTurn:
    """What one of them has: `async with` gives it back at the end."""

    def __init__(self, turns: ConflictQueue) -> None:
        self._turns = turns
        self._held: tuple[str, asyncio.Lock] | None = None

    async def wait_for(self, key: str) -> None:
        """Give back the last one, and wait for that of another key, but not for long; for the same one it goes on."""
        if self._held is not None and self._held[0] == key:
            return
        self._give_back()
        lock = self._turns.lock(key)
        try:
            async with asyncio.timeout(TURN_S):
                await lock.acquire()
            self._held = key, lock
        except TimeoutError:
            pass  # whoever has it does something else meanwhile; out of turn is slower, and as right
        finally:
            if self._held is None:
                self._turns.drop(key)

    def _give_back(self) -> None:
        if self._held is not None:
            (key, lock), self._held = self._held, None
            lock.release()
            self._turns.drop(key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
