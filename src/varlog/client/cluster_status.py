"""What a cluster's status says of its nodes and log streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from varlog.model.cluster import ClusterView, LogStream
from varlog.model.ids import NO_UUID, NodeID
from varlog.model.projection import Chain
from varlog.model.status import NodeStatus, ReplicaStatus, SyncStatus, UnitStatus, slow_among

if TYPE_CHECKING:
    from varlog.model.status import ClusterStatus


def node_statuses(seen: ClusterStatus) -> dict[int, NodeStatus]:
    """Of those that answer."""
    return {health.node: health.status for health in seen.nodes if health.alive and health.status is not None}


def held_by(status: NodeStatus) -> list[ReplicaStatus | UnitStatus]:
    """Everything that a node keeps, of both orderings."""
    return [*status.replicas, *status.units]


def slow_nodes(seen: ClusterStatus) -> dict[NodeID, float]:
    """Those whose disk takes much longer for a write than the disks of the others, and how long it takes, in seconds (the mean of
    the last seconds). Appends wait for the slowest replica of their log stream."""
    return slow_among(
        {
            NodeID(node): max((held.traffic.write_s for held in held_by(status)), default=0.0)
            for node, status in node_statuses(seen).items()
        }
    )


def foreign_on(seen: ClusterStatus, status: NodeStatus) -> list[int]:
    """The log streams whose data on this node belong to another cluster: nothing reads or removes them."""
    ours = (NO_UUID, seen.view.uuid)
    return [held.log_stream for held in held_by(status) if held.cluster_uuid not in ours]


def evidence_in(seen: ClusterStatus) -> list[tuple[int, int, str]]:
    """(log stream, node, why) of each replica that contradicts the metadata repository, and is therefore left as it is."""
    return [
        (replica.log_stream, node, replica.evidence)
        for node, status in node_statuses(seen).items()
        for replica in status.replicas
        if replica.evidence
    ]


def is_sequenced(view: ClusterView, found: LogStream) -> bool:
    topic = view.topic(found.topic)
    return topic is not None and topic.sequenced


# --- committed topics ---------------------------------------------------------------------------------------------------


def replica_statuses(seen: ClusterStatus, found: LogStream) -> dict[int, ReplicaStatus | None]:
    """What each replica's node said of it; None where it did not."""
    said = {health.node: health.status for health in seen.nodes if health.alive}
    statuses: dict[int, ReplicaStatus | None] = {}
    for number in found.replicas:
        node_status = said.get(number)
        replicas = node_status.replicas if node_status else ()
        statuses[number] = next((one for one in replicas if one.log_stream == found.log_stream), None)
    return statuses


# --- sequenced topics ---------------------------------------------------------------------------------------------------


def chain_of(view: ClusterView, found: LogStream) -> Chain | None:
    """None until a projection has the stream."""
    projection = view.projection(found.topic)
    chains = projection.chains if projection is not None else ()
    return next((chain for chain in chains if chain.log_stream == found.log_stream), None)


def unit_statuses(seen: ClusterStatus, found: LogStream) -> dict[int, UnitStatus | None]:
    """What each member's node said of its log unit, in the order of the chain, those that are out of sync last; None where it did
    not."""
    said = node_statuses(seen)
    chain = chain_of(seen.view, found)
    statuses: dict[int, UnitStatus | None] = {}
    for number in dict.fromkeys((*(chain.members if chain is not None else ()), *found.replicas)):
        node_status = said.get(number)
        units = node_status.units if node_status is not None else ()
        statuses[number] = next((one for one in units if one.log_stream == found.log_stream), None)
    return statuses


def role(chain: Chain | None, node: int) -> str:
    """head, middle and tail; `only` is both."""
    if chain is None or node not in chain.members:
        return "no_member_yet"
    if node in chain.out_of_sync:
        return "out_of_sync"
    if len(chain.nodes) == 1:
        return "only"
    if node == chain.head:
        return "head"
    return "tail" if node == chain.tail else "middle"


def chain_is_whole(seen: ClusterStatus, found: LogStream) -> bool:
    """No member is out of sync, every unit says that it serves in the projection's epoch, and the sequencer is the one
    that is there."""
    projection, chain = seen.view.projection(found.topic), chain_of(seen.view, found)
    if projection is None or chain is None or chain.out_of_sync:
        return False
    if projection.sequencer not in seen.view.sequencers:
        return False
    said = node_statuses(seen)
    return all(
        status is not None and status.epoch == projection.epoch and not status.trouble and said[number].leased
        for number, status in unit_statuses(seen, found).items()
    )


def one_copy_left(view: ClusterView) -> list[int]:
    """Log streams whose only copy could be lost."""
    return [
        chain.log_stream
        for projection in view.projections
        for chain in projection.chains
        if chain.has_one_copy
    ]


def synced_percent(sync: SyncStatus) -> int:
    """How much of what a replica lacks it has by now."""
    return 100 if sync.target_end <= 1 else 100 * (sync.copied_end - 1) // (sync.target_end - 1)
