"""Host: a simulated machine: its drive, its process, its workers, its store."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from varlog.metarepo.store.base import OpenedStore, StoreChange
from varlog.metarepo.store.memory import MemoryMetadata
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.errors import VarlogError
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.runtime.worker import Settle, settle
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.drive import Drive, Folder
from varlog.testing.sim.core.loop import Process, ProcessCrashed
from varlog.testing.sim.core.network import SimNetwork

VOLUME = Path("/data")
# Longer than any clean stop may take.
STOP_S = 30.0


# No job of a disk, however slow it is, takes longer: what began under faults must end soon after them.
JOB_S_MAX = 3.0


class SimService(Protocol):
    """What runs on a host."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@runtime_checkable
class Failing(Protocol):
    """A service that ends its process when it cannot continue."""

    async def wait_failed(self) -> BaseException: ...


@dataclass(slots=True)
class SimClock:
    """The time of day on one host: that of the loop, a little off, and anything after a jump. Its steady clock counts from some
    moment of its own, drifts, and stops or jumps where a fault makes it; its monotonic clock only drifts."""

    skew_us: int
    rate: float = 1.0  # of its steady clock, against true time
    steady_from_us: int = 0
    stands_at_us: int | None = None  # where its steady clock stopped

    def wall_us(self) -> int:
        return 1_700_000_000_000_000 + self.skew_us + int(asyncio.get_running_loop().time() * 1e6)

    def freeze(self) -> None:
        """The steady clock shows one and the same time from now on."""
        if self.stands_at_us is None:
            self.stands_at_us = self.steady_us()

    def unfreeze(self) -> None:
        """… and continues from there: what passed meanwhile is lost to it."""
        stood_at, self.stands_at_us = self.stands_at_us, None
        if stood_at is not None:
            self.steady_from_us += stood_at - self.steady_us()

    def monotonic_us(self) -> int:
        """The other clock that never goes back: it neither stops nor jumps."""
        return int(asyncio.get_running_loop().time() * 1e6 * self.rate)

    def steady_us(self) -> int:
        if self.stands_at_us is not None:
            return self.stands_at_us
        return self.steady_from_us + int(asyncio.get_running_loop().time() * 1e6 * self.rate)


class Host:
    """One machine. `make` builds its service for a new process."""

    def __init__(
        self,
        name: str,
        seed: str,
        network: SimNetwork,
        make: Callable[[Environment, Transport], SimService],
        trace: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self.name = name
        self.drive = Drive()
        self.process: Process | None = None
        self.disk: SimDisk | None = None
        self.service: SimService | None = None
        self.on_crash: Callable[[Host], None] = lambda host: None
        # Its process refused to start; True: that was to be expected, and is said.
        self.on_refusal: Callable[[Host, Exception], bool] = lambda host, error: False
        self.on_start: Callable[[Host], None] = lambda host: None
        self.excused = (
            False  # its disk fails on purpose: a process that cannot start over it ends, and is started again
        )
        self.delay: Delay = worker_delay
        self.slowness = 1.0  # its disk takes this many times as long
        self._seed = seed
        self._rng = random.Random(f"{seed}/{name}")
        self.clock = SimClock(self._rng.randint(-50_000, 50_000))
        self._network = network
        self._make = make
        self._trace = trace
        self._complain = complain
        self._incarnation = 0
        self._ready = False
        self._stopping = False

    @property
    def started(self) -> bool:
        return self._incarnation > 0

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    def environment(self, process: Process) -> Environment:
        """The environment of a new process on this host."""
        rng = random.Random(f"{self._seed}/{process.name}")
        disk = self.disk = SimDisk(self.drive, process, rng, self.crash)
        return Environment(self.clock, rng, disk, lambda _: SimWorker(process, rng, self._delay_s))

    def _delay_s(self, rng: random.Random) -> float:
        return min(self.delay(rng) * self.slowness, JOB_S_MAX)

    def boot(self) -> None:
        """Start a new process."""
        self._incarnation += 1
        process = self.process = Process(self.name, self._incarnation)
        self._stopping = self._ready = False
        self._trace(f"{process.name} starts")
        environment, transport = self.environment(process), self._network.transport(process)
        # A service is made in its own process: what it starts there is its own.
        self.service = process.context.run(self._make, environment, transport)
        _ = process.spawn("main", self._main(process, self.service))

    async def _main(self, process: Process, service: SimService) -> None:
        # What a disk refused may be noticed only after the faults have stopped.
        began_excused = self.excused
        try:
            await service.start()
        except (VarlogError, OSError) as error:
            self._trace(f"{process.name} did not start: {error!r}")
            if not self.on_refusal(self, error) and not (began_excused or self.excused):
                self._complain(f"{process.name} did not start: {error!r}")
            self.crash()
        else:
            self._ready = True
            self.on_start(self)
            self._trace(f"{process.name} has started")
            if isinstance(service, Failing):
                failure = await service.wait_failed()
                self._trace(f"{process.name} ends: {failure!r}")
                self.crash()  # as the process does in production

    def crash(self) -> None:
        """Kill the process here and now, in whatever it does; the drive loses what was not synced."""
        if not self.up or self.process is None:
            return
        self.process.die()
        fate = self.drive.crash(self._rng)
        self._trace(f"{self.process.name} crashes (unsynced writes: {fate})")
        self.on_crash(self)

    def replica_paths(self, prefix: str = "lsid=") -> list[Path]:
        """The directories of all replicas on this host's drive."""
        found: list[Path] = []

        def search(path: Path, folder: Folder) -> None:
            for name in sorted(folder.entries):
                node = folder.entries[name]
                if isinstance(node, Folder):
                    if name.startswith(prefix):
                        found.append(path / name)
                    else:
                        search(path / name, node)

        search(Path("/"), self.drive.root)
        return found

    def wipe(self, path: Path) -> None:
        """Delete everything below `path` forever, as an operator or a new disk does. Nothing may run here."""
        folder = self.drive.folder(path)
        for names in (folder.entries, folder.durable, folder.changes):
            names.clear()

    async def stop(self) -> None:
        """End the process cleanly, then cut the power: a clean stop leaves nothing to lose."""
        process, service = self.process, self.service
        if process is None or service is None or not process.alive or self._stopping:
            return
        if not self._ready:
            self.crash()  # asked to end before it has begun: it just goes
            return
        self._stopping = True
        self._trace(f"{process.name} stops")
        stopping = process.spawn("stop", service.stop())
        done, _ = await asyncio.wait([stopping], timeout=STOP_S)
        if self.process is not process or not self.up:
            return  # it crashed on the way out
        if not done:
            self._complain(f"{process.name} did not stop within {STOP_S} s")
        elif not stopping.cancelled() and (error := stopping.exception()) is not None:
            self._complain(f"{process.name} failed to stop: {error!r}")
        self.crash()


# SimWorker: jobs in order, each after a delay and answered after another. A job happens at one moment.

T = TypeVar("T")

# The share of inline jobs that run in the loop.
AT_ONCE_SHARE = 0.4

Delay = Callable[[random.Random], float]


def worker_delay(rng: random.Random) -> float:
    """Mostly a fraction of a millisecond; now and then a disk that hangs for a while."""
    return rng.uniform(0.0001, 0.001) if rng.random() < 0.97 else rng.uniform(0.005, 0.15)


def hanging_delay(rng: random.Random) -> float:
    """A disk that hangs every other time: something is always on its way to it."""
    return rng.uniform(0.0001, 0.001) if rng.random() < 0.6 else rng.uniform(0.005, 0.1)


class SimWorker:
    """Stands in for a thread of one process. Between a job and its answer there is time in which the process can crash,
    or in which the next job runs: as with a thread, the loop learns of a job later than it happened, but in order."""

    def __init__(self, process: Process, rng: random.Random, delay: Delay = worker_delay) -> None:
        self._process = process
        self._rng = rng
        self._delay = delay
        self._jobs: deque[tuple[Callable[[], Any], Settle]] = deque()
        self._answers: deque[tuple[Settle, Any, BaseException | None]] = deque()
        self._busy = False
        self._answered_at = 0.0
        self._idle: list[asyncio.Future[None]] = []

    @property
    def can_run_inline(self) -> bool:
        """At random, where nothing is in flight: a real one allows it while its disk is fast."""
        return not self._busy and not self._answers and self._rng.random() < AT_ONCE_SHARE

    def call(self, job: Callable[[], Any], done: Settle, *, inline: bool = False) -> None:
        self._process.check()
        if inline and self.can_run_inline:
            self._run_inline(job, done)
            return
        self._jobs.append((job, done))
        if not self._busy:
            self._busy = True
            loop = asyncio.get_running_loop()
            loop.call_later(self._delay(self._rng), self._work, context=self._process.context)

    def run(self, job: Callable[[], T], *, inline: bool = False) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.call(job, partial(settle, done), inline=inline)
        return done

    def _run_inline(self, job: Callable[[], Any], done: Settle) -> None:
        error: BaseException | None = None
        result: Any = None
        try:
            result = job()
        except ProcessCrashed:
            raise  # the process died in the middle of its job, and its caller with it
        except BaseException as failure:  # noqa: BLE001 - the waiter decides what it means
            error = failure
        done(result, error)

    def _work(self) -> None:
        job, done = self._jobs.popleft()
        error: BaseException | None = None
        result: Any = None
        try:
            result = job()
        except ProcessCrashed:
            return  # the process died in the middle of its job: no one is notified
        except BaseException as failure:  # noqa: BLE001 - the waiter decides what it means
            error = failure
        loop = asyncio.get_running_loop()
        self._answers.append((done, result, error))
        self._answered_at = max(self._answered_at, loop.time() + self._delay(self._rng))
        loop.call_at(self._answered_at, self._answer, context=self._process.context)
        self._busy = bool(self._jobs)
        if self._busy:
            loop.call_later(self._delay(self._rng), self._work, context=self._process.context)

    def _answer(self) -> None:
        done, result, error = self._answers.popleft()
        try:
            done(result, error)
        finally:
            if not self._busy and not self._answers:
                waiting, self._idle = self._idle, []
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_result(None)

    async def close(self) -> None:
        """Wait for the jobs in flight."""
        if self._busy or self._answers:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter


# DriveStore: the only repository's store, over the drive of its host.

# Beside it, as in production: metadata.db.journal and metadata.db.lock.
METADATA_PATH: Final = VOLUME / "metadata.db"


class DriveStore(SqliteStore):
    """A SqliteStore on a simulated disk. The hooks of `moments` are awaited right before and right behind each commit."""

    def __init__(self, moments: MemoryMetadata, environment: Environment, path: Path = METADATA_PATH) -> None:
        super().__init__(path, environment)
        self._moments = moments

    async def open(self, address: str = "") -> OpenedStore:
        await self._moments.before_commit()
        opened = await super().open(address)
        await self._moments.after_commit()
        return opened

    async def commit(self, changes: Sequence[StoreChange]) -> None:
        await self._moments.before_commit()
        await super().commit(changes)
        await self._moments.after_commit()
