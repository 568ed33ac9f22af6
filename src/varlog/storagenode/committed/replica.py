"""[A4] Replica: drives one replica, and freezes it when a law breaks.

It owns the machine and executes what the machine decides. The append path through here: `append` (A4: LLSNs assigned) -> Replicator
(A6) and Writer (A5: written to disk) -> `_written` -> report (A7) … the repository orders … -> `commit` (A9) -> AckQueue (A10), and
the reader is woken.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from varlog.model.admission import late
from varlog.model.batch import BatchHeader, check_body, check_offsets, parse_header, place_batch, walk
from varlog.model.commit import CommitRow, Report
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import (
    CorruptBatch,
    CorruptReplica,
    InvalidRequest,
    OutcomeUnknown,
    PreconditionFailed,
    Sealed,
    StaleEpoch,
    Trimmed,
    Unavailable,
    VarlogError,
)
from varlog.model.invariant import InvariantBroken, invariant
from varlog.model.limits import UNCOMMITTED_BATCHES_MAX, UNCOMMITTED_BYTES_MAX
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN, NO_LLSN
from varlog.model.status import ReplicaState, ReplicaStatus, SyncStatus
from varlog.rpc.messages import (
    Append,
    AppendAt,
    AppendIdempotent,
    FindAppend,
    ListRowsReply,
    ReplicaAddress,
    ReplicaOpen,
    ReplicaPoint,
    ReplicaStateReply,
    Replicate,
)
from varlog.rpc.transport import Call, Transport
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.metrics import TrafficMeter
from varlog.runtime.worker import Worker
from varlog.storage.committed.log_store import LogStore
from varlog.storage.corruption import BlockRange
from varlog.storage.disk_space import is_disk_full
from varlog.storagenode.committed.ack_queue import AckQueue
from varlog.storagenode.committed.admission_queue import AdmissionQueue, PendingAppend
from varlog.storagenode.committed.batch_lookup import BatchLookup
from varlog.storagenode.committed.block_repair import BlockRepair
from varlog.storagenode.committed.duplicate_filter import DuplicateFilter
from varlog.storagenode.committed.idempotent_appends import (
    IdempotentAppends,
    IdempotentBatchList,
    newest_batch_lookup,
)
from varlog.storagenode.committed.idempotent_rules import ProducerSequences
from varlog.storagenode.committed.reader import ReplicaReader
from varlog.storagenode.committed.replica_machine import CommitAhead, CutTail, EnterEpoch, ReplicaMachine
from varlog.storagenode.committed.replicator import Replicator
from varlog.storagenode.committed.sync import CopySource, Syncer
from varlog.storagenode.committed.writer import Writer
from varlog.storagenode.ranges import Ranges
from varlog.storagenode.topic_watermarks import TopicWatermarks

_log = get_logger("replica")

REPLICATION_OPEN_TIMEOUT_S = 2.0
# One answer stays well below the limit of a frame's message part.
ROWS_PER_ANSWER_MAX = 4_096


class Replica:
    """One replica of one log stream.

    `on_report` is called when there is something new to report, `on_suspicion` when bytes were read that may be damaged.
    `rows_sync_delay_s` is how long commit rows wait for others before they are synced.
    """

    def __init__(
        self,
        store: LogStore,
        worker: Worker,
        read_worker: Worker,
        transport: Transport,
        marks: TopicWatermarks,
        *,
        on_report: Callable[[Replica], None],
        on_suspicion: Callable[[], None],
        rows_sync_delay_s: Callable[[], float],
    ) -> None:
        self.store = store
        self.topic = store.topic
        self.log_stream = store.log_stream
        self._worker = worker
        self._read_worker = read_worker
        self._transport = transport
        self._marks = marks
        self._on_report = on_report
        self._on_suspicion = on_suspicion
        self._rows_sync_delay_s = rows_sync_delay_s
        self._traffic = TrafficMeter(asyncio.get_running_loop().time)
        self.reader = ReplicaReader(store, read_worker, marks, self._traffic, self.mark_suspect)
        self._machine = ReplicaMachine(
            store.log_stream,
            store.epoch,
            store.sealed_end,
            store.opened,
            store.written_end,
            store.committed_end,
            tail_epoch=store.tail_epoch,
        )
        self._writer = Writer(store, worker, self._written, self.write_failed, self._traffic)
        self._acks = AckQueue(self._traffic)
        self._admission_queue = AdmissionQueue(store.log_stream)
        self._duplicates = DuplicateFilter(
            store,
            self._machine,
            self._acks,
            self._admission_queue,
            BatchLookup(store, read_worker, self.mark_suspect, lambda *asked: store.find_batches(*asked)),
            self._append_new,
            self._sealed,
        )
        self._producers = ProducerSequences(store.committed_end)
        self._idempotent = IdempotentAppends(
            store,
            self._machine,
            self._acks,
            self._producers,
            newest_batch_lookup(store, read_worker, self.mark_suspect),
            self._resume,
        )
        self.batch_list = IdempotentBatchList(store, read_worker, self.mark_suspect)
        self._replicator: Replicator | None = None
        self._rows_timer: asyncio.TimerHandle | None = None
        self._rows_syncing = False
        # One seal, unseal or trim at a time; appends and commits continue between their steps.
        self._admin = asyncio.Lock()
        # Entries that could not be read, and those of them that were examined and are damaged.
        self.suspected = Ranges()
        self.damage = Ranges()
        # Where the disk failed during a repair: what can be read back there may look intact and not be on the device.
        self.unverified = Ranges()
        self.block_repair = BlockRepair(self, transport, worker, read_worker)
        self.copy_source = CopySource(store, self._machine, read_worker, self.mark_suspect)
        self._syncer = Syncer(self, self._machine, worker, transport)
        self._closed = False
        self._suspect_all(store.corrupt_ranges)
        self._trim_asked = store.trimmed
        # True when a commit could not be applied for lack of data: this replica must not answer that an entry does not exist.
        self.lagging = False

    # --- appends, at the primary -----------------------------------------------------------------------------------------

    def append(self, call: Call, request: Append, batch: bytearray) -> None:
        """[A4] Check a client's batch, assign its LLSNs, replicate and write it. Queued while too much is not ordered yet.
        Overloaded: behind what waits already it would be ordered too late, so it is refused unchecked."""
        deadline = self._deadline(call, request) if request.within_ms and self._acks else math.inf
        header, duplicates = _checked(batch), self._duplicates
        self._check_running(request.epoch)
        if (request.is_retry or duplicates.remembered) and duplicates.append(call, request, header, batch):
            return
        self._append_new(PendingAppend(call, header, batch, None, deadline))

    def append_if(self, call: Call, request: AppendIdempotent | AppendAt, batch: bytearray) -> None:
        """[A4] Like append, on the request's condition, which is checked once there is room for the batch."""
        header = _checked(batch)
        self._check_running(request.epoch)
        self._append_new(PendingAppend(call, header, batch, request))

    def _check_running(self, epoch: Epoch) -> None:
        """Raises Sealed or, if the request is of another epoch (0: of any), StaleEpoch."""
        machine = self._machine
        if machine.state is not ReplicaState.RUNNING:
            raise self._sealed()
        if epoch and epoch != machine.epoch:
            raise StaleEpoch(self.log_stream, epoch, machine.epoch)

    def _deadline(self, call: Call, request: Append) -> float:
        """When the client stops waiting for the answer."""
        now, within_s = self._traffic.now(), request.within_ms / 1000
        self._check_in_time(now, within_s, *self._admission_queue.ahead_of(call.connection))
        return now + within_s

    def _check_in_time(self, now: float, left_s: float, batches: int = 0, size: int = 0) -> None:
        """Overloaded: a batch whose client waits `left_s` more would be too late, behind those that were accepted and the
        `batches` of `size` bytes in the queue before it."""
        wait_s = self._acks.wait_s(now, batches, size)
        if refusal := late(wait_s, left_s, len(self._acks) + batches):
            raise refusal

    def _append_new(self, pending_append: PendingAppend) -> None:
        if self._admission_queue or self._full(len(pending_append.batch)):
            self._admission_queue.join(pending_append)
        else:
            self._accept(pending_append)

    def _accept(self, pending_append: PendingAppend) -> None:
        call, header, batch, request, _ = pending_append
        attempt = 0
        if request is not None:
            if not self._idempotent.admits(pending_append, request):
                return
            attempt = request.writer_attempt if isinstance(request, AppendIdempotent) else 0
        machine = self._machine
        first = machine.accept(header.count)
        place_batch(batch, machine.epoch, first)
        self._producers.note(header, first, attempt)
        self._acks.add(first, machine.assigned_end, len(batch), call, header)
        # Backups first: their path to the disk is longer.
        if self._replicator is not None:
            self._replicator.replicate(batch)
        self._writer.write(machine.epoch, batch)

    def _full(self, size: int) -> bool:
        acks = self._acks
        return len(acks) >= UNCOMMITTED_BATCHES_MAX or (
            acks.bytes_waiting > 0 and acks.bytes_waiting + size > UNCOMMITTED_BYTES_MAX
        )

    def _admit_queued(self) -> None:
        while self._admission_queue and not self._full(len(self._admission_queue.first.batch)):
            pending_append = self._admission_queue.pop()
            try:
                if pending_append.deadline < math.inf:
                    now = self._traffic.now()
                    self._check_in_time(now, pending_append.deadline - now)
                self._accept(pending_append)
            except VarlogError as refusal:
                pending_append.call.fail(refusal)

    def _resume(self, pending_appends: Sequence[PendingAppend]) -> None:
        self._admission_queue.requeue(pending_appends)
        self._admit_queued()

    def find_append(self, call: Call, request: FindAppend) -> None:
        """What became of a batch that was sent here, or to another replica, in an older epoch (R-ORD-7)."""
        self._duplicates.find(call, request)

    # --- appends, at a backup --------------------------------------------------------------------------------------------

    def open_upstream(self, request: ReplicaOpen) -> None:
        """A primary connects: it must be of this epoch, and continue where this replica ends."""
        self._machine.check_upstream(request.epoch, request.next_llsn)

    def replicate(self, request: Replicate, batches: bytearray) -> None:
        """[A6] Batches from the primary, in order."""
        machine = self._machine
        view = memoryview(batches)
        for at, header in walk(batches):
            check_body(batches, header, at)
            if header.epoch != request.epoch:
                raise InvalidRequest(f"a batch of epoch {header.epoch} in a message of epoch {request.epoch}")
            machine.receive(request.epoch, header.first_llsn, header.count)
            self._producers.note(header, header.first_llsn)
            self._writer.write(machine.epoch, view[at : at + header.size])

    # --- durable, reported -----------------------------------------------------------------------------------------------

    def _written(self, epoch: Epoch, end: LLSN) -> None:
        """[A5 A7] A group is on disk: report it."""
        try:
            moved = self._machine.written(epoch, end)
        except InvariantBroken as broken:
            self.freeze(broken)
            return
        if moved:
            self._on_report(self)

    def write_failed(self, error: BaseException) -> None:
        """R-SEAL-6: the disk failed or is full. What was being written is not durable, and no write is retried."""
        self._break(self.store.disk_space.why if is_disk_full(error) else f"write failed: {error}")

    def _sealed(self) -> Sealed:
        """Why appends are refused here, as far as this replica knows."""
        disk_space = self.store.disk_space
        return Sealed(self.log_stream, disk_space.why if disk_space.full else self._machine.trouble)

    def report(self) -> Report:
        """[A7] How far this replica is durable (law 1) and its commit rows are synced."""
        machine = self._machine
        return Report(self.log_stream, machine.epoch, machine.reportable_end, self.store.rows_synced_end)

    def point(self) -> ReplicaPoint:
        machine, store = self._machine, self.store
        # A replica that begins behind trimmed entries has no row of the last of them, and does not know its position.
        last_glsn = store.high_watermark if store.last_row is not None else GLSN(-1)
        return ReplicaPoint(
            self.log_stream,
            machine.epoch,
            machine.state,
            machine.committed_end,
            machine.reportable_end,
            store.rows_synced_end,
            last_glsn,
            self.topic,
        )

    @property
    def state(self) -> ReplicaState:
        return self._machine.state

    # --- commits ---------------------------------------------------------------------------------------------------------

    def commit(self, rows: Sequence[CommitRow]) -> None:
        """[A9] Apply rows in order: watermarks move, waiting appends and fetches are answered. Raises CommitGap."""
        try:
            for row in rows:
                new = self._machine.commit(row)
                if new is None:
                    self._check_known(row)
                else:
                    self.store.commit(new)
                    self._producers.ordered(new)
                    self._acks.answer(new)
            self.lagging = False
        except CommitAhead as ahead:
            self.lagging = True
            self._machine.set_trouble(f"lacks ordered entries: {ahead}")
            _log.warning(logfmt("replica lacks ordered entries", log_stream=self.log_stream, why=ahead))
        except InvariantBroken as broken:
            self._machine.commit_failed(self.store.committed_end)
            self._freeze_as_evidence(broken)
            return
        self._sync_rows_soon()
        self.reader.wake()
        if self._admission_queue:
            self._admit_queued()

    def _check_known(self, row: CommitRow) -> None:
        """A row that is repeated must not have changed (law 3). Only a session that starts again repeats rows."""
        last = LLSN(row.llsn_end - 1)
        if last < self.store.low_llsn:
            return
        glsn = self.store.glsn_of(last)
        invariant(glsn == row.glsn_end - 1, "an entry has one position forever (law 3)", row=row, known=glsn)

    def list_rows(self, call: Call, llsn: LLSN) -> None:
        """The commit rows from the one that orders `llsn` on, including those that are only in memory."""
        store, unsynced, end = self.store, self.store.unsynced_rows, self.store.committed_end
        begin = max(llsn, store.low_llsn)

        def answer(done: asyncio.Future[list[CommitRow]]) -> None:
            if done.cancelled():
                return
            try:
                rows = done.result()
            except Exception as failure:  # noqa: BLE001 - the call needs an answer, whatever happened
                call.fail(failure if isinstance(failure, VarlogError) else Unavailable(str(failure)))
                return
            reached = rows[-1].llsn_end if rows else begin
            rest = _beyond(unsynced, reached)
            if rest and rest[0].llsn_begin == reached:  # else more of the file comes first
                rows += rest
                reached = rows[-1].llsn_end
            call.reply(ListRowsReply(tuple(rows), reached if rows else end, end))

        self._read_worker.run(lambda: store.rows_from(begin, ROWS_PER_ANSWER_MAX)).add_done_callback(answer)

    def _sync_rows_soon(self) -> None:
        if (
            self._rows_timer is None
            and not self._rows_syncing
            and self.store.rows_synced_end < self.store.committed_end
        ):
            delay_s = self._rows_sync_delay_s()
            self._rows_timer = asyncio.get_running_loop().call_later(delay_s, self._sync_rows)

    def _sync_rows(self) -> None:
        self._rows_timer = None
        self._rows_syncing = True
        self._worker.run(self.store.sync_rows).add_done_callback(self._rows_synced)

    def _rows_synced(self, done: asyncio.Future[LLSN]) -> None:
        self._rows_syncing = False
        if done.cancelled() or self._closed:
            return
        if (error := done.exception()) is None:
            self._on_report(self)
        elif self.store.failure is not None:
            self._break(f"commit rows cannot be written: {error}")
            return
        self._sync_rows_soon()

    # --- seal, unseal, trim ----------------------------------------------------------------------------------------------

    async def seal(self, epoch: Epoch, committed_end: LLSN) -> ReplicaStateReply:
        """R-SEAL-4, R-SEAL-5: SEALED is reported only after the tail is cut on disk."""
        async with self._admin:
            await self._reopen()
            if epoch > self._machine.epoch:
                self._syncer.stop()
            try:
                effect = self._machine.seal(epoch, committed_end)
            except InvariantBroken as broken:
                self._freeze_as_evidence(broken)
                raise PreconditionFailed(
                    f"log stream {self.log_stream} refuses this seal and is frozen: {broken}; {self._knowledge}"
                ) from broken
            if effect is not None:
                self._stop_appends()
                await self._carry_out(effect)
            return ReplicaStateReply(self._machine.state, self._machine.committed_end)

    async def _carry_out(self, effect: EnterEpoch | CutTail) -> None:
        store, worker = self.store, self._worker
        try:
            if isinstance(effect, EnterEpoch):
                await worker.run(lambda: store.set_epoch(effect.epoch, effect.sealed_end))
                return
            await worker.run(lambda: store.cut(effect.epoch, effect.end))
        except OSError as error:
            self._break(f"the seal cannot be written: {error}")
            raise Unavailable(
                f"log stream {self.log_stream}: the seal cannot be written to disk: {error}"
            ) from error
        except CorruptBatch as damaged:
            sealed_end = self._machine.sealed_end
            self.mark_suspect(LLSN(sealed_end - 1), sealed_end)
            raise Unavailable(
                f"log stream {self.log_stream}: its tail cannot be cut before the damage is repaired: {damaged}"
            ) from damaged
        sealed = self._sealed()
        if self._machine.tail_cut(effect.epoch, effect.end):
            self._machine.clear_trouble()
            self.lagging = False
            # Only now are they certainly nowhere: the cut is durable on this replica, and no epoch can order them (law 6, 10).
            self._acks.fail(sealed)

    async def reopen_if_failed(self) -> None:
        """Before a write that is no append: open the store again if the disk failed (R-SEAL-6)."""
        async with self._admin:
            await self._reopen()

    async def _reopen(self) -> None:
        """R-SEAL-6: a store whose disk failed is opened again, which reads the disk: nothing unverified is trusted. Waiting
        appends stay undecided. Unavailable: the disk still fails; retry."""
        store, machine = self.store, self._machine
        if store.failure is None or machine.state is ReplicaState.FROZEN:
            return
        if machine.state is ReplicaState.RUNNING:  # the loop does not know of the failure yet
            self.write_failed(store.failure)
        try:
            fresh = await self._worker.run(store.reopened)
            found = fresh.written_end, fresh.tail_epoch, fresh.committed_end
            store.resume(fresh)  # first: it raises CorruptReplica if the disk lost what was durable
            machine.reopened(*found)
            self._suspect_all(fresh.corrupt_ranges)
        except OSError as error:
            machine.set_trouble(f"the disk still fails: {error}")
            raise Unavailable(f"log stream {self.log_stream} cannot be opened again: {error}") from error
        except (CorruptReplica, InvariantBroken) as lost:
            self.freeze(lost)
            raise PreconditionFailed(
                f"log stream {self.log_stream} lost entries with its disk: {lost}"
            ) from lost
        _log.info(logfmt("replica opened again after a disk failure", log_stream=self.log_stream))
        self._sync_rows_soon()

    def _stop_appends(self) -> None:
        self._writer.drop_queue()
        self._duplicates.forget()
        if self._replicator is not None:
            self._replicator.close()
            self._replicator = None
        self._refuse_queued(self._sealed())

    async def unseal(self, epoch: Epoch, backups: Sequence[str], *, primary: bool) -> ReplicaStateReply:
        """R-UNSEAL-1. A primary opens its connections first: it must not accept what it cannot replicate."""
        async with self._admin:
            await self._reopen()
            if self._machine.check_unseal(epoch):
                replicator = Replicator(self.log_stream, epoch, self._break) if primary else None
                try:
                    if replicator is not None:
                        next_llsn = self._machine.assigned_end
                        await replicator.open(
                            self._transport, backups, next_llsn, timeout_s=REPLICATION_OPEN_TIMEOUT_S
                        )
                    await self._open_epoch(epoch)
                    self._machine.opened_as(epoch, primary=primary)
                    self._producers.open(epoch, self._machine.assigned_end)
                except BaseException:
                    if replicator is not None:
                        replicator.close()
                    raise
                self._replicator = replicator
                if replicator is not None and replicator.closed:
                    self._break("a backup left while the epoch was opened")
                self._on_report(self)
            return ReplicaStateReply(self._machine.state, self._machine.committed_end)

    async def _open_epoch(self, epoch: Epoch) -> None:
        store, machine = self.store, self._machine
        try:
            await self._worker.run(lambda: store.open_epoch(epoch))
        except OSError as error:
            machine.set_trouble(f"the epoch cannot be opened on disk: {error}")
            raise Unavailable(f"log stream {self.log_stream}: {machine.trouble}") from error
        machine.clear_trouble()

    def sync(self, epoch: Epoch, source: ReplicaAddress) -> SyncStatus:
        """R-SYNC-1: fill this replica from `source`, or return the progress of that."""
        self.check_open()
        return self._syncer.start(epoch, source)

    @property
    def _knowledge(self) -> str:
        """Describe what this replica knows to be ordered, for a message."""
        store = self.store
        return (
            f"this replica knows {store.committed_end - 1} ordered entries, up to position {store.high_watermark} of its topic, "
            "and is kept as evidence"
        )

    def check_not_evidence(self, what: str, sealed_end: LLSN = NO_LLSN) -> None:
        """PreconditionFailed: this replica contradicts the repository, or has ordered entries that the caller does not know of.
        Only an operator can override that."""
        if self._machine.evidence or (sealed_end and self.store.committed_end > sealed_end):
            raise PreconditionFailed(f"log stream {self.log_stream} is not {what}: {self._knowledge}")

    def check_rebuild(self, epoch: Epoch) -> bool:
        """True if this replica cannot continue and may be rebuilt, False if it is empty and new already."""
        machine, sync = self._machine, self._syncer.status
        if machine.epoch > epoch:
            raise StaleEpoch(self.log_stream, epoch, machine.epoch)
        if machine.state is ReplicaState.FROZEN or (sync is not None and sync.rebuild):
            return True
        if machine.epoch == NO_EPOCH and machine.durable_end == FIRST_LLSN:
            return False
        raise PreconditionFailed(
            f"log stream {self.log_stream} is {machine.state.value} here and can continue: it is not rebuilt"
        )

    @property
    def epoch(self) -> Epoch:
        return self._machine.epoch

    @property
    def is_authoritative(self) -> bool:
        """Whether this replica may answer that an LLSN does not exist: it has everything up to the newest seal."""
        machine = self._machine
        return machine.epoch != NO_EPOCH and not machine.lacks_entries and not self.lagging

    async def trim_like_source(self, glsn: GLSN) -> bool:
        """Apply the trim point of a sync's source; the sync ends if the disk refuses it. The repository sends it again later."""
        self._marks.raise_trimmed(self.topic, glsn)
        return await self.trim(glsn)

    def claim_trim(self, glsn: GLSN) -> bool:
        """True once for each trim point that is new here: that caller then calls `trim`."""
        if glsn <= self._trim_asked:
            return False
        self._trim_asked = glsn
        return True

    async def trim(self, glsn: GLSN) -> bool:
        """R-TRIM-1. False: the disk refuses it now. Trimmed entries are not read here all the same, and a node that restarts gets
        the trim point again before it serves a read; so the trim can be retried later."""
        async with self._admin:
            store = self.store
            if self._closed or glsn < self._trim_asked:
                return True  # there is nothing to trim, or a newer trim does it
            try:
                await self._worker.run(lambda: store.trim(glsn))
            except OSError as error:
                _log.warning(logfmt("a trim cannot be written now", log_stream=self.log_stream, why=error))
                if self._machine.state is ReplicaState.RUNNING and not is_disk_full(error):
                    self._break(f"the trim cannot be written: {error}")
                return False
            return True

    def _break(self, trouble: str) -> None:
        if self._closed:
            return
        _log.warning(logfmt("replica seals itself", log_stream=self.log_stream, why=trouble))
        self._machine.broken(trouble)
        self._refuse_queued(Sealed(self.log_stream, trouble))

    def refuse_waiting(self) -> None:
        """A sync found that the appends that still wait here were never ordered, and never will be."""
        self._acks.fail(self._sealed())

    def abandon_waiting(self) -> None:
        """A sync skips entries that were trimmed: appends that still wait here may have been among them."""
        self._acks.fail(
            OutcomeUnknown(f"log stream {self.log_stream} was trimmed before its order arrived here")
        )

    def _refuse_queued(self, sealed: Sealed) -> None:
        """Reject the appends without an LLSN: they are certainly not in the log."""
        self._admission_queue.refuse(sealed)
        self._idempotent.refuse(sealed)

    def freeze(self, cause: BaseException, evidence: str = "") -> None:
        """A law was violated: stop this replica, while the node continues. Its files stay unchanged."""
        _log.critical(logfmt("replica frozen", log_stream=self.log_stream, why=cause))
        self._machine.freeze(str(cause), evidence)
        self._syncer.stop()
        self._stop_appends()
        self._acks.fail(OutcomeUnknown(f"log stream {self.log_stream} froze"))

    def _freeze_as_evidence(self, cause: InvariantBroken) -> None:
        """The repository contradicts what it sent before: this replica may be the only one left that is right."""
        self.freeze(cause, f"{cause}; {self._knowledge}")

    # --- damage ----------------------------------------------------------------------------------------------------------

    def mark_suspect(self, begin: LLSN, end: LLSN) -> None:
        """Entries [begin, end) could not be read: the scrub examines them next."""
        low, committed_end = self.store.low_llsn, self.store.committed_end
        if max(begin, low) < min(end, committed_end):
            self.suspected.add(max(begin, low), min(end, committed_end))
            self._on_suspicion()

    def _suspect_all(self, ranges: Sequence[tuple[LLSN, LLSN]]) -> None:
        for begin, end in ranges:
            self.mark_suspect(begin, end)

    def record_damage(self, begin: LLSN, end: LLSN, what: str = "") -> None:
        """Entries [begin, end) do not match their checksums on disk. The manager sees it in the status and starts a repair."""
        if self.damage.covers(begin, end):
            return
        entries, path = f"[{begin}, {end})", self.store.path
        _log.warning(
            logfmt("damaged entries", log_stream=self.log_stream, entries=entries, why=what, path=path)
        )
        self.damage.add(begin, end)

    async def fill_trimmed(self, begin: LLSN, end: LLSN) -> None:
        """Damage in trimmed entries: a filler batch replaces them, so that the entries behind them can be reached."""
        self.check_open()
        store, entries = self.store, f"[{begin}, {end})"
        try:
            await self._worker.run(lambda: store.fill(begin, end))
        except OSError as error:
            self._break(f"damage cannot be repaired: {error}")
        except (CorruptBatch, Trimmed) as error:  # their end is not known yet, or they are gone
            _log.info(logfmt("damage not repaired", log_stream=self.log_stream, entries=entries, why=error))
        else:
            _log.warning(
                logfmt("damaged trimmed entries replaced", log_stream=self.log_stream, entries=entries)
            )

    async def scrub_metadata(self) -> None:
        """Check the metadata files and repair them from memory; where that is impossible, only a rebuild helps."""
        self.check_open()
        if self.store.failure is not None:
            return  # it will be opened again, which checks everything
        try:
            wrong = await self._worker.run(self.store.scrub_metadata)
        except OSError as error:
            self._break(f"a damaged file cannot be rewritten: {error}")
        except CorruptBatch as damaged:
            _log.warning(
                logfmt("commit rows cannot be repaired yet", log_stream=self.log_stream, why=damaged)
            )
        except CorruptReplica as damaged:
            self.freeze(damaged)
        else:
            if wrong:
                _log.warning(logfmt("damage repaired from memory", log_stream=self.log_stream, why=wrong))

    async def relink(self) -> None:
        """Write files that were deleted or replaced while they are open again under their names."""
        if self._closed or self.store.failure is not None or self._machine.state is ReplicaState.FROZEN:
            return
        try:
            wrong = await self._worker.run(self.store.relink)
        except OSError as error:
            _log.warning(
                logfmt("a deleted file cannot be written again", log_stream=self.log_stream, why=error)
            )
            if not is_disk_full(error):
                self._break(f"a deleted file cannot be written again: {error}")
        else:
            if wrong:
                _log.warning(logfmt("files written again", log_stream=self.log_stream, why=wrong))

    async def scrub_sidecar(self, blocks: BlockRange) -> None:
        """Check and repair the index beside a closed segment."""
        self.check_open()
        store = self.store
        wrong = await self._worker.run(lambda: store.scrub_sidecar(blocks))
        if wrong:
            _log.warning(logfmt("damage repaired from memory", log_stream=self.log_stream, why=wrong))

    def mark_verified(self, begin: LLSN, end: LLSN) -> None:
        """Entries [begin, end) were examined and match their checksums."""
        if not self.unverified.touches(begin, end):
            self.damage.remove(begin, end)

    def mark_repaired(self, begin: LLSN, end: LLSN) -> None:
        """Entries [begin, end) were rewritten and synced."""
        self.unverified.remove(begin, end)
        self.damage.remove(begin, end)

    def repair_failed(self, begin: LLSN, end: LLSN, error: OSError) -> None:
        """R-SEAL-6: a failed sync never counts as a successful one, whatever it was for."""
        self.unverified.add(begin, end)
        self._break(f"damage cannot be repaired: {error}")

    def check_open(self) -> None:
        """Before a job for the replica's worker: once the replica is closed, no job is run."""
        if self._closed:
            raise Unavailable(f"log stream {self.log_stream} is closed here")

    # --- status, end -----------------------------------------------------------------------------------------------------

    def status(self, *, full: bool) -> ReplicaStatus:
        """`full`: its volume is. The caller asks that once for all replicas of a volume."""
        machine, store = self._machine, self.store
        return ReplicaStatus(
            log_stream=self.log_stream,
            topic=self.topic,
            state=machine.state,
            epoch=machine.epoch,
            committed_end=machine.committed_end,
            durable_end=machine.durable_end,
            low_watermark=store.trimmed,
            high_watermark=store.high_watermark,
            path=str(store.path),
            bytes=store.size_bytes,
            primary=machine.primary,
            trouble=machine.trouble or (store.disk_space.why if full else ""),
            opened=machine.opened,
            sync=self._syncer.status,
            full=full,
            damage=self.damage.above(store.low_llsn),
            traffic=self._traffic.snapshot(),
            evidence=machine.evidence,
            blank=machine.epoch == NO_EPOCH and machine.durable_end == FIRST_LLSN,
        )

    async def close(self, *, relink: bool = False) -> None:
        """Stop in order: no more appends, the present write ends, commit rows are synced. With `relink`, files that have lost
        their names since the last check are written again: they would be lost with their descriptors."""
        self._closed = True
        if self._rows_timer is not None:
            self._rows_timer.cancel()
        self.reader.close()
        await self._syncer.close()
        self._stop_appends()
        async with self._admin:
            store = self.store
            if self._machine.state is not ReplicaState.FROZEN:
                await asyncio.wait([self._worker.run(store.settle_rows)])
                if relink:
                    await asyncio.wait([self._worker.run(store.relink)])
            await self._worker.run(store.close)
        await self._worker.close()


def _beyond(rows: Sequence[CommitRow], llsn: LLSN) -> list[CommitRow]:
    """The rows, or the parts of them, that order something at or above `llsn`."""
    return [
        row if row.llsn_begin >= llsn else row.rest(llsn - row.llsn_begin)
        for row in rows
        if row.llsn_end > llsn
    ]


def _checked(batch: bytearray) -> BatchHeader:
    """The header of the one whole batch in `batch`, everything checked: what is stored must be readable forever."""
    try:
        header = parse_header(batch, signed=False)
        if header.is_junk:
            raise InvalidRequest("junk fills positions of a sequenced topic; this one has none to fill")
        if header.size != len(batch):
            raise InvalidRequest(f"a batch of {header.size} bytes in a payload of {len(batch)}")
        check_body(batch, header)
        check_offsets(batch, header)
    except CorruptBatch as corrupt:
        raise InvalidRequest(
            f"the batch was damaged in transit, or never was one: {corrupt.what}"
        ) from corrupt
    return header
