"""Replicas of a small machine on a ScriptedLog, in virtual time, and what their tests ask of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tests.recipes.scripted_log import ScriptedLog
from varlog.aio import Opening
from varlog.model.lsn import GLSN
from varlog.recipes.core.envelope import Envelope, Opener
from varlog.recipes.core.replicated import ReplicatedStateMachine
from varlog.testing.sim.core.loop import run_simulated

NAME = "list"


class Sequence:
    """A machine that remembers what it was given; `boom` is a bug in it."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def apply(self, at: GLSN, command: bytes) -> int:
        if command == b"boom":
            raise ZeroDivisionError("by nothing")
        self.taken.append(command)
        return len(self.taken)

    def snapshot(self) -> bytes:
        return b",".join(self.taken)

    def restore(self, snapshot: bytes) -> None:
        self.taken = snapshot.split(b",") if snapshot else []


class MemorySnapshots:
    """Snapshots in memory."""

    def __init__(self) -> None:
        self.saved: dict[str, tuple[GLSN, bytes]] = {}

    async def save(self, name: str, position: GLSN, content: bytes) -> None:
        if name not in self.saved or self.saved[name][0] <= position:
            self.saved[name] = (position, content)

    async def newest(self, name: str) -> tuple[GLSN, bytes] | None:
        return self.saved.get(name)


Replica = ReplicatedStateMachine[Sequence]


def opened(
    log: ScriptedLog,
    snapshots: MemorySnapshots | None = None,
    *,
    name: str = NAME,
    seed: int = 1,
    timeout_s: float = 10.0,
) -> Opening[Replica]:
    return ReplicatedStateMachine.open(
        log.log, Sequence(), name=name, snapshots=snapshots, entropy=random.Random(seed), timeout_s=timeout_s
    )


def in_virtual_time(body: Callable[[ScriptedLog], Coroutine[Any, Any, None]]) -> None:
    async def work() -> None:
        async with asyncio.timeout(1000):
            await body(ScriptedLog())

    run_simulated(work())


def copies(log: ScriptedLog, command: bytes) -> int:
    """How often a command is in the log."""
    found = [Opener(NAME).open(data) for data in log.entries if data is not None]
    return sum(isinstance(envelope, Envelope) and envelope.command == command for envelope in found)


async def expect(error: type[BaseException], work: Awaitable[Any]) -> BaseException:
    with pytest.raises(error) as raised:
        await work
    return raised.value


def now() -> float:
    return asyncio.get_running_loop().time()
