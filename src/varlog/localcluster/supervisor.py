"""Supervisor: starts, restarts and stops the processes of a local cluster."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from varlog.localcluster.plan import OURS, ClusterPlan
from varlog.localcluster.process import ServerProcess
from varlog.localcluster.wait import wait_until
from varlog.model.errors import StartupError
from varlog.runtime.disk import FileLock, OsDisk, make_ours_private

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.05
BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 5.0
# A process that ran for this long started well: the backoff begins again at its minimum.
STABLE_S = 10.0


def say_nothing(what: str) -> None:
    """Discard the message."""


@dataclass
class _Supervised:
    """One process and its restarts."""

    process: ServerProcess
    supervised: bool = True
    started_at: float = 0.0
    backoff_s: float = BACKOFF_S_MIN
    restart_at: float | None = None
    announced: bool = True
    restarts: int = field(default=0)


class Supervisor:
    """One cluster. `say` is called with a sentence when a process ends or is back."""

    def __init__(self, plan: ClusterPlan, *, say: Callable[[str], None] = say_nothing) -> None:
        self.plan = plan
        self._say = say
        self._stages = [[_Supervised(process) for process in stage] for stage in plan.stages()]
        self._cares = {care.process.name: care for stage in self._stages for care in stage}
        self._lock: FileLock | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return self.plan.repository

    def pids(self) -> dict[str, int]:
        """Process ids by name, of those that run."""
        return {name: care.process.pid for name, care in self._cares.items() if care.process.ended() is None}

    def restarts(self) -> dict[str, int]:
        return {name: care.restarts for name, care in self._cares.items()}

    async def start(self) -> None:
        """Start all processes and wait until each is ready; if one cannot start, none is left running."""
        self._lock_directory()
        try:
            self.plan.check_ports()
            for care in self._cares.values():
                self._start(care)
            await self._wait_ready(list(self._cares.values()))
        except BaseException:
            await self.stop()
            raise
        self._watch = asyncio.get_running_loop().create_task(self._supervise(), name="supervise")

    async def stop(self) -> None:
        """Stop the manager first, so that it does not repair what is being stopped; the repository after the nodes, which still
        report to it; and its store last."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            self._watch = None
        cares = list(self._cares.values())
        try:
            for stage in reversed(self._stages):
                await self._end(stage)
        finally:
            for care in cares:
                care.process.close()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def kill(self, name: str, *, restart: bool = True) -> None:
        """kill -9. With `restart` the supervisor restarts it, as after a crash."""
        care = self._cares[name]
        care.supervised = restart
        care.process.signal(signal.SIGKILL)
        care.process.wait(STOP_TIMEOUT_S)

    def signal(self, name: str, number: signal.Signals) -> None:
        self._cares[name].process.signal(number)

    async def restart(self, name: str) -> None:
        """Start a process that was killed without restart, and wait until it is ready."""
        care = self._cares[name]
        self._start(care)
        care.supervised = True
        await self._wait_ready([care])

    async def wait_restarted(self, name: str, times: int = 1) -> None:
        """Wait until the supervisor has restarted it `times` times and it is ready."""
        care = self._cares[name]
        async with asyncio.timeout(READY_TIMEOUT_S):
            await wait_until(lambda: care.restarts >= times and bool(care.process.address()))

    # --- internals --------------------------------------------------------------------------------------------------

    def _lock_directory(self) -> None:
        data = self.plan.data
        try:
            disk = OsDisk()
            disk.make_directory(data)
            self._lock = disk.lock(data / "up.lock")
            self.plan.prepare()
            make_ours_private(disk, data, OURS)
        except BlockingIOError:
            raise StartupError(
                f"{data} is in use by another `varlog up`: stop that one, or choose another --data"
            ) from None
        except OSError as error:
            raise StartupError(f"{data} cannot be used for data: {error}. Choose another --data") from None

    def _start(self, care: _Supervised) -> None:
        care.process.start()
        care.started_at = asyncio.get_running_loop().time()
        care.restart_at = None

    async def _wait_ready(self, cares: Sequence[_Supervised]) -> None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                for care in cares:
                    while not care.process.address():
                        if (code := care.process.ended()) is not None:
                            raise StartupError(
                                f"{care.process.name} does not start: {_death(care.process, code)}"
                            )
                        await asyncio.sleep(0.01)
        except TimeoutError:
            raise StartupError(
                f"the cluster is not ready after {READY_TIMEOUT_S:g} s: see {self.plan.data / 'logs'}"
            ) from None

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POLL_S)
            for care in [care for care in self._cares.values() if care.supervised]:
                self._check_process(care, loop.time())

    def _check_process(self, care: _Supervised, now: float) -> None:
        process = care.process
        code = process.ended()
        if code is None:
            if not care.announced and process.address():
                care.announced = True
                self._say(f"{process.name} is back")
            return
        if care.restart_at is None:
            if now - care.started_at > STABLE_S:
                care.backoff_s = BACKOFF_S_MIN
            self._say(f"{process.name} {_death(process, code)}; restarting it in {care.backoff_s:.1f} s")
            care.restart_at = now + care.backoff_s
            care.backoff_s = min(2 * care.backoff_s, BACKOFF_S_MAX)
        elif now >= care.restart_at:
            self._start(care)
            care.restarts += 1
            care.announced = False

    async def _end(self, cares: Sequence[_Supervised]) -> None:
        for care in cares:
            care.process.signal(signal.SIGCONT)
            care.process.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await wait_until(lambda: all(care.process.ended() is not None for care in cares))
        except TimeoutError:
            for care in [care for care in cares if care.process.ended() is None]:
                self._say(f"{care.process.name} did not stop within {STOP_TIMEOUT_S:g} s and is killed")
                care.process.close()


def _death(process: ServerProcess, code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    words = process.last_words()
    return f"ended with exit code {code}" + (f" ({words})" if words else "")
