"""The volumes of one storage node: layout, identity, locks (R-SN-1 to 7).

<volume>/cid=<cluster>/snid=<node>/            the StorageNodePath
    identity                                   the node and cluster it belongs to
    view                                       a copy of the cluster's view (view_copy.py)
    lock                                       held by the running process
    ballast                                    space for the last small writes on a full disk
    witness                                    what the node has seen of the metadata repository
    lsid=<log stream>/                         the LogStreamPath: one replica, whole, on one volume; or one log unit
        cluster                                the cluster it belongs to (cluster_file.py)
        state | unit                           which of the two it is
        removed                                only while it is being removed
    aside-lsid=<log stream>/                   a replica that could not continue, until its replacement has run
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.epoch import NO_EPOCH
from varlog.model.errors import CorruptReplica, PreconditionFailed, StartupError
from varlog.model.ids import ID_MAX, NO_UUID, ClusterID, ClusterUUID, LogStreamID, NodeID
from varlog.model.lsn import FIRST_LLSN
from varlog.runtime.disk import Disk, FileLock
from varlog.runtime.environment import Entropy
from varlog.runtime.logging import get_logger, logfmt
from varlog.storage.cluster_file import read_cluster, write_cluster
from varlog.storage.committed.row_file import ROW_BYTES, ROWS_NAME, encode_end_mark
from varlog.storage.committed.segment import SEGMENT_SUFFIX, first_llsn_of
from varlog.storage.committed.state_file import STATE_NAME, decode_state
from varlog.storage.disk_space import DiskSpace
from varlog.storage.identity import (
    IDENTITY_NAME,
    Identity,
    check_cluster_uuid_of,
    check_identity,
    encode_identity,
    fingerprint,
    read_identity,
)
from varlog.storage.metadata_files import scrub_file
from varlog.storage.open_file import unlinked
from varlog.storage.sequenced.sync_watermark import SYNCED_NAME, Synced, decode_slots
from varlog.storage.sequenced.unit_state import FIRST_SEGMENT, UNIT_NAME, decode_unit

LOCK_NAME: Final = "lock"
REMOVED_NAME: Final = "removed"

_log = get_logger("storage")


def storage_node_path(volume: Path, cluster: ClusterID, node: NodeID) -> Path:
    return volume / f"cid={cluster}" / f"snid={node}"


def log_stream_path(volume: Path, cluster: ClusterID, node: NodeID, log_stream: LogStreamID) -> Path:
    return storage_node_path(volume, cluster, node) / f"lsid={log_stream}"


def numbered(disk: Disk, directory: Path, kind: str) -> Iterator[tuple[int, Path]]:
    """(id, path) of the directories `<kind>=<id>` in `directory`, in the order of their ids."""
    names = disk.list(directory) if disk.is_directory(directory) else []
    found = [re.fullmatch(rf"{kind}=([1-9][0-9]*)", name) for name in names]
    for number in sorted(int(match[1]) for match in found if match):
        path = directory / f"{kind}={number}"
        if disk.is_directory(path):
            yield number, path


class NodeVolumes:
    """The locked volumes of a running node. `streams`: the directory of each replica or log unit."""

    def __init__(
        self, disk: Disk, cluster: ClusterID, node: NodeID, volumes: Sequence[Path], disk_reserve_bytes: int
    ) -> None:
        self.node = node
        self.streams: dict[LogStreamID, Path] = {}
        # The cluster that this node serves; NO_UUID until a repository has opened its first session.
        self.cluster_uuid = NO_UUID
        # The largest id of any directory that was ever seen here.
        self.largest_log_stream = LogStreamID(0)
        # The cluster of each directory in `streams`; those that belong to none are missing.
        self._bound: dict[LogStreamID, ClusterUUID] = {}
        self._identity: Identity | None = None
        self._disk = disk
        self._cluster = cluster
        self._volumes = tuple(volumes)
        self._locks: list[FileLock] = []
        self._spaces = {volume: self._make_space(volume, disk_reserve_bytes) for volume in self._volumes}

    @classmethod
    def open(
        cls,
        disk: Disk,
        entropy: Entropy,
        *,
        cluster: ClusterID,
        node: NodeID | None,
        volumes: Sequence[Path],
        cluster_key: str = "",
        error_if_exists: bool = False,
        disk_reserve_bytes: int = 0,
    ) -> NodeVolumes:
        """Check, lock and identify the volumes, and find the replicas on them. StartupError names the path and the remedy."""
        for volume in volumes:
            _check_volume(disk, volume)
        _check_doubled(volumes)
        _check_cluster(disk, volumes, cluster)
        node = node or _kept_node(disk, volumes, cluster) or NodeID(entropy.randint(1, ID_MAX))
        paths = [storage_node_path(volume, cluster, node) for volume in volumes]
        if error_if_exists:
            _check_new(disk, paths)
        opened = cls(disk, cluster, node, volumes, disk_reserve_bytes)
        try:
            opened._lock(paths)
            opened._identify(paths, cluster_key, f"{entropy.getrandbits(128):032x}")
            opened._find_streams()
            opened._settle_cluster()
            for disk_space in opened._spaces.values():
                disk_space.keep_ballast()
        except OSError as error:
            opened.release()
            raise StartupError(
                f"{error.filename or paths[0]} cannot be used: {error.strerror or error}"
            ) from error
        except BaseException:
            opened.release()
            raise
        return opened

    @property
    def node_paths(self) -> tuple[Path, ...]:
        """The node's own directory on each volume."""
        return tuple(storage_node_path(volume, self._cluster, self.node) for volume in self._volumes)

    def disk_space(self, path: Path) -> DiskSpace:
        """The free space of the volume that a replica in `path` shares with others."""
        return self._spaces[path.parents[2]]

    def _make_space(self, volume: Path, reserve_bytes: int) -> DiskSpace:
        why = f"the disk of node {self.node} is full: free space on {volume}"
        path = storage_node_path(volume, self._cluster, self.node)
        return DiskSpace(self._disk, path, reserve_bytes=reserve_bytes, why=why)

    def place(self, log_stream: LogStreamID, volume: str = "") -> Path:
        """The directory for a new replica: on the requested volume, or on the one with the fewest replicas. Refused if the stream
        has a directory on any of them (R-SN-6)."""
        for known in self._volumes:
            path = log_stream_path(known, self._cluster, self.node, log_stream)
            if self._disk.exists(path) and not _clear_unfinished(self._disk, path):
                raise PreconditionFailed(
                    f"log stream {log_stream} has data in {path}: remove it first, or choose another node"
                )
        counts = {str(known): 0 for known in self._volumes}
        for path in self.streams.values():
            counts[str(path.parents[2])] += 1
        chosen = Path(volume or min(counts, key=lambda known: counts[known]))
        if str(chosen) not in counts:
            raise PreconditionFailed(f"{volume} is no volume of node {self.node}: it has {', '.join(counts)}")
        path = self.streams[log_stream] = log_stream_path(chosen, self._cluster, self.node, log_stream)
        self.largest_log_stream = max(self.largest_log_stream, log_stream)
        return path

    def is_unit(self, log_stream: LogStreamID) -> bool:
        """Whether the stream's directory here is a log unit, even a damaged one; False for a replica, and if there is none."""
        path = self.streams.get(log_stream)
        return path is not None and any(self._disk.exists(path / name) for name in (UNIT_NAME, SYNCED_NAME))

    def is_blank(self, log_stream: LogStreamID) -> bool:
        """Worker: whether the files of a directory that cannot be opened show that it never had an entry. False if they are
        unreadable."""
        try:
            return is_blank(self._disk, self.streams[log_stream])
        except OSError:
            return False

    def clear_unfinished(self, log_stream: LogStreamID) -> bool:
        """Finish a removal that the disk interrupted; True if nothing else was there. A replica that was set aside for one that
        could not be created is put back."""
        path = self.streams[log_stream]
        if self._disk.exists(path) and not _clear_unfinished(self._disk, path):
            return False
        if self._put_back(log_stream):
            return False
        self.forget(log_stream)
        return True

    def forget(self, log_stream: LogStreamID) -> None:
        """Forget a replica that was removed or never created."""
        self.streams.pop(log_stream, None)
        self._bound.pop(log_stream, None)

    def remove(self, log_stream: LogStreamID) -> None:
        """Delete a replica's data (R-REG-5), and what was set aside for it. If it is interrupted, the next start continues it."""
        self.drop_aside(log_stream)
        self._delete(log_stream)

    def _delete(self, log_stream: LogStreamID) -> None:
        path = self.streams[log_stream]
        if self._disk.exists(path):
            self._disk.replace_file(path / REMOVED_NAME, b"")
            _finish_removal(self._disk, path)
        self.forget(log_stream)

    def set_aside(self, log_stream: LogStreamID) -> None:
        """Make way for a new replica in place of this one, which cannot continue: its data stay, under another name.

        If a replica is set aside already, the present one never ran, so all its data are copies: it is deleted.
        """
        path = self.streams[log_stream]
        if not self._disk.exists(path):
            self.forget(log_stream)
        elif self._asides(log_stream):
            self._delete(log_stream)
        else:
            self._disk.rename(path, path.with_name(f"aside-{path.name}"))
            self._disk.sync_directory(path.parent)
            self.forget(log_stream)

    def _put_back(self, log_stream: LogStreamID) -> bool:
        """Put back what was set aside for a replica that was never created: there it is listed, and rebuilt or removed like any
        other. Under the other name it would never be found once the stream has moved. Returns False if nothing was set aside."""
        for aside in self._asides(log_stream)[:1]:
            if _clear_unfinished(self._disk, aside):
                continue
            uuid, path = self._read_cluster(aside), aside.with_name(f"lsid={log_stream}")
            self._disk.rename(aside, path)
            self._disk.sync_directory(path.parent)
            _log.info(logfmt("put back what was set aside for a replica that was never created", path=path))
            self.streams[log_stream] = path
            self.note_cluster(log_stream, uuid)
            return True
        return False

    def drop_aside(self, log_stream: LogStreamID) -> None:
        """Remove what was set aside and is not needed any more. If interrupted, the next call continues. Data of another cluster
        stays."""
        for path in self._asides(log_stream):
            if self._read_cluster(path) not in (NO_UUID, self.cluster_uuid):
                _log.warning(logfmt("what was set aside belongs to another cluster, and stays", path=path))
                continue
            _log.info(logfmt("removing what was set aside", path=path))
            self._disk.remove_tree(path)

    def _asides(self, log_stream: LogStreamID) -> list[Path]:
        paths = [log_stream_path(volume, self._cluster, self.node, log_stream) for volume in self._volumes]
        asides = [path.with_name(f"aside-{path.name}") for path in paths]
        return [path for path in asides if self._disk.exists(path)]

    def release(self) -> None:
        """Release the locks of the volumes."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def _lock(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._disk.make_directory(path)
            self._locks.append(self._locked(path))
            self._disk.make_private(path.parent)

    def _locked(self, path: Path) -> FileLock:
        try:
            return self._disk.lock(path / LOCK_NAME)
        except BlockingIOError:
            raise StartupError(
                f"{path} is in use: another process runs node {self.node} on it, or the volume was given twice; stop that "
                "process, or give this one its own id and volume"
            ) from None

    def _identify(self, paths: Sequence[Path], cluster_key: str, fresh_key: str) -> None:
        found: dict[str, Path] = {}
        uuids: dict[Path, ClusterUUID] = {}
        nameless = []
        for path in paths:
            identity = read_identity(self._disk, path)
            if identity is not None:
                check_identity(identity, self._cluster, self.node, cluster_key, path)
                found[identity.node_key] = path
                uuids[path] = identity.cluster_uuid
            elif any(numbered(self._disk, path, "lsid")):
                raise StartupError(
                    f"{path} holds log streams and no {IDENTITY_NAME} file: copy it from another volume of the same node"
                )
            else:
                nameless.append(path)
        if len(found) > 1:
            raise StartupError(
                f"{' and '.join(map(str, found.values()))} belong to different nodes that have the same id {self.node}: give each "
                "node its own volumes"
            )
        bound = {uuid: path for path, uuid in uuids.items() if uuid}
        if len(bound) > 1:
            raise StartupError(
                f"{' and '.join(f'{path} (cluster {uuid})' for uuid, path in bound.items())} belong to different clusters: give "
                "each node its own volumes"
            )
        self.cluster_uuid = next(iter(bound), NO_UUID)
        self._identity = identity = Identity(
            cluster=self._cluster,
            node=self.node,
            node_key=next(iter(found), fresh_key),
            cluster_key_fingerprint=fingerprint(self._cluster, cluster_key),
            cluster_uuid=self.cluster_uuid,
        )
        # A crash may have come when only some volumes were bound.
        unbound = [path for path, uuid in uuids.items() if uuid != self.cluster_uuid]
        for path in nameless + unbound:
            self._disk.replace_file(path / IDENTITY_NAME, encode_identity(identity))

    def _find_streams(self) -> None:
        """R-SN-3, R-SN-4. What a crash left of creating or removing a replica is removed."""
        asides = []
        for volume in self._volumes:
            home = storage_node_path(volume, self._cluster, self.node)
            asides += [LogStreamID(number) for number, _ in numbered(self._disk, home, "aside-lsid")]
            self.largest_log_stream = max([self.largest_log_stream, *asides])
            for number, path in numbered(self._disk, home, "lsid"):
                self.largest_log_stream = max(self.largest_log_stream, LogStreamID(number))
                if _clear_unfinished(self._disk, path):
                    continue
                log_stream = LogStreamID(number)
                if log_stream in self.streams:
                    raise StartupError(
                        f"log stream {log_stream} exists twice, in {self.streams[log_stream]} and in {path}: one is a copy; "
                        "move it away"
                    )
                self.streams[log_stream] = path
                if uuid := self._read_cluster(path):
                    self._bound[log_stream] = uuid
        for log_stream in asides:
            if log_stream not in self.streams:
                _ = self._put_back(log_stream)

    # --- the cluster ---------------------------------------------------------------------------------------------------------

    def cluster_of(self, log_stream: LogStreamID) -> ClusterUUID:
        """The cluster that a replica's directory is bound to; NO_UUID: to none, or there is none."""
        return self._bound.get(log_stream, NO_UUID)

    def is_foreign(self, log_stream: LogStreamID) -> bool:
        """Whether the directory belongs to another cluster than this node: nothing here opens, changes or removes it."""
        return (
            self.cluster_of(log_stream) not in (NO_UUID, self.cluster_uuid) and self.cluster_uuid != NO_UUID
        )

    def check_cluster(self, uuid: ClusterUUID) -> None:
        """Refuse a repository or manager of another cluster."""
        check_cluster_uuid_of(self.node, self.cluster_uuid, uuid)

    def check_change(self, log_stream: LogStreamID, uuid: ClusterUUID, *, blank: bool) -> None:
        """Check whether cluster `uuid` may remove or replace this directory: only if it is bound to that very cluster, or bound
        to none and `blank` (it never had an entry)."""
        self.check_cluster(uuid)
        bound = self.cluster_of(log_stream)
        if bound != uuid and not (bound == NO_UUID and blank):
            owner = f"the cluster with UUID {bound}" if bound else "no cluster yet"
            raise PreconditionFailed(
                f"the data of log stream {log_stream} on node {self.node} belong to {owner}, not to {uuid or 'no cluster'}: "
                "they are kept; if they are not needed, delete the directory by hand while the node is stopped"
            )

    def note_cluster(self, log_stream: LogStreamID, uuid: ClusterUUID) -> None:
        """Record that a replica was created for this cluster, or was put back."""
        if uuid:
            self._bound[log_stream] = uuid

    def lacks_cluster(self, uuid: ClusterUUID, registered: Sequence[LogStreamID]) -> bool:
        """Whether the node, or a replica of it that the repository has registered, is not bound to a cluster yet."""
        return self.cluster_uuid != uuid or bool(self._unbound(registered))

    def bind(self, uuid: ClusterUUID, registered: Sequence[LogStreamID]) -> None:
        """Worker: bind this node, and those of its replicas that a repository of cluster `uuid` has registered, to that cluster.
        Refused if one of them belongs to another. Replicas that are not registered stay unbound, and are never removed."""
        self.check_cluster(uuid)
        for log_stream in registered:
            if self.cluster_of(log_stream) not in (NO_UUID, uuid):
                raise PreconditionFailed(
                    f"{self.streams[log_stream]} belongs to the cluster with UUID {self.cluster_of(log_stream)}, not to {uuid}: it "
                    "was copied or mounted here; put it back where it came from"
                )
        for log_stream in self._unbound(registered):
            write_cluster(self._disk, self.streams[log_stream], uuid)
            self._bound[log_stream] = uuid
        if self.cluster_uuid != uuid:
            self._write_identity(uuid)

    def _unbound(self, registered: Sequence[LogStreamID]) -> list[LogStreamID]:
        return [found for found in registered if found in self.streams and found not in self._bound]

    def _settle_cluster(self) -> None:
        """An identity that was restored from an older copy may know no cluster while the replicas do."""
        known = dict.fromkeys(self._bound.values())
        if self.cluster_uuid == NO_UUID and len(known) == 1:
            self._write_identity(next(iter(known)))

    def _write_identity(self, uuid: ClusterUUID) -> None:
        if self._identity is None:
            raise StartupError(f"node {self.node} has no identity yet")
        identity = msgspec.structs.replace(self._identity, cluster_uuid=uuid)
        for volume in self._volumes:
            path = storage_node_path(volume, self._cluster, self.node)
            self._disk.replace_file(path / IDENTITY_NAME, encode_identity(identity))
        self._identity, self.cluster_uuid = identity, uuid

    # --- while it runs ---------------------------------------------------------------------------------------------------------

    def scrub_metadata(self) -> list[str]:
        """Worker: rewrite the identity where it differs from memory, and lock again what another process could lock now; returns
        what was wrong. StartupError: another process has the lock."""
        wrong = []
        for number, home in enumerate(self.node_paths):
            if not self._locks[number].is_linked():
                wrong.append(unlinked(home / LOCK_NAME))
                self._disk.make_directory(home)
                self._locks[number] = self._locked(home)
            content = encode_identity(self._identity) if self._identity is not None else b""
            if note := scrub_file(self._disk, home / IDENTITY_NAME, content):
                wrong.append(note)
        return wrong

    def _read_cluster(self, path: Path) -> ClusterUUID:
        """A damaged file binds to no cluster, so the replica is never removed; a registered one is bound again."""
        try:
            return read_cluster(self._disk, path)
        except CorruptReplica as damaged:
            _log.warning(logfmt("the cluster of a replica is unknown", why=damaged))
            return NO_UUID


def _check_volume(disk: Disk, volume: Path) -> None:
    if not disk.exists(volume):
        raise StartupError(f"volume {volume} does not exist: create the directory, or mount it")
    if not disk.is_directory(volume):
        raise StartupError(f"volume {volume} is not a directory: give a directory")
    if not disk.is_writable(volume):
        raise StartupError(
            f"volume {volume} is not writable: change its owner or mode, or mount it for writing"
        )


def _check_doubled(volumes: Sequence[Path]) -> None:
    if not volumes:
        raise StartupError("a storage node needs at least one volume: give --volumes")
    doubled = [volume for number, volume in enumerate(volumes) if volume in volumes[:number]]
    if doubled:
        raise StartupError(f"volume {doubled[0]} is given twice: give each volume once")


def _check_cluster(disk: Disk, volumes: Sequence[Path], cluster: ClusterID) -> None:
    """Refuse a volume of another cluster: that is more likely a wrong id than intended. An empty node would start beside the
    data."""
    for volume in volumes:
        others = [other for other, _ in numbered(disk, volume, "cid") if other != cluster]
        if others:
            raise StartupError(
                f"volume {volume} belongs to cluster {others[0]}, not {cluster}: start with --cluster-id {others[0]}, or use "
                "another volume"
            )


def _check_new(disk: Disk, paths: Sequence[Path]) -> None:
    for path in paths:
        if disk.exists(path):
            raise StartupError(
                f"{path} exists already: start without --error-if-exists, or use an empty volume"
            )


def _kept_node(disk: Disk, volumes: Sequence[Path], cluster: ClusterID) -> NodeID | None:
    """The node id that was drawn at the first start, if there is one."""
    found = {
        node: path for volume in volumes for node, path in numbered(disk, volume / f"cid={cluster}", "snid")
    }
    if len(found) > 1:
        raise StartupError(
            f"several nodes have data here ({', '.join(map(str, found.values()))}): say which one with --storage-node-id"
        )
    return NodeID(next(iter(found))) if found else None


def _clear_unfinished(disk: Disk, path: Path) -> bool:
    """Remove what a crash left of a replica that was being created or removed; True if it was one."""
    names = disk.list(path)
    if REMOVED_NAME in names:
        _finish_removal(disk, path)
    elif (
        STATE_NAME in names
        or UNIT_NAME in names
        or any(disk.read_file(path / name) for name in names if name.endswith(SEGMENT_SUFFIX))
    ):
        return False
    elif (
        ROWS_NAME in names and len(disk.read_file(path / ROWS_NAME)) > 2 * ROW_BYTES
    ):  # more than header and end mark
        return False
    else:
        disk.remove_tree(path)
    _log.info(logfmt("removed an unfinished replica", path=path))
    return True


def _finish_removal(disk: Disk, path: Path) -> None:
    for name in disk.list(path):
        if name != REMOVED_NAME:
            disk.remove(path / name)
    # Durable before the mark is removed: what is left without it would look like a damaged replica.
    disk.sync_directory(path)
    disk.remove_tree(path)


def is_blank(disk: Disk, path: Path) -> bool:
    """Whether a directory that cannot be opened never had an entry, by its files alone; reads no segment.

    A device may lose the writes that create a replica or log unit. Then it is damaged, knows neither its epoch nor its cluster, and
    if its log stream was never registered nothing repairs it. An empty one may be removed, because entries are written only in an
    epoch: the state is that of no epoch or was never written, and there is neither a byte of an entry nor a commit row.
    """
    if not disk.is_directory(path):
        return False
    return _states_blank(disk, path) and _segments_blank(disk, path) and _rows_blank(disk, path)


def _states_blank(disk: Disk, path: Path) -> bool:
    """Whether the state files show no entry. A missing state file is no proof: it may have been deleted."""
    names = [name for name in (STATE_NAME, UNIT_NAME) if disk.exists(path / name)]
    return bool(names) and all(_state_blank(name, disk.read_file(path / name), path) for name in names)


def _state_blank(name: str, content: bytes, path: Path) -> bool:
    if not any(content):
        return True  # its write was lost
    try:
        decode = decode_state if name == STATE_NAME else decode_unit
        return decode(content, path / name).epoch == NO_EPOCH
    except CorruptReplica:
        return False


def _segments_blank(disk: Disk, path: Path) -> bool:
    """Whether only the first segment exists, empty: space is reserved with the first entry. Both orderings count from 1."""
    numbered = {name: first for name in disk.list(path) if (first := first_llsn_of(name)) is not None}
    return all(
        first in (FIRST_LLSN, FIRST_SEGMENT) and not _size(disk, path / name)
        for name, first in numbered.items()
    )


def _rows_blank(disk: Disk, path: Path) -> bool:
    """Whether nothing or the first end mark follows the header; a unit's mark must show that nothing is synced, or be
    unreadable."""
    rows = disk.read_file(path / ROWS_NAME) if disk.exists(path / ROWS_NAME) else b""
    marks = disk.read_file(path / SYNCED_NAME) if disk.exists(path / SYNCED_NAME) else b""
    behind = rows[ROW_BYTES:]
    first = (Synced(), Synced(FIRST_SEGMENT, 0))
    return (not any(behind) or behind == encode_end_mark(0)) and all(
        mark is None or mark in first for mark in decode_slots(marks)
    )


def _size(disk: Disk, path: Path) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()
