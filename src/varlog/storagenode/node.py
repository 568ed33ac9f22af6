"""StorageNodeServer: one storage node, and the order in which it starts.

It owns the volumes, replicas, log units and services, and starts and stops them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from varlog.model.cluster import Ordering, changed
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import (
    CorruptReplica,
    PreconditionFailed,
    StartupError,
    Unavailable,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import FIRST_LLSN, NO_GLSN, NO_LLSN
from varlog.model.status import NodeStatus, ReplicaState, ReplicaStatus, UnitStatus
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import (
    AddLogStream,
    Append,
    AppendAt,
    AppendIdempotent,
    CheckEntries,
    Commits,
    CopyFrom,
    Fetch,
    FindAppend,
    FindTime,
    GetNodeFacts,
    GetNodeFactsReply,
    GetNodeStatus,
    KeepProjection,
    KeepView,
    LeaseReply,
    ListIdempotentBatches,
    ListRows,
    MeasureRange,
    Message,
    OpenSession,
    ReadAt,
    RebuildReplica,
    RemoveLogStream,
    RepairReplica,
    ReplicaOpen,
    Replicate,
    SealReplica,
    SyncReplica,
    UnsealReplica,
)
from varlog.rpc.transport import Call, Connection, Handler, Server, Transport
from varlog.runtime.disk import Disk
from varlog.runtime.environment import Environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks
from varlog.runtime.worker import Worker
from varlog.runtime.worker_pool import WorkerPool
from varlog.storage.committed.log_store import LogStore
from varlog.storage.disk_space import DiskSpace
from varlog.storage.sequenced.page_store import PageStore
from varlog.storage.volume import NodeVolumes
from varlog.storage.witness_file import WitnessFile
from varlog.storagenode.admin_service import NodeAdminService
from varlog.storagenode.commit_service import CommitService, KnownToNode
from varlog.storagenode.committed.log_service import LogService, ReplicaService
from varlog.storagenode.committed.replica import Replica
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.corruption_service import CorruptionService
from varlog.storagenode.lease import NodeLease
from varlog.storagenode.sequenced.unit import LogUnit
from varlog.storagenode.sequenced.unit_service import UnitService
from varlog.storagenode.topic_watermarks import TopicWatermarks
from varlog.storagenode.view_keeper import ViewKeeper

M = TypeVar("M", bound=Message)
S = TypeVar("S", LogStore, PageStore)
S_co = TypeVar("S_co", covariant=True)

# A removal that the disk refused is tried again after this.
REMOVAL_RETRY_S = 1.0
# Up to this many replicas sync their commit rows after the configured delay; with more, each waits longer.
REPLICAS_SYNCING_AT_ONCE = 20

_log = get_logger("node")


class StorageNodeServer:
    """A storage node. `start` restores what is on its volumes (R-SN-3), then listens; `stop` is clean."""

    def __init__(self, config: StorageNodeConfig, environment: Environment, transport: Transport) -> None:
        self._config = config
        self._environment = environment
        self._transport = transport
        self._replicas: dict[LogStreamID, Replica] = {}
        self._units: dict[LogStreamID, LogUnit] = {}
        self._damaged: dict[LogStreamID, CorruptReplica] = {}
        # Those of `_damaged` whose files show that they never had an entry.
        self._blank: dict[LogStreamID, None] = {}
        # Replicas and units whose disk failed when they were opened: a seal retries.
        self._unopened: dict[LogStreamID, OSError] = {}
        # Streams that are being created or removed now, each once at a time.
        self._changing: dict[LogStreamID, None] = {}
        # Units whose disk failed, and which are retried until it works again.
        self._repairing: dict[LogStreamID, None] = {}
        self._marks = TopicWatermarks()
        self._pools: dict[Path, WorkerPool] = {}  # by volume
        self._server: Server | None = None
        self._started_us = 0

    @property
    def address(self) -> str:
        """The address at which others reach this node."""
        return self._config.advertise or (self._server.address if self._server else self._config.listen)

    @property
    def node(self) -> NodeID:
        return self._volumes.node

    async def start(self) -> None:
        """Lock the volumes, restore every replica and unit, then listen. Raises StartupError."""
        config, environment = self._config, self._environment
        self._started_us = environment.clock.wall_us()
        self._volumes = NodeVolumes.open(
            environment.disk,
            environment.entropy,
            cluster=config.cluster,
            node=config.node,
            volumes=config.volumes,
            cluster_key=config.cluster_key,
            error_if_exists=config.error_if_exists,
            disk_reserve_bytes=config.disk_reserve_bytes,
        )
        try:
            self._read_worker: Worker = environment.make_worker("read")
            self._tasks = Tasks(f"node={self.node}", self._task_failed)
            self._make_services()
            await self._view.start()
            for log_stream, path in self._volumes.streams.items():
                await self._restore(log_stream, path)
            self._server = await self._transport.serve(config.listen, self._handler)
        except BaseException:
            self._volumes.release()
            raise
        self._corruption_service.start()
        self._lease.start()
        replicas, units = len(self._replicas), len(self._units)
        _log.info(
            logfmt(
                "storage node started", node=self.node, address=self.address, replicas=replicas, units=units
            )
        )

    async def stop(self) -> None:
        """Stop listening, close every replica and unit in order, release the volumes."""
        if self._server is not None:
            await self._server.close()
        await self._dispatcher.close()
        for unit in self._units.values():
            await unit.close(relink=True)
        # A file that has lost its name since the last check would be missing at the next start. While the tasks run: one that is
        # cancelled in the middle of writing a file leaves memory behind the disk.
        await self._scrub_node_files()
        await self._tasks.close()
        await self._corruption_service.close()
        self._log_service.close()
        for replica in self._replicas.values():
            await replica.close(relink=True)
        await self._read_worker.close()
        for pool in self._pools.values():
            await pool.close()
        self._volumes.release()

    # --- services ------------------------------------------------------------------------------------------

    def _make_services(self) -> None:
        replicas, units, marks = self._replicas, self._units, self._marks
        self._log_service = log = LogService(replicas, marks)
        self._commit_service = commit = CommitService(
            self.node,
            replicas,
            marks,
            self._tasks,
            WitnessFile(self._environment.disk, self._volumes.node_paths),
            self._read_worker,
            on_open=lambda: self._lease.request_soon(),
            known=self._known,
        )
        self._view = ViewKeeper(
            self._environment.disk, self._volumes.node_paths, self._read_worker, self._tasks
        )
        self._lease = NodeLease(self.node, units, self._environment.clock, self._tasks, commit.send)
        self._replica_service = backup = ReplicaService(replicas)
        self._corruption_service = corruption = CorruptionService(
            self.node, replicas, units, self._tasks, self._environment, self._config, self._scrub_node_files
        )
        admin = NodeAdminService(
            self.node,
            replicas,
            self,
        )
        self._dispatcher = calls = Dispatcher(f"storage node {self.node}")
        calls.on(Append, _with_call(log.append))
        calls.on(AppendIdempotent, _with_call(log.append_if))
        calls.on(AppendAt, _with_call(log.append_if))
        calls.on(FindAppend, _with_call(lambda call, request, _: log.find_append(call, request)))
        calls.on(ListIdempotentBatches, _with_call(lambda call, request, _: log.list_batches(call, request)))
        calls.on(Fetch, _with_call(lambda call, request, _: log.fetch(call, request)))
        calls.on(ReadAt, _with_call(lambda call, request, _: log.read_at(call, request)))
        calls.on(MeasureRange, _with_call(lambda call, request, _: log.measure(call, request)))
        calls.on(FindTime, _with_call(lambda call, request, _: log.find_time(call, request)))
        calls.on(ReplicaOpen, _with_call(lambda call, request, _: backup.open(call, request)))
        calls.on(OpenSession, _with_call(lambda call, request, _: self._open_session(call, request)))
        calls.on(KeepProjection, _with_call(lambda call, request, _: commit.keep_projection(call, request)))
        calls.on(ListRows, _with_call(lambda call, request, _: commit.list_rows(call, request)))
        calls.on(CheckEntries, _with_call(lambda call, request, _: corruption.check_entries(call, request)))
        calls.on(GetNodeFacts, _with_call(lambda call, request, _: self._reply_facts(call)))
        calls.on_async(RepairReplica, corruption.repair)
        calls.on_async(GetNodeStatus, admin.get_status)
        calls.on_async(AddLogStream, admin.add_log_stream)
        calls.on_async(RemoveLogStream, admin.remove_log_stream)
        calls.on_async(RebuildReplica, admin.rebuild)
        calls.on_async(SyncReplica, admin.sync)
        calls.on(CopyFrom, _with_call(lambda call, request, _: backup.copy(call, request)))
        calls.on_async(SealReplica, admin.seal)
        calls.on_async(UnsealReplica, admin.unseal)
        UnitService(units, self.reopen_stream).serve(calls)

    async def _scrub_node_files(self) -> None:
        """Check the node's own metadata files against memory. Found only at the next start, damage could keep the node from
        starting, or an older file could make it accept an older repository."""
        try:
            wrong = await self._read_worker.run(self._volumes.scrub_metadata)
            wrong += filter(
                None, (await self._commit_service.scrub_metadata(), await self._view.scrub_metadata())
            )
        except StartupError as taken:
            _log.critical(logfmt("another process uses the files of this node", node=self.node, why=taken))
        except OSError as error:
            _log.warning(logfmt("files cannot be checked, or written again", node=self.node, why=error))
        else:
            if wrong:
                _log.warning(logfmt("files written again", node=self.node, why="; ".join(wrong)))

    def _open_session(self, call: Call, request: OpenSession) -> None:
        """The first session binds the node, and the streams that are registered here, to the repository's cluster, durably and
        before the answer. A repository of another cluster is refused."""
        uuid, volumes = request.cluster_uuid, self._volumes
        volumes.check_cluster(uuid)
        if not uuid or not volumes.lacks_cluster(uuid, request.registered):
            self._commit_service.open(call, request)
            return

        async def bind() -> None:
            try:
                await self._read_worker.run(lambda: volumes.bind(uuid, request.registered))
                _log.info(logfmt("storage node belongs to a cluster", node=self.node, cluster_uuid=uuid))
                self._commit_service.open(call, request)
            except VarlogError as refusal:
                call.fail(refusal)
            except OSError as error:
                call.fail(Unavailable(f"the disk of node {self.node} refuses: {error}"))

        _ = self._tasks.spawn("bind", bind())

    def _known(self) -> KnownToNode:
        topics = [replica.topic for replica in self._replicas.values()]
        topics += [unit.topic for unit in self._units.values()]
        view = self._view
        return KnownToNode(
            TopicID(max([view.largest_topic, *topics])),
            max(view.largest_log_stream, self._volumes.largest_log_stream),
            view.revision,
            tuple(unit.point() for unit in self._units.values()),
            view.projections,
        )

    def _reply_facts(self, call: Call) -> None:
        commit = self._commit_service
        call.reply(
            GetNodeFactsReply(
                commit.term, commit.in_session, commit.known_marks(), commit.epochs, commit.proposed
            ),
            self._view.content,
        )

    def _handler(self, connection: Connection) -> Handler:
        """One-way messages belong to their connection: a primary's stream of batches, the repository's session."""

        def handle(call: Call | None, message: Message, payload: bytearray) -> None:
            if call is None and isinstance(message, Replicate):
                self._replica_service.replicate(connection, message, payload)
            elif call is None and isinstance(message, Commits):
                self._commit_service.commits(connection, message)
                self._log_service.wake()
            elif call is None and isinstance(message, KeepView):
                if self._commit_service.is_from(connection):
                    self._view.keep(bytes(payload), self._volumes.cluster_uuid)
            elif call is None and isinstance(message, LeaseReply):
                if self._commit_service.is_from(connection):
                    self._commit_service.record_epochs(message.topics)
                    self._lease.apply(message)
            else:
                self._dispatcher.handle(call, message, payload)

        return handle

    def _task_failed(self, name: str, error: BaseException) -> None:
        _log.error(logfmt("a task of the storage node failed", task=name), exc_info=error)

    # --- replicas, units -----------------------------------------------------------------------------------

    def _make_worker(self, log_stream: LogStreamID, path: Path) -> Worker:
        """The streams of one volume share its threads: a disk that hangs must not block those on another."""
        name, volume = f"lsid={log_stream}", path.parents[2]
        if self._environment.make_pool is None:
            return self._environment.make_worker(name)
        if volume not in self._pools:
            self._pools[volume] = self._environment.make_pool(f"volume={volume.name}")
        return self._pools[volume].worker(name)

    async def _restore(self, log_stream: LogStreamID, path: Path) -> None:
        """R-SN-3. A damaged replica does not keep the others from starting; its files stay unchanged."""
        worker = self._make_worker(log_stream, path)
        try:
            if self._volumes.is_foreign(log_stream):
                uuid = self._volumes.cluster_of(log_stream)
                raise CorruptReplica(
                    str(path), f"it belongs to the cluster with UUID {uuid} and is left unchanged"
                )
            if self._volumes.is_unit(log_stream):
                await self._restore_unit(path, worker)
            else:
                await self._restore_replica(path, worker)
        except CorruptReplica as damaged:
            _log.critical(logfmt("replica is damaged", log_stream=log_stream, why=damaged))
            # Before it is recorded as damaged: a status in between would show the replica twice.
            blank = await self._read_worker.run(lambda: self._volumes.is_blank(log_stream))
            self._damaged[log_stream] = damaged
            if blank:
                self._blank[log_stream] = None
            self._unopened.pop(log_stream, None)
            await worker.close()
            return
        except OSError as error:
            _log.error(logfmt("replica cannot be opened", log_stream=log_stream, why=error))
            self._note_unopened(log_stream, error)
            await worker.close()
            return
        self._unopened.pop(log_stream, None)

    async def _restore_replica(self, path: Path, worker: Worker) -> None:
        disk, segment_bytes, disk_space = self._store_settings(path)
        store = await worker.run(
            lambda: LogStore.open(disk, path, segment_bytes=segment_bytes, disk_space=disk_space)
        )
        trimmed = self._marks.trimmed(store.topic)
        await worker.run(
            lambda: store.trim(trimmed)
        )  # a replica that is opened late may have missed it (law 9)
        self._add_replica(store, worker)
        if store.opened:
            self.stream_opened(store.log_stream)

    async def _restore_unit(self, path: Path, worker: Worker) -> None:
        disk, segment_bytes, disk_space = self._store_settings(path)
        store = await worker.run(
            lambda: PageStore.open(disk, path, segment_bytes=segment_bytes, disk_space=disk_space)
        )
        self._add_unit(store, worker, restored=True)

    async def reopen_stream(self, log_stream: LogStreamID) -> None:
        """Open what the disk refused at the start. Unavailable: it still does."""
        if log_stream not in self._unopened:
            return
        if log_stream not in self._changing:
            self._changing[log_stream] = None
            try:
                if await self._read_worker.run(lambda: self._volumes.clear_unfinished(log_stream)):
                    # Nothing is left of it: the manager has a new one created.
                    self._unopened.pop(log_stream, None)
                else:
                    await self._restore(log_stream, self._volumes.streams[log_stream])
            except OSError as refused:
                self._unopened[log_stream] = refused
            finally:
                self._changing.pop(log_stream, None)
        if (error := self._unopened.get(log_stream)) is not None:
            raise Unavailable(f"log stream {log_stream} cannot be opened: {error}")
        if (replica := self._replicas.get(log_stream)) is not None:
            # The session began without it: in the next one the repository compares its order with what this replica knows.
            self._commit_service.restart_session(replica)

    def _note_unopened(self, log_stream: LogStreamID, error: OSError) -> None:
        if log_stream not in self._unopened:
            _ = self._tasks.spawn(f"open/ls={log_stream}", self._keep_opening(log_stream))
        self._unopened[log_stream] = error

    async def _keep_opening(self, log_stream: LogStreamID) -> None:
        """Retried here because a seal may never come: for a unit that no chain has any more, or for a replica whose topic is
        stopped until the repository knows one replica of each log stream."""
        while log_stream in self._unopened:
            await asyncio.sleep(REMOVAL_RETRY_S)
            with contextlib.suppress(Unavailable):
                await self.reopen_stream(log_stream)

    def _add_replica(self, store: LogStore, worker: Worker) -> None:
        self._marks.raise_trimmed(store.topic, store.trimmed)
        replica = self._replicas[store.log_stream] = Replica(
            store,
            worker,
            self._read_worker,
            self._transport,
            self._marks,
            on_report=self._commit_service.report_soon,
            on_suspicion=self._corruption_service.check_soon,
            rows_sync_delay_s=self._rows_sync_delay_s,
        )
        self._commit_service.add_replica(replica)

    def _rows_sync_delay_s(self) -> float:
        """With many replicas each waits longer, so that the node's disk has as many of these syncs as with a few: no append waits
        for them, and until they are done the repository keeps the rows."""
        return self._config.rows_sync_delay_s * max(1.0, len(self._replicas) / REPLICAS_SYNCING_AT_ONCE)

    def _add_unit(self, store: PageStore, worker: Worker, *, restored: bool = False) -> None:
        log_stream = store.log_stream
        self._lease.forget(log_stream)
        self._units[log_stream] = LogUnit(
            self, store, worker, self._read_worker, self._transport, restored=restored
        )
        self._lease.request_soon()
        self._corruption_service.unit_added()

    # --- what log units ask of their node (UnitOwner) ----------------------------------------------------------

    def check_lease(self, log_stream: LogStreamID) -> None:
        self._lease.check(log_stream)

    def unit_begun(self) -> None:
        self._lease.request_soon()

    def unit_suspicious(self) -> None:
        self._corruption_service.check_soon()

    def unit_filled(self, log_stream: LogStreamID) -> None:
        self.stream_opened(log_stream)

    def unit_served(self, topic: TopicID, epoch: Epoch) -> None:
        self._commit_service.record_epochs([(topic, epoch)])

    def unit_failed(self, log_stream: LogStreamID) -> None:
        if log_stream not in self._repairing:
            self._repairing[log_stream] = None
            _ = self._tasks.spawn(f"repair/ls={log_stream}", self._repair_until_healthy(log_stream))

    async def _repair_until_healthy(self, log_stream: LogStreamID) -> None:
        try:
            while (unit := self._units.get(log_stream)) is not None and unit.disk_failed:
                await asyncio.sleep(REMOVAL_RETRY_S)
                with contextlib.suppress(VarlogError):
                    await unit.repair()
        finally:
            del self._repairing[log_stream]

    async def add_stream(self, request: AddLogStream) -> None:
        """R-SN-6: never over existing data, on any volume. R-REG-3: within this node's limit."""
        log_stream = request.log_stream
        self._volumes.check_cluster(request.cluster_uuid)
        self._check_changing(log_stream)
        others = len({*self._replicas, *self._units} - {log_stream})
        if others >= self._config.streams_max:
            raise PreconditionFailed(
                f"node {self.node} has its limit of {self._config.streams_max} log streams: use another node"
            )
        path = self._volumes.place(log_stream, request.volume)
        self._changing[log_stream] = None
        try:
            await self._close_stream(log_stream)  # one whose directory was deleted while it ran
            await self._make(request.topic, log_stream, path, request.ordering, request.cluster_uuid)
        finally:
            self._changing.pop(log_stream, None)

    async def _make(
        self, topic: TopicID, log_stream: LogStreamID, path: Path, ordering: Ordering, asked: ClusterUUID
    ) -> None:
        worker = self._make_worker(log_stream, path)
        cluster = asked or self._volumes.cluster_uuid
        self._volumes.note_cluster(log_stream, cluster)
        try:
            if ordering is Ordering.SEQUENCED:
                unit = await self._create_store(PageStore.create, topic, log_stream, path, worker, cluster)
                self._add_unit(unit, worker)
            else:
                replica = await self._create_store(LogStore.create, topic, log_stream, path, worker, cluster)
                self._add_replica(replica, worker)
        except BaseException:
            self._volumes.forget(log_stream)
            await worker.close()
            raise

    async def _create_store(
        self,
        create: CreateStore[S],
        topic: TopicID,
        log_stream: LogStreamID,
        path: Path,
        worker: Worker,
        cluster: ClusterUUID,
    ) -> S:
        """A new store of either ordering, created by its worker."""
        disk, segment_bytes, disk_space = self._store_settings(path)
        return await worker.run(
            lambda: create(
                disk,
                path,
                topic=topic,
                log_stream=log_stream,
                segment_bytes=segment_bytes,
                disk_space=disk_space,
                cluster=cluster,
            )
        )

    def _store_settings(self, path: Path) -> tuple[Disk, int, DiskSpace]:
        return self._environment.disk, self._config.segment_bytes, self._volumes.disk_space(path)

    async def rebuild_stream(self, request: RebuildReplica) -> None:
        """Replace a replica that cannot continue by an empty one; the old data stay until the new one has been opened. If the new
        one is never created, because of a crash in between or because the disk refuses, the old one takes its place again."""
        log_stream = request.log_stream
        self._check_changing(log_stream)
        replica = self._replicas.get(log_stream) or self._units.get(log_stream)
        if replica is None and log_stream not in self._damaged:
            raise UnknownLogStream(log_stream)
        self._volumes.check_change(log_stream, request.cluster_uuid, blank=False)
        if replica is not None and not replica.check_rebuild(request.epoch):
            return
        if isinstance(replica, Replica):
            replica.check_not_evidence("rebuilt", request.sealed_end)
        ordering = Ordering.SEQUENCED if self._is_unit(log_stream) else Ordering.COMMITTED
        _log.warning(logfmt("replica is rebuilt", log_stream=log_stream, epoch=request.epoch))
        path = self._volumes.streams[log_stream]
        self._changing[log_stream] = None
        try:
            await self._close_stream(log_stream)
            try:
                await self._read_worker.run(lambda: self._volumes.set_aside(log_stream))
            except OSError as error:
                if log_stream in self._volumes.streams:
                    # Shown in the status and opened again: otherwise it could never be removed.
                    self._note_unopened(log_stream, error)
                raise
            fresh = self._volumes.place(log_stream, str(path.parents[2]))
            try:
                await self._make(request.topic, log_stream, fresh, ordering, request.cluster_uuid)
            except OSError as error:
                self._volumes.streams[log_stream] = path
                self._volumes.note_cluster(log_stream, request.cluster_uuid)
                self._note_unopened(log_stream, error)
                raise
        finally:
            self._changing.pop(log_stream, None)

    async def remove_stream(self, request: RemoveLogStream) -> None:
        """R-REG-5: the replica and its data are gone. R-REG-4: not if it joined a stream since the caller looked."""
        log_stream = request.log_stream
        if log_stream not in self._volumes.streams:
            raise UnknownLogStream(log_stream)
        self._check_changing(log_stream)
        replica = self._replicas.get(log_stream) or self._units.get(log_stream)
        epoch = replica.epoch if replica is not None else NO_EPOCH
        blank = epoch == NO_EPOCH if replica is not None else log_stream in self._blank
        self._volumes.check_change(log_stream, request.cluster_uuid, blank=blank)
        if request.epoch not in (-1, epoch):
            raise PreconditionFailed(
                f"log stream {log_stream} is in epoch {epoch} here, not {request.epoch}: it is kept"
            )
        if isinstance(replica, Replica) and not request.forced:
            replica.check_not_evidence("removed")
        self._changing[log_stream] = None
        try:
            await self._close_stream(log_stream)
            await self._read_worker.run(lambda: self._volumes.remove(log_stream))
        except OSError as error:
            # Shown until it is done: otherwise it would reappear after a restart, unnoticed.
            path = self._volumes.streams[log_stream]
            self._damaged[log_stream] = half = CorruptReplica(
                str(path), f"its removal is not finished ({error})"
            )
            _ = self._tasks.spawn(f"remove/ls={log_stream}", self._finish_removal(log_stream, half))
            raise
        finally:
            self._changing.pop(log_stream, None)

    async def _finish_removal(self, log_stream: LogStreamID, half: CorruptReplica) -> None:
        """Retry until the disk accepts it, or the stream was changed otherwise."""
        while self._damaged.get(log_stream) is half:
            await asyncio.sleep(REMOVAL_RETRY_S)
            if log_stream in self._changing or self._damaged.get(log_stream) is not half:
                continue
            self._changing[log_stream] = None
            try:
                await self._read_worker.run(lambda: self._volumes.remove(log_stream))
                del self._damaged[log_stream]
            except OSError as error:
                _log.info(logfmt("a replica cannot be removed yet", log_stream=log_stream, why=error))
            finally:
                self._changing.pop(log_stream, None)

    async def _close_stream(self, log_stream: LogStreamID) -> None:
        replica = self._replicas.pop(log_stream, None)
        if replica is not None:
            await replica.close()
        unit = self._units.pop(log_stream, None)
        if unit is not None:
            await unit.close()
        self._damaged.pop(log_stream, None)
        self._blank.pop(log_stream, None)
        self._unopened.pop(log_stream, None)

    def _check_changing(self, log_stream: LogStreamID) -> None:
        if log_stream in self._changing:
            raise PreconditionFailed(f"log stream {log_stream} is being created or removed here right now")

    def stream_opened(self, log_stream: LogStreamID) -> None:
        """The replica runs, or ran: what was set aside for it is not needed any more. If the disk refuses the removal, it is
        retried, unless another replica is created meanwhile: what is set aside for that one is still needed."""

        def present() -> Replica | LogUnit | None:
            return self._replicas.get(log_stream) or self._units.get(log_stream)

        async def drop() -> None:
            while present() is ran:
                try:
                    await self._read_worker.run(lambda: self._volumes.drop_aside(log_stream))
                    return
                except OSError as error:
                    _log.warning(
                        logfmt("what was set aside cannot be removed yet", log_stream=log_stream, why=error)
                    )
                await asyncio.sleep(REMOVAL_RETRY_S)

        ran = present()

        _ = self._tasks.spawn(f"drop-aside/ls={log_stream}", drop())

    def _is_unit(self, log_stream: LogStreamID) -> bool:
        return log_stream in self._units or self._volumes.is_unit(log_stream)

    def status(self) -> NodeStatus:
        """This node, its replicas and its units, including damaged ones."""
        # Asked once per volume: it is a system call, and there may be a thousand replicas.
        full: dict[DiskSpace, bool] = {}
        for replica in self._replicas.values():
            if (disk_space := replica.store.disk_space) not in full:
                full[disk_space] = disk_space.full
        replicas = [
            replica.status(full=full[replica.store.disk_space]) for replica in self._replicas.values()
        ]
        units = [unit.status() for unit in self._units.values()]
        for log_stream, damaged in self._damaged.items():
            blank = log_stream in self._blank
            if self._is_unit(log_stream):
                units.append(_unit_in_trouble(log_stream, damaged.path, str(damaged), blank=blank))
            else:
                replicas.append(_damaged_status(log_stream, damaged, blank=blank))
        for log_stream, error in self._unopened.items():
            path = self._volumes.streams[log_stream]
            if self._is_unit(log_stream):
                units.append(_unit_in_trouble(log_stream, str(path), f"it cannot be opened: {error}"))
            else:
                replicas.append(_unopened_status(log_stream, path, error))
        volumes = tuple(str(path) for path in self._config.volumes)
        known = self._known()
        replicas = [
            changed(found, cluster_uuid=self._volumes.cluster_of(found.log_stream)) for found in replicas
        ]
        units = [changed(found, cluster_uuid=self._volumes.cluster_of(found.log_stream)) for found in units]
        return NodeStatus(
            self._config.cluster,
            self.node,
            self.address,
            volumes,
            tuple(replicas),
            self._started_us,
            self._config.streams_max,
            tuple(units),
            self._lease.valid,
            self._volumes.cluster_uuid,
            known.largest_topic,
            known.largest_log_stream,
            self._transport.corrupt_frames,
        )


def _with_call(handler: Callable[[Call, M, bytearray], None]) -> Callable[[Call | None, M, bytearray], None]:
    """A handler of requests: the same message without a call needs no answer, and is dropped."""

    def handle(call: Call | None, message: M, payload: bytearray) -> None:
        if call is not None:
            handler(call, message, payload)

    return handle


def _unopened_status(log_stream: LogStreamID, path: Path, error: OSError) -> ReplicaStatus:
    """The status of a replica whose files are intact as far as is known: the next seal opens it and shows its state."""
    status = _damaged_status(log_stream, CorruptReplica(str(path), str(error)))
    return msgspec.structs.replace(
        status, state=ReplicaState.SEALING, trouble=f"it cannot be opened: {error}"
    )


def _damaged_status(
    log_stream: LogStreamID, damaged: CorruptReplica, *, blank: bool = False
) -> ReplicaStatus:
    return ReplicaStatus(
        log_stream=log_stream,
        topic=TopicID(0),
        state=ReplicaState.FROZEN,
        epoch=NO_EPOCH,
        committed_end=FIRST_LLSN,
        durable_end=FIRST_LLSN,
        low_watermark=NO_GLSN,
        high_watermark=NO_GLSN,
        path=damaged.path,
        trouble=str(damaged),
        blank=blank,
    )


def _unit_in_trouble(log_stream: LogStreamID, path: str, trouble: str, *, blank: bool = False) -> UnitStatus:
    return UnitStatus(
        log_stream, TopicID(0), NO_EPOCH, NO_LLSN, FIRST_LLSN, FIRST_LLSN, path, trouble=trouble, blank=blank
    )


class CreateStore(Protocol[S_co]):
    """`create` of a LogStore or a PageStore."""

    def __call__(
        self,
        disk: Disk,
        path: Path,
        *,
        topic: TopicID,
        log_stream: LogStreamID,
        segment_bytes: int,
        disk_space: DiskSpace,
        cluster: ClusterUUID,
    ) -> S_co: ...
