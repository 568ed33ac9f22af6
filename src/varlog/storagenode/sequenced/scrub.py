"""UnitScrub: slowly reads and checks every log unit of a node.

Like the Scrub of replicas: pages that a reader could not read come first, then one pass over all at most every `interval_s`, in
small chunks, at a bounded rate. Damage appears in the unit's status: the unit is left out of the next projection, and rebuilt from
its chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from varlog.model.errors import Trimmed, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.limits import SCRUB_BYTES_PER_S, SCRUB_CHUNK_BYTES, SCRUB_FIRST_PASS_S, SCRUB_INTERVAL_S_MIN
from varlog.model.lsn import LLSN
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.worker import Worker
from varlog.storagenode.sequenced.unit import LogUnit

PAGES_MAX: Final = 1024

_log = get_logger("scrub")


class UnitScrub:
    """`bytes_per_s` 0: no passes; what readers reported is checked all the same."""

    def __init__(
        self, units: Mapping[LogStreamID, LogUnit], worker: Worker, bytes_per_s: int, interval_s: float
    ) -> None:
        self._units = units
        self._worker = worker
        self._passes = bytes_per_s > 0
        self._bytes_per_s = bytes_per_s or SCRUB_BYTES_PER_S
        self._interval_s = max(interval_s, SCRUB_INTERVAL_S_MIN)
        self._suspicion = asyncio.Event()

    def check_soon(self) -> None:
        """A unit has suspicions, or is new here."""
        self._suspicion.set()

    async def run(self) -> None:
        """Runs forever."""
        now = asyncio.get_running_loop().time
        due = now() + min(SCRUB_FIRST_PASS_S, self._interval_s)
        while True:
            await self._check_suspected()
            if self._passes and self._units and now() >= due:
                due = now() + self._interval_s
                await self._pass()
            else:
                await self._wait(due - now())

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.0) if self._passes and self._units else None):
                await self._suspicion.wait()
        except TimeoutError:
            pass

    async def _pass(self) -> None:
        for unit in list(self._units.values()):
            await unit.scrub_metadata()
            await self._check(unit, unit.store.low, LLSN(unit.store.newest + 1), suspected=False)

    async def _check_suspected(self) -> None:
        self._suspicion.clear()
        for unit in list(self._units.values()):
            while (suspected := unit.suspected.pop_first()) is not None:
                await self._check(unit, *suspected, suspected=True)

    async def _check(self, unit: LogUnit, begin: LLSN, end: LLSN, *, suspected: bool) -> None:
        """Check the entries [begin, end), as far as they exist, at the allowed rate."""
        while begin < end and self._units.get(unit.log_stream) is unit:
            store = unit.store
            pages = store.pages_from(begin, PAGES_MAX, end=end, bytes_max=SCRUB_CHUNK_BYTES)
            if not pages:
                return
            begin = pages[-1].end_llsn
            try:
                corrupt = await self._worker.run(partial(store.examine, pages))
            except (Trimmed, Unavailable):
                continue
            except OSError as error:  # a file that cannot be opened now says nothing about its bytes
                _log.warning(logfmt("pages not looked at", log_stream=unit.log_stream, why=error))
                continue
            if not corrupt:
                unit.mark_verified(pages[0].first_llsn, begin)
            for found in corrupt:
                unit.record_damage(found.begin, found.end, found.what)
            await asyncio.sleep(sum(page.size for page in pages) / self._bytes_per_s)
            if not suspected and self._suspicion.is_set():
                await self._check_suspected()
