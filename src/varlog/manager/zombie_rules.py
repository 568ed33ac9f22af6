"""PURE. Zombies: replicas and log units on nodes where nothing is registered: left by a manager that died half-way, by a stream
that moved on, or by a topic that was deleted (R-REG-4). Nothing registered is ever among them.

What a repository cannot have registered is not its to remove: one that lost its metadata would else have all data deleted. Nor is
what belongs to another cluster, whatever its id says.
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
    """A replica that nobody needs, in the epoch in which it was seen: one that was taken into a stream since is in another."""

    node: NodeID
    log_stream: LogStreamID
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Replicas that are registered nowhere: those to remove, and those that this repository never had."""

    zombies: tuple[Zombie, ...]
    foreign: tuple[Zombie, ...]


def unregistered(
    view: ClusterView,
    nodes: Mapping[NodeID, NodeStatus],
    was_registered: Callable[[LogStreamID], bool],
    wanted: Collection[tuple[LogStreamID, NodeID]] = (),
) -> Unregistered:
    """All that are seen now, in the order of the nodes. `was_registered`: a stream of that id was in the view once. `wanted`: log
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
    """In no epoch: it never held an entry. One that cannot be opened knows no epoch and may hold everything, unless its node found
    that its files are empty."""
    empty = replica.epoch == NO_EPOCH and replica.durable_end == FIRST_LLSN
    return replica.blank or (empty and not replica.trouble)


def _is_blank_unit(unit: UnitStatus) -> bool:
    return unit.blank or (unit.epoch == NO_EPOCH and unit.newest < FIRST_LLSN and not unit.trouble)


def _is_left_unit(
    view: ClusterView, stream: LogStream, nodes: Mapping[NodeID, NodeStatus], node: NodeID, unit: UnitStatus
) -> bool:
    """A log unit of a stream that has moved on. Kept while not the whole chain is there and well: what it holds may be of use. In a
    newer epoch than this view it is joining; if it is sealed for that after this look, it refuses to be removed (law 7)."""
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
    """A replica of a stream that has moved on."""
    if node in stream.replicas:
        return False
    # While the stream does not run, what its former replicas hold may still be of use; and one that knows a newer epoch than this
    # view knows better.
    return stream.state is StreamState.RUNNING and replica.epoch < stream.epoch
