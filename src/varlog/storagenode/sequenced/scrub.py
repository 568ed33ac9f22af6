"""UnitScrub: slowly reads and checks every log unit of a node.

Its `loop` decides when: in small chunks, at a bounded rate, like the Scrub of replicas. Damage appears in the unit's status: the
unit is left out of the next projection, and rebuilt from its chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from varlog.model.errors import Trimmed, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.limits import SCRUB_CHUNK_BYTES
from varlog.model.lsn import LLSN
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.worker import Worker
from varlog.storagenode.scrub_loop import ScrubLoop
from varlog.storagenode.sequenced.unit import LogUnit

PAGES_MAX: Final = 1024

_log = get_logger("scrub")


class UnitScrub:
    """The passes over all log units, and the checks of what readers reported. A node without units has nothing to wake up for:
    `loop.check_soon` also says that there is a new one."""

    def __init__(
        self, units: Mapping[LogStreamID, LogUnit], worker: Worker, bytes_per_s: int, interval_s: float
    ) -> None:
        self._units = units
        self._worker = worker
        self.loop = ScrubLoop(
            units, self._pass, self._check, bytes_per_s, interval_s, has_work=lambda: bool(units)
        )

    async def _pass(self) -> None:
        for unit in list(self._units.values()):
            await unit.scrub_metadata()
            await self._check(unit, unit.store.low, LLSN(unit.store.newest + 1))

    async def _check(self, unit: LogUnit, begin: LLSN, end: LLSN) -> None:
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
            await self.loop.pace(sum(page.size for page in pages))
