"""Recipe: what every recipe around one replicated machine shares.

A lock and an election are no Recipe: closing them releases first, and `async with lock` acquires (lock/participant.py).
"""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Self, TypeVar

from varlog.model.lsn import GLSN
from varlog.recipes.core.replicated import ReplicatedStateMachine, StateMachine

M = TypeVar("M", bound=StateMachine)


class Recipe(Generic[M]):
    """A replica with the methods of one use. `async with` closes it; the log stays open."""

    def __init__(self, replica: ReplicatedStateMachine[M]) -> None:
        self.replica = replica

    async def checkpoint(self, *, trim: bool = False) -> GLSN:
        """Save a snapshot; with `trim`, also trim what every named reader of the topic is done with."""
        return await self.replica.checkpoint(trim=trim)

    async def close(self) -> None:
        """Close it; the log stays open."""
        await self.replica.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
