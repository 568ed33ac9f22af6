"""PURE. Placement of replicas: least loaded nodes with room (R-REG-2, R-REG-3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from varlog.model.cluster import ClusterView, Grouping
from varlog.model.errors import PreconditionFailed
from varlog.model.ids import NodeID
from varlog.model.limits import REPLICAS_MAX, STREAMS_PER_NODE_MAX
from varlog.model.status import NodeStatus


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The load of one storage node: its replicas, how many of them are primaries, and its limit. `full`: one of its disks is
    full."""

    node: NodeID
    replicas: int
    primaries: int
    streams_max: int = STREAMS_PER_NODE_MAX
    full: bool = False

    @property
    def has_room(self) -> bool:
        return self.replicas < self.streams_max and not self.full

    def with_one_more(self, *, primary: bool = False) -> NodeLoad:
        return replace(self, replicas=self.replicas + 1, primaries=self.primaries + primary)


def loads(view: ClusterView, alive: Mapping[NodeID, NodeStatus]) -> tuple[NodeLoad, ...]:
    """The load of each living node. What lies on it unregistered counts too: the node counts it against its limit."""
    found = []
    for node, status in alive.items():
        registered = sum(node in stream.replicas for stream in view.streams)
        found.append(
            NodeLoad(
                node,
                replicas=max(registered, len(status.replicas) + len(status.units)),
                primaries=sum(node == stream.primary for stream in view.streams),
                streams_max=status.streams_max,
                full=any(held.full for held in status.replicas) or any(held.full for held in status.units),
            )
        )
    return tuple(found)


def place_replicas(nodes: Sequence[NodeLoad], replicas: int) -> tuple[NodeID, ...]:
    """The nodes of a new stream, primary first. Refuses where there are too few with room."""
    if not 1 <= replicas <= REPLICAS_MAX:
        raise PreconditionFailed(f"a log stream has 1 to {REPLICAS_MAX} replicas, not {replicas}")
    fit = [node for node in nodes if node.has_room]
    if len(fit) < replicas:
        raise PreconditionFailed(
            f"{replicas} replicas need {replicas} living storage nodes, and there are {len(fit)}{_without_room(nodes)}: "
            "add nodes with `varlog node add`, or ask for fewer replicas"
        )
    chosen = sorted(fit, key=lambda load: (load.replicas, load.primaries, load.node))[:replicas]
    primary = min(chosen, key=lambda load: (load.primaries, load.replicas, load.node))
    return primary.node, *(load.node for load in chosen if load is not primary)


def place_chain(
    nodes: Sequence[NodeLoad], replicas: int, grouping: Grouping, chains: Sequence[tuple[NodeID, ...]]
) -> tuple[NodeID, ...]:
    """The chain of a new stream of a sequenced topic that has these already, head first (R-SEQ-3). By storage nodes: each node is
    in one group, whose chains all have the same nodes, rotated, so that each is head and tail of some (figure a)."""
    if grouping is Grouping.STREAM:
        return _turned(place_replicas(nodes, replicas))
    grouped = {node for chain in chains for node in chain}
    free = [load for load in nodes if load.node not in grouped]
    if not chains or sum(load.has_room for load in free) >= replicas:
        return _turned(place_replicas(free, replicas))
    room = {load.node for load in nodes if load.has_room}
    groups = Counter(tuple(sorted(chain)) for chain in chains)
    fit = [group for group in groups if len(group) == replicas and room.issuperset(group)]
    if not fit:
        raise PreconditionFailed(
            f"no replica group of {replicas} living storage nodes with room, and too few nodes for another one: add nodes with "
            "`varlog node add`, or ask for as many replicas as the topic's other log streams have"
        )
    group = min(fit, key=lambda group: (groups[group], group))
    turn = groups[group] % replicas
    return (*group[turn:], *group[:turn])


def _turned(nodes: tuple[NodeID, ...]) -> tuple[NodeID, ...]:
    """The same nodes and head; the others rotate with the head, so that no node is the tail of all chains."""
    ring = sorted(nodes)
    at = ring.index(nodes[0])
    return (*ring[at:], *ring[:at])


def spares(nodes: Sequence[NodeLoad]) -> tuple[NodeID, ...]:
    """The nodes with room for one more replica, the least loaded first."""
    fit = [node for node in nodes if node.has_room]
    return tuple(load.node for load in sorted(fit, key=lambda load: (load.replicas, load.node)))


def _without_room(nodes: Sequence[NodeLoad]) -> str:
    """ " (2 more already have …)": why living nodes are left out."""
    limited = [node for node in nodes if node.replicas >= node.streams_max]
    full = [node for node in nodes if node.full and node.replicas < node.streams_max]
    reasons = []
    if limited:
        reasons.append(f"{len(limited)} more already have {limited[0].streams_max} streams")
    if full:
        reasons.append(f"the disk of {len(full)} more is full")
    return f" ({', '.join(reasons)})" if reasons else ""
