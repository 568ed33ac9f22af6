"""PURE. Where the replicas of a log stream go: the least loaded nodes with room, primaries spread (R-REG-2, R-REG-3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from varlog.model.cluster import ClusterView, NodeStatus
from varlog.model.errors import Refused
from varlog.model.ids import NodeID
from varlog.model.limits import REPLICAS_MAX, STREAMS_PER_NODE_MAX


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What one storage node carries: all its replicas, how many of them are primaries, and what it can carry. `full`: one of its
    disks has no room."""

    node: NodeID
    replicas: int
    primaries: int
    streams_max: int = STREAMS_PER_NODE_MAX
    full: bool = False

    @property
    def has_room(self) -> bool:
        return self.replicas < self.streams_max and not self.full

    def with_one_more(self) -> NodeLoad:
        return replace(self, replicas=self.replicas + 1)


def loads(view: ClusterView, alive: Mapping[NodeID, NodeStatus]) -> tuple[NodeLoad, ...]:
    """The load of each living node. What lies on it unregistered counts too: the node counts it against its limit."""
    found = []
    for node, status in alive.items():
        registered = sum(node in stream.replicas for stream in view.streams)
        found.append(
            NodeLoad(
                node,
                replicas=max(registered, len(status.replicas)),
                primaries=sum(node == stream.primary for stream in view.streams),
                streams_max=status.streams_max,
                full=any(replica.full for replica in status.replicas),
            )
        )
    return tuple(found)


def place(nodes: Sequence[NodeLoad], replicas: int) -> tuple[NodeID, ...]:
    """The nodes of a new stream, primary first. Refuses where there are too few with room."""
    if not 1 <= replicas <= REPLICAS_MAX:
        raise Refused(f"a log stream has 1 to {REPLICAS_MAX} replicas, not {replicas}")
    fit = [node for node in nodes if node.has_room]
    if len(fit) < replicas:
        raise Refused(
            f"{replicas} replicas need {replicas} living storage nodes, and there are {len(fit)}{_without_room(nodes)}: "
            "add nodes with `varlog node add`, or ask for fewer replicas"
        )
    chosen = sorted(fit, key=lambda load: (load.replicas, load.primaries, load.node))[:replicas]
    primary = min(chosen, key=lambda load: (load.primaries, load.replicas, load.node))
    return primary.node, *(load.node for load in chosen if load is not primary)


def spares(nodes: Sequence[NodeLoad]) -> tuple[NodeID, ...]:
    """The nodes that can take one replica more, the least loaded first."""
    fit = [node for node in nodes if node.has_room]
    return tuple(load.node for load in sorted(fit, key=lambda load: (load.replicas, load.node)))


def _without_room(nodes: Sequence[NodeLoad]) -> str:
    """ " (2 more hold …)": why living nodes are left out."""
    limited = [node for node in nodes if node.replicas >= node.streams_max]
    full = [node for node in nodes if node.full and node.replicas < node.streams_max]
    told = []
    if limited:
        told.append(f"{len(limited)} more hold {limited[0].streams_max} streams already")
    if full:
        told.append(f"the disk of {len(full)} more is full")
    return f" ({', '.join(told)})" if told else ""
