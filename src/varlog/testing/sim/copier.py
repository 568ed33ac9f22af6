"""Copier: users that copy a topic into another one at equal positions, several at once, each broken off and begun again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing

from varlog.client.log import Log
from varlog.client.positioned_writer import OtherEntry
from varlog.model.errors import Trimmed, VarlogError
from varlog.testing.history import History

COPY = "copy"

# A user that takes longer over one attempt is killed.
ATTEMPT_S = 3.0
TIMEOUT_S = 2.0
# In a cluster that is well.
LAST_TIMEOUT_S = 20.0


class Copier:
    """The copy of one run. Its topic has one log stream, and begins where its source begins."""

    def __init__(self, first: int, rng: random.Random, history: History, tell: Callable[[str], None]) -> None:
        self._first = first
        self._rng = rng
        self._history = history
        self._tell = tell

    async def work(self, name: str, source: Log, copy: Log, stopping: Callable[[], bool]) -> None:
        while not stopping():
            try:
                async with asyncio.timeout(self._rng.uniform(0.1, ATTEMPT_S)):
                    told = await self._copy(source, copy, TIMEOUT_S)
            except TimeoutError:
                told = "was killed"
            except VarlogError as error:
                told = self._judge(error)
            self._tell(f"{name} copies: {told}")
            await asyncio.sleep(self._rng.uniform(0, 0.5))

    async def finish(self, source: Log, copy: Log) -> None:
        """The cluster is well: what is not copied yet is copied, unless it is trimmed."""
        try:
            self._tell(f"the last copy: {await self._copy(source, copy, LAST_TIMEOUT_S)}")
        except Trimmed as trimmed:
            self._tell(f"the last copy ends early: {trimmed}")
        except VarlogError as error:
            self._history.complaints.append(f"the copy cannot be finished: {self._judge(error)}")

    async def _copy(self, source: Log, copy: Log, timeout_s: float) -> str:
        """From the end of what is there, or from a little before it: what is there is compared then."""
        if len(copy.streams) != 1:
            return "nothing: a second manager made another stream"
        rng, newest = self._rng, await copy.tail()
        begin = max(self._first, newest + 1 - rng.choice((0, 0, 3, 20)))
        end = await source.tail() + 1
        placed = copy.positioned_writer(copy.streams[0].log_stream, timeout_s=timeout_s)
        async with aclosing(source.subscribe_lists(begin, end)) as lists:
            async for entries in lists:
                size = rng.choice((1, 5, 50))
                for at in range(0, len(entries), size):
                    part = entries[at : at + size]
                    llsn = part[0].glsn - self._first + 1
                    await placed.append(llsn, [entry.data for entry in part], part[0].time_us)
        return f"[{begin}, {end}) {await placed.finish()}"

    def _judge(self, error: VarlogError) -> str:
        if isinstance(error, OtherEntry):
            self._history.complaints.append(f"only copies of one source were written: {error}")
        return f"failed: {error}"
