"""[Q5] LogUnit: the driver of one log unit. Owns its machine and carries out what it decides; freezes when a law breaks.

A write goes: `write` (checked, judged by the machine) -> UnitWriter (one fdatasync for all that wait) -> `_written` -> answered. A
seal or an order moves the epoch in memory first, so that nothing of the old one is taken or answered from then on, and `_settle`
makes it durable when what was under way to the disk has ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

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
from varlog.model.ids import LogStreamID
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
from varlog.storagenode.sequenced.sync import UnitSyncer, UnitSyncParts
from varlog.storagenode.sequenced.unit_machine import UnitMachine, WriteDecision
from varlog.storagenode.sequenced.writer import UnitWrite, UnitWriter

_log = get_logger("unit")

CONFIRM_SYNC_S: Final = 0.2
UNVERIFIED: Final = "was restored from its disk here, and has not been compared with its chain yet"


@dataclass(frozen=True, slots=True)
class UnitParts:
    """What a log unit is handed by its node. `check_lease` raises NoLease; `on_begun` says that it is in its first epoch,
    `on_suspicion` that it has met bytes that may be damaged, `on_filled` that a sync has ended well."""

    store: PageStore
    worker: Worker
    read_worker: Worker
    transport: Transport
    check_lease: Callable[[], None]
    on_begun: Callable[[], None] = lambda: None
    on_suspicion: Callable[[], None] = lambda: None
    on_filled: Callable[[LogStreamID], None] = lambda _: None
    on_disk_failure: Callable[[LogStreamID], None] = lambda _: (
        None
    )  # its disk failed it: `repair` it now and then
    on_epoch: Callable[[Epoch], None] = lambda _: (
        None
    )  # a client writes by a projection of a newer epoch than before
    restored: bool = False  # from what a process before this one has left on the disk


class LogUnit:
    """One log unit of one log stream."""

    def __init__(self, parts: UnitParts) -> None:
        store = parts.store
        self.topic = store.topic
        self.log_stream = store.log_stream
        self.store = store
        self._parts = parts
        self._machine = UnitMachine(store.log_stream, store.epoch, store.low)
        self._traffic = TrafficMeter(asyncio.get_running_loop().time)
        self._writer = UnitWriter(
            lambda: self.store,
            parts.worker,
            self._written,
            self._write_failed,
            self._write_late,
            self._traffic,
        )
        self.reader = UnitReader(
            lambda: self.store,
            self._machine,
            parts.read_worker,
            self._traffic,
            self._admit,
            self.mark_suspect,
        )
        self._syncer = UnitSyncer(
            UnitSyncParts(
                log_stream=store.log_stream,
                pages_from=lambda llsn, limit: self.store.pages_from(llsn, limit),
                low=lambda: self._machine.low,
                dense_end=lambda: self.store.dense_end,
                worker=parts.read_worker,
                transport=parts.transport,
                trim=self.trim,
                write_copy=self._write_copy,
                reopen_if_failed=self._reopen_if_failed,
                filled=self._filled,
            )
        )
        # One change of epoch or low end at a time; writes go on until one holds them.
        self._admin = asyncio.Lock()
        self._closed = False
        self._full = False
        self._disk_failure = ""
        self._confirm_timer: asyncio.TimerHandle | None = None
        self._unsettled = ""  # why the disk did not take the newest epoch or low end
        # A disk that went back in time, or lost writes it acknowledged, looks sound: only the chain can tell. Until it has, no
        # client is answered: what is missing here would be taken for a hole.
        self.unverified = parts.restored and store.epoch != NO_EPOCH
        # The newest epoch in which a client was admitted: a projection of that epoch exists, whoever else knows of it.
        self._served = NO_EPOCH
        self._restored_epoch = store.epoch
        self._went_back = False
        # Entries that somebody could not read, and those of them that were looked at and are damaged.
        self.suspected = Ranges()
        self.damage = Ranges()
        for begin, end in store.corrupt_ranges:
            self.mark_suspect(begin, end)

    @property
    def epoch(self) -> Epoch:
        return self._machine.epoch

    def _admit(self, epoch: Epoch) -> None:
        """Whether a client of this epoch is answered now (R-SEQ-5, R-SEQ-13)."""
        self._check_epoch(epoch)
        if self.unverified:
            raise Unavailable(f"log stream {self.log_stream} {UNVERIFIED}")

    def _admit_write(self, epoch: Epoch) -> None:
        """The same, before anything is taken: the batch is certainly not here."""
        self._check_epoch(epoch)
        if self.unverified:
            raise Sealed(self.log_stream, f"it {UNVERIFIED}")
        if epoch > self._served:
            self._served = epoch
            self._parts.on_epoch(epoch)

    def _check_epoch(self, epoch: Epoch) -> None:
        self._check_open()
        self._machine.check(epoch)
        self._parts.check_lease()

    def _admit_written(self, epoch: Epoch) -> None:
        """The same, for who is told of a batch that is there: NoLease would mean that it was not taken."""
        try:
            self._admit(epoch)
        except NoLease as ended:
            raise Unavailable(f"log stream {self.log_stream}: written here, but {ended}") from ended

    # --- writes ------------------------------------------------------------------------------------------------------

    def write(self, call: Call, request: WriteUnit, batch: bytearray) -> None:
        """R-SEQ-4, R-SEQ-5: a client's batch, placed and signed. Overloaded: behind what waits already it would be durable too
        late, so it is neither taken nor checked."""
        self._admit_write(request.epoch)
        deadline = self._deadline(request.within_ms / 1000) if request.within_ms else math.inf
        header = _checked(batch, request.epoch)
        self._submit(call, header, batch, self._traffic.now(), deadline)

    def _deadline(self, within_s: float) -> float:
        """When the client of a first try at the head of a chain needs no answer any more."""
        writer = self._writer
        if not writer.idle and (refusal := late(writer.wait_s(), within_s, writer.batches_waiting + 1)):
            raise refusal
        return self._traffic.now() + within_s

    def fill(self, call: Call, request: FillUnit) -> None:
        """R-SEQ-7: junk, which whoever makes it makes alike."""
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
        """The place is taken by a batch of as many entries: is it this one?"""
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
            raise Unavailable(f"log stream {self.log_stream} takes no writes here: {self._disk_failure}")
        writer = self._writer
        if writer.bytes_waiting and writer.bytes_waiting + size > UNCOMMITTED_BYTES_MAX:
            raise NotAccepted(f"log stream {self.log_stream} has too much in flight here: append more slowly")
        if writer.batches_waiting >= UNCOMMITTED_BATCHES_MAX:
            raise NotAccepted(f"log stream {self.log_stream} has too much in flight here: append more slowly")

    def _written(self, writes: Sequence[UnitWrite]) -> None:
        """A group is durable, and in the store's index."""
        try:
            for write in writes:
                self._machine.settled(write)
                self._answer(write)
        except InvariantBroken as broken:
            self.freeze(broken)
        self.reader.wake()
        self._confirm_sync_soon()

    def _confirm_sync_soon(self) -> None:
        """When writes pause, what was written is proven: after a power loss it is told from a torn tail all the more surely."""
        if self._confirm_timer is None and not self._closed:
            self._confirm_timer = asyncio.get_running_loop().call_later(CONFIRM_SYNC_S, self._confirm_sync)

    def _confirm_sync(self) -> None:
        self._confirm_timer = None
        if not self._writer.idle:
            self._confirm_sync_soon()
        elif self.store.failure is None:
            self._parts.worker.run(self.store.confirm_sync).add_done_callback(self._sync_confirmed)

    def _sync_confirmed(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._disk_failure = f"write failed: {error}"
            _log.warning(logfmt("log unit takes no writes", log_stream=self.log_stream, why=error))
            self._parts.on_disk_failure(self.log_stream)

    def _answer(self, write: UnitWrite) -> None:
        if write.copied is not None and not write.copied.done():
            write.copied.set_result(None)
        if not write.calls:
            return
        try:
            # Sealed meanwhile: it is there, and counted in what the seal was answered with; its client resumes it in the new epoch.
            self._admit_written(write.epoch)
        except VarlogError as refusal:
            _fail(write, refusal)
        else:
            for call in write.calls:
                call.reply(Done())
            if write.since is not None:
                self._traffic.appended(write.count, len(write.batch), self._traffic.now() - write.since)

    def _write_late(self, writes: Sequence[UnitWrite]) -> None:
        """Nothing of them is on disk, here or elsewhere, and now never will be: their clients fill the positions (law 4, law
        10)."""
        now, wait_s, waiting = self._traffic.now(), self._writer.wait_s(), self._writer.batches_waiting
        try:
            for write in writes:
                self._machine.settled(write)
                refusal = late(wait_s, write.deadline - now, waiting)
                _fail(write, refusal or Overloaded(waiting, 0.0, RETRY_S_MIN))
        except InvariantBroken as broken:
            self.freeze(broken)

    def _write_failed(self, writes: Sequence[UnitWrite], error: BaseException) -> None:
        """R-SEAL-6: what was being written may be there or not; nothing is tried again as if nothing had happened."""
        full = is_disk_full(error)
        self._full |= full
        if self.store.failure is not None or not isinstance(error, OSError):
            self._disk_failure = f"write failed: {error}"
        _log.warning(logfmt("log unit takes no writes", log_stream=self.log_stream, why=error))
        refusal: Exception = Unavailable(f"log stream {self.log_stream} could not be written here: {error}")
        if full and self.store.failure is None:
            refusal = Sealed(self.log_stream, self.store.disk_space.why)
        for write in writes:
            self._machine.settled(write)
            _fail(write, refusal)
        if isinstance(error, InvariantBroken):
            self.freeze(error)
        elif self._disk_failure:
            self._parts.on_disk_failure(self.log_stream)

    # --- seal, orders, trim ------------------------------------------------------------------------------------------

    async def seal(self, epoch: Epoch) -> SealUnitReply:
        """R-SEQ-9. Without a lease, too: a seal only takes away."""
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
        """Every member of a chain has the projection's epoch on its disk, and is sealed for the next one."""
        self._went_back |= self.unverified and self._machine.newest_epoch > before + 1

    def order(self, order: UnitOrder) -> bool:
        """The repository's word takes effect at once. True if there is something that `obey` has to make durable."""
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
        """R-TRIM-1: what another unit of the chain has trimmed does not come back here (law 9)."""
        if self._machine.trim(low):
            self._stop_old()
        await self._settle()

    def point(self) -> UnitPoint:
        """Where it stands, for a repository that may know less."""
        return UnitPoint(self.log_stream, self.topic, self._machine.newest_epoch, self._machine.low)

    def ordered(self) -> UnitOrder | None:
        """How far the repository's orders are kept: None while the unit is new, or frozen, and answers nobody in any epoch. Those
        that the disk refuses count, too: the unit answers by them, and without a lease, as after a restart, by none."""
        machine = self._machine
        if machine.epoch == NO_EPOCH or machine.frozen:
            return None
        if self._unsettled:
            return UnitOrder(self.log_stream, machine.newest_epoch, machine.low)
        return UnitOrder(self.log_stream, machine.epoch, self.store.low)

    def _stop_old(self, *, copies: bool = False) -> None:
        """What is not begun and has lost its epoch or its place is not begun any more. What is copied is of no epoch; but what a
        unit tells of when it is sealed must not grow any more, so that then `copies` are not begun either."""
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
        """Make durable what the machine has been told. Unavailable: the disk refuses; the unit serves nobody in the meantime."""
        machine, worker = self._machine, self._parts.worker
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
                    self._parts.on_begun()
                while (low := machine.low) > store.low:
                    await worker.run(lambda: store.trim(low))
                    self.damage.remove(FIRST_LLSN, low)
            except OSError as error:
                self._unsettled = str(error)
                self._parts.on_disk_failure(self.log_stream)
                raise Unavailable(
                    f"log stream {self.log_stream}: its state cannot be kept on disk: {error}"
                ) from error
            except Unavailable as refusal:
                self._unsettled = str(refusal)
                self._parts.on_disk_failure(self.log_stream)
                raise
            self._unsettled = ""

    @property
    def disk_failed(self) -> bool:
        """Its disk failed it, and may take its writes again."""
        return bool(self._disk_failure or self._unsettled) and not (self._closed or self._machine.frozen)

    async def repair(self) -> None:
        """Look whether the disk works again: the only unit of its chain waits for nobody's seal. Unavailable: it still does not."""
        await self._settle()

    async def _reopen_if_failed(self) -> None:
        async with self._admin, self._writer.paused():
            self._check_open()
            await self._reopen()

    async def _reopen(self) -> None:
        """A store whose disk failed is opened again, which looks at the disk: nothing that was not proven is believed."""
        self._machine.check_alive()
        old = self.store
        if old.failure is None:
            return
        try:
            fresh = await self._parts.worker.run(old.reopened)
            invariant(fresh.epoch >= old.epoch and fresh.newest >= old.newest and fresh.dense_end >= old.dense_end,
                      "what was acknowledged is there after a disk failure (law 10)", newest=fresh.newest, was=old.newest,
                      dense_end=fresh.dense_end, dense_was=old.dense_end)  # fmt: skip
        except OSError as error:
            self._disk_failure = f"the disk still fails: {error}"
            raise Unavailable(f"log stream {self.log_stream} cannot be opened again: {error}") from error
        except (CorruptReplica, InvariantBroken) as lost:
            self.freeze(lost)
            raise Unavailable(f"log stream {self.log_stream} lost entries with its disk: {lost}") from lost
        self.store, self._disk_failure = fresh, ""
        await self._parts.worker.run(old.close)
        for begin, end in fresh.corrupt_ranges:
            self.mark_suspect(begin, end)
        _log.info(logfmt("log unit opened again after a disk failure", log_stream=self.log_stream))

    # --- sync --------------------------------------------------------------------------------------------------------

    def sync(self, request: SyncUnit) -> SyncStatus:
        """R-SEQ-14: be filled from another unit of the chain, or tell how far that is."""
        self._check_open()
        self._machine.check_alive()
        if request.max_epoch and self._machine.newest_epoch > request.max_epoch:
            raise StaleEpoch(self.log_stream, request.max_epoch, self._machine.newest_epoch)
        # Within one epoch a position is not decided twice: only what is missing is looked for. What is of an older epoch may hold
        # what the chain has decided otherwise since.
        present = request.epoch - 1 if request.epoch else request.max_epoch
        begin = self.store.dense_end if self._restored_epoch >= present else FIRST_LLSN
        return self._syncer.start(
            request.epoch, request.source, backfill=request.backfill, proves=request.proves, begin=begin
        )

    def _write_copy(self, header: BatchHeader, batch: memoryview) -> asyncio.Future[None] | None:
        """A batch of another unit, checked. Written like any other; None if it is here already, or trimmed."""
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
            # A sync that was given up asks no more what became of its writes.
            write.copied.add_done_callback(lambda copied: copied.cancelled() or copied.exception())
        return write.copied

    def _in_flight(self, write: UnitWrite) -> UnitWrite:
        """The very same batch, which is being written."""
        found = self._machine.pending_at(write.first_llsn, write.end_llsn)
        invariant(isinstance(found, UnitWrite), "whoever waits, waits for something", llsn=write.first_llsn)
        return cast(UnitWrite, found)

    def _filled(self) -> None:
        self.unverified = False
        self._machine.mark_filled()
        self._parts.on_filled(self.log_stream)

    def check_rebuild(self, epoch: Epoch) -> bool:
        """True if this unit cannot go on and may be made anew, False if it is empty and new already."""
        sync = self._syncer.status
        hopeless = sync.why or "it holds what its chain has not" if sync is not None and sync.rebuild else ""
        empty = self.store.newest < self.store.low
        return self._machine.check_rebuild(epoch, empty=empty, trouble=hopeless or self._broken)

    # --- damage ------------------------------------------------------------------------------------------------------

    def mark_suspect(self, begin: LLSN, end: LLSN) -> None:
        """Somebody could not read entries [begin, end): they are looked at next."""
        begin, end = max(begin, self._machine.low), min(end, LLSN(self.store.newest + 1))
        if begin < end:
            self.suspected.add(begin, end)
            self._parts.on_suspicion()

    def record_damage(self, begin: LLSN, end: LLSN, what: str) -> None:
        """Entries [begin, end) do not match their checksums on disk. The manager sees it, and has the unit made anew."""
        if self.damage.covers(begin, end):
            return
        entries, path = f"[{begin}, {end})", self.store.path
        _log.warning(
            logfmt("damaged entries", log_stream=self.log_stream, entries=entries, why=what, path=path)
        )
        self.damage.add(begin, end)

    def mark_verified(self, begin: LLSN, end: LLSN) -> None:
        """Entries [begin, end) were looked at, and match their checksums: a disk may refuse a read for a moment."""
        self.damage.remove(begin, end)

    async def scrub_metadata(self) -> None:
        """Put rot in the small state file right: found only at the next start, it would cost the whole unit."""
        store = self.store
        if self._closed or store.failure is not None:
            return
        try:
            wrong = await self._parts.worker.run(store.scrub_metadata)
        except OSError as error:
            wrong = f"{store.path}: {error}"
        if wrong:
            _log.warning(logfmt("damaged state", log_stream=self.log_stream, why=wrong))

    async def relink(self) -> None:
        """Have files that were deleted or replaced while they are open written again under their names."""
        store = self.store
        if self._closed or store.failure is not None or self._machine.frozen:
            return
        try:
            wrong = await self._parts.worker.run(store.relink)
        except OSError as error:
            _log.warning(
                logfmt("a deleted file cannot be written again", log_stream=self.log_stream, why=error)
            )
            if not is_disk_full(error):
                self._disk_failure = f"a deleted file cannot be written again: {error}"
                self._parts.on_disk_failure(self.log_stream)
        else:
            if wrong:
                _log.warning(logfmt("files written again", log_stream=self.log_stream, why=wrong))

    def freeze(self, cause: BaseException) -> None:
        """A law broke: this unit stops, the node goes on. Its files stay as they are."""
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
        """Why only a rebuild can make it whole."""
        damage = self.damage.above(self._machine.low)
        return f"damaged entries {list(damage)}" if damage else self._disk_failure or self._unsettled

    @property
    def trouble(self) -> str:
        """Why it takes no writes, or had better not serve."""
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
        """Stop in order: no more writes, what is being written ends, the files are closed. With `relink` those that have lost their
        names since the last look are written again: they would go with the descriptor."""
        self._closed = True
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
        self._stop(Unavailable(f"log stream {self.log_stream} is closed here"))
        await self._syncer.close()
        async with self._admin, self._writer.paused():
            if relink and not self._machine.frozen:
                await asyncio.wait([self._parts.worker.run(self.store.relink)])
            await self._parts.worker.run(self.store.close)
        await self._parts.worker.close()


def _fail(write: UnitWrite, refusal: Exception) -> None:
    for call in write.calls:
        call.fail(refusal)
    if write.copied is not None and not write.copied.done():
        write.copied.set_exception(refusal)


def _checked(batch: bytearray, epoch: Epoch) -> BatchHeader:
    """The header of the one whole batch in `batch`, everything checked: what is stored must be readable for ever."""
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
        raise InvalidRequest("junk is the same bytes whoever makes it: fill the position instead")
    return header
