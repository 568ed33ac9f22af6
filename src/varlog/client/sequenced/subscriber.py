"""[R1 Q4] SequencedSubscription: merges all stripes into one order (R-READ-3).

The projection maps entries to positions. A position that does not arrive although later ones were assigned is a hole: the
subscription waits for it, then fills it, and skips junk (R-SEQ-7, R-SEQ-8).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from varlog.client.chunk import Chunk
from varlog.client.merge_loop import MergeLoop
from varlog.client.merge_rules import Merge, MergedRange
from varlog.client.node_client import DamageReports
from varlog.client.ordering import check_position
from varlog.client.retry import Backoff
from varlog.client.sequenced.fetcher import Caught, SequencedFetcher
from varlog.client.sequenced.repair import HOLE_WAIT_S, Repair
from varlog.client.sequenced.tokens import TokenClient
from varlog.client.sequenced.units import TRY_S, Units
from varlog.model.errors import Trimmed, Unavailable, UnknownTopic, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN, NO_GLSN
from varlog.runtime.logging import get_logger, logfmt

# How long one fetch waits for new entries.
WAIT_S: Final = 5.0
# How often a subscription with an end asks the sequencer whether the awaited position was assigned.
ASK_S: Final = 1.0
# One try to repair a hole, with a reconfiguration if necessary.
REPAIR_S: Final = 3.0
# A node without capacity for waiting requests answers immediately: then this is the pause between two requests.
EMPTY_S: Final = 0.01

_log = get_logger("client")


class SequencedSubscription:
    """One subscription to a topic from `begin` (None: the oldest entry) up to but without `end` (None: forever)."""

    def __init__(
        self,
        units: Units,
        tokens: TokenClient,
        repair: Repair,
        begin: GLSN | None,
        end: GLSN | None,
        timeout_s: float,
    ) -> None:
        if begin is not None:
            check_position("GLSN", begin)
        if end is not None:
            check_position("GLSN", end)
        self._units = units
        self._routing = units.routing
        self._projections = units.projections
        self._tokens = tokens
        self._repair = repair
        self._begin = begin
        self._end = end
        self.next: GLSN = NO_GLSN
        self._timeout_s = timeout_s
        self._merging = MergeLoop(units.routing)
        self._fetchers: list[SequencedFetcher] = []
        self._reports = DamageReports(units.routing)
        self._given: GLSN = NO_GLSN  # all positions below it were assigned
        # Its position, the next unassigned position, the time.
        self._hole: tuple[GLSN, GLSN, float] = (NO_GLSN, NO_GLSN, 0.0)

    async def merged_ranges(self, *, empty: bool = False) -> AsyncGenerator[list[MergedRange], None]:
        """Yields the following ranges, in order, in lists of what has arrived; each range's source is a Chunk. `empty`: also
        yields an empty list if only junk was passed."""
        merge = await self._start()
        async with aclosing(self._merging.merged_ranges(merge, self._follow_view, self._wait_next)) as merged:
            async for taken in merged:
                self.next = merge.next
                if (entries := without_junk(taken)) or empty:
                    yield entries

    def expect(self, glsn: GLSN) -> None:
        """Announce that a caller waits for a position at the very end: with nothing after it, it would not be noticed as
        missing."""
        if glsn >= self._given:
            self._given = GLSN(glsn + 1)
            self._merging.news.set()

    async def _start(self) -> Merge:
        tail = await self._routing.tail(self._timeout_s)
        projection = await self._projections.get(Backoff(self._routing.environment, self._timeout_s))
        oldest = GLSN(max(tail.trimmed + 1, projection.first))
        return Merge.starting(self._begin, self._end, oldest)

    def _follow_view(self) -> None:
        """Start a task for every stripe in the projection, including stripes that were added later."""
        if self._routing.closed:
            self._merging.fail(Unavailable("the log was closed"))
            return
        try:
            chains = self._projections.now.chains
        except UnknownTopic as gone:
            self._merging.fail(gone)
            return
        except Unavailable:
            return
        for fetcher in self._fetchers:
            fetcher.leave_old()
        for chain in chains:
            if not self._merging.has(chain.log_stream):
                self._fetchers.append(
                    fetcher := SequencedFetcher(self._units, chain.log_stream, self._reports)
                )
                self._merging.add(chain.log_stream, self._pump(fetcher))

    # --- Missing positions ------------------------------------------------------------------------------------------------

    async def _wait_next(self) -> None:
        """Wait until something new has arrived. A position assigned HOLE_WAIT_S ago and not written is repaired."""
        now, wanted = asyncio.get_running_loop().time, self._merging.merge.next
        where, given, since = self._hole
        if where != wanted:
            where, given, since = self._hole = (wanted, NO_GLSN, now())
        if given <= where < self._given:
            given, since = self._given, now()
            self._hole = (where, given, since)
        if where < given:
            left_s: float | None = HOLE_WAIT_S - (now() - since)
        else:
            left_s = None if self._end is None else ASK_S - (now() - since)
        try:
            async with asyncio.timeout(left_s if left_s is None else max(left_s, 0.0)):
                await self._merging.news.wait()
            return
        except TimeoutError:
            pass
        self._hole = (where, NO_GLSN, now())
        if where < given:
            await self._repair_hole(where, given)
        else:
            await self._ask_given()

    async def _repair_hole(self, where: GLSN, given: GLSN) -> None:
        try:
            await self._repair.repair(where, given, Backoff(self._routing.environment, REPAIR_S))
        except Trimmed:
            pass  # its fetch task sees this as well
        except VarlogError as error:
            self._routing.check_open()
            _log.debug(logfmt("hole not repaired yet", position=where, why=error))

    async def _ask_given(self) -> None:
        try:
            given = await self._tokens.next(Backoff(self._routing.environment, TRY_S))
        except Unavailable:
            self._routing.check_open()
            return
        self._given = max(self._given, given)

    # --- One stripe -------------------------------------------------------------------------------------------------------

    async def _pump(self, fetcher: SequencedFetcher) -> None:
        merge, log_stream = self._merging.merge, fetcher.log_stream
        while not merge.done:
            await self._merging.wait_room(log_stream)
            backoff = Backoff(self._routing.environment, 2 * WAIT_S)
            try:
                llsn, glsn = await self._cursor(merge, log_stream, backoff)
                caught = await fetcher.fetch(llsn, self._merging.fetch_bytes, WAIT_S, backoff)
                if caught is not None and glsn and caught.projection.llsn_from(log_stream, glsn) != llsn:
                    continue  # the first wanted entry differs in the newer projection
                if caught is not None:
                    self._accept(log_stream, llsn, caught)
            except Trimmed:
                await self._merging.learn_trim(TRY_S)
                await asyncio.sleep(backoff.pause_s())
                continue
            except Unavailable:
                self._routing.check_open()
                await asyncio.sleep(backoff.pause_s())
                continue
            if caught is not None and caught.chunk is None:
                await asyncio.sleep(EMPTY_S)

    async def _cursor(self, merge: Merge, log_stream: LogStreamID, backoff: Backoff) -> tuple[LLSN, GLSN]:
        """Where to fetch from: after the last received entry, or, before anything was received, at the stripe's first entry at or
        after the subscription's position."""
        llsn, glsn = merge.cursor(log_stream)
        if llsn:
            return llsn, NO_GLSN
        projection = await self._projections.get(backoff)
        return projection.llsn_from(log_stream, glsn), glsn

    def _accept(self, log_stream: LogStreamID, llsn: LLSN, caught: Caught) -> None:
        """Pass the response to the merge, and record which positions it proves to be assigned."""
        projection, fetched, chunk = caught
        if chunk is not None:
            rows = list(projection.rows(log_stream, llsn, chunk.end_llsn))
            self._merging.offer(log_stream, rows, chunk)
            _, glsn, count = rows[-1]
            self._given = max(self._given, GLSN(glsn + count))
        if fetched.newest >= fetched.next_llsn:
            glsn, _ = projection.position(log_stream, fetched.newest)
            self._given = max(self._given, GLSN(glsn + 1))
        self._merging.news.set()


def without_junk(taken: list[MergedRange]) -> list[MergedRange]:
    """The same ranges without the positions that hold junk."""
    kept: list[MergedRange] = []
    for merged in taken:
        chunk = merged.source
        if not isinstance(chunk, Chunk) or not chunk.has_junk:
            kept.append(merged)
            continue
        for llsn, count in chunk.without_junk(merged.llsn, merged.length):
            glsn = GLSN(merged.glsn + llsn - merged.llsn)
            kept.append(merged._replace(glsn=glsn, llsn=llsn, length=count))
    return kept
