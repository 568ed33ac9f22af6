"""PURE. Which replica of a sealed stream is made, rebuilt, synced or mended next, and from whom (R-SYNC-1, R-SYNC-2).

A replica is emptied only while another one is complete, or while the stream has no entries: the last complete copy is never
touched.
"""

from __future__ import annotations

from varlog.manager.repair_inputs import StreamCondition
from varlog.manager.repair_steps import MakeReplica, RebuildReplica, RepairReplica, Step, SyncReplica
from varlog.model.cluster import ReplicaState, ReplicaStatus, SyncState
from varlog.model.ids import NodeID


def refill(case: StreamCondition) -> Step | None:
    """The first thing to do for a replica that is missing, broken or behind. One that refused lately comes last: it must not keep
    the others from being filled."""
    for node in sorted(case.stream.replicas, key=lambda node: case.around.away_s.get(node, 0.0) > 0):
        if node in case.statuses and (step := _refill(case, node)) is not None:
            return step
    return None


def _refill(case: StreamCondition, node: NodeID) -> Step | None:
    status = case.known.get(node)
    if status is None:
        return MakeReplica(node) if case.is_complete_without(node) else None
    if status.state is ReplicaState.FROZEN or (case.is_behind(node) and _must_be_rebuilt(status)):
        return _rebuild(case, node, status)
    return _sync(case, node, status) if case.is_behind(node) else None


def _must_be_rebuilt(status: ReplicaStatus) -> bool:
    return status.sync is not None and status.sync.state is SyncState.ERROR and status.sync.rebuild


def _rebuild(case: StreamCondition, node: NodeID, status: ReplicaStatus) -> Step | None:
    if not case.is_complete_without(node):
        return None
    why = status.trouble or (status.sync.why if status.sync is not None else "") or "it is frozen"
    return RebuildReplica(node, case.stream.epoch, why, case.stream.sealed_end)


def _sync(case: StreamCondition, node: NodeID, status: ReplicaStatus) -> Step | None:
    """Its rows may be on their way from the repository as well: whoever comes first (R-CTX-4)."""
    sources, sync = case.sources(node), status.sync
    if not sources or (sync is not None and sync.state is SyncState.IN_PROGRESS):
        return None
    if sync is not None and sync.state is SyncState.ERROR:
        if (mend := mending(case)) is not None:
            return mend  # the damage may be what the sync failed of
        failed = sync.source
        sources.sort(key=lambda source: source == failed)
    return SyncReplica(node, sources[0], case.stream.epoch)


def mending(case: StreamCondition) -> RepairReplica | None:
    """A damaged replica and those that hold the same entries: committed bytes never change, so the stream need not stop, and one
    that left the stream is as good as any."""
    for node, status in case.known.items():
        if status.damage and status.state is not ReplicaState.FROZEN:
            end = max(end for _, end in status.damage)
            sources = tuple(
                other
                for other, found in {**case.known, **case.around.former}.items()
                if other != node and found.state is not ReplicaState.FROZEN and found.committed_end >= end
            )
            if sources:
                return RepairReplica(node, sources)
    return None
