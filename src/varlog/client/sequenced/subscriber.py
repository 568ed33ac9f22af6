"""[R1 Q4] SequencedSubscription: merges all stripes into one order (R-READ-3).

One task per stripe fetches the next chunk while the last one is consumed, forever. The projection maps entries to positions. A
position that does not arrive although later ones were assigned is a hole: the subscription waits for it, then fills it, and skips
junk (R-SEQ-7, R-SEQ-8).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from varlog.client.chunk import Chunk
from varlog.client.merge_rules import CHUNKS_PER_STREAM, Merge, MergedRange, fetch_bytes
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
from varlog.runtime.tasks import Tasks

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
        self._loop: (
            asyncio.AbstractEventLoop
        )  # the loop of the reader; the subscription may be created elsewhere
        self._tasks = Tasks("subscription", self._pump_failed)
        self._news = asyncio.Event()
        self._room: dict[LogStreamID, asyncio.Event] = {}
        self._fetchers: list[SequencedFetcher] = []
        self._failure: BaseException | None = None
        self._reports = DamageReports(units.routing)
        self._given: GLSN = NO_GLSN  # all positions below it were assigned
        self._hole: tuple[GLSN, GLSN, float] = (
            NO_GLSN,
            NO_GLSN,
            0.0,
        )  # its position, the next unassigned position, the time

    async def merged_ranges(self, *, empty: bool = False) -> AsyncGenerator[list[MergedRange], None]:
        """Yields the following ranges, in order, in lists of what has arrived; each range's source is a Chunk. `empty`: also
        yields an empty list if only junk was passed."""
        self._loop = asyncio.get_running_loop()
        merge = await self._start()
        stop_watching = self._routing.watch(lambda: self._follow_view(merge))
        try:
            self._follow_view(merge)
            while not merge.done:
                self._news.clear()
                if taken := merge.pop_ready():
                    for log_stream in {merged.log_stream: None for merged in taken}:
                        self._room[log_stream].set()
                    self.next = merge.next
                    if (entries := without_junk(taken)) or empty:
                        yield entries
                    # Yield to the loop, so that the next chunks arrive: a consumer that never waits would starve the tasks that
                    # feed it.
                    await asyncio.sleep(0)
                    continue
                self._raise_if_over(merge)
                await self._wait_next(merge)
        finally:
            stop_watching()
            await self._tasks.close()

    def expect(self, glsn: GLSN) -> None:
        """Announce that a caller waits for a position at the very end: with nothing after it, it would not be noticed as
        missing."""
        if glsn >= self._given:
            self._given = GLSN(glsn + 1)
            self._news.set()

    async def _start(self) -> Merge:
        tail = await self._routing.tail(self._timeout_s)
        projection = await self._projections.get(Backoff(self._routing.environment, self._timeout_s))
        oldest = GLSN(max(tail.trimmed + 1, projection.first))
        return Merge.starting(self._begin, self._end, oldest)

    def _raise_if_over(self, merge: Merge) -> None:
        if self._failure is not None:
            raise self._failure
        merge.raise_if_trimmed()

    def _follow_view(self, merge: Merge) -> None:
        """Start a task for every stripe in the projection, including stripes that were added later."""
        if self._routing.closed:
            self._fail(Unavailable("the log was closed"))
            return
        try:
            chains = self._projections.now.chains
        except UnknownTopic as gone:
            self._fail(gone)
            return
        except Unavailable:
            return
        for fetcher in self._fetchers:
            fetcher.leave_old()
        for chain in chains:
            if chain.log_stream not in self._room:
                merge.add(chain.log_stream)
                self._room[chain.log_stream] = asyncio.Event()
                self._fetchers.append(
                    fetcher := SequencedFetcher(self._units, chain.log_stream, self._reports)
                )
                _ = self._tasks.spawn(f"pump/ls={chain.log_stream}", self._pump(merge, fetcher))

    # --- Missing positions ------------------------------------------------------------------------------------------------

    async def _wait_next(self, merge: Merge) -> None:
        """Wait until something new has arrived. A position assigned HOLE_WAIT_S ago and not written is repaired."""
        where, given, since = self._hole
        if where != merge.next:
            where, given, since = self._hole = (merge.next, NO_GLSN, self._loop.time())
        if given <= where < self._given:
            given, since = self._given, self._loop.time()
            self._hole = (where, given, since)
        if where < given:
            left_s: float | None = HOLE_WAIT_S - (self._loop.time() - since)
        else:
            left_s = None if self._end is None else ASK_S - (self._loop.time() - since)
        try:
            async with asyncio.timeout(left_s if left_s is None else max(left_s, 0.0)):
                await self._news.wait()
            return
        except TimeoutError:
            pass
        if where < given:
            self._hole = (where, NO_GLSN, self._loop.time())
            await self._repair_hole(where, given)
        else:
            self._hole = (where, NO_GLSN, self._loop.time())
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

    async def _pump(self, merge: Merge, fetcher: SequencedFetcher) -> None:
        log_stream = fetcher.log_stream
        room = self._room[log_stream]
        while not merge.done:
            while merge.sources(log_stream) >= CHUNKS_PER_STREAM:
                room.clear()
                await room.wait()
            backoff = Backoff(self._routing.environment, 2 * WAIT_S)
            try:
                llsn, glsn = await self._cursor(merge, log_stream, backoff)
                caught = await fetcher.fetch(llsn, fetch_bytes(len(self._room)), WAIT_S, backoff)
                if caught is not None and glsn and caught.projection.llsn_from(log_stream, glsn) != llsn:
                    continue  # the first wanted entry differs in the newer projection
                if caught is not None:
                    self._accept(merge, log_stream, llsn, caught)
            except Trimmed:
                await self._learn_trim(merge)
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

    def _accept(self, merge: Merge, log_stream: LogStreamID, llsn: LLSN, caught: Caught) -> None:
        """Pass the response to the merge, and record which positions it proves to be assigned."""
        projection, fetched, chunk = caught
        if chunk is not None:
            rows = list(projection.rows(log_stream, llsn, chunk.end_llsn))
            try:
                merge.offer(log_stream, rows, chunk)
            except ValueError as contradiction:
                _log.error(
                    logfmt("a log unit contradicts the order", log_stream=log_stream, error=contradiction)
                )
                raise Unavailable(str(contradiction)) from contradiction
            _, glsn, count = rows[-1]
            self._given = max(self._given, GLSN(glsn + count))
        if fetched.newest >= fetched.next_llsn:
            glsn, _ = projection.position(log_stream, fetched.newest)
            self._given = max(self._given, GLSN(glsn + 1))
        self._news.set()

    async def _learn_trim(self, merge: Merge) -> None:
        """A stripe's next entry is trimmed, so the topic's next position is too: ask the repository for the trimmed position."""
        try:
            tail = await self._routing.tail(TRY_S)
        except Unavailable:
            return  # the fetch task retries, and then calls this again
        merge.trimmed_up_to(tail.trimmed)
        self._news.set()

    def _pump_failed(self, name: str, error: BaseException) -> None:
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._news.set()


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
