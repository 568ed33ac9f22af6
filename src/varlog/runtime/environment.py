"""Environment: clock, randomness, disk and threads of one process."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from varlog.model.lease import Instant
from varlog.runtime.disk import Disk, OsDisk
from varlog.runtime.worker import ThreadWorker, Worker
from varlog.runtime.worker_pool import WorkerPool

# A few writers keep a disk busy; more of them only wait for each other.
THREADS_A_POOL: Final = 8


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything a service may use besides the network (its transport is passed separately)."""

    clock: Clock
    entropy: random.Random
    disk: Disk
    make_worker: Callable[[str], Worker]
    # Threads that many workers share; None: each has its own.
    make_pool: Callable[[str], WorkerPool] | None = None


def system_environment(*, synced: bool = True) -> Environment:
    """Those of this machine."""
    return Environment(
        SystemClock(),
        random.SystemRandom(),
        OsDisk(synced=synced),
        ThreadWorker,
        lambda name: WorkerPool(name, THREADS_A_POOL),
    )


# Unlike the monotonic clock of Linux this one counts while the machine is suspended: others did not sleep.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time, for stamps and display only, and two clocks that never go back, for leases alone. Waiting uses the event
    loop's own time, which a simulator replaces."""

    def wall_us(self) -> int:
        """Microseconds since 1970 UTC."""
        ...

    def steady_us(self) -> int:
        """Microseconds since some moment. Never goes back, counts also while the machine sleeps, and runs at most
        `CLOCK_DRIFT_MAX` faster or slower than true time: that much a lease relies on."""
        ...

    def monotonic_us(self) -> int:
        """As `steady_us`, by another clock, which need not count while the machine sleeps: a lease is over for its
        holder as soon as one of them says so."""
        ...


def instant_of(clock: Clock) -> Instant:
    return Instant(clock.steady_us(), clock.monotonic_us())


class SystemClock:
    """The machine's clock."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def steady_us(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1000

    def monotonic_us(self) -> int:
        # Not the event loop's time, which is frozen while a callback runs, also while the process is paused in one.
        return time.monotonic_ns() // 1000


# The type of randomness, for code that gets it passed in and may not create its own.
Entropy = random.Random
