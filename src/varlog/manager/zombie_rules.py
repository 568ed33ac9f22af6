"""PURE. Zombies: unregistered replicas and units that may be removed (R-REG-4).

They are left by a manager that died halfway, by a stream that moved, or by a deleted topic. Nothing registered is ever among them.
What this repository cannot have registered is kept: a repository that lost its metadata would otherwise delete all data. So is what
belongs to another cluster, whatever its id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from varlog.model.cluster import ClusterView, LogStream, StreamState
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import NO_UUID, LogStreamID, NodeID
from varlog.model.lsn import FIRST_LLSN
from varlog.model.status import NodeStatus, ReplicaStatus, SyncState, UnitStatus


@dataclass(frozen=True, slots=True)
class Zombie:
    """An unneeded replica, in the epoch in which it was seen: one that has joined a stream since is in another epoch."""

    node: NodeID
    log_stream: LogStreamID
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Unregistered replicas: those to remove, and those that this repository never had."""

    zombies: tuple[Zombie, ...]
    foreign: tuple[Zombie, ...]


def unregistered(
    view: ClusterView,
    nodes: Mapping[NodeID, NodeStatus],
    was_registered: Callable[[LogStreamID], bool],
    wanted: Collection[tuple[LogStreamID, NodeID]] = (),
) -> Unregistered:
    """All of them, in the order of the nodes. `was_registered`: a stream of that id was in the view once. `wanted`: log
    units that are being filled, to become members."""
    streams = {stream.log_stream: stream for stream in view.streams}
    stopped = {topic.topic for topic in view.topics if topic.stopped}
    zombies, foreign = [], []
    for node, status in nodes.items():
        for replica in status.replicas:
            stream = streams.get(replica.log_stream)
            found = Zombie(node, replica.log_stream, replica.epoch)
            if replica.evidence or (stream is not None and stream.topic in stopped):
                continue  # what contradicts the repository, or may, is kept
            if replica.cluster_uuid != view.uuid and not (
                _is_blank(replica) and replica.cluster_uuid == NO_UUID
            ):
                foreign.append(found)
            elif stream is not None:
                if _is_left(stream, node, replica):
                    zombies.append(found)
            elif _is_blank(replica) or was_registered(replica.log_stream):
                zombies.append(found)
            else:
                foreign.append(found)
        for unit in status.units:
            stream = streams.get(unit.log_stream)
            found = Zombie(node, unit.log_stream, unit.epoch)
            if stream is not None and stream.topic in stopped:
                continue
            if unit.cluster_uuid != view.uuid and not (_is_blank_unit(unit) and unit.cluster_uuid == NO_UUID):
                foreign.append(found)
            elif stream is not None:
                if (unit.log_stream, node) not in wanted and _is_left_unit(view, stream, nodes, node, unit):
                    zombies.append(found)
            elif _is_blank_unit(unit) or was_registered(unit.log_stream):
                zombies.append(found)
            else:
                foreign.append(found)
    return Unregistered(tuple(zombies), tuple(foreign))


def _is_blank(replica: ReplicaStatus) -> bool:
    """In no epoch: it never had an entry. A replica that cannot be opened has no epoch and may have everything, unless its node
    found that its files are empty."""
    empty = replica.epoch == NO_EPOCH and replica.durable_end == FIRST_LLSN
    return replica.blank or (empty and not replica.trouble)


def _is_blank_unit(unit: UnitStatus) -> bool:
    return unit.blank or (unit.epoch == NO_EPOCH and unit.newest < FIRST_LLSN and not unit.trouble)


def _is_left_unit(
    view: ClusterView, stream: LogStream, nodes: Mapping[NodeID, NodeStatus], node: NodeID, unit: UnitStatus
) -> bool:
    """A log unit of a stream that has moved. Kept until the whole chain is healthy, because it may still be needed. In a newer
    epoch than this view it is joining; if it is sealed for that after this snapshot, it refuses to be removed (law 7)."""
    projection = view.projection(stream.topic)
    if node in stream.replicas or projection is None or unit.epoch > projection.epoch:
        return False
    if unit.sync is not None and unit.sync.state is SyncState.IN_PROGRESS:
        return False  # another manager wants it
    chain = next((found for found in projection.chains if found.log_stream == stream.log_stream), None)
    if chain is None:
        return False
    serving = [
        held
        for member in chain.nodes
        if member in nodes
        for held in nodes[member].units
        if held.log_stream == stream.log_stream and not held.trouble and not held.damage
    ]
    return len(serving) == len(chain.nodes)


def _is_left(stream: LogStream, node: NodeID, replica: ReplicaStatus) -> bool:
    """A replica of a stream that has moved."""
    if node in stream.replicas:
        return False
    # Until the stream runs, its former replicas may still be needed; and a replica in a newer epoch than this view has joined
    # since.
    return stream.state is StreamState.RUNNING and replica.epoch < stream.epoch
