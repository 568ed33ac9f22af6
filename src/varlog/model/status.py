"""Status of storage nodes, replicas and log units, as the nodes report it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from varlog.model.cluster import ClusterView, NamedReader
from varlog.model.commit import TopicMark
from varlog.model.epoch import Epoch
from varlog.model.events import Event
from varlog.model.ids import NO_UUID, ClusterID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.limits import STREAMS_PER_NODE_MAX
from varlog.model.lsn import GLSN, LLSN
from varlog.model.traffic import Traffic


class ReplicaState(StrEnum):
    """The state of one replica on its storage node (R-SEAL-1). FROZEN: a law broke here; it answers nothing but status."""

    RUNNING = "running"
    SEALING = "sealing"
    SEALED = "sealed"
    FROZEN = "frozen"


class SyncState(StrEnum):
    """How far the newest sync of a replica is (R-SYNC-1)."""

    IN_PROGRESS = "in progress"
    COMPLETE = "complete"
    ERROR = "error"


class SyncStatus(msgspec.Struct, frozen=True):
    """The newest sync of a replica: from where, how far, and why it failed. `rebuild`: it cannot succeed over what the
    replica has now, so the replica must be recreated first."""

    state: SyncState
    source: NodeID
    copied_end: LLSN
    target_end: LLSN
    copied_bytes: int = 0
    why: str = ""
    rebuild: bool = False


class ReplicaStatus(msgspec.Struct, frozen=True):
    """What a storage node reports of one of its replicas. `opened`: it was unsealed in this epoch, so only a newer one
    can seal it.

    `damage`: ranges [begin, end) of LLSNs whose bytes do not match their checksums; `full`: its volume has no room for appends.
    `cluster_uuid`: the cluster that its directory is bound to; NO_UUID: to none yet.
    `evidence` (empty: none): why: it was asked to give up what it knows to be ordered. Nothing rebuilds, cuts or removes it.
    `blank`: it never was in an epoch, so it never held an entry; of one that cannot be opened its files say so.
    """

    log_stream: LogStreamID
    topic: TopicID
    state: ReplicaState
    epoch: Epoch
    committed_end: LLSN
    durable_end: LLSN
    low_watermark: GLSN
    high_watermark: GLSN
    path: str
    bytes: int = 0
    primary: bool = False
    trouble: str = ""
    opened: bool = False
    sync: SyncStatus | None = None
    damage: tuple[tuple[LLSN, LLSN], ...] = ()
    full: bool = False
    traffic: Traffic = Traffic()
    cluster_uuid: ClusterUUID = NO_UUID
    evidence: str = ""
    blank: bool = False


class UnitStatus(msgspec.Struct, frozen=True):
    """What a storage node reports of one of its log units (sequenced ordering). `newest`: the largest LLSN written
    here, 0 if none; everything below `dense_end` is written; `low`: nothing below it exists any more. `damage`: as of a
    replica. `trouble`: why it takes no writes. `cluster_uuid`: as of a replica. `unverified`: it was restored from its
    disk, and has not been compared with its chain since. `blank`: it cannot be opened, and its files say that it never
    held a page."""

    log_stream: LogStreamID
    topic: TopicID
    epoch: Epoch
    newest: LLSN
    dense_end: LLSN
    low: LLSN
    path: str
    bytes: int = 0
    trouble: str = ""
    sync: SyncStatus | None = None
    damage: tuple[tuple[LLSN, LLSN], ...] = ()
    full: bool = False
    traffic: Traffic = Traffic()
    cluster_uuid: ClusterUUID = NO_UUID
    unverified: bool = False
    blank: bool = False


class NodeStatus(msgspec.Struct, frozen=True):
    """What a storage node reports of itself. `leased`: it may answer for its log units now (R-SEQ-13). `cluster_uuid`:
    the cluster that the node is bound to. `largest_topic`, `largest_log_stream`: the largest ids that it knows of, of
    any cluster. `corrupt_frames`: those that came with a wrong checksum since it started."""

    cluster: ClusterID
    node: NodeID
    address: str
    volumes: tuple[str, ...]
    replicas: tuple[ReplicaStatus, ...]
    started_us: int = 0
    streams_max: int = STREAMS_PER_NODE_MAX
    units: tuple[UnitStatus, ...] = ()
    leased: bool = False
    cluster_uuid: ClusterUUID = NO_UUID
    largest_topic: TopicID = TopicID(0)
    largest_log_stream: LogStreamID = LogStreamID(0)
    corrupt_frames: int = 0


class NodeHealth(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A storage node as the manager sees it. `away_s`: for how long it has not answered, or not with an answer that
    counts; `why`: how the last request failed."""

    node: NodeID
    alive: bool
    status: NodeStatus | None
    away_s: float = 0.0
    why: str = ""


class ClusterStatus(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The whole cluster as its manager sees it. `waits`: for each stream that does not run, what the manager does or waits for.
    `events`: the newest ones, oldest first. `readers`: the first ones by topic and name, if there are very many. `complaints`,
    `repository_corrupt_frames`: see GetViewReply."""

    view: ClusterView
    nodes: tuple[NodeHealth, ...]
    tails: tuple[TopicMark, ...]
    waits: tuple[Event, ...] = ()
    events: tuple[Event, ...] = ()
    suspects: tuple[NodeID, ...] = ()
    readers: tuple[NamedReader, ...] = ()
    complaints: tuple[str, ...] = ()
    repository_corrupt_frames: int = 0
    manager_corrupt_frames: int = 0
