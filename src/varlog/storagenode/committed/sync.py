"""Sync: fills a sealing replica from a sealed one; both ends (R-SYNC-1 to 3).

Only the destination knows what it has, so it requests entries from its own committed end on, and neither side keeps state for the
other: after a crash of either, the sync starts again from there. While one piece is written, the next one is in flight. The
repository may push the same rows meanwhile; they are committed once, whichever arrives first (R-CTX-4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import AlreadySyncing, CorruptBatch, PreconditionFailed, Unavailable, VarlogError
from varlog.model.ids import NodeID
from varlog.model.invariant import InvariantBroken
from varlog.model.limits import COPY_BYTES_MAX, SYNC_CONNECT_TIMEOUT_S, SYNC_COPY_TIMEOUT_S
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import SyncState, SyncStatus
from varlog.rpc.messages import CopyFrom, CopyFromReply, ReplicaAddress
from varlog.rpc.transport import Call, Connection, Transport
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks
from varlog.runtime.worker import Worker
from varlog.storage.committed.copy import Copy, CorruptCopy, EpochRun, read_copy, runs_of
from varlog.storage.committed.log_store import LogStore
from varlog.storagenode.committed.replica_machine import CommitGap, ReplicaMachine

_log = get_logger("sync")


class Contradiction(VarlogError):
    """The replica's entries are not those that were ordered: it must be rebuilt before it can be filled."""


class SyncOwner(Protocol):
    """The replica that is filled, as far as its syncs use it."""

    @property
    def store(self) -> LogStore: ...

    def commit(self, rows: Sequence[CommitRow]) -> None:
        """Apply ordered rows."""

    async def trim_like_source(self, glsn: GLSN) -> bool:
        """True once the source's trim point is durable here."""

    def refuse_waiting(self) -> None:
        """Appends that still wait here are certainly not in the log."""

    def abandon_waiting(self) -> None:
        """Called when the outcome of the appends that still wait here can never be known here."""

    async def reopen_if_failed(self) -> None:
        """Open the store again if the disk failed before."""

    def write_failed(self, error: BaseException) -> None:
        """The disk failed."""

    def freeze(self, cause: BaseException) -> None:
        """Called when a law was violated."""


class Syncer:
    """The syncs of one replica, one at a time. `status` is the newest one's."""

    def __init__(
        self, owner: SyncOwner, machine: ReplicaMachine, worker: Worker, transport: Transport
    ) -> None:
        self.status: SyncStatus | None = None
        self._owner = owner
        self._machine = machine
        self._worker = worker
        self._transport = transport
        self._source = ReplicaAddress(NodeID(0), "")
        self._tasks = Tasks(f"ls={machine.log_stream}", self._died)
        self._running: asyncio.Task[None] | None = None

    def start(self, epoch: Epoch, source: ReplicaAddress) -> SyncStatus:
        """Start, unless it is running; returns its progress. A sync that failed is started again."""
        machine = self._machine
        if self._running is not None and self.status is not None:
            if source != self._source:
                raise AlreadySyncing(self._machine.log_stream, self._source.address)
            return self.status
        needed = machine.check_sync(epoch)
        failed = self.status.why if self.status is not None and self.status.state is SyncState.ERROR else ""
        state = SyncState.IN_PROGRESS if needed else SyncState.COMPLETE
        self.status = SyncStatus(state, source.node, machine.committed_end, machine.sealed_end, why=failed)
        if needed:
            self._source = source
            self._running = self._tasks.spawn(f"sync/{source.node}", self._run(epoch, source))
        return self.status

    def stop(self) -> None:
        """The replica is sealed again, or closes: the sync of the epoch before is irrelevant."""
        running, self._running, self.status = self._running, None, None
        if running is not None:
            running.cancel()

    async def close(self) -> None:
        self.stop()
        await self._tasks.close()

    async def _run(self, epoch: Epoch, source: ReplicaAddress) -> None:
        log_stream = self._machine.log_stream
        _log.info(logfmt("sync begins", log_stream=log_stream, source=source.address, epoch=epoch))
        try:
            copied_bytes = await _Sync(
                self._owner, self._machine, self._worker, self._transport, epoch, source, self._progress
            ).run()
        except Contradiction as hopeless:
            self._failed(hopeless, rebuild=True)
        except (VarlogError, CommitGap) as error:
            self._failed(error)
        except OSError as error:
            self._failed(error)
            self._owner.write_failed(error)
        except InvariantBroken as broken:
            self._failed(broken)
            self._owner.freeze(broken)
        else:
            self._running = None
            self._update(state=SyncState.COMPLETE, copied_end=self._machine.committed_end, why="")
            _log.info(
                logfmt("sync complete", log_stream=log_stream, source=source.address, bytes=copied_bytes)
            )

    def _progress(self, copied_bytes: int) -> None:
        self._update(copied_end=self._machine.committed_end, copied_bytes=copied_bytes)

    def _failed(self, error: BaseException, *, rebuild: bool = False) -> None:
        self._running = None
        self._update(state=SyncState.ERROR, why=str(error), rebuild=rebuild)
        _log.warning(logfmt("sync failed", log_stream=self._machine.log_stream, why=error, rebuild=rebuild))

    def _died(self, name: str, error: BaseException) -> None:
        self._failed(error)
        _log.error(logfmt("a sync ended by a bug", log_stream=self._machine.log_stream), exc_info=error)

    def _update(self, **changed: object) -> None:
        if self.status is not None:
            self.status = msgspec.structs.replace(self.status, **changed)


class _Sync:
    """One sync, in one epoch, from one source. `progress` is called with the bytes copied so far."""

    def __init__(
        self,
        owner: SyncOwner,
        machine: ReplicaMachine,
        worker: Worker,
        transport: Transport,
        epoch: Epoch,
        source: ReplicaAddress,
        progress: Callable[[int], None],
    ) -> None:
        self._owner = owner
        self._machine = machine
        self._worker = worker
        self._transport = transport
        self._epoch = epoch
        self._source = source
        self._progress = progress
        self._copied_bytes = 0

    async def run(self) -> int:
        """Copy until nothing is missing. Returns the number of bytes copied."""
        owner, machine, worker = self._owner, self._machine, self._worker
        store = owner.store
        await owner.reopen_if_failed()
        await worker.run(lambda: None)  # behind everything that is being written
        machine.reloaded(store.committed_end, store.written_end, store.tail_epoch)
        connection = await self._transport.connect(self._source.address, timeout_s=SYNC_CONNECT_TIMEOUT_S)
        try:
            await self._pull(connection)
        finally:
            connection.close()
        await worker.run(store.sync_rows)
        return self._copied_bytes

    async def _pull(self, connection: Connection) -> None:
        machine = self._machine
        asked = self._request(connection, machine.committed_end)
        try:
            while machine.lacks_entries:
                copied, payload = await asked
                if copied.next_llsn < machine.sealed_end:
                    asked = self._request(connection, copied.next_llsn)
                await self._apply(copied, payload)
                self._progress(self._copied_bytes)
        finally:
            asked.cancel()

    def _request(self, connection: Connection, llsn: LLSN) -> asyncio.Task[tuple[CopyFromReply, bytearray]]:
        async def ask() -> tuple[CopyFromReply, bytearray]:
            request = CopyFrom(self._machine.log_stream, self._epoch, llsn, COPY_BYTES_MAX)
            answer, payload = await connection.call(request, timeout_s=SYNC_COPY_TIMEOUT_S)
            if not isinstance(answer, CopyFromReply):
                raise PreconditionFailed(f"{connection.peer} does not answer like a storage node")
            return answer, payload

        # Not one of the owned tasks: its failure is raised where it is awaited, and the last one never is.
        task = asyncio.get_running_loop().create_task(ask(), name=f"copy/ls={self._machine.log_stream}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _apply(self, copied: CopyFromReply, payload: bytearray) -> None:
        """Write one piece. Trims first: nothing that is trimmed may be readable even for a moment (law 9)."""
        owner, machine = self._owner, self._machine
        if copied.sealed_end != machine.sealed_end:
            raise PreconditionFailed(
                f"the source is sealed at {copied.sealed_end}, this replica at {machine.sealed_end}"
            )
        if copied.trimmed > owner.store.trimmed and not await owner.trim_like_source(copied.trimmed):
            raise Unavailable("the disk refuses the trim point of the source")
        begin = copied.rows[0].llsn_begin if copied.rows else copied.next_llsn
        if begin > machine.committed_end:
            await self._begin_at(begin, copied)
        elif not copied.rows:
            raise PreconditionFailed(f"the source has nothing from LLSN {begin} on")
        rows = copied.rows
        for run in await self._worker.run(lambda: runs_of(rows, payload)):
            await self._apply_run(run)

    async def _begin_at(self, begin: LLSN, copied: CopyFromReply) -> None:
        """Everything that is missing below is trimmed at the source, and so is everything here."""
        owner, machine, worker = self._owner, self._machine, self._worker
        store = owner.store
        if machine.committed_end >= copied.low_llsn:
            raise PreconditionFailed(f"the source skipped LLSNs [{machine.committed_end}, {begin})")
        # They may have been ordered, and trimmed since.
        owner.abandon_waiting()
        machine.abandon_tail()
        await worker.run(lambda: store.begin_at(begin))
        machine.reloaded(store.committed_end, store.written_end, store.tail_epoch)

    async def _apply_run(self, run: EpochRun) -> None:
        """Write batches of one epoch. Those that exist here already need only their rows."""
        owner, machine, worker = self._owner, self._machine, self._worker
        store = owner.store
        if run.end_llsn <= machine.committed_end:
            return
        if run.epoch != machine.tail_epoch:
            await self._drop_tail()
        try:
            data = run.data_from(machine.durable_end)
        except CorruptBatch as other:
            raise Contradiction(
                f"the entries here up to LLSN {machine.durable_end} are not those that were ordered: {other.what}"
            ) from other
        if data:
            await worker.run(lambda: store.append([data]))
            machine.copied(run.epoch, run.end_llsn)
            self._copied_bytes += len(data)
        owner.commit(run.rows)
        if machine.committed_end < run.end_llsn:
            raise PreconditionFailed(f"the copied rows cannot be committed: {machine.trouble}")

    async def _drop_tail(self) -> None:
        """The next batches are of another epoch than those behind the committed end: these were never ordered, nor was any append
        that still waits here. The rows are synced as well, so that a tail has one epoch even after a crash."""
        owner, machine, worker = self._owner, self._machine, self._worker
        store = owner.store
        owner.refuse_waiting()
        machine.abandon_tail()
        await worker.run(store.cut_tail)
        machine.reloaded(store.committed_end, store.written_end, store.tail_epoch)


class CopySource:
    """The other end of a sync: a sealed replica serves whole batches and their commit rows (R-SYNC-2).

    It keeps no state between two requests. `on_corruption` is called with the entries that it could not read.
    """

    def __init__(
        self,
        store: LogStore,
        machine: ReplicaMachine,
        worker: Worker,
        on_corruption: Callable[[LLSN, LLSN], None],
    ) -> None:
        self._store = store
        self._machine = machine
        self._worker = worker
        self._on_corruption = on_corruption

    def copy(self, call: Call, request: CopyFrom) -> None:
        """Read and check in the read worker. Trimmed entries are skipped, which the answer shows."""
        self._machine.check_source(request.epoch)
        store, llsn = self._store, max(request.llsn, self._store.low_llsn)
        bytes_max = min(request.bytes_max or COPY_BYTES_MAX, COPY_BYTES_MAX)
        done = self._worker.run(lambda: read_copy(store, llsn, bytes_max))
        done.add_done_callback(partial(self._answer, call, request.epoch))

    def _answer(self, call: Call, epoch: Epoch, done: asyncio.Future[Copy]) -> None:
        if done.cancelled():
            return
        try:
            copy = done.result()
            self._machine.check_source(epoch)  # it may have been opened while the disk was read
            store = self._store
            rows, sealed_end = copy.rows, self._machine.sealed_end
            call.reply(
                CopyFromReply(rows, copy.next_llsn, sealed_end, store.trimmed, store.low_llsn), copy.data
            )
        except CorruptCopy as corrupt:
            self._on_corruption(corrupt.begin, corrupt.end)
            call.fail(corrupt.problem)
        except OSError as error:
            call.fail(Unavailable(f"log stream {self._store.log_stream} cannot be read here: {error}"))
        except Exception as failure:  # noqa: BLE001 - the call is owed an answer, whatever happened
            call.fail(failure)
