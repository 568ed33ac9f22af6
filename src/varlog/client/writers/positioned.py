"""[A2] PositionedWriter: writes entries to a log stream at given LLSNs.

For copies that keep positions; a copy may be interrupted and restarted. The log accepts a batch only at its position. Entries that
are there already, from an earlier or a concurrent attempt, are read and compared: equal entries need not be written, different ones
are an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from varlog.client.committed.range_reader import RangeReader
from varlog.client.ordering import check_position
from varlog.client.routing import Routing
from varlog.client.writers.pipelined import PipelinedWriter
from varlog.client.writers.window import PipelinedBatch
from varlog.model.batch import Columns, entries_of, pack
from varlog.model.errors import InvalidRequest, PositionConflict, Trimmed, Unavailable, VarlogError
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.lsn import LLSN, NO_LLSN
from varlog.rpc.messages import AppendAt, AppendReply

# How often to wait for conflicting entries, each time for its share of the timeout; the batch is sent again in between.
COMPARE_TRIES: Final = 4


class OtherEntry(VarlogError):
    """A copy found a different entry at a position: the existing entries are not a copy of the same log."""

    def __init__(self, log_stream: LogStreamID, llsn: LLSN) -> None:
        super().__init__(log_stream, llsn)
        self.log_stream = log_stream
        self.llsn = llsn

    def message(self) -> str:
        return (
            f"LLSN {self.llsn} of log stream {self.log_stream} holds another entry than the one that was to be copied there: "
            f"another process writes to this topic, or it is no copy of that one. Copy into a topic of its own"
        )


class PositionedWriteResult(NamedTuple):
    """Entries that were written, entries that existed already, and the first LLSN after them."""

    written: int
    found: int
    end: LLSN


class PositionedWriter(PipelinedWriter[AppendAt]):
    """One attempt at a copy into one log stream. For one caller at a time; used from the log's event loop."""

    def __init__(self, routing: Routing, log_stream: LogStreamID, timeout_s: float) -> None:
        super().__init__(routing, log_stream, timeout_s)
        self._producer = ProducerID(routing.environment.entropy.getrandbits(63) | 1)
        self._sequence = 0
        self._next = NO_LLSN
        self._taken = NO_LLSN
        self._written = 0
        self._found = 0

    async def append(self, at_llsn: LLSN | int, entries: Sequence[bytes] | Columns, time_us: int) -> None:
        """Append entries from `at_llsn` on, which is where the last ones ended. Returns when there is space for the next batch:
        before these are in the log. Raises OtherEntry if a different entry is there."""
        check_position("LLSN", at_llsn)
        if self._next and at_llsn != self._next:
            raise InvalidRequest(f"a copy has no gaps: LLSN {self._next} is next, not {at_llsn}")
        await self._wait_room()
        outgoing = self._pack(LLSN(at_llsn), entries, time_us)
        self._next = LLSN(at_llsn + outgoing.header.count)
        await self._push(outgoing)

    async def finish(self) -> PositionedWriteResult:
        """Wait until everything is in the log, at its position."""
        await self._settle_all()
        return PositionedWriteResult(self._written, self._found, self._next)

    def _pack(self, at: LLSN, entries: Sequence[bytes] | Columns, time_us: int) -> PipelinedBatch[AppendAt]:
        batch = pack(entries, producer=self._producer, sequence=self._sequence + 1, time_us=time_us)
        self._sequence += 1
        return PipelinedBatch(AppendAt(self._log_stream, at), batch)

    def _acknowledged(self, outgoing: PipelinedBatch[AppendAt], appended: AppendReply | None) -> None:
        self._written += outgoing.header.count

    # --- conflicting positions -----------------------------------------------------------------------------------------------

    def _conflicts(self, error: VarlogError) -> bool:
        if isinstance(error, PositionConflict):
            self._taken = error.next
        return isinstance(error, PositionConflict)

    def _is_final(self, error: VarlogError) -> bool:
        return isinstance(error, OtherEntry | Trimmed)

    async def _resolve(self) -> None:
        batches = self._window.batches
        if batches and self._taken < batches[0].request.expected_llsn:
            raise Unavailable(
                f"log stream {self._log_stream} continues at LLSN {self._taken}, and LLSN "
                f"{batches[0].request.expected_llsn} is next here: "
                f"what belongs between is missing"
            )
        while batches and batches[0].request.expected_llsn < self._taken:
            try:
                left = await self._compare(batches[0])
            except Unavailable:
                # The conflicting entries were not ordered, and a seal may have cut them since: the log reports where it continues
                # now.
                return
            batches.popleft()
            if left is not None:
                batches.appendleft(left)
                return
            self._progressed()

    async def _compare(self, outgoing: PipelinedBatch[AppendAt]) -> PipelinedBatch[AppendAt] | None:
        """The rest of a batch after the entries that exist already; None: nothing is left."""
        header, at = outgoing.header, outgoing.request.expected_llsn
        mine = entries_of(outgoing.batch, header)
        end = min(self._taken, LLSN(at + header.count))
        limit_s = min(self._patiently().remaining_s, self._timeout_s / COMPARE_TRIES)
        reader = RangeReader(self._routing, self._log_stream, at, end, timeout_s=limit_s)
        llsn = at
        async for places, chunk in reader.parts():
            for begin, _, count in places:
                for theirs in chunk.columns(begin, count)[1]:
                    if theirs != mine[llsn - at]:
                        raise OtherEntry(self._log_stream, llsn)
                    llsn = LLSN(llsn + 1)
        self._found += end - at
        left = mine[end - at :]
        return self._pack(end, left, header.time_us) if left else None
