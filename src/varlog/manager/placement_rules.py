"""PURE. Where a new log stream's replicas go: the least loaded nodes, primaries spread (R-REG-2, R-REG-3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from varlog.model.cluster import ClusterView
from varlog.model.errors import Refused
from varlog.model.ids import NodeID
from varlog.model.limits import REPLICAS_MAX, STREAMS_PER_NODE_MAX


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What one storage node carries: all its replicas, and how many of them are primaries."""

    node: NodeID
    replicas: int
    primaries: int


def loads(view: ClusterView, alive: Sequence[NodeID]) -> tuple[NodeLoad, ...]:
    """The load of each living node, as the view tells it."""
    return tuple(
        NodeLoad(
            node,
            replicas=sum(node in stream.replicas for stream in view.streams),
            primaries=sum(node == stream.primary for stream in view.streams),
        )
        for node in alive
    )


def place(
    nodes: Sequence[NodeLoad], replicas: int, *, streams_max: int = STREAMS_PER_NODE_MAX
) -> tuple[NodeID, ...]:
    """The nodes of a new stream, primary first. Refuses where there are too few with room."""
    if not 1 <= replicas <= REPLICAS_MAX:
        raise Refused(f"a log stream has 1 to {REPLICAS_MAX} replicas, not {replicas}")
    fit = [node for node in nodes if node.replicas < streams_max]
    if len(fit) < replicas:
        full = (
            f" ({len(nodes) - len(fit)} more hold {streams_max} streams already)"
            if len(fit) < len(nodes)
            else ""
        )
        raise Refused(
            f"{replicas} replicas need {replicas} living storage nodes, and there are {len(fit)}{full}: "
            "add nodes with `varlog node add`, or ask for fewer replicas"
        )
    chosen = sorted(fit, key=lambda load: (load.replicas, load.primaries, load.node))[:replicas]
    primary = min(chosen, key=lambda load: (load.primaries, load.replicas, load.node))
    return primary.node, *(load.node for load in chosen if load is not primary)
