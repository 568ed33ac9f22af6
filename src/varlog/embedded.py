"""EmbeddedCluster: a cluster in one process, on one directory, without sockets.

A metadata repository, a storage node, a sequencer and a manager: the same code as a cluster of processes, over a network in memory.
The directory holds `varlog.json` (its identity), `varlog.lock` (held while it is open), `metadata.db` and `volume/`; it is as
durable as a cluster's after kill -9.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from varlog.client.admin import Admin
from varlog.client.connect import connect_admin, connect_log
from varlog.client.log import TIMEOUT_S, Log
from varlog.client.retry import Backoff
from varlog.manager.config import ManagerConfig
from varlog.manager.manager import Manager
from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.cluster import Ordering
from varlog.model.errors import PreconditionFailed, StartupError
from varlog.model.ids import ID_MAX, ClusterID, NodeID
from varlog.model.limits import SEGMENT_BYTES
from varlog.rpc.memory import MemoryTransport
from varlog.runtime.disk import make_ours_private
from varlog.runtime.environment import Environment, system_environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.sequencer.sequencer import Sequencer, SequencerConfig
from varlog.storage.metadata_files import scrub_file
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNodeServer

FORMAT_VERSION = 1
REPOSITORY, NODE, MANAGER, SEQUENCER = "repository", "node", "manager", "sequencer"

_log = get_logger("embedded")

# What it puts into the directory.
_OURS = r"varlog\.json.*|varlog\.lock|metadata\.db.*|volume"


class _Identity(msgspec.Struct, frozen=True):
    """What `varlog.json` says."""

    format: int
    cluster: ClusterID


class EmbeddedCluster:
    """One directory, open. Only one process can have it open at a time."""

    def __init__(
        self, path: Path, environment: Environment, *, sync: bool = True, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._path = path
        self._environment = environment
        self._sync = sync
        self._segment_bytes = segment_bytes
        self._transport = MemoryTransport()
        self._cluster = ClusterID(0)
        self._stops: list[Callable[[], Awaitable[None]]] = []

    async def start(self) -> None:
        """Create the directory if necessary, or open what is in it. StartupError says what prevents it."""
        try:
            self._lock()
            self._cluster = self._identify()
            self._stops.append(self._keep_identity)
            await self._start_services()
        except BaseException:
            await self.stop()
            raise

    async def connect(
        self,
        topic: str,
        *,
        create: bool = True,
        streams: int = 1,
        ordering: Ordering | str = Ordering.COMMITTED,
        timeout_s: float = TIMEOUT_S,
    ) -> Log:
        """The log of one topic, created with `streams` log streams and this ordering if it is new and `create` allows it."""
        backoff = Backoff(self._environment, timeout_s)
        while True:
            try:
                return await connect_log(
                    self._transport,
                    self._environment,
                    REPOSITORY,
                    topic=topic,
                    cluster=self._cluster,
                    create=create,
                    streams=streams,
                    ordering=ordering,
                    timeout_s=timeout_s,
                )
            except PreconditionFailed:
                if backoff.spent:  # before that: the manager has just started, and has not met the node yet
                    raise
            await backoff.wait()

    async def admin(self) -> Admin:
        """Administration of what is in the directory."""
        return await connect_admin(self._transport, self._environment, REPOSITORY, cluster=self._cluster)

    async def stop(self) -> None:
        """Stop cleanly, in the opposite order; then others may open the directory."""
        while self._stops:
            await self._stops.pop()()

    async def _start_services(self) -> None:
        # The node first: the repository dials it, and with it there is nothing to wait for.
        volume = self._path / "volume"
        self._environment.disk.make_directory(volume)
        config = StorageNodeConfig(
            self._cluster, NodeID(1), (volume,), listen=NODE, segment_bytes=self._segment_bytes
        )
        node = StorageNodeServer(config, self._environment, self._transport)
        await node.start()
        self._stops.append(node.stop)
        store = SqliteStore(self._path / "metadata.db", self._environment, synced=self._sync)
        # The directory's lock proves it: a process that had a lease before is gone.
        config_of_repository = MetadataRepositoryConfig(
            self._cluster, REPOSITORY, leases_survive_restart=False
        )
        repository = MetadataRepository(config_of_repository, store, self._environment, self._transport)
        await repository.start()
        self._stops.append(repository.stop)
        sequencer = Sequencer(
            SequencerConfig(self._cluster, REPOSITORY, SEQUENCER), self._environment, self._transport
        )
        await sequencer.start()
        self._stops.append(sequencer.stop)
        manager = Manager(
            ManagerConfig(
                self._cluster,
                REPOSITORY,
                MANAGER,
                nodes=(NODE,),
                replicas=1,
                streams=1,
                auto_create_topics=True,
            ),
            self._environment,
            self._transport,
        )
        await manager.start()
        self._stops.append(manager.stop)
        await sequencer.wait_leased()

    def _lock(self) -> None:
        disk, path = self._environment.disk, self._path
        if disk.exists(path) and not disk.is_directory(path):
            raise StartupError(f"{path} is not a directory: name one, or a path where one can be made")
        try:
            disk.make_directory(path)
            lock = disk.lock(path / "varlog.lock")
            make_ours_private(disk, path, _OURS)
        except BlockingIOError as held:
            raise StartupError(
                f"{path} is open already: close it there, or let both connect to one cluster"
            ) from held
        except OSError as error:
            raise StartupError(f"{path} cannot be used: {error.strerror or error}") from error

        async def release() -> None:
            lock.release()

        self._stops.append(release)

    def _identify(self) -> ClusterID:
        """The cluster that lives here; a new one in a directory without any."""
        file = self._path / "varlog.json"
        if not self._environment.disk.exists(file):
            cluster = ClusterID(self._environment.entropy.randrange(1, ID_MAX + 1))
            self._environment.disk.replace_file(file, msgspec.json.encode(_Identity(FORMAT_VERSION, cluster)))
            return cluster
        try:
            identity = msgspec.json.decode(self._environment.disk.read_file(file), type=_Identity)
        except msgspec.DecodeError as error:
            raise StartupError(f"{file} cannot be read ({error}): restore it from a backup") from error
        if identity.format != FORMAT_VERSION:
            raise StartupError(
                f"{file} has format {identity.format}, this varlog knows {FORMAT_VERSION}: use the version that wrote it"
            )
        return identity.cluster

    async def _keep_identity(self) -> None:
        """At the end: if it was deleted or replaced meanwhile, the next start would create another cluster."""
        identity = msgspec.json.encode(_Identity(FORMAT_VERSION, self._cluster))
        with contextlib.suppress(OSError):
            if wrong := scrub_file(self._environment.disk, self._path / "varlog.json", identity):
                _log.warning(logfmt("files written again", why=wrong))


async def open_log(
    path: str | Path,
    topic: str,
    *,
    sync: bool = True,
    streams: int = 1,
    ordering: Ordering | str = Ordering.COMMITTED,
    segment_bytes: int = SEGMENT_BYTES,
    timeout_s: float = TIMEOUT_S,
) -> Log:
    """An embedded cluster and the log of one of its topics; closing the log stops the cluster."""
    cluster = EmbeddedCluster(
        Path(path), system_environment(synced=sync), sync=sync, segment_bytes=segment_bytes
    )
    await cluster.start()
    try:
        log = await cluster.connect(topic, streams=streams, ordering=ordering, timeout_s=timeout_s)
        log.connector.close_with(cluster.stop)
        await log.connector.wait_running()
    except BaseException:
        await cluster.stop()
        raise
    return log
