"""Queries over a cluster's status: its nodes, log streams and replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from varlog.model.cluster import ClusterView, LogStream
from varlog.model.ids import NO_UUID, NodeID
from varlog.model.projection import Chain
from varlog.model.status import NodeStatus, ReplicaStatus, SyncStatus, UnitStatus, slow_among

if TYPE_CHECKING:
    from varlog.model.status import ClusterStatus


def node_statuses(seen: ClusterStatus) -> dict[int, NodeStatus]:
    """The statuses of the nodes that answer, by node id."""
    return {health.node: health.status for health in seen.nodes if health.alive and health.status is not None}


def held_by(status: NodeStatus) -> list[ReplicaStatus | UnitStatus]:
    """All replicas and log units that a node stores."""
    return [*status.replicas, *status.units]


def slow_nodes(seen: ClusterStatus) -> dict[NodeID, float]:
    """The nodes whose disk writes take much longer than those of the other nodes, each with its mean write time of the last
    seconds, in seconds. Appends wait for the slowest replica of their log stream."""
    return slow_among(
        {
            NodeID(node): max((held.traffic.write_s for held in held_by(status)), default=0.0)
            for node, status in node_statuses(seen).items()
        }
    )


def foreign_on(seen: ClusterStatus, status: NodeStatus) -> list[int]:
    """The log streams whose data on this node belong to another cluster: nothing reads or removes these data."""
    ours = (NO_UUID, seen.view.uuid)
    return [held.log_stream for held in held_by(status) if held.cluster_uuid not in ours]


def evidence_in(seen: ClusterStatus) -> list[tuple[int, int, str]]:
    """(log stream, node, reason) of each replica that contradicts the metadata repository and is therefore left unchanged."""
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
    """The status of each replica as its node reported it; None where the node did not."""
    said = {health.node: health.status for health in seen.nodes if health.alive}
    statuses: dict[int, ReplicaStatus | None] = {}
    for number in found.replicas:
        node_status = said.get(number)
        replicas = node_status.replicas if node_status else ()
        statuses[number] = next((one for one in replicas if one.log_stream == found.log_stream), None)
    return statuses


# --- sequenced topics ---------------------------------------------------------------------------------------------------


def chain_of(view: ClusterView, found: LogStream) -> Chain | None:
    """The chain of a log stream, or None while no projection contains the stream."""
    projection = view.projection(found.topic)
    chains = projection.chains if projection is not None else ()
    return next((chain for chain in chains if chain.log_stream == found.log_stream), None)


def unit_statuses(seen: ClusterStatus, found: LogStream) -> dict[int, UnitStatus | None]:
    """The status of each member's log unit as its node reported it, in chain order, members out of sync last; None where the node
    did not report it."""
    said = node_statuses(seen)
    chain = chain_of(seen.view, found)
    statuses: dict[int, UnitStatus | None] = {}
    for number in dict.fromkeys((*(chain.members if chain is not None else ()), *found.replicas)):
        node_status = said.get(number)
        units = node_status.units if node_status is not None else ()
        statuses[number] = next((one for one in units if one.log_stream == found.log_stream), None)
    return statuses


def role(chain: Chain | None, node: int) -> str:
    """The role of a node in a chain: head, middle or tail; `only` if it is the single member."""
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
    """Whether no member is out of sync, every unit serves in the projection's epoch, and the projection's sequencer is
    registered."""
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
    """The log streams that have a single copy left."""
    return [
        chain.log_stream
        for projection in view.projections
        for chain in projection.chains
        if chain.has_one_copy
    ]


def synced_percent(sync: SyncStatus) -> int:
    """The percentage of the missing entries that a replica has copied so far."""
    return 100 if sync.target_end <= 1 else 100 * (sync.copied_end - 1) // (sync.target_end - 1)
