"""ClusterView: an immutable snapshot of nodes, topics and log streams.

It is what the metadata repository knows at one revision.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import msgspec

from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import NO_UUID, ClusterID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import STRIPE_SIZE, Projection, SequencerID

S = TypeVar("S", bound=msgspec.Struct)


def changed(value: S, **fields: object) -> S:
    """The value with other fields."""
    return msgspec.structs.replace(value, **fields)


class StreamState(StrEnum):
    """The state of a log stream in the metadata repository."""

    RUNNING = "running"
    SEALED = "sealed"


class Ordering(StrEnum):
    """How a topic is ordered."""

    COMMITTED = "committed"
    SEQUENCED = "sequenced"


class Grouping(StrEnum):
    """What forms a replica group of a sequenced topic: storage nodes, whose log streams all have the same nodes, or
    each log stream by itself (R-SEQ-3, figures a and b)."""

    NODE = "node"
    STREAM = "stream"


class StorageNode(msgspec.Struct, frozen=True):
    """A registered storage node (R-REG-1)."""

    node: NodeID
    address: str
    volumes: tuple[str, ...] = ()


class Topic(msgspec.Struct, frozen=True):
    """A log: one total order over its own log streams. `first` is the position of its first entry: 1, unless the topic
    is a copy of one whose beginning was trimmed. `stripe_size` and `grouping` are a sequenced topic's (see Projection).

    `stopped` (empty: it is not): why a storage node contradicts the repository; nothing is ordered, sealed or trimmed
    in the topic until the order is adopted from the nodes. `known`: the newest position that any of them has reported
    since.

    `missed` (only of a stopped one): no node contradicts, but no replica of some log stream was reached in this term,
    and these nodes hold it. The topic continues when one of them per log stream has been reached.

    Of a sequenced one: `known_epoch`, as `known`: the newest epoch that a node knows, in which nothing older may be
    served. `terms`: (first epoch, term) of each term of the repository in which projections were made, oldest first;
    the newest of them.
    """

    topic: TopicID
    name: str
    ordering: Ordering = Ordering.COMMITTED
    trimmed: GLSN = GLSN(0)
    first: GLSN = GLSN(1)
    stripe_size: int = STRIPE_SIZE
    grouping: Grouping = Grouping.STREAM
    stopped: str = ""
    known: GLSN = GLSN(0)
    missed: tuple[NodeID, ...] = ()
    known_epoch: Epoch = NO_EPOCH
    terms: tuple[tuple[Epoch, int], ...] = ()

    @property
    def sequenced(self) -> bool:
        return self.ordering is Ordering.SEQUENCED


class NamedReader(msgspec.Struct, frozen=True):
    """A reader of a topic that records its progress: everything up to `position` is processed. Shown as lag; a trim can
    respect it."""

    topic: TopicID
    name: str
    position: GLSN
    updated_us: int = 0


class NamedWriter(msgspec.Struct, frozen=True):
    """A writer made of many tasks, which may be run again: batch after batch, each in the log once. Everything of batch
    `batch` is in `streams`, above position `begin`. `finished`: all of it is in the log. `kept`: remembered until an
    operator forgets it."""

    topic: TopicID
    name: str
    batch: int
    begin: GLSN
    streams: tuple[LogStreamID, ...]
    finished: bool = False
    kept: bool = False
    updated_us: int = 0


class LogStream(msgspec.Struct, frozen=True):
    """A shard of a topic. The first replica is the primary. `sealed_end` is one past the last LLSN ordered before the
    newest seal: what every replica must hold, and nothing more, before the stream runs again. `sealed_by_admin`: sealed by an
    operator, and sealed until an operator unseals it.

    Of a sequenced topic: `replicas` are all members of its chain, also those out of sync; it runs once a projection has it.
    """

    log_stream: LogStreamID
    topic: TopicID
    replicas: tuple[NodeID, ...]
    state: StreamState = StreamState.SEALED
    epoch: Epoch = Epoch(1)
    sealed_end: LLSN = LLSN(1)
    sealed_by_admin: bool = False

    @property
    def primary(self) -> NodeID:
        return self.replicas[0]


class ClusterView(msgspec.Struct, frozen=True):
    """Everything the metadata repository knows, at one revision."""

    cluster: ClusterID
    revision: int
    nodes: tuple[StorageNode, ...] = ()
    topics: tuple[Topic, ...] = ()
    streams: tuple[LogStream, ...] = ()
    manager_address: str = ""
    auto_create_topics: bool = False
    repositories: tuple[
        str, ...
    ] = ()  # where all metadata repositories listen, the leader and those that wait
    projections: tuple[Projection, ...] = ()  # one for each sequenced topic that has begun
    sequencers: tuple[SequencerID, ...] = ()  # those that have registered, one per address
    uuid: ClusterUUID = NO_UUID  # drawn when the metadata were first written, and never changed

    def node(self, node: NodeID) -> StorageNode | None:
        return next((found for found in self.nodes if found.node == node), None)

    def topic(self, topic: TopicID) -> Topic | None:
        return next((found for found in self.topics if found.topic == topic), None)

    def topic_named(self, name: str) -> Topic | None:
        return next((found for found in self.topics if found.name == name), None)

    def projection(self, topic: TopicID) -> Projection | None:
        return next((found for found in self.projections if found.topic == topic), None)

    def stream(self, log_stream: LogStreamID) -> LogStream | None:
        return next((found for found in self.streams if found.log_stream == log_stream), None)

    def streams_of(self, topic: TopicID) -> tuple[LogStream, ...]:
        return tuple(found for found in self.streams if found.topic == topic)

    def streams_on(self, node: NodeID) -> tuple[LogStream, ...]:
        return tuple(found for found in self.streams if node in found.replicas)
