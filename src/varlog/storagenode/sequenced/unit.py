"""[Q5] LogUnit: drives one log unit, and freezes it when a law breaks.

It owns the machine and executes what the machine decides. The path of a write: `write` (checked, decided by the machine) ->
UnitWriter (written to disk, one fdatasync for all that wait) -> `_written` -> answered. A seal or an order moves the epoch in
memory first, so that nothing of the old one is accepted or answered from then on; `_settle` makes it durable once the present write
has ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Final, Protocol, cast

from varlog.model.admission import RETRY_S_MIN, late
from varlog.model.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    check_body,
    check_offsets,
    junk,
    parse_header,
)
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import (
    AlreadyWritten,
    CorruptBatch,
    CorruptReplica,
    InvalidRequest,
    NoLease,
    NotAccepted,
    Overloaded,
    Sealed,
    StaleEpoch,
    Trimmed,
    Unavailable,
    VarlogError,
)
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.invariant import InvariantBroken, invariant
from varlog.model.limits import UNCOMMITTED_BATCHES_MAX, UNCOMMITTED_BYTES_MAX
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.model.status import SyncStatus, UnitStatus
from varlog.rpc.messages import Done, FillUnit, SealUnitReply, SyncUnit, UnitOrder, UnitPoint, WriteUnit
from varlog.rpc.transport import Call, Transport
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.metrics import TrafficMeter
from varlog.runtime.worker import Worker
from varlog.storage.disk_space import is_disk_full
from varlog.storage.sequenced.page_store import PageRef, PageStore
from varlog.storagenode.ranges import Ranges
from varlog.storagenode.sequenced.reader import UnitReader
from varlog.storagenode.sequenced.sync import UnitSyncer
from varlog.storagenode.sequenced.unit_machine import UnitMachine, WriteDecision
from varlog.storagenode.sequenced.writer import UnitWrite, UnitWriter

_log = get_logger("unit")

CONFIRM_SYNC_S: Final = 0.2
UNVERIFIED: Final = "was restored from its disk here, and has not been compared with its chain yet"


class UnitOwner(Protocol):
    """The node of a log unit, as far as the unit uses it."""

    def check_lease(self, log_stream: LogStreamID) -> None:
        """Raises NoLease if the node must not answer for the unit now."""

    def unit_begun(self) -> None:
        """Called when a unit has entered its first epoch."""

    def unit_suspicious(self) -> None:
        """Called when a unit has read bytes that may be damaged."""

    def unit_filled(self, log_stream: LogStreamID) -> None:
        """Called when a sync has completed the unit."""

    def unit_failed(self, log_stream: LogStreamID) -> None:
        """The unit's disk failed: call its `repair` from time to time."""

    def unit_served(self, topic: TopicID, epoch: Epoch) -> None:
        """Called when a client writes under a projection of a newer epoch than before."""


class LogUnit:
    """One log unit of one log stream. `restored`: from what an earlier process left on the disk."""

    def __init__(
        self,
        owner: UnitOwner,
        store: PageStore,
        worker: Worker,
        read_worker: Worker,
        transport: Transport,
        *,
        restored: bool = False,
    ) -> None:
        self.topic = store.topic
        self.log_stream = store.log_stream
        self.store = store
        self._owner = owner
        self._worker = worker
        self._machine = UnitMachine(store.log_stream, store.epoch, store.low)
        self._traffic = TrafficMeter(asyncio.get_running_loop().time)
        self._writer = UnitWriter(
            lambda: self.store,
            worker,
            self._written,
            self._write_failed,
            self._write_late,
            self._traffic,
        )
        self.reader = UnitReader(
            lambda: self.store,
            self._machine,
            read_worker,
            self._traffic,
            self._admit,
            self.mark_suspect,
        )
        self._syncer = UnitSyncer(self, read_worker, transport)
        # One change of epoch or low end at a time; writes continue until one pauses them.
        self._admin = asyncio.Lock()
        self._closed = False
        self._full = False
        self._disk_failure = ""
        self._confirm_timer: asyncio.TimerHandle | None = None
        self._unsettled = ""  # why the disk refused the newest epoch or low end
        # A disk that went back in time, or lost writes that it acknowledged, looks intact: only the chain knows. Until the unit was
        # compared with it, no client is answered: what is missing here would be taken for a hole.
        self.unverified = restored and store.epoch != NO_EPOCH
        # The newest epoch in which a client was admitted: a projection of that epoch exists, even if only that client knows it.
        self._served = NO_EPOCH
        self._restored_epoch = store.epoch
        self._went_back = False
        # Entries that could not be read, and those of them that were examined and are damaged.
        self.suspected = Ranges()
        self.damage = Ranges()
        for begin, end in store.corrupt_ranges:
            self.mark_suspect(begin, end)

    @property
    def epoch(self) -> Epoch:
        return self._machine.epoch

    @property
    def low(self) -> LLSN:
        return self._machine.low

    def _admit(self, epoch: Epoch) -> None:
        """Whether a client of this epoch is answered now (R-SEQ-5, R-SEQ-13)."""
        self._check_epoch(epoch)
        if self.unverified:
            raise Unavailable(f"log stream {self.log_stream} {UNVERIFIED}")

    def _admit_write(self, epoch: Epoch) -> None:
        """The same before a write: a refusal means that the batch is certainly not here."""
        self._check_epoch(epoch)
        if self.unverified:
            raise Sealed(self.log_stream, f"it {UNVERIFIED}")
        if epoch > self._served:
            self._served = epoch
            self._owner.unit_served(self.topic, epoch)

    def _check_epoch(self, epoch: Epoch) -> None:
        self._check_open()
        self._machine.check(epoch)
        self._owner.check_lease(self.log_stream)

    def _admit_written(self, epoch: Epoch) -> None:
        """The same for a batch that is written: NoLease would mean that it was refused."""
        try:
            self._admit(epoch)
        except NoLease as ended:
            raise Unavailable(f"log stream {self.log_stream}: written here, but {ended}") from ended

    # --- writes ------------------------------------------------------------------------------------------------------

    def write(self, call: Call, request: WriteUnit, batch: bytearray) -> None:
        """[Q5] R-SEQ-4, R-SEQ-5: a client's batch, placed and signed. Overloaded: behind what waits already it would be durable
        too late, so it is refused unchecked."""
        self._admit_write(request.epoch)
        deadline = self._deadline(request.within_ms / 1000) if request.within_ms else math.inf
        header = _checked(batch, request.epoch)
        self._submit(call, header, batch, self._traffic.now(), deadline)

    def _deadline(self, within_s: float) -> float:
        """When the client of a first try at the head of a chain stops waiting for the answer."""
        writer = self._writer
        if not writer.idle and (refusal := late(writer.wait_s(), within_s, writer.batches_waiting + 1)):
            raise refusal
        return self._traffic.now() + within_s

    def fill(self, call: Call, request: FillUnit) -> None:
        """R-SEQ-7: junk, whose bytes do not depend on the writer."""
        self._admit_write(request.epoch)
        if request.llsn < FIRST_LLSN:
            raise InvalidRequest(f"LLSN {request.llsn} does not exist: they start at {FIRST_LLSN}")
        batch = junk(request.llsn, request.count)
        self._submit(call, parse_header(batch), batch)

    def _submit(
        self,
        call: Call,
        header: BatchHeader,
        batch: bytearray,
        since: float | None = None,
        deadline: float = math.inf,
    ) -> None:
        self._check_room(len(batch))
        write = UnitWrite(
            header.first_llsn,
            header.count,
            bytes(batch[:HEADER_BYTES]),
            batch,
            self._machine.epoch,
            [call],
            since=since,
            deadline=deadline,
        )
        stored = self.store.overlaps(header.first_llsn, header.count)
        decision = self._machine.write(write, stored)
        if decision is WriteDecision.WRITE:
            self._writer.write(write)
        elif decision is WriteDecision.WAIT:
            same = self._in_flight(write)
            same.calls.append(call)
            same.deadline = max(same.deadline, deadline)
        elif stored is not None:
            self._compare(call, write, stored)

    def _compare(self, call: Call, write: UnitWrite, stored: PageRef) -> None:
        """Compare the batch stored at these positions, which has as many entries, with this one, and answer."""
        epoch = write.epoch
        if (stored.size, stored.crc) != (len(write.batch), parse_header(write.batch).crc):
            raise AlreadyWritten(self.log_stream, write.first_llsn)

        def answer(data: Buffer) -> None:
            self._admit_written(epoch)
            if bytes(data[:HEADER_BYTES]) != write.header:
                raise AlreadyWritten(self.log_stream, write.first_llsn)
            call.reply(Done())

        def unreadable(error: Exception) -> None:
            corrupt = isinstance(error, CorruptBatch)
            call.fail(
                Unavailable(f"log stream {self.log_stream} is damaged here: {error}") if corrupt else error
            )

        self.reader.read_pages([stored], answer, unreadable)

    def _check_room(self, size: int) -> None:
        if self._full and self.store.disk_space.full:
            raise Sealed(self.log_stream, self.store.disk_space.why)
        self._full = False
        if self._disk_failure:
            raise Unavailable(f"log stream {self.log_stream} accepts no writes here: {self._disk_failure}")
        writer = self._writer
        if writer.bytes_waiting and writer.bytes_waiting + size > UNCOMMITTED_BYTES_MAX:
            raise NotAccepted(f"log stream {self.log_stream} has too much in flight here: append more slowly")
        if writer.batches_waiting >= UNCOMMITTED_BATCHES_MAX:
            raise NotAccepted(f"log stream {self.log_stream} has too much in flight here: append more slowly")

    def _written(self, writes: Sequence[UnitWrite]) -> None:
        """Handle a group that is durable and in the store's index."""
        try:
            for write in writes:
                self._machine.settled(write)
                self._answer(write)
        except InvariantBroken as broken:
            self.freeze(broken)
        self.reader.wake()
        self._confirm_sync_soon()

    def _confirm_sync_soon(self) -> None:
        """When writes pause, make the sync watermark durable: after a power loss it separates pages from a torn tail."""
        if self._confirm_timer is None and not self._closed:
            self._confirm_timer = asyncio.get_running_loop().call_later(CONFIRM_SYNC_S, self._confirm_sync)

    def _confirm_sync(self) -> None:
        self._confirm_timer = None
        if not self._writer.idle:
            self._confirm_sync_soon()
        elif self.store.failure is None:
            self._worker.run(self.store.confirm_sync).add_done_callback(self._sync_confirmed)

    def _sync_confirmed(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._disk_failure = f"write failed: {error}"
            _log.warning(logfmt("log unit accepts no writes", log_stream=self.log_stream, why=error))
            self._owner.unit_failed(self.log_stream)

    def _answer(self, write: UnitWrite) -> None:
        if write.copied is not None and not write.copied.done():
            write.copied.set_result(None)
        if not write.calls:
            return
        try:
            # Sealed meanwhile: it is written, and was counted in the answer to the seal; its client resumes it in the new epoch.
            self._admit_written(write.epoch)
        except VarlogError as refusal:
            _fail(write, refusal)
        else:
            for call in write.calls:
                call.reply(Done())
            if write.since is not None:
                self._traffic.appended(write.count, len(write.batch), self._traffic.now() - write.since)

    def _write_late(self, writes: Sequence[UnitWrite]) -> None:
        """Nothing of them is or will be on disk, here or elsewhere: their clients fill the positions (laws 4, 10)."""
        now, wait_s, waiting = self._traffic.now(), self._writer.wait_s(), self._writer.batches_waiting
        try:
            for write in writes:
                self._machine.settled(write)
                refusal = late(wait_s, write.deadline - now, waiting)
                _fail(write, refusal or Overloaded(waiting, 0.0, RETRY_S_MIN))
        except InvariantBroken as broken:
            self.freeze(broken)

    def _write_failed(self, writes: Sequence[UnitWrite], error: BaseException) -> None:
        """R-SEAL-6: what was being written may be on disk or not, and no write is retried."""
        full = is_disk_full(error)
        self._full |= full
        if self.store.failure is not None or not isinstance(error, OSError):
            self._disk_failure = f"write failed: {error}"
        _log.warning(logfmt("log unit accepts no writes", log_stream=self.log_stream, why=error))
        refusal: Exception = Unavailable(f"log stream {self.log_stream} could not be written here: {error}")
        if full and self.store.failure is None:
            refusal = Sealed(self.log_stream, self.store.disk_space.why)
        for write in writes:
            self._machine.settled(write)
            _fail(write, refusal)
        if isinstance(error, InvariantBroken):
            self.freeze(error)
        elif self._disk_failure:
            self._owner.unit_failed(self.log_stream)

    # --- seal, orders, trim ------------------------------------------------------------------------------------------

    async def seal(self, epoch: Epoch) -> SealUnitReply:
        """R-SEQ-9. It needs no lease: a seal only revokes."""
        self._check_open()
        before = self._machine.newest_epoch
        self._machine.seal(epoch)
        self._record_jump(before)
        if self._machine.entering:
            self._syncer.stop()
        self._stop_old(copies=True)
        await self._settle()
        if self._machine.newest_epoch != epoch:
            raise StaleEpoch(self.log_stream, epoch, self._machine.newest_epoch)
        store, unverified = self.store, self.unverified
        went_back = unverified and self._went_back
        return SealUnitReply(
            self.log_stream, epoch, store.newest, store.dense_end, self.trouble, unverified, went_back
        )

    def _record_jump(self, before: Epoch) -> None:
        """Every member of a chain has the projection's epoch on disk and is sealed for the next: a larger step is a lost write."""
        self._went_back |= self.unverified and self._machine.newest_epoch > before + 1

    def order(self, order: UnitOrder) -> bool:
        """The repository's order takes effect immediately. True if `persist_order` has something to make durable."""
        if self._closed:
            return False
        if order.alone:
            self.unverified = False
        before = self._machine.newest_epoch
        if self._machine.order(order.epoch, order.low):
            self._record_jump(before)
            self._stop_old()
        return not self._machine.frozen and (
            bool(self._machine.entering) or self._machine.low > self.store.low
        )

    async def persist_order(self) -> None:
        await self._settle()

    async def trim(self, low: LLSN) -> None:
        """R-TRIM-1: what another unit of the chain has trimmed does not reappear here (law 9)."""
        if self._machine.trim(low):
            self._stop_old()
        await self._settle()

    def point(self) -> UnitPoint:
        """The epoch and the low end of the unit, for a repository that may know less."""
        return UnitPoint(self.log_stream, self.topic, self._machine.newest_epoch, self._machine.low)

    def ordered(self) -> UnitOrder | None:
        """How far the repository's orders are applied; None while the unit is new or frozen, and answers in no epoch. Orders that
        the disk refuses count as well: the unit obeys them, and without a lease, as after a restart, it does not answer."""
        machine = self._machine
        if machine.epoch == NO_EPOCH or machine.frozen:
            return None
        if self._unsettled:
            return UnitOrder(self.log_stream, machine.newest_epoch, machine.low)
        return UnitOrder(self.log_stream, machine.epoch, self.store.low)

    def _stop_old(self, *, copies: bool = False) -> None:
        """Drop queued writes whose epoch is over or whose positions are trimmed. Copies belong to no epoch; but what a unit
        reports when it is sealed must not grow any more, so that a seal drops `copies` as well."""
        machine, log_stream = self._machine, self.log_stream
        if machine.entering:
            self._syncer.forget()
            for write in self._writer.drop(lambda write: copies or bool(write.calls)):
                machine.settled(write)
                _fail(write, StaleEpoch(log_stream, write.epoch, machine.entering))
        for write in self._writer.drop(lambda write: write.end_llsn <= machine.low):
            machine.settled(write)
            _fail(write, Trimmed(write.first_llsn, machine.low))
        self.reader.recheck_waiting()

    async def _settle(self) -> None:
        """Make the machine's epoch and low end durable. Unavailable: the disk refuses; until then the unit does not serve."""
        machine, worker = self._machine, self._worker
        async with self._admin, self._writer.paused():
            self._check_open()
            try:
                await self._reopen()
                store = self.store
                new = machine.epoch == NO_EPOCH
                while epoch := machine.entering:
                    await worker.run(lambda: store.set_epoch(epoch))
                    machine.entered(epoch)
                if new and machine.epoch != NO_EPOCH:
                    self._owner.unit_begun()
                while (low := machine.low) > store.low:
                    await worker.run(lambda: store.trim(low))
                    self.damage.remove(FIRST_LLSN, low)
            except OSError as error:
                self._unsettled = str(error)
                self._owner.unit_failed(self.log_stream)
                raise Unavailable(
                    f"log stream {self.log_stream}: its state cannot be written to disk: {error}"
                ) from error
            except Unavailable as refusal:
                self._unsettled = str(refusal)
                self._owner.unit_failed(self.log_stream)
                raise
            self._unsettled = ""

    @property
    def disk_failed(self) -> bool:
        """Whether its disk failed, and may work again."""
        return bool(self._disk_failure or self._unsettled) and not (self._closed or self._machine.frozen)

    async def repair(self) -> None:
        """Try whether the disk works again: the only unit of a chain is not sealed by anyone. Unavailable: it still does not."""
        await self._settle()

    async def reopen_if_failed(self) -> None:
        async with self._admin, self._writer.paused():
            self._check_open()
            await self._reopen()

    async def _reopen(self) -> None:
        """A store whose disk failed is opened again, which reads the disk: nothing unverified is trusted."""
        self._machine.check_alive()
        old = self.store
        if old.failure is None:
            return
        try:
            fresh = await self._worker.run(old.reopened)
            invariant(fresh.epoch >= old.epoch and fresh.newest >= old.newest and fresh.dense_end >= old.dense_end,
                      "what was acknowledged survives a disk failure (law 10)", newest=fresh.newest, was=old.newest,
                      dense_end=fresh.dense_end, dense_was=old.dense_end)  # fmt: skip
        except OSError as error:
            self._disk_failure = f"the disk still fails: {error}"
            raise Unavailable(f"log stream {self.log_stream} cannot be opened again: {error}") from error
        except (CorruptReplica, InvariantBroken) as lost:
            self.freeze(lost)
            raise Unavailable(f"log stream {self.log_stream} lost entries with its disk: {lost}") from lost
        self.store, self._disk_failure = fresh, ""
        await self._worker.run(old.close)
        for begin, end in fresh.corrupt_ranges:
            self.mark_suspect(begin, end)
        _log.info(logfmt("log unit opened again after a disk failure", log_stream=self.log_stream))

    # --- sync --------------------------------------------------------------------------------------------------------

    def sync(self, request: SyncUnit) -> SyncStatus:
        """R-SEQ-14: fill this unit from another one of the chain, or return the progress of that."""
        self._check_open()
        self._machine.check_alive()
        if request.max_epoch and self._machine.newest_epoch > request.max_epoch:
            raise StaleEpoch(self.log_stream, request.max_epoch, self._machine.newest_epoch)
        # Within one epoch a position is decided once: only missing positions are copied. A unit of an older epoch may have
        # positions that the chain has decided otherwise since.
        present = request.epoch - 1 if request.epoch else request.max_epoch
        begin = self.store.dense_end if self._restored_epoch >= present else FIRST_LLSN
        return self._syncer.start(
            request.epoch, request.source, backfill=request.backfill, proves=request.proves, begin=begin
        )

    def write_copy(self, header: BatchHeader, batch: memoryview) -> asyncio.Future[None] | None:
        """A checked batch of another unit, written like any other; None if it exists here already, or is trimmed."""
        self._check_open()
        self._check_room(0)
        first, count = header.first_llsn, header.count
        write = UnitWrite(first, count, bytes(batch[:HEADER_BYTES]), batch, self._machine.epoch)
        if write.end_llsn <= self._machine.low:
            return None
        stored = self.store.overlaps(first, count)
        decision = self._machine.write(write, stored)
        if stored is not None:
            if stored.crc != header.crc:
                raise AlreadyWritten(self.log_stream, first)
            return None
        if decision is WriteDecision.WRITE:
            self._writer.write(write)
        else:
            write = self._in_flight(write)
            write.deadline = math.inf  # another unit has it
        if write.copied is None:
            write.copied = asyncio.get_running_loop().create_future()
            # A cancelled sync does not await its writes.
            write.copied.add_done_callback(lambda copied: copied.cancelled() or copied.exception())
        return write.copied

    def _in_flight(self, write: UnitWrite) -> UnitWrite:
        """The very same batch, which is being written."""
        found = self._machine.pending_at(write.first_llsn, write.end_llsn)
        invariant(
            isinstance(found, UnitWrite), "a duplicate of a pending write is pending", llsn=write.first_llsn
        )
        return cast(UnitWrite, found)

    def mark_filled(self) -> None:
        """Record that a sync proved that nothing is missing here."""
        self.unverified = False
        self._machine.mark_filled()
        self._owner.unit_filled(self.log_stream)

    def check_rebuild(self, epoch: Epoch) -> bool:
        """True if this unit cannot continue and may be rebuilt, False if it is empty and new already."""
        sync = self._syncer.status
        hopeless = sync.why or "it has what its chain has not" if sync is not None and sync.rebuild else ""
        empty = self.store.newest < self.store.low
        return self._machine.check_rebuild(epoch, empty=empty, trouble=hopeless or self._broken)

    # --- damage ------------------------------------------------------------------------------------------------------

    def mark_suspect(self, begin: LLSN, end: LLSN) -> None:
        """Entries [begin, end) could not be read: the scrub examines them next."""
        begin, end = max(begin, self._machine.low), min(end, LLSN(self.store.newest + 1))
        if begin < end:
            self.suspected.add(begin, end)
            self._owner.unit_suspicious()

    def record_damage(self, begin: LLSN, end: LLSN, what: str) -> None:
        """Entries [begin, end) do not match their checksums on disk. The manager sees it and has the unit rebuilt."""
        if self.damage.covers(begin, end):
            return
        entries, path = f"[{begin}, {end})", self.store.path
        _log.warning(
            logfmt("damaged entries", log_stream=self.log_stream, entries=entries, why=what, path=path)
        )
        self.damage.add(begin, end)

    def mark_verified(self, begin: LLSN, end: LLSN) -> None:
        """Entries [begin, end) were examined and match their checksums: a disk may refuse a read temporarily."""
        self.damage.remove(begin, end)

    async def scrub_metadata(self) -> None:
        """Check and repair the metadata files: damage found only at the next start would cost the whole unit."""
        store = self.store
        if self._closed or store.failure is not None:
            return
        try:
            wrong = await self._worker.run(store.scrub_metadata)
        except OSError as error:
            wrong = f"{store.path}: {error}"
        if wrong:
            _log.warning(logfmt("damaged state", log_stream=self.log_stream, why=wrong))

    async def relink(self) -> None:
        """Write files that were deleted or replaced while they are open again under their names."""
        store = self.store
        if self._closed or store.failure is not None or self._machine.frozen:
            return
        try:
            wrong = await self._worker.run(store.relink)
        except OSError as error:
            _log.warning(
                logfmt("a deleted file cannot be written again", log_stream=self.log_stream, why=error)
            )
            if not is_disk_full(error):
                self._disk_failure = f"a deleted file cannot be written again: {error}"
                self._owner.unit_failed(self.log_stream)
        else:
            if wrong:
                _log.warning(logfmt("files written again", log_stream=self.log_stream, why=wrong))

    def freeze(self, cause: BaseException) -> None:
        """A law was violated: stop this unit, while the node continues. Its files stay unchanged."""
        _log.critical(logfmt("log unit frozen", log_stream=self.log_stream, why=cause))
        self._machine.freeze(str(cause))
        self._stop(Unavailable(f"log stream {self.log_stream} froze on this node"))

    def _stop(self, why: Exception) -> None:
        self._syncer.stop()
        for write in self._writer.drop(lambda _: True):
            self._machine.settled(write)
            _fail(write, why)
        self.reader.close(why)

    # --- status, end -------------------------------------------------------------------------------------------------

    @property
    def _broken(self) -> str:
        """Why only a rebuild can restore it."""
        damage = self.damage.above(self._machine.low)
        return f"damaged entries {list(damage)}" if damage else self._disk_failure or self._unsettled

    @property
    def trouble(self) -> str:
        """Why it accepts no writes, or should not serve."""
        disk_space = self.store.disk_space
        return self._machine.frozen or self._broken or (disk_space.why if disk_space.full else "")

    def status(self) -> UnitStatus:
        store = self.store
        return UnitStatus(
            log_stream=self.log_stream,
            topic=self.topic,
            epoch=self._machine.epoch,
            newest=store.newest,
            dense_end=store.dense_end,
            low=self._machine.low,
            path=str(store.path),
            bytes=store.bytes,
            trouble=self.trouble,
            sync=self._syncer.status,
            damage=self.damage.above(self._machine.low),
            full=store.disk_space.full,
            traffic=self._traffic.snapshot(),
            unverified=self.unverified,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"log stream {self.log_stream} is closed here")

    async def close(self, *, relink: bool = False) -> None:
        """Stop in order: no more writes, the present write ends, the files are closed. With `relink`, files that have lost their
        names since the last check are written again: they would be lost with their descriptors."""
        self._closed = True
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
        self._stop(Unavailable(f"log stream {self.log_stream} is closed here"))
        await self._syncer.close()
        async with self._admin, self._writer.paused():
            if relink and not self._machine.frozen:
                await asyncio.wait([self._worker.run(self.store.relink)])
            await self._worker.run(self.store.close)
        await self._worker.close()


def _fail(write: UnitWrite, refusal: Exception) -> None:
    for call in write.calls:
        call.fail(refusal)
    if write.copied is not None and not write.copied.done():
        write.copied.set_exception(refusal)


def _checked(batch: bytearray, epoch: Epoch) -> BatchHeader:
    """The header of the one whole batch in `batch`, everything checked: what is stored must be readable forever."""
    try:
        header = parse_header(batch)
        if header.size != len(batch):
            raise InvalidRequest(f"a batch of {header.size} bytes in a payload of {len(batch)}")
        check_body(batch, header)
        check_offsets(batch, header)
    except CorruptBatch as corrupt:
        raise InvalidRequest(
            f"the batch was damaged on the way, or never was one: {corrupt.what}"
        ) from corrupt
    if header.first_llsn < FIRST_LLSN or header.epoch > epoch:
        raise InvalidRequest(
            f"a batch of epoch {header.epoch} at LLSN {header.first_llsn}, sent in epoch {epoch}: its position was never given"
        )
    # Junk that is not the one that every other filler writes would make two values of one position (law 8).
    if header.is_junk and batch != junk(header.first_llsn, header.count):
        raise InvalidRequest("the bytes of junk do not depend on the writer: fill the position instead")
    return header
