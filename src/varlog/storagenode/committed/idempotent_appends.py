"""[A4] IdempotentAppends: conditional appends of a replica, and their list

A condition is judged in the moment in which its batch would get its LLSN, so what is in line before it counts, and what is refused
leaves no trace. Where memory does not know the end of a chain the headers on disk are searched, down to where the chain can have
begun; what comes for the same chain meanwhile waits behind it.
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
from varlog.storage.committed.headers import BatchPlace, HeaderStretch
from varlog.storage.committed.log_store import LogStore
from varlog.storagenode.committed.ack_queue import AckQueue
from varlog.storagenode.committed.admission_queue import PendingAppend
from varlog.storagenode.committed.batch_lookup import BatchLookup, LookupParts, ReportCorruption
from varlog.storagenode.committed.idempotent_rules import (
    ProducedBatch,
    ProducerSequences,
    Sent,
    SequenceDecision,
    decide,
    find_batch,
)
from varlog.storagenode.committed.replica_machine import ReplicaMachine

# Of one chain, while its end is looked for. Those of a client's window are far fewer.
SEARCH_WAITING_MAX: Final = 1_024
_NO_BOUND: Final = 2**63


@dataclass(frozen=True, slots=True)
class IdempotentAppendParts:
    """What the conditional appends of a replica are handed by it. `resume`: take these, which were in front of the line."""

    store: LogStore
    machine: ReplicaMachine
    acks: AckQueue
    producers: ProducerSequences
    search: BatchLookup[ProducerID, BatchPlace]
    resume: Callable[[Sequence[PendingAppend]], None]


@dataclass(slots=True)
class _SequenceSearch:
    """A chain whose end is looked for, and who waits for it, in the order in which they came."""

    resets: int
    pending_appends: list[PendingAppend] = field(default_factory=list)


class IdempotentAppends:
    """The conditional appends of one replica."""

    def __init__(self, parts: IdempotentAppendParts) -> None:
        self._parts = parts
        self._searches: dict[ProducerID, _SequenceSearch] = {}

    def admits(self, pending_append: PendingAppend, request: AppendIdempotent | AppendAt) -> bool:
        """Whether the batch may be taken now. If not it was answered, or will be; raises what it is refused with."""
        machine = self._parts.machine
        if not machine.primary:
            raise NotPrimary(machine.log_stream)
        if isinstance(request, AppendIdempotent):
            return self._extends(pending_append, request)
        if request.expected_llsn != machine.assigned_end:
            raise PositionConflict(machine.log_stream, request.expected_llsn, machine.assigned_end)
        return True

    def refuse(self, error: VarlogError) -> None:
        """The replica takes nothing any more."""
        search_waiting, self._searches = self._searches, {}
        for chain in search_waiting.values():
            for pending_append in chain.pending_appends:
                pending_append.call.fail(error)

    def _extends(self, pending_append: PendingAppend, request: AppendIdempotent) -> bool:
        header, producers = pending_append.header, self._parts.producers
        if header.producer in self._searches:
            self._enqueue(pending_append)
            return False
        floor = self._floor(request)
        known, newest = producers.newest(header.producer, floor)
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
        self._answer_same(pending_append, newest, decision)
        return False

    def _answer_same(
        self, pending_append: PendingAppend, newest: ProducedBatch | None, decision: SequenceDecision
    ) -> None:
        """The batch is there already, or under way; else SequenceConflict."""
        header, parts = pending_append.header, self._parts
        link = newest if decision is SequenceDecision.DUPLICATE else None
        if newest is not None and not parts.producers.is_committed(newest):
            link = find_batch(parts.producers.pending(header.producer), header.sequence, header.body_crc)
        if link is None:
            last = newest.sequence if newest is not None else 0
            raise SequenceConflict(parts.machine.log_stream, header.sequence, last)
        if parts.producers.is_committed(link):
            pending_append.call.reply(AppendReply(parts.store.glsn_of(link.llsn), link.llsn))
        else:
            parts.acks.join((header.producer, header.sequence), pending_append.call)

    def _floor(self, request: AppendIdempotent) -> LLSN:
        """Above which LLSN the chain is."""
        store = self._parts.store
        if request.min_glsn < store.trim_floor:
            return LLSN(0)  # what is trimmed may have been of it
        return LLSN(store.llsn_from(GLSN(request.min_glsn + 1)) - 1)

    # --- a chain whose end is not in memory ------------------------------------------------------------------------------

    def _search(self, pending_append: PendingAppend, floor: LLSN) -> None:
        parts, producer = self._parts, pending_append.header.producer
        search_waiting = self._searches[producer] = _SequenceSearch(parts.producers.resets, [pending_append])
        parts.search.find(
            producer, floor, parts.producers.known_from, partial(self._found, producer, floor, search_waiting)
        )

    def _enqueue(self, pending_append: PendingAppend) -> None:
        pending_appends = self._searches[pending_append.header.producer].pending_appends
        if len(pending_appends) >= SEARCH_WAITING_MAX:
            raise NotAccepted(
                f"the end of its chain is looked for, and {len(pending_appends)} batches wait for it already"
            )
        pending_appends.append(pending_append)

    def _found(
        self,
        producer: ProducerID,
        floor: LLSN,
        search_waiting: _SequenceSearch,
        place: BatchPlace | VarlogError | None,
    ) -> None:
        parts = self._parts
        if self._searches.get(producer) is not search_waiting:
            return  # sealed meanwhile, and told so
        del self._searches[producer]
        if isinstance(place, VarlogError) or search_waiting.resets != parts.producers.resets:
            why = place if isinstance(place, VarlogError) else "more was forgotten meanwhile"
            unknown = Unavailable(f"the end of this chain is not known here: {why}")
            for pending_append in search_waiting.pending_appends:
                pending_append.call.fail(unknown)
            return
        link = None if place is None else ProducedBatch(producer, place.sequence, place.llsn, place.body_crc)
        parts.producers.found(producer, floor, link)
        parts.resume(search_waiting.pending_appends)


def newest_of(
    store: LogStore, worker: Worker, on_corruption: ReportCorruption
) -> LookupParts[ProducerID, BatchPlace]:
    """How the newest batch of a producer is looked for on disk: as far back as its chain can begin."""

    def search(stretch: HeaderStretch, wanted: dict[ProducerID, None]) -> dict[ProducerID, BatchPlace]:
        return {place.producer: place for place in store.batches_of(stretch, wanted)}

    return LookupParts(store, worker, on_corruption, search, bytes_max=_NO_BOUND)


# [A4] IdempotentBatchList: which batches of a chain are ordered, read from the headers on disk, a page at a time (R-USE-4).

PAGE_BATCHES: Final = 10_000


class IdempotentBatchList:
    """Lists the chains of one replica."""

    def __init__(self, store: LogStore, worker: Worker, on_corruption: Callable[[LLSN, LLSN], None]) -> None:
        self._store = store
        self._worker = worker
        self._on_corruption = on_corruption

    def list(self, call: Call, request: ListIdempotentBatches) -> None:
        """Answer later, with the first page above `request.min_llsn`."""
        _Listing(self._store, self._worker, self._on_corruption, call, request).step()


class _Listing:
    """One page. Stretch by stretch, so that readers of the same disk get their turn."""

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
        self._stretches: deque[HeaderStretch] = deque(
            reversed(store.header_stretches(begin, store.committed_end, _NO_BOUND))
        )
        self._found: list[tuple[int, LLSN, int, int]] = []

    def step(self) -> None:
        found = self._found
        if not self._stretches or len(found) > PAGE_BATCHES:
            self._call.reply(
                ListIdempotentBatchesReply(tuple(found[:PAGE_BATCHES]), more=len(found) > PAGE_BATCHES)
            )
            return
        stretch, store, wanted = self._stretches.popleft(), self._store, {self._producer: None}
        done = self._worker.run(lambda: store.batches_of(stretch, wanted))
        done.add_done_callback(lambda future: self._searched(future, stretch))

    def _searched(self, done: asyncio.Future[list[BatchPlace]], stretch: HeaderStretch) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            if isinstance(error, CorruptBatch):
                self._on_corruption(stretch.first_llsn, stretch.limit)
            stream = self._store.log_stream
            self._call.fail(Unavailable(f"log stream {stream} cannot be looked through here: {error}"))
            return
        self._found += [
            (place.sequence, place.llsn, place.entries, place.body_crc)
            for place in done.result()
            if place.llsn >= self._begin
        ]
        self.step()
