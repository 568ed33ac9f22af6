"""[Q5] UnitSyncer: fills a log unit from another one of its chain (R-SEQ-14).

Appends continue meanwhile. List, compare, copy what is missing. Positions are written once (law 8), so everything that a unit has
after an absence is right, or it has something that its chain never accepted: then only a new unit can be filled. Neither side
keeps state for the other; after a crash of either, the sync starts again and finds what it has copied. A unit that serves is
*backfilled*: a batch that it has and the source does not may be on its way along the chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from varlog.model.batch import BatchHeader, check_body, walk
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import AlreadySyncing, AlreadyWritten, PreconditionFailed, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.limits import COPY_BYTES_MAX, SYNC_CONNECT_TIMEOUT_S, SYNC_COPY_TIMEOUT_S
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.model.status import SyncState, SyncStatus
from varlog.rpc.messages import CopyUnit, CopyUnitReply, ListUnit, ListUnitReply, Message, ReplicaAddress
from varlog.rpc.transport import Connection, Transport
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks
from varlog.runtime.worker import Worker
from varlog.storage.sequenced.page_store import PageRef, PageStore
from varlog.storagenode.sequenced.reader import LIST_PAGES_MAX

M = TypeVar("M", bound=Message)

_log = get_logger("sync")


class ChainContradiction(VarlogError):
    """The unit has something that its chain has not: it must be rebuilt before it can be filled."""


class UnitSyncOwner(Protocol):
    """The log unit that is filled, as far as its syncs use it."""

    @property
    def log_stream(self) -> LogStreamID: ...

    @property
    def store(self) -> PageStore:
        """The present one: it is replaced when the unit is opened again."""

    @property
    def low(self) -> LLSN: ...

    async def trim(self, low: LLSN) -> None:
        """Returns when the trim is durable."""

    def write_copy(self, header: BatchHeader, batch: memoryview) -> asyncio.Future[None] | None:
        """Write a batch; the future ends when it is durable. None: there is nothing to wait for."""

    async def reopen_if_failed(self) -> None:
        """Open the store again if the disk failed before."""

    def mark_filled(self) -> None:
        """Called when a sync proved that nothing is missing."""


class UnitSyncer:
    """The syncs of one unit, one at a time. `status` is the newest one's."""

    def __init__(self, owner: UnitSyncOwner, worker: Worker, transport: Transport) -> None:
        self.status: SyncStatus | None = None
        self._owner = owner
        self._worker = worker
        self._transport = transport
        self._source = ReplicaAddress(NodeID(0), "")
        self._epoch = NO_EPOCH
        self._tasks = Tasks(f"ls={owner.log_stream}", self._died)
        self._running: asyncio.Task[None] | None = None
        # The result of the last one has been returned: the next request starts again, as the source has moved on since.
        self._reported = True
        # Below this LLSN everything equals the source's and nothing is missing: that stays so (law 8) and is not compared again.
        self._compared: tuple[ReplicaAddress, LLSN] = (self._source, FIRST_LLSN)

    def start(
        self,
        epoch: Epoch,
        source: ReplicaAddress,
        *,
        backfill: bool = False,
        proves: bool = True,
        begin: LLSN = FIRST_LLSN,
    ) -> SyncStatus:
        """Start, or return the progress or the result. AlreadySyncing while it is filled from another source. A backfill compares
        from `begin` on, and the unit is complete after it if it `proves` that."""
        status = self.status
        if self._running is not None and status is not None:
            if epoch <= self._epoch and source != self._source:
                raise AlreadySyncing(self._owner.log_stream, self._source.address)
            if epoch <= self._epoch:
                return status
            self._running.cancel()  # the caller needs what the source had when it was sealed, which includes this
        elif status is not None and not self._reported and (epoch, source) == (self._epoch, self._source):
            self._reported = True
            return status
        failed = status.why if status is not None and status.state is SyncState.ERROR else ""
        self._epoch, self._source, self._reported = epoch, source, False
        self.status = begun = SyncStatus(
            SyncState.IN_PROGRESS, source.node, self._owner.low, FIRST_LLSN, why=failed
        )
        self._running = self._tasks.spawn(
            f"sync/{source.node}", self._run(epoch, source, backfill, proves, begin)
        )
        return begun

    def forget(self) -> None:
        """A newer epoch has begun: that the unit was filled before is irrelevant."""
        if self._running is None and self.status is not None and self.status.state is SyncState.COMPLETE:
            self.status = None

    def stop(self) -> None:
        running, self._running, self.status = self._running, None, None
        if running is not None:
            running.cancel()

    async def close(self) -> None:
        self.stop()
        await self._tasks.close()

    async def _run(
        self, epoch: Epoch, source: ReplicaAddress, backfill: bool, proves: bool, begin: LLSN
    ) -> None:
        log_stream, me = self._owner.log_stream, asyncio.current_task()
        _log.info(logfmt("sync begins", log_stream=log_stream, source=source.address, epoch=epoch))

        def update(**changed: object) -> None:
            if self._running is me and self.status is not None:
                self.status = msgspec.structs.replace(self.status, **changed)

        proven = self._compared[1] if self._compared[0] == source else FIRST_LLSN
        if backfill:
            proven = max(proven, begin)
        try:
            copied_bytes = await _UnitSync(
                self._owner, self._worker, self._transport, epoch, source, update, backfill
            ).run(proven)
        except (VarlogError, OSError) as error:
            rebuild = isinstance(error, ChainContradiction)
            update(state=SyncState.ERROR, why=str(error), rebuild=rebuild)
            _log.warning(logfmt("sync failed", log_stream=log_stream, why=error, rebuild=rebuild))
        else:
            if not backfill:
                self._compared = source, self._owner.store.dense_end
            if proves:
                self._owner.mark_filled()
            update(state=SyncState.COMPLETE, why="")
            _log.info(
                logfmt("sync complete", log_stream=log_stream, source=source.address, bytes=copied_bytes)
            )
        if self._running is me:
            self._running = None

    def _died(self, name: str, error: BaseException) -> None:
        _log.error(logfmt("a sync ended by a bug", log_stream=self._owner.log_stream), exc_info=error)
        self._running = None
        if self.status is not None:
            self.status = msgspec.structs.replace(self.status, state=SyncState.ERROR, why=str(error))


class _UnitSync:
    """One sync from one source. With an epoch, the source must be in it all the time: then it does not change."""

    def __init__(
        self,
        owner: UnitSyncOwner,
        worker: Worker,
        transport: Transport,
        epoch: Epoch,
        source: ReplicaAddress,
        update: Callable[..., None],
        backfill: bool,
    ) -> None:
        self._owner = owner
        self._worker = worker
        self._transport = transport
        self._epoch = epoch
        self._source = source
        self._update = update
        self._backfill = backfill
        self._copied_bytes = 0

    async def run(self, llsn: LLSN) -> int:
        """Copy from `llsn` on until nothing is missing. Returns the number of bytes copied."""
        await self._owner.reopen_if_failed()
        connection = await self._transport.connect(self._source.address, timeout_s=SYNC_CONNECT_TIMEOUT_S)
        try:
            newest = llsn
            while llsn <= newest:
                listed = await self._list(connection, llsn)
                if listed.next_llsn <= llsn and listed.newest >= llsn:
                    raise PreconditionFailed(f"{connection.peer} lists nothing from LLSN {llsn} on")
                await self._apply_window(connection, llsn, listed)
                llsn, newest = listed.next_llsn, listed.newest
                self._update(copied_end=llsn, target_end=LLSN(newest + 1), copied_bytes=self._copied_bytes)
            if not self._backfill:
                self._check_nothing_behind(llsn)
        finally:
            connection.close()
        return self._copied_bytes

    async def _list(self, connection: Connection, llsn: LLSN) -> ListUnitReply:
        listed, _ = await _request(connection, ListUnit(self._owner.log_stream, llsn), ListUnitReply)
        if self._epoch not in (NO_EPOCH, listed.epoch):
            raise PreconditionFailed(
                f"{connection.peer} is in epoch {listed.epoch}, not sealed in {self._epoch}"
            )
        return listed

    async def _apply_window(self, connection: Connection, llsn: LLSN, listed: ListUnitReply) -> None:
        """Copy what the source has in [llsn, next_llsn). Trims first: nothing trimmed is readable even for a moment (law 9)."""
        if listed.low > self._owner.low:
            await self._owner.trim(listed.low)
        low = self._owner.low
        theirs = {page[0]: page for page in listed.pages if page[0] + page[1] > low}
        for page in self._own_pages(max(llsn, low), listed.next_llsn):
            mine = (page.first_llsn, page.count, page.crc)
            other = theirs.pop(page.first_llsn, None)
            if other != mine and not (self._backfill and other is None):
                raise ChainContradiction(f"LLSN {page.first_llsn} here is not what {connection.peer} has")
        for begin, end in _page_ranges(list(theirs.values())):
            await self._copy(connection, begin, end)
        if self._lacks(theirs):
            await self._apply_trim(connection, llsn)
            if lacking := self._lacks(theirs):
                raise PreconditionFailed(f"{connection.peer} listed LLSN {lacking} but does not copy it")

    def _lacks(self, theirs: dict[LLSN, tuple[LLSN, int, int]]) -> LLSN | None:
        """The first of these pages that is neither here nor trimmed here."""
        low = self._owner.low
        wanted = sorted(first for first, count, _ in theirs.values() if first + count > low)
        if not wanted:
            return None
        here = {page.first_llsn for page in self._own_pages(wanted[0], LLSN(wanted[-1] + 1))}
        return next((first for first in wanted if first not in here), None)

    async def _apply_trim(self, connection: Connection, llsn: LLSN) -> None:
        """Apply a trim that the source got after its list: what it did not copy would be a hole here, above the low end."""
        listed = await self._list(connection, llsn)
        if listed.low > self._owner.low:
            await self._owner.trim(listed.low)

    def _own_pages(self, begin: LLSN, end: LLSN) -> Iterator[PageRef]:
        """The pages here in [begin, end), piece by piece."""
        while begin < end:
            pages = self._owner.store.pages_from(begin, LIST_PAGES_MAX)
            for page in pages:
                if page.first_llsn >= end:
                    return
                yield page
            if not pages:
                return
            begin = pages[-1].end_llsn

    def _check_nothing_behind(self, end: LLSN) -> None:
        for page in self._owner.store.pages_from(end, 1):
            raise ChainContradiction(f"LLSN {page.first_llsn} here is behind everything that the source has")

    async def _copy(self, connection: Connection, begin: LLSN, end: LLSN) -> None:
        """Copy [begin, end). The next piece is requested while this one is written."""
        request = CopyUnit(self._owner.log_stream, begin, end, COPY_BYTES_MAX)
        copied, payload = await _request(connection, request, CopyUnitReply)
        while payload:
            following = copied.next_llsn
            asked = asyncio.ensure_future(
                _request(
                    connection,
                    CopyUnit(self._owner.log_stream, following, end, COPY_BYTES_MAX),
                    CopyUnitReply,
                )
            )
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                await self._write(payload)
                copied, payload = await asked
            finally:
                asked.cancel()
            if payload and copied.next_llsn <= following:
                raise PreconditionFailed(f"{connection.peer} copies nothing from LLSN {following} on")

    async def _write(self, payload: bytearray) -> None:
        view = memoryview(payload)

        def checked() -> list[tuple[int, BatchHeader]]:
            found = list(walk(payload))
            for at, header in found:
                check_body(payload, header, at)
            return found

        writes = []
        try:
            for at, header in await self._worker.run(checked):
                written = self._owner.write_copy(header, view[at : at + header.size])
                if written is not None:
                    writes.append(written)
        except AlreadyWritten as other:
            raise ChainContradiction(str(other)) from other
        finally:
            if writes:
                await asyncio.wait(writes)
        failed = [error for written in writes if (error := written.exception()) is not None]
        if failed:
            raise failed[0]
        self._copied_bytes += len(payload)


async def _request(connection: Connection, request: Message, answer: type[M]) -> tuple[M, bytearray]:
    found, payload = await connection.call(request, timeout_s=SYNC_COPY_TIMEOUT_S)
    if not isinstance(found, answer):
        raise PreconditionFailed(f"{connection.peer} does not answer like a storage node")
    return found, payload


def _page_ranges(pages: Sequence[tuple[LLSN, int, int]]) -> Iterator[tuple[LLSN, LLSN]]:
    """Ranges that cover these pages and no other pages of the source, which skips holes between them."""
    begin = end = LLSN(0)
    for first, count, _ in sorted(pages):
        if end and first != end:
            yield begin, end
            begin = first
        begin = begin or first
        end = LLSN(first + count)
    if end:
        yield begin, end
