"""ScrubLoop: when a scrub checks what, and how fast.

What readers reported is checked first. One pass over everything at most every `interval_s`; between passes it sleeps. How the bytes
of one replica or log unit are checked is known to the scrub of each ordering.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, Protocol, TypeVar

from varlog.model.ids import LogStreamID
from varlog.model.limits import SCRUB_BYTES_PER_S, SCRUB_FIRST_PASS_S, SCRUB_INTERVAL_S_MIN
from varlog.model.lsn import LLSN
from varlog.storagenode.ranges import Ranges


class HasSuspected(Protocol):
    """A replica or a log unit, with the entries that readers reported."""

    @property
    def suspected(self) -> Ranges: ...


O = TypeVar("O", bound=HasSuspected)  # noqa: E741 - the owner of entries


class ScrubLoop(Generic[O]):
    """`bytes_per_s` 0: no passes; what readers reported is checked all the same. `check(owner, begin, end)` calls `pace` after each
    chunk. `has_work`: without it no pass is due, until `check_soon`."""

    def __init__(
        self,
        owners: Mapping[LogStreamID, O],
        run_pass: Callable[[], Awaitable[None]],
        check: Callable[[O, LLSN, LLSN], Awaitable[None]],
        bytes_per_s: int,
        interval_s: float,
        has_work: Callable[[], bool] = lambda: True,
    ) -> None:
        self._owners = owners
        self._run_pass = run_pass
        self._check = check
        self._passes = bytes_per_s > 0
        self._bytes_per_s = bytes_per_s or SCRUB_BYTES_PER_S
        self._interval_s = max(interval_s, SCRUB_INTERVAL_S_MIN)
        self._has_work = has_work
        self._suspicion = asyncio.Event()
        self._checking_suspected = False

    def check_soon(self) -> None:
        """Something is suspected, or there is work for the first time."""
        self._suspicion.set()

    async def run(self) -> None:
        """Runs forever."""
        now = asyncio.get_running_loop().time
        due = now() + min(SCRUB_FIRST_PASS_S, self._interval_s)
        while True:
            await self._check_suspected()
            if self._passes and self._has_work() and now() >= due:
                due = now() + self._interval_s
                await self._run_pass()
            else:
                await self._wait(due - now())

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.0) if self._passes and self._has_work() else None):
                await self._suspicion.wait()
        except TimeoutError:
            pass

    async def pace(self, size: int) -> None:
        """After a chunk of `size` bytes: keep the allowed rate, and let what is suspected come first."""
        await asyncio.sleep(size / self._bytes_per_s)
        if not self._checking_suspected and self._suspicion.is_set():
            await self._check_suspected()

    async def _check_suspected(self) -> None:
        self._suspicion.clear()
        self._checking_suspected = True
        try:
            for owner in list(self._owners.values()):
                while (suspected := owner.suspected.pop_first()) is not None:
                    await self._check(owner, *suspected)
        finally:
            self._checking_suspected = False
