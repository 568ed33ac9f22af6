"""Environment: the set of doors to the world that a process is handed: clock, chance, disk, threads. One set a world."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from varlog.runtime.clock import Clock, SystemClock
from varlog.runtime.disk import Disk, OsDisk
from varlog.runtime.worker import ThreadWorker, Worker
from varlog.runtime.worker_pool import WorkerPool

# A disk is kept busy by few that write to it, and more of them only wait for each other.
THREADS_A_POOL: Final = 8


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything a service may touch besides the network (its transport is handed to it apart)."""

    clock: Clock
    entropy: random.Random
    disk: Disk
    make_worker: Callable[[str], Worker]
    # Threads that many workers share; None: each has its own.
    make_pool: Callable[[str], WorkerPool] | None = None


def system_environment(*, synced: bool = True) -> Environment:
    """The real world."""
    return Environment(
        SystemClock(),
        random.SystemRandom(),
        OsDisk(synced=synced),
        ThreadWorker,
        lambda name: WorkerPool(name, THREADS_A_POOL),
    )
