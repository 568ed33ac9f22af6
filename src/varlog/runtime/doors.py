"""Doors: the set of doors to the world that a process is handed: clock, chance, disk, threads. One set a world."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from varlog.runtime.clock import Clock, SystemClock
from varlog.runtime.disk import Disk, OsDisk
from varlog.runtime.worker import ThreadWorker, Worker


@dataclass(frozen=True, slots=True)
class Doors:
    """Everything a service may touch besides the network (its transport is handed to it apart)."""

    clock: Clock
    entropy: random.Random
    disk: Disk
    make_worker: Callable[[str], Worker]


def system_doors(*, synced: bool = True) -> Doors:
    """The real world."""
    return Doors(SystemClock(), random.SystemRandom(), OsDisk(synced=synced), ThreadWorker)
