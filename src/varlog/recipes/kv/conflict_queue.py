"""ConflictQueue: transactions that clash over a key are retried one after another.

In one process, in the order in which they clashed: all at once they would clash again, all but one of them, round after round. No
transaction has more than one turn at a time, so there is no deadlock. It is no lock: the log decides which transaction commits.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

TURN_S = 1.0


class ConflictQueue:
    """The turns of all keys over which transactions clashed that are not done yet."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def lock(self, key: str) -> asyncio.Lock:
        """The key's lock, kept until `drop`."""
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
    """The turn of one transaction: `async with` releases it at the end."""

    def __init__(self, turns: ConflictQueue) -> None:
        self._turns = turns
        self._held: tuple[str, asyncio.Lock] | None = None

    async def wait_for(self, key: str) -> None:
        """Release the last turn, and wait for that of another key, but not for long; a turn for the same key is kept."""
        if self._held is not None and self._held[0] == key:
            return
        self._release()
        lock = self._turns.lock(key)
        try:
            async with asyncio.timeout(TURN_S):
                await lock.acquire()
            self._held = key, lock
        except TimeoutError:
            pass  # its owner is busy; out of turn is slower, and as correct
        finally:
            if self._held is None:
                self._turns.drop(key)

    def _release(self) -> None:
        if self._held is not None:
            (key, lock), self._held = self._held, None
            lock.release()
            self._turns.drop(key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
