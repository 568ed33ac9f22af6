"""[A2] IdempotentWriter: writes each row once, over any attempts (R-USE-4).

An attempt sends batches 1, 2, 3 … to one log stream, each conditional on the one before it. If another attempt was first, the log
refuses. This attempt then lists the batches in the log, skips its own while they are equal, and from the first difference on (the
same rows in another order) omits the rows that exist and appends the others after the end. So attempts may follow each other, or
run concurrently, anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from varlog.client.committed.range_reader import RangeReader
from varlog.client.committed.reader import Reader
from varlog.client.routing import Routing
from varlog.client.writers.idempotent_rules import (
    IndeterminateInput,
    Mine,
    Recorded,
    Rows,
    TrimmedWrite,
    behind,
    common,
)
from varlog.client.writers.pipelined import PipelinedWriter
from varlog.client.writers.window import PipelinedBatch
from varlog.model.batch import Columns, entries_of, pack
from varlog.model.entry import Position
from varlog.model.errors import SequenceConflict, Trimmed, VarlogError
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.lsn import GLSN, LLSN, NO_LLSN
from varlog.rpc.messages import (
    AppendIdempotent,
    AppendReply,
    ListIdempotentBatches,
    ListIdempotentBatchesReply,
)


class IdempotentWriteResult(NamedTuple):
    """The result of an idempotent write: rows that this attempt sent, rows that it found in the log, and the position of the
    newest of them all (None: there are none, or it is trimmed already)."""

    rows_written: int
    rows_found: int
    last: Position | None


class IdempotentWriter(PipelinedWriter[AppendIdempotent]):
    """One attempt at a sequence of batches. `producer` names the sequence in its log stream, all of which lies above GLSN `after`:
    both are the same for every attempt. For one caller at a time; used from the log's event loop."""

    def __init__(
        self, routing: Routing, log_stream: LogStreamID, producer: ProducerID, after: GLSN, timeout_s: float
    ) -> None:
        super().__init__(routing, log_stream, timeout_s)
        self._producer = producer
        self._after = after
        # The last batch of the sequence that is accounted for: its number, LLSN, checksum and number of rows.
        self._end = Recorded(0, NO_LLSN, 0, 0)
        self._last: Position | None = None
        # Batches after it in the log that are not compared with this attempt's yet. While there are any, the window is empty.
        self._recorded: deque[Recorded] = deque()
        self._others = Rows()
        self._rows_written = 0
        self._rows_found = 0
        self._attempt = _new_attempt(routing)

    async def append(self, entries: Sequence[bytes] | Columns) -> None:
        """Append the sequence's next batch, within the limits of one batch. Returns when there is space for the next one: before
        it is in the log, and perhaps without sending anything, if its rows exist already. Raises OutcomeUnknown or NotAccepted if
        there was no progress for too long; another attempt, from the beginning, continues where this one ended."""
        await self._wait_room()
        outgoing = self._pack(entries, *self._next())
        if self._others:
            kept = self._leave_out(outgoing)
            if kept is None:
                return
            outgoing = kept
        if not self._recorded:
            await self._push(outgoing)
        elif common([_mine(outgoing)], self._recorded):
            self._found()
        else:
            self._window.batches.append(outgoing)
            await self._recover(
                SequenceConflict(self._log_stream, outgoing.header.sequence, self._recorded[-1].sequence)
            )

    async def finish(self) -> IdempotentWriteResult:
        """Wait until everything is in the log, once. Raises IndeterminateInput if the log also has rows that were never appended
        here."""
        await self._settle_all()
        foreign = len(self._others) + sum(recorded.rows for recorded in self._recorded)
        if foreign:
            self._failure = IndeterminateInput(self._log_stream, foreign)
            raise self._failure
        if self._last is None and self._end.llsn:
            self._last = await self._place_of(LLSN(self._end.llsn + self._end.rows - 1))
        return IdempotentWriteResult(self._rows_written, self._rows_found, self._last)

    # --- one batch -----------------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[int, int]:
        """The number of the next batch, and the checksum of the one before it."""
        if self._window.batches:
            newest = self._window.batches[-1].header
            return newest.sequence + 1, newest.body_crc
        return self._end.sequence + 1, self._end.body_crc

    def _pack(
        self, entries: Sequence[bytes] | Columns, sequence: int, previous_crc: int
    ) -> PipelinedBatch[AppendIdempotent]:
        time_us = self._routing.environment.clock.wall_us()
        batch = pack(entries, producer=self._producer, sequence=sequence, time_us=time_us)
        return PipelinedBatch(self._request(previous_crc), batch)

    def _request(self, previous_crc: int) -> AppendIdempotent:
        return AppendIdempotent(
            self._log_stream,
            previous_crc=previous_crc,
            writer_attempt=self._attempt,
            known_sequence=self._end.sequence,
            min_glsn=self._after,
        )

    def _leave_out(
        self, outgoing: PipelinedBatch[AppendIdempotent]
    ) -> PipelinedBatch[AppendIdempotent] | None:
        """The batch without the rows that others wrote, as the next one of the sequence; None: no row is left."""
        rows = entries_of(outgoing.batch, outgoing.header)
        left = self._others.leave_out(rows)
        self._rows_found += len(rows) - len(left)
        return self._pack(left, *self._next()) if left else None

    def _acknowledged(self, outgoing: PipelinedBatch[AppendIdempotent], appended: AppendReply | None) -> None:
        header = outgoing.header
        llsn = appended.llsn if appended is not None else NO_LLSN
        self._end = Recorded(header.sequence, llsn, header.count, header.body_crc)
        self._rows_written += header.count
        self._last = None
        if appended is not None:
            more = header.count - 1
            self._last = Position(GLSN(appended.glsn + more), LLSN(appended.llsn + more), self._log_stream)

    def _found(self) -> None:
        """Record that this attempt's next batch is the one in the log."""
        self._end = self._recorded.popleft()
        self._rows_found += self._end.rows
        self._last = None
        self._progressed()

    # --- a sequence that others extend as well -------------------------------------------------------------------------------

    def _conflicts(self, error: VarlogError) -> bool:
        return isinstance(error, SequenceConflict)

    def _is_final(self, error: VarlogError) -> bool:
        return isinstance(error, TrimmedWrite)

    async def _resolve(self) -> None:
        batches = self._window.batches
        if not self._recorded:
            self._recorded.extend(behind(self._end.sequence, await self._list(), self._log_stream))
        for _ in range(common([_mine(one) for one in batches], self._recorded)):
            batches.popleft()
            self._found()
        self._attempt = _new_attempt(self._routing)
        if not (batches and self._recorded):
            for outgoing in batches:
                outgoing.request = self._request(outgoing.request.previous_crc)
            return
        while self._recorded:
            await self._learn()
        mine = list(batches)
        batches.clear()
        for outgoing in mine:
            kept = self._leave_out(outgoing)
            if kept is not None:
                batches.append(kept)

    async def _learn(self) -> None:
        """Read a batch of another attempt: its rows need not be written any more."""
        recorded = self._recorded[0]
        rows = await self._read(recorded)
        self._others.add(rows)
        self._end = self._recorded.popleft()
        self._last = None
        self._progressed()

    async def _list(self) -> list[Recorded]:
        """The batches of the sequence that are ordered in the log, according to the primary."""
        found: list[Recorded] = []
        floor, more = self._end.llsn, True
        while more:
            stream = await self._window.primary()
            request = ListIdempotentBatches(self._log_stream, self._producer, floor, self._after)
            address, limit_s = self._routing.address_of(stream.primary), self._patiently().remaining_s
            page = await self._routing.ask_once(address, request, ListIdempotentBatchesReply, limit_s)
            found += [Recorded(*batch) for batch in page.batches]
            more = page.more and bool(page.batches)
            floor = found[-1].llsn if found else floor
        return found

    async def _read(self, recorded: Recorded) -> list[bytes]:
        begin, end = recorded.llsn, LLSN(recorded.llsn + recorded.rows)
        limit_s = self._patiently().remaining_s
        reader = RangeReader(self._routing, self._log_stream, begin, end, timeout_s=limit_s)
        rows: list[bytes] = []
        try:
            async for places, chunk in reader.parts():
                for llsn, _, count in places:
                    rows += chunk.columns(llsn, count)[1]
        except Trimmed:
            raise TrimmedWrite(self._log_stream, recorded.sequence, recorded.sequence + 1) from None
        return rows

    async def _place_of(self, llsn: LLSN) -> Position | None:
        try:
            entry = await Reader(self._routing).read_stream(self._log_stream, llsn, self._timeout_s)
        except Trimmed:
            return None
        return entry.position


def _new_attempt(routing: Routing) -> int:
    """A new attempt number: batches that were sent before the log was listed may still arrive, and must not count as this
    attempt's."""
    return routing.environment.entropy.getrandbits(63) | 1


def _mine(outgoing: PipelinedBatch[AppendIdempotent]) -> Mine:
    header = outgoing.header
    return Mine(header.sequence, header.count, header.body_crc)
