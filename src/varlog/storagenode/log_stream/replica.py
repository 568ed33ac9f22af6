"""[A4] Replica: the driver of one replica. Owns the machine and carries out what it decides; freezes when a law breaks.

The way of an append through here: `append` (A4: LLSNs given) -> Replicator (A6) and Writer (A5) -> `_written` -> report (A7) … the
repository orders … -> `commit` (A9) -> Waiters (A10) and Reader woken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from varlog.model.batch import BatchHeader, check_body, check_offsets, parse_header, place, walk
from varlog.model.cluster import ReplicaState, ReplicaStatus
from varlog.model.commit import CommitRow, Report
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    CorruptBatch,
    InvalidRequest,
    NotAccepted,
    OutcomeUnknown,
    Refused,
    Sealed,
    Unavailable,
    VarlogError,
)
from varlog.model.invariant import InvariantBroken
from varlog.model.limits import UNCOMMITTED_BATCHES_MAX, UNCOMMITTED_BYTES_MAX
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import ReplicaOpen, ReplicaPoint, ReplicaStateIs, Replicate
from varlog.rpc.transport import Call, Transport
from varlog.runtime.logs import get_logger, told
from varlog.runtime.worker import Worker
from varlog.storage.log_store import LogStore
from varlog.storagenode.log_stream.reader import Reader
from varlog.storagenode.log_stream.replica_machine import CommitAhead, CutTail, EnterEpoch, ReplicaMachine
from varlog.storagenode.log_stream.replicator import Replicator
from varlog.storagenode.log_stream.waiters import Waiters
from varlog.storagenode.log_stream.writer import Writer
from varlog.storagenode.topic_marks import TopicMarks

_log = get_logger("replica")

REPLICATION_OPEN_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """What a replica is handed by its node. `on_report` says that the replica has something new to report."""

    store: LogStore
    worker: Worker
    read_worker: Worker
    transport: Transport
    marks: TopicMarks
    on_report: Callable[[Replica], None]
    rows_sync_delay_s: float


class Replica:
    """One replica of one log stream."""

    def __init__(self, parts: ReplicaParts) -> None:
        store = parts.store
        self.store = store
        self.topic = store.topic
        self.log_stream = store.log_stream
        self.reader = Reader(store, parts.read_worker, parts.marks)
        self._parts = parts
        self._machine = ReplicaMachine(
            store.log_stream,
            store.epoch,
            store.sealed_end,
            store.opened,
            store.written_end,
            store.committed_end,
        )
        self._writer = Writer(store, parts.worker, self._written, self._write_failed)
        self._waiters = Waiters()
        self._intake: deque[tuple[Call, BatchHeader, bytearray]] = deque()
        self._intake_bytes = 0
        self._replicator: Replicator | None = None
        self._rows_timer: asyncio.TimerHandle | None = None
        self._rows_syncing = False
        # One seal, unseal or trim at a time; appends and commits go on between their steps.
        self._admin = asyncio.Lock()
        self._closed = False
        self._trim_asked = store.trimmed
        # True when a commit could not be applied for lack of data: this replica must not say "not here".
        self.lagging = False

    # --- appends, at the primary -----------------------------------------------------------------------------------------

    def append(self, call: Call, batch: bytearray) -> None:
        """[A4] Check a client's batch, give it LLSNs, send it on its way. Waits for room when too much is not ordered yet."""
        header = _checked(batch)
        if self._machine.state is not ReplicaState.RUNNING:
            raise Sealed(self.log_stream)
        if self._intake or self._full(len(batch)):
            self._take_later(call, header, batch)
        else:
            self._take(call, header, batch)

    def _take(self, call: Call, header: BatchHeader, batch: bytearray) -> None:
        machine = self._machine
        first = machine.accept(header.count)
        place(batch, machine.epoch, first)
        self._waiters.add(first, machine.assigned_end, len(batch), call)
        # Backups first: their way to the disk is the longer one.
        if self._replicator is not None:
            self._replicator.replicate(batch)
        self._writer.write(machine.epoch, batch)

    def _full(self, size: int) -> bool:
        waiters = self._waiters
        return len(waiters) >= UNCOMMITTED_BATCHES_MAX or (
            waiters.bytes_waiting > 0 and waiters.bytes_waiting + size > UNCOMMITTED_BYTES_MAX
        )

    def _take_later(self, call: Call, header: BatchHeader, batch: bytearray) -> None:
        if (
            self._intake_bytes + len(batch) > UNCOMMITTED_BYTES_MAX
            or len(self._intake) >= UNCOMMITTED_BATCHES_MAX
        ):
            raise NotAccepted(
                f"log stream {self.log_stream} has too much in flight: append more slowly, or to more streams"
            )
        self._intake.append((call, header, batch))
        self._intake_bytes += len(batch)

    def _take_waiting(self) -> None:
        while self._intake and not self._full(len(self._intake[0][2])):
            call, header, batch = self._intake.popleft()
            self._intake_bytes -= len(batch)
            try:
                self._take(call, header, batch)
            except VarlogError as refusal:
                call.fail(refusal)

    # --- appends, at a backup --------------------------------------------------------------------------------------------

    def open_upstream(self, request: ReplicaOpen) -> None:
        """A primary announces itself: it must be of this epoch, and go on where this replica ends."""
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
            self._writer.write(machine.epoch, view[at : at + header.size])

    # --- durable, reported -----------------------------------------------------------------------------------------------

    def _written(self, epoch: Epoch, end: LLSN) -> None:
        """[A5 A7] A group is on disk: say so."""
        try:
            moved = self._machine.written(epoch, end)
        except InvariantBroken as broken:
            self.freeze(broken)
            return
        if moved:
            self._parts.on_report(self)

    def _write_failed(self, error: BaseException) -> None:
        """R-SEAL-6: the disk failed or is full. What was being written is not durable, and nothing is tried again."""
        self._break(f"write failed: {error}")

    def report(self) -> Report:
        """[A7] How far this replica is durable (law 1) and its commit rows are synced."""
        machine = self._machine
        return Report(self.log_stream, machine.epoch, machine.reportable_end, self.store.rows_synced_end)

    def point(self) -> ReplicaPoint:
        machine = self._machine
        return ReplicaPoint(
            self.log_stream,
            machine.epoch,
            machine.state,
            machine.committed_end,
            machine.reportable_end,
            self.store.rows_synced_end,
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
                if new is not None:
                    self.store.commit(new)
                    self._waiters.answer(new)
            self.lagging = False
        except CommitAhead as ahead:
            self.lagging = True
            self._machine.trouble = f"lacks ordered entries: {ahead}"
            _log.error(told("replica lacks ordered entries", log_stream=self.log_stream, why=ahead))
        except InvariantBroken as broken:
            self.freeze(broken)
            return
        self._sync_rows_soon()
        self.reader.wake()
        if self._intake:
            self._take_waiting()

    def _sync_rows_soon(self) -> None:
        if (
            self._rows_timer is None
            and not self._rows_syncing
            and self.store.rows_synced_end < self.store.committed_end
        ):
            delay_s = self._parts.rows_sync_delay_s
            self._rows_timer = asyncio.get_running_loop().call_later(delay_s, self._sync_rows)

    def _sync_rows(self) -> None:
        self._rows_timer = None
        self._rows_syncing = True
        self._parts.worker.run(self.store.sync_rows).add_done_callback(self._rows_synced)

    def _rows_synced(self, done: asyncio.Future[LLSN]) -> None:
        self._rows_syncing = False
        if done.cancelled() or self._closed:
            return
        if (error := done.exception()) is not None:
            self._break(f"commit rows cannot be written: {error}")
            return
        self._parts.on_report(self)
        self._sync_rows_soon()

    # --- seal, unseal, trim ----------------------------------------------------------------------------------------------

    async def seal(self, epoch: Epoch, committed_end: LLSN) -> ReplicaStateIs:
        """R-SEAL-4, R-SEAL-5: SEALED is answered only after the tail is cut on disk."""
        async with self._admin:
            try:
                effect = self._machine.seal(epoch, committed_end)
            except InvariantBroken as broken:
                self.freeze(broken)
                raise Refused(
                    f"log stream {self.log_stream} refuses this seal and is frozen: {broken}"
                ) from broken
            if effect is not None:
                self._stop_taking()
                await self._carry_out(effect)
            return ReplicaStateIs(self._machine.state, self._machine.committed_end)

    async def _carry_out(self, effect: EnterEpoch | CutTail) -> None:
        store, worker = self.store, self._parts.worker
        try:
            if isinstance(effect, EnterEpoch):
                await worker.run(lambda: store.set_epoch(effect.epoch, effect.sealed_end))
                return
            await worker.run(lambda: store.cut(effect.epoch, effect.end))
        except OSError as error:
            self._break(f"the seal cannot be kept: {error}")
            raise Unavailable(
                f"log stream {self.log_stream}: the seal cannot be kept on disk: {error}"
            ) from error
        if self._machine.tail_cut(effect.epoch, effect.end):
            self._machine.trouble = ""
            # Only now are they certainly nowhere: the cut is durable on this replica, and no epoch can order them (law 6, 10).
            self._waiters.fail(Sealed(self.log_stream))

    def _stop_taking(self) -> None:
        self._writer.drop_queue()
        if self._replicator is not None:
            self._replicator.close()
            self._replicator = None
        intake, self._intake = self._intake, deque()
        self._intake_bytes = 0
        for call, _, _ in intake:
            call.fail(Sealed(self.log_stream))

    async def unseal(self, epoch: Epoch, backups: Sequence[str], *, primary: bool) -> ReplicaStateIs:
        """R-UNSEAL-1. A primary opens its connections first: it must not take what it cannot replicate."""
        async with self._admin:
            if self._machine.check_unseal(epoch):
                replicator = Replicator(self.log_stream, epoch, self._break) if primary else None
                try:
                    if replicator is not None:
                        next_llsn = self._machine.assigned_end
                        await replicator.open(
                            self._parts.transport, backups, next_llsn, timeout_s=REPLICATION_OPEN_TIMEOUT_S
                        )
                    store = self.store
                    await self._parts.worker.run(lambda: store.open_epoch(epoch))
                    self._machine.opened_as(epoch, primary=primary)
                except BaseException:
                    if replicator is not None:
                        replicator.close()
                    raise
                self._replicator = replicator
                if replicator is not None and replicator.closed:
                    self._break("a backup left while the epoch was opened")
                self._parts.on_report(self)
            return ReplicaStateIs(self._machine.state, self._machine.committed_end)

    def lacks_trim(self, glsn: GLSN) -> bool:
        """True once for each trim point that is new here: whoever is told so calls `trim`."""
        if glsn <= self._trim_asked:
            return False
        self._trim_asked = glsn
        return True

    async def trim(self, glsn: GLSN) -> None:
        """R-TRIM-1: durable before it is confirmed. A replica whose disk refuses serves nothing any more."""
        async with self._admin:
            store = self.store
            try:
                await self._parts.worker.run(lambda: store.trim(glsn))
            except OSError as error:
                self.freeze(error)

    def _break(self, trouble: str) -> None:
        if self._closed:
            return
        _log.warning(told("replica seals itself", log_stream=self.log_stream, why=trouble))
        self._machine.broken(trouble)
        intake, self._intake = self._intake, deque()
        self._intake_bytes = 0
        for call, _, _ in intake:
            call.fail(Sealed(self.log_stream))

    def freeze(self, cause: BaseException) -> None:
        """A law broke: this replica stops, the node goes on. Its files stay as they are."""
        _log.critical(told("replica frozen", log_stream=self.log_stream, why=cause))
        self._machine.freeze(str(cause))
        self._stop_taking()
        self._waiters.fail(OutcomeUnknown(f"log stream {self.log_stream} froze"))

    # --- status, end -----------------------------------------------------------------------------------------------------

    def status(self) -> ReplicaStatus:
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
            trouble=machine.trouble,
            opened=machine.opened,
        )

    async def close(self) -> None:
        """Stop in order: no more appends, what is being written ends, commit rows are synced."""
        self._closed = True
        if self._rows_timer is not None:
            self._rows_timer.cancel()
        self.reader.close()
        self._stop_taking()
        async with self._admin:
            store = self.store
            if self._machine.state is not ReplicaState.FROZEN:
                await asyncio.wait([self._parts.worker.run(store.sync_rows)])
            await self._parts.worker.run(store.close)
        await self._parts.worker.close()


def _checked(batch: bytearray) -> BatchHeader:
    """The header of the one whole batch in `batch`, everything checked: what is stored must be readable for ever."""
    try:
        header = parse_header(batch, signed=False)
        if header.size != len(batch):
            raise InvalidRequest(f"a batch of {header.size} bytes in a payload of {len(batch)}")
        check_body(batch, header)
        check_offsets(batch, header)
    except CorruptBatch as corrupt:
        raise InvalidRequest(
            f"the batch was damaged on the way, or never was one: {corrupt.what}"
        ) from corrupt
    return header
