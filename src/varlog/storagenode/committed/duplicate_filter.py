"""[A4] DuplicateFilter: appends a batch once, however often it arrives (R-ORD-7).

Within its epoch a batch that arrives again is in flight, in the log, or nowhere. If it is nowhere it is appended and remembered
until the epoch ends, so that its original, should it arrive after its own retry, joins it. Once the epoch is over, every replica
that was sealed since can say what became of a batch: nothing of that epoch is ordered any more (laws 6, 7).
"""

from __future__ import annotations

from collections.abc import Callable
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
from varlog.storagenode.committed.admission_queue import AdmissionQueue, PendingAppend
from varlog.storagenode.committed.batch_lookup import BatchLookup
from varlog.storagenode.committed.replica_machine import ReplicaMachine

# Retries that were appended as new in one epoch, remembered for their originals.
REMEMBERED_RETRIES_MAX: Final = 262_144


class DuplicateFilter:
    """The retried appends of one replica. `append_new` appends a batch or queues it; `sealed` is why nothing is appended.

    `remembered`: retries that were appended as new in this epoch, and above which LLSN to search for each.
    """

    def __init__(
        self,
        store: LogStore,
        machine: ReplicaMachine,
        acks: AckQueue,
        queue: AdmissionQueue,
        lookup: BatchLookup[BatchKey, LLSN],
        append_new: Callable[[PendingAppend], None],
        sealed: Callable[[], Sealed],
    ) -> None:
        self._store = store
        self._machine = machine
        self._acks = acks
        self._queue = queue
        self._lookup = lookup
        self._append_new = append_new
        self._sealed = sealed
        self.remembered: dict[BatchKey, LLSN] = {}

    def forget(self) -> None:
        """The epoch is over: what was sent in it is refused."""
        self.remembered.clear()

    def append(self, call: Call, request: Append, header: BatchHeader, batch: bytearray) -> bool:
        """Find the batch and answer with it; append it only if it is nowhere. False: it was never retried here, so it is new."""
        key = (header.producer, header.sequence)
        if not request.is_retry and key not in self.remembered:
            return False
        floor = self.remembered.get(key) or self._floor(request)
        if not self._machine.primary:
            raise NotPrimary(self._machine.log_stream)
        # Joined first: while the disk is searched the batch may be ordered, or its delayed original may arrive.
        self._acks.join(key, call)
        if not self._in_flight(key):
            searched = partial(self._searched, call, key, floor, header, batch)
            self._lookup.find(key, floor, self._store.committed_end, searched)
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
        if not self._acks.leave(key, call):
            return  # ordered or sealed meanwhile, and answered
        try:
            if isinstance(found, VarlogError):
                raise found
            if found is not None:
                call.reply(AppendReply(self._store.glsn_of(found), found))
            elif self._in_flight(key):
                self._acks.join(key, call)
            elif self._machine.state is not ReplicaState.RUNNING:
                raise self._sealed()
            else:
                self._remember(key, floor)
                self._append_new(PendingAppend(call, header, batch))
        except VarlogError as error:
            call.fail(error)

    def _in_flight(self, key: BatchKey) -> bool:
        return self._acks.has(key) or self._queue.has(key)

    def _remember(self, key: BatchKey, floor: LLSN) -> None:
        if len(self.remembered) >= REMEMBERED_RETRIES_MAX:
            raise Unavailable(
                f"{REMEMBERED_RETRIES_MAX} appends were repeated in this epoch: no more can be distinguished"
            )
        self.remembered[key] = floor

    def find(self, call: Call, request: FindAppend) -> None:
        """What became of a batch that was sent in an older epoch. Only an epoch that is over can be answered for (law 6)."""
        machine = self._machine
        if not machine.can_resolve(request.epoch):
            raise Unavailable(
                f"log stream {machine.log_stream}: epoch {request.epoch} is not over here, or not all of it is here yet"
            )
        key = (request.producer, request.sequence)
        self._lookup.find(key, self._floor(request), machine.sealed_end, partial(self._found, call))

    def _floor(self, request: Append | FindAppend) -> LLSN:
        """The batch, if it is here, is above this LLSN."""
        store = self._store
        if request.min_glsn < store.trim_floor:
            return request.min_llsn  # it may be among what is trimmed
        return max(request.min_llsn, LLSN(store.llsn_from(GLSN(request.min_glsn + 1)) - 1))

    def _found(self, call: Call, at: LLSN | VarlogError | None) -> None:
        try:
            if isinstance(at, VarlogError):
                raise at
            glsn_of = self._store.glsn_of
            call.reply(FindAppendReply(False) if at is None else FindAppendReply(True, glsn_of(at), at))
        except VarlogError as error:
            call.fail(error if isinstance(error, Unavailable) else Unavailable(str(error)))
