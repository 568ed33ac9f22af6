"""Status of storage nodes, replicas and log units, as the nodes report it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from statistics import median_low
from typing import Final

import msgspec

from varlog.model.cluster import ClusterView, NamedReader
from varlog.model.commit import TopicMark
from varlog.model.epoch import Epoch
from varlog.model.events import Event
from varlog.model.ids import NO_UUID, ClusterID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.limits import STREAMS_PER_NODE_MAX
from varlog.model.lsn import GLSN, LLSN

# --- traffic: what one replica or log unit has done for clients since its start -------------------------------------------------

# A node is slow where its writes take this many times as long as those of the other nodes, and at least this long.
SLOW_FACTOR: Final = 5.0
SLOW_S_MIN: Final = 0.02

# Upper ends of the buckets, 0.1 ms to 10 s; one more bucket is for what took longer. They are part of the wire format: a change
# needs another field.
LATENCY_BOUNDS_S: Final = (
    *(0.0001, 0.0002, 0.0003, 0.0005, 0.0007),
    *(0.001, 0.002, 0.003, 0.005, 0.007),
    *(0.01, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 2.0, 3.0, 5.0, 7.0, 10.0),
)


class Traffic(msgspec.Struct, frozen=True, array_like=True):
    """Appends: batches that were acknowledged here, by a primary in order and durable everywhere, by a log unit durable
    here alone. Reads: answers with entries. Bytes are those of the entries with their framing on the wire. `append_s`:
    the sum of all appends' times; `append_buckets`: how many took how long (see LATENCY_BOUNDS_S), empty while there
    was none. `write_s`: the mean time of a write with its sync in the last seconds; 0 if there were too few."""

    appends: int = 0
    append_entries: int = 0
    append_bytes: int = 0
    append_s: float = 0.0
    append_buckets: tuple[int, ...] = ()
    reads: int = 0
    read_entries: int = 0
    read_bytes: int = 0
    write_s: float = 0.0


def slow_among(write_s: Mapping[NodeID, float]) -> dict[NodeID, float]:
    """Of nodes and how long a write takes on each (0: not known), those that are much slower than the others. Never all
    of them."""
    slow = {}
    for node, seconds in write_s.items():
        others = [other_s for other, other_s in write_s.items() if other != node and other_s > 0]
        if others and seconds >= max(SLOW_S_MIN, SLOW_FACTOR * median_low(others)):
            slow[node] = seconds
    return slow


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
    """A storage node as the manager sees it. `unreachable_s`: for how long it has not answered, or not with an answer that
    counts; `why`: how the last request failed."""

    node: NodeID
    alive: bool
    status: NodeStatus | None
    unreachable_s: float = 0.0
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
