"""[A4] DuplicateFilter: appends that were sent before, and questions after them. A batch is taken once, however often it comes
(R-ORD-7).

In its epoch a batch that comes again is among those under way, or in the log, or nowhere. In the last case it is taken, and
remembered until the epoch ends: its original, should it come after its own retry, then joins it. Once the epoch is over every
replica that was sealed since can say what became of a batch: nothing of that epoch is ordered any more (law 6, law 7).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from varlog.model.batch import BatchHeader
from varlog.model.errors import NotPrimary, Sealed, Unavailable, VarlogError
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState
from varlog.rpc.messages import Append, AppendReply, FindAppend, FindAppendReply
from varlog.rpc.transport import Call
from varlog.storage.committed.headers import BatchKey
from varlog.storage.committed.log_store import LogStore
from varlog.storagenode.committed.ack_queue import AckQueue
from varlog.storagenode.committed.batch_lookup import BatchLookup
from varlog.storagenode.committed.replica_machine import ReplicaMachine

# Retries that were taken as new in one epoch, remembered for their originals.
REMEMBERED_RETRIES_MAX: Final = 262_144


@dataclass(frozen=True, slots=True)
class DuplicateFilterParts:
    """What the retries of a replica are handed by it. `queued`: the batch waits for room; `append_new`: take it, or queue it."""

    store: LogStore
    machine: ReplicaMachine
    acks: AckQueue
    search: BatchLookup[BatchKey, LLSN]
    queued: Callable[[BatchKey], bool]
    append_new: Callable[[Call, BatchHeader, bytearray], None]
    sealed: Callable[[], Sealed]


class DuplicateFilter:
    """`remembered`: retries that were taken as new in this epoch, and above which LLSN to look for each."""

    def __init__(self, parts: DuplicateFilterParts) -> None:
        self._parts = parts
        self.remembered: dict[BatchKey, LLSN] = {}

    def forget(self) -> None:
        """The epoch is over: what was sent in it is refused."""
        self.remembered.clear()

    def append(self, call: Call, request: Append, header: BatchHeader, batch: bytearray) -> bool:
        """Find the batch, and answer with it; append it only if it is nowhere. False: it was never retried here, so it is new."""
        key = (header.producer, header.sequence)
        if not request.is_retry and key not in self.remembered:
            return False
        parts, floor = self._parts, self.remembered.get(key) or self._floor(request)
        if not parts.machine.primary:
            raise NotPrimary(parts.machine.log_stream)
        # Joined first: while the disk is searched the batch may be ordered, or its delayed original may come.
        parts.acks.join(key, call)
        if not self._in_flight(key):
            searched = partial(self._searched, call, key, floor, header, batch)
            parts.search.find(key, floor, parts.store.committed_end, searched)
        return True

    def _searched(
        self,
        call: Call,
        key: BatchKey,
        floor: LLSN,
        header: BatchHeader,
        batch: bytearray,
        found: LLSN | VarlogError | None,
    ) -> None:
        parts = self._parts
        if not parts.acks.leave(key, call):
            return  # ordered or sealed meanwhile, and told so
        try:
            if isinstance(found, VarlogError):
                raise found
            if found is not None:
                call.reply(AppendReply(parts.store.glsn_of(found), found))
            elif self._in_flight(key):
                parts.acks.join(key, call)
            elif parts.machine.state is not ReplicaState.RUNNING:
                raise parts.sealed()
            else:
                self._remember(key, floor)
                parts.append_new(call, header, batch)
        except VarlogError as error:
            call.fail(error)

    def _in_flight(self, key: BatchKey) -> bool:
        return self._parts.acks.has(key) or self._parts.queued(key)

    def _remember(self, key: BatchKey, floor: LLSN) -> None:
        if len(self.remembered) >= REMEMBERED_RETRIES_MAX:
            raise Unavailable(
                f"{REMEMBERED_RETRIES_MAX} appends were repeated in this epoch: no more can be told apart"
            )
        self.remembered[key] = floor

    def find(self, call: Call, request: FindAppend) -> None:
        """What became of a batch that was sent in an older epoch. Only an epoch that is over can be answered for (law 6)."""
        machine = self._parts.machine
        if not machine.can_resolve(request.epoch):
            raise Unavailable(
                f"log stream {machine.log_stream}: epoch {request.epoch} is not over here, or not all of it is here yet"
            )
        key = (request.producer, request.sequence)
        self._parts.search.find(key, self._floor(request), machine.sealed_end, partial(self._found, call))

    def _floor(self, request: Append | FindAppend) -> LLSN:
        """Above which LLSN the batch is, if it is here."""
        store = self._parts.store
        if request.min_glsn < store.trim_floor:
            return request.min_llsn  # what is trimmed may have been it
        return max(request.min_llsn, LLSN(store.llsn_from(GLSN(request.min_glsn + 1)) - 1))

    def _found(self, call: Call, at: LLSN | VarlogError | None) -> None:
        try:
            if isinstance(at, VarlogError):
                raise at
            glsn_of = self._parts.store.glsn_of
            call.reply(FindAppendReply(False) if at is None else FindAppendReply(True, glsn_of(at), at))
        except VarlogError as error:
            call.fail(error if isinstance(error, Unavailable) else Unavailable(str(error)))
