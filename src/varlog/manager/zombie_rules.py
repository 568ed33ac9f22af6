"""PURE. Zombies: replicas on nodes where nothing is registered: left by a manager that died half-way, by a stream that moved on,
or by a topic that was deleted (R-REG-4). Nothing registered is ever among them.

What a repository cannot have registered is not its to remove: one that lost its metadata would else have all data deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from varlog.model.cluster import ClusterView, LogStream, NodeStatus, ReplicaState, ReplicaStatus, StreamState
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import LogStreamID, NodeID


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
) -> Unregistered:
    """All that are seen now, in the order of the nodes. `was_registered`: a stream of that id was in the view once."""
    streams = {stream.log_stream: stream for stream in view.streams}
    zombies, foreign = [], []
    for node, status in nodes.items():
        for replica in status.replicas:
            stream = streams.get(replica.log_stream)
            found = Zombie(node, replica.log_stream, replica.epoch)
            if stream is not None:
                if _is_left(stream, node, replica):
                    zombies.append(found)
            elif _is_blank(replica) or was_registered(replica.log_stream):
                zombies.append(found)
            else:
                foreign.append(found)
    return Unregistered(tuple(zombies), tuple(foreign))


def _is_blank(replica: ReplicaStatus) -> bool:
    """In no epoch: it never held an entry. One that cannot be opened cannot say so, and may hold everything."""
    return replica.epoch == NO_EPOCH and replica.state is not ReplicaState.FROZEN


def _is_left(stream: LogStream, node: NodeID, replica: ReplicaStatus) -> bool:
    """A replica of a stream that has moved on."""
    if node in stream.replicas:
        return False
    # While the stream does not run, what its former replicas hold may still be of use; and one that knows a newer epoch than this
    # view knows better.
    return stream.state is StreamState.RUNNING and replica.epoch < stream.epoch
