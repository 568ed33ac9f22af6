"""[A4] IdempotentAppends: appends on conditions about the log.

A condition is checked at the moment at which its batch would get its LLSN: what is queued before it counts, and what is refused
leaves no trace. If memory does not know a producer's newest batch, the headers on disk are searched, back to where its sequence can
have begun; batches of the same producer that arrive meanwhile wait behind the first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from varlog.model.errors import (
    CorruptBatch,
    NotAccepted,
    NotPrimary,
    PositionConflict,
    SequenceConflict,
    Unavailable,
    VarlogError,
)
from varlog.model.ids import ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import (
    AppendAt,
    AppendIdempotent,
    AppendReply,
    ListIdempotentBatches,
    ListIdempotentBatchesReply,
)
from varlog.rpc.transport import Call
from varlog.runtime.worker import Worker
from varlog.storage.committed.headers import BatchPlace, HeaderRange
from varlog.storage.committed.log_store import LogStore
from varlog.storagenode.committed.ack_queue import AckQueue
from varlog.storagenode.committed.admission_queue import PendingAppend
from varlog.storagenode.committed.batch_lookup import BatchLookup, ReportCorruption
from varlog.storagenode.committed.idempotent_rules import (
    ProducedBatch,
    ProducerSequences,
    Sent,
    SequenceDecision,
    decide,
    find_batch,
)
from varlog.storagenode.committed.replica_machine import ReplicaMachine

# Batches of one producer that wait while its newest one is searched for. A client's window is far smaller.
SEARCH_WAITING_MAX: Final = 1_024
# Batches in one reply of a list.
PAGE_BATCHES: Final = 10_000
_NO_BOUND: Final = 2**63


@dataclass(slots=True)
class _SequenceSearch:
    """A producer whose newest batch is searched for, and the appends that wait for it, in the order in which they arrived."""

    resets: int
    pending_appends: list[PendingAppend] = field(default_factory=list)


class IdempotentAppends:
    """The conditional appends of one replica. `resume` puts appends back to the front of the admission queue."""

    def __init__(
        self,
        store: LogStore,
        machine: ReplicaMachine,
        acks: AckQueue,
        producers: ProducerSequences,
        lookup: BatchLookup[ProducerID, BatchPlace],
        resume: Callable[[Sequence[PendingAppend]], None],
    ) -> None:
        self._store = store
        self._machine = machine
        self._acks = acks
        self._producers = producers
        self._lookup = lookup
        self._resume = resume
        self._searches: dict[ProducerID, _SequenceSearch] = {}

    def admits(self, pending_append: PendingAppend, request: AppendIdempotent | AppendAt) -> bool:
        """Whether the batch may be appended now. If not, it was answered or will be; raises the reason for a refusal."""
        machine = self._machine
        if not machine.primary:
            raise NotPrimary(machine.log_stream)
        if isinstance(request, AppendIdempotent):
            return self._extends(pending_append, request)
        if request.expected_llsn != machine.assigned_end:
            raise PositionConflict(machine.log_stream, request.expected_llsn, machine.assigned_end)
        return True

    def refuse(self, error: VarlogError) -> None:
        """The replica accepts nothing any more."""
        searches, self._searches = self._searches, {}
        for search in searches.values():
            for pending_append in search.pending_appends:
                pending_append.call.fail(error)

    def _extends(self, pending_append: PendingAppend, request: AppendIdempotent) -> bool:
        header = pending_append.header
        if header.producer in self._searches:
            self._wait_for_search(pending_append)
            return False
        floor = self._floor(request)
        known, newest = self._producers.newest(header.producer, floor)
        if not known:
            self._search(pending_append, floor)
            return False
        sent = Sent(
            header.sequence,
            header.body_crc,
            request.previous_crc,
            request.writer_attempt,
            request.known_sequence,
        )
        decision = decide(newest, sent)
        if decision is SequenceDecision.ACCEPT:
            return True
        self._answer_duplicate(pending_append, newest, decision)
        return False

    def _answer_duplicate(
        self, pending_append: PendingAppend, newest: ProducedBatch | None, decision: SequenceDecision
    ) -> None:
        """The batch is in the log already, or in flight; else SequenceConflict."""
        header, producers = pending_append.header, self._producers
        batch = newest if decision is SequenceDecision.DUPLICATE else None
        if newest is not None and not producers.is_committed(newest):
            batch = find_batch(producers.pending(header.producer), header.sequence, header.body_crc)
        if batch is None:
            last = newest.sequence if newest is not None else 0
            raise SequenceConflict(self._machine.log_stream, header.sequence, last)
        if producers.is_committed(batch):
            pending_append.call.reply(AppendReply(self._store.glsn_of(batch.llsn), batch.llsn))
        else:
            self._acks.join((header.producer, header.sequence), pending_append.call)

    def _floor(self, request: AppendIdempotent) -> LLSN:
        """The producer's batches are above this LLSN."""
        store = self._store
        if request.min_glsn < store.trim_floor:
            return LLSN(0)  # some of them may be trimmed
        return LLSN(store.llsn_from(GLSN(request.min_glsn + 1)) - 1)

    # --- a producer whose newest batch is not in memory --------------------------------------------------------------------

    def _search(self, pending_append: PendingAppend, floor: LLSN) -> None:
        producers, producer = self._producers, pending_append.header.producer
        search = self._searches[producer] = _SequenceSearch(producers.resets, [pending_append])
        self._lookup.find(
            producer, floor, producers.known_from, partial(self._found, producer, floor, search)
        )

    def _wait_for_search(self, pending_append: PendingAppend) -> None:
        pending_appends = self._searches[pending_append.header.producer].pending_appends
        if len(pending_appends) >= SEARCH_WAITING_MAX:
            raise NotAccepted(
                f"the newest batch of its producer is being searched for, and {len(pending_appends)} batches wait already"
            )
        pending_appends.append(pending_append)

    def _found(
        self,
        producer: ProducerID,
        floor: LLSN,
        search: _SequenceSearch,
        place: BatchPlace | VarlogError | None,
    ) -> None:
        if self._searches.get(producer) is not search:
            return  # sealed meanwhile, and answered
        del self._searches[producer]
        if isinstance(place, VarlogError) or search.resets != self._producers.resets:
            why = place if isinstance(place, VarlogError) else "the replica forgot more of it meanwhile"
            unknown = Unavailable(f"the newest batch of this producer is not known here: {why}")
            for pending_append in search.pending_appends:
                pending_append.call.fail(unknown)
            return
        batch = None if place is None else ProducedBatch(producer, place.sequence, place.llsn, place.body_crc)
        self._producers.searched(producer, floor, batch)
        self._resume(search.pending_appends)


def newest_batch_lookup(
    store: LogStore, worker: Worker, on_corruption: ReportCorruption
) -> BatchLookup[ProducerID, BatchPlace]:
    """Finds the newest batch of a producer on disk, as far back as its sequence can begin."""

    def search(header_range: HeaderRange, wanted: dict[ProducerID, None]) -> dict[ProducerID, BatchPlace]:
        return {place.producer: place for place in store.batches_of(header_range, wanted)}

    return BatchLookup(store, worker, on_corruption, search, bytes_max=_NO_BOUND)


class IdempotentBatchList:
    """Lists which batches of a producer are ordered in one replica, from the headers on disk, page by page (R-USE-4)."""

    def __init__(self, store: LogStore, worker: Worker, on_corruption: Callable[[LLSN, LLSN], None]) -> None:
        self._store = store
        self._worker = worker
        self._on_corruption = on_corruption

    def list(self, call: Call, request: ListIdempotentBatches) -> None:
        """Answer later, with the first page above `request.min_llsn`."""
        _Listing(self._store, self._worker, self._on_corruption, call, request).step()


class _Listing:
    """One page, read range by range, so that readers of the same disk are not blocked."""

    def __init__(
        self,
        store: LogStore,
        worker: Worker,
        on_corruption: Callable[[LLSN, LLSN], None],
        call: Call,
        request: ListIdempotentBatches,
    ) -> None:
        self._store = store
        self._worker = worker
        self._on_corruption = on_corruption
        self._call = call
        self._producer = request.producer
        self._begin = begin = max(LLSN(request.min_llsn + 1), store.llsn_from(GLSN(request.min_glsn + 1)))
        self._ranges: deque[HeaderRange] = deque(
            reversed(store.header_ranges(begin, store.committed_end, _NO_BOUND))
        )
        self._found: list[tuple[int, LLSN, int, int]] = []

    def step(self) -> None:
        found = self._found
        if not self._ranges or len(found) > PAGE_BATCHES:
            self._call.reply(
                ListIdempotentBatchesReply(tuple(found[:PAGE_BATCHES]), more=len(found) > PAGE_BATCHES)
            )
            return
        header_range, store, wanted = self._ranges.popleft(), self._store, {self._producer: None}
        done = self._worker.run(lambda: store.batches_of(header_range, wanted))
        done.add_done_callback(lambda future: self._searched(future, header_range))

    def _searched(self, done: asyncio.Future[list[BatchPlace]], header_range: HeaderRange) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            if isinstance(error, CorruptBatch):
                self._on_corruption(header_range.first_llsn, header_range.limit)
            stream = self._store.log_stream
            self._call.fail(Unavailable(f"log stream {stream} cannot be searched here: {error}"))
            return
        self._found += [
            (place.sequence, place.llsn, place.entries, place.body_crc)
            for place in done.result()
            if place.llsn >= self._begin
        ]
        self.step()
