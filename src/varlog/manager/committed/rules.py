"""PURE. A log stream and its replicas' statuses -> the next repair step, or none

Everything is decided anew from a fresh snapshot, so a manager may die between any two steps, and a step may
be done twice.

The way back: SealStream (the repository closes the epoch) -> SealReplicas (each keeps exactly what was
ordered) -> what is missing is made, rebuilt or synced from a complete replica, who stays away is replaced ->
UnsealReplicas (backups, then the primary) -> UnsealStream. A replica that was opened in an epoch is never
sealed in the same one: what it reported would be cut, and the repository could order by a report that is no
longer true (laws 1, 2). Where an unseal broke off half-way and cannot go on as it began, the epoch is finished
first: UnsealStream, then SealStream anew.
"""

from __future__ import annotations

from varlog.manager.committed.inputs import ALONE, RepairInputs, Statuses, StreamCondition
from varlog.manager.repair_steps import (
    HELD,
    RUNNING,
    CreateReplica,
    Move,
    NoStep,
    RebuildReplica,
    RepairReplica,
    ReplaceReplica,
    SealReplicas,
    SealStream,
    Step,
    SyncReplica,
    UnsealReplicas,
    UnsealStream,
)
from varlog.model.cluster import LogStream, StreamState
from varlog.model.events import EventKind
from varlog.model.ids import NodeID
from varlog.model.status import ReplicaState, ReplicaStatus, SyncState

__all__ = ["ALONE", "RepairInputs", "Statuses", "next_step"]


def next_step(stream: LogStream, statuses: Statuses, around: RepairInputs = ALONE) -> Step:
    """The one next step for `stream`, as its replicas say they are."""
    case = StreamCondition.of(stream, statuses, around)
    # What contradicts the repository may hold all that is left of the truth: nothing is touched before an operator has decided,
    # or the repository has taken the order from the nodes.
    if around.stopped:
        return NoStep(EventKind.TOPIC_STOPPED, f"the topic is STOPPED: {around.stopped}")
    if evidence := case.evidence():
        return NoStep(EventKind.CONTRADICTION, evidence)
    if any(status.epoch > stream.epoch for status in case.known.values()):
        return NoStep(EventKind.STALE_VIEW, "a replica knows a newer epoch than this view", settled=False)
    return _while_running(case) if stream.state is StreamState.RUNNING else _while_sealed(case)


def _while_running(case: StreamCondition) -> Step:
    stream = case.stream
    if stream.held:
        return SealStream("an operator sealed it")
    if (move := case.move) is not None:
        return SealStream(f"its replica on node {move.old} moves to node {move.new}")
    for node in stream.replicas:
        if node not in case.known:
            return SealStream(case.absence(node))
        if not case.runs(node):
            return SealStream(_condition(case, node))
    if (step := mending(case)) is not None:
        return step
    if case.new_primary is not None:
        return SealStream(_slowness(case, case.new_primary))
    return RUNNING


def _slowness(case: StreamCondition, new: NodeID) -> str:
    return f"the disk of its primary, node {case.stream.primary}, is slow: node {new} becomes the primary"


def _condition(case: StreamCondition, node: NodeID) -> str:
    status = case.known[node]
    told = f"the replica on node {node} is {status.state} in epoch {status.epoch}"
    return f"{told}: {status.trouble}" if status.trouble else told


def _while_sealed(case: StreamCondition) -> Step:
    stream = case.stream
    if _must_renew(case):
        return UnsealStream(
            stream.epoch, "an unseal broke off half-way: this epoch is finished before the next begins"
        )
    ready = tuple(node for node in case.known if _can_be_sealed(case, node))
    seal = SealReplicas(ready, stream.epoch, stream.sealed_end)
    # One that has refused for long is not waited for any more, if another node can take its place.
    if any(not case.around.is_lost(node) for node in ready):
        return _mending_first(case, ready) or seal
    step = replacement(case) or _mending_first(case, ready) or (seal if ready else None) or refill(case)
    if step is not None:
        return step
    if (wait := _wait(case)) is not None:
        return mending(case) or wait
    if stream.held:
        return HELD
    return _change_primary(case) or _unseal(case)


def _change_primary(case: StreamCondition) -> ReplaceReplica | None:
    """The same replicas in another order, before any of them is opened."""
    stream, new = case.stream, case.new_primary
    if new is None or not all(case.is_sealed(node) for node in stream.replicas):
        return None
    others = tuple(node for node in stream.replicas if node != new)
    return ReplaceReplica(NodeID(0), new, stream.epoch, (new, *others), _slowness(case, new))


def _mending_first(case: StreamCondition, ready: tuple[NodeID, ...]) -> Step | None:
    """Whoever is left to be sealed refused it, and is damaged: it may be damage that hides where its tail is to be cut."""
    stuck = [node for node in ready if case.known[node].damage and case.around.away_s.get(node, 0.0) > 0]
    return mending(case) if ready and len(stuck) == len(ready) else None


def _must_renew(case: StreamCondition) -> bool:
    """Some replica was opened in the stream's epoch, and the unseal cannot simply go on: somebody stopped, is gone or behind, or a
    backup of an opened primary is not open. Nobody can join an opened epoch, and only a newer one can seal it; the repository
    gives one only to a stream that it orders."""
    stream = case.stream
    opened = [node for node, status in case.known.items() if status.epoch == stream.epoch and status.opened]
    if not opened:
        return False
    if stream.held or case.move is not None:
        return True
    if any(not case.runs(node) and not case.is_sealed(node) for node in stream.replicas):
        return True
    return stream.primary in opened and not all(case.runs(node) for node in stream.replicas)


def _can_be_sealed(case: StreamCondition, node: NodeID) -> bool:
    """Not sealed yet, and not only waiting for entries: asking that one again changes nothing until more is ordered there."""
    status = case.known[node]
    if status.state is ReplicaState.FROZEN or case.runs(node) or case.is_sealed(node):
        return False
    return not case.is_behind(node)


def _wait(case: StreamCondition) -> NoStep | None:
    """What must change before the stream can run: the first thing in the way."""
    for node in case.stream.replicas:
        if (why := _hindrance(case, node)) is not None:
            return why
    for node, status in case.known.items():
        if status.full:
            return NoStep(
                EventKind.DISK_FULL,
                f"the disk of node {node} is full: free space there, or move the replica with `varlog stream replace`",
                node,
            )
    return None


def _hindrance(case: StreamCondition, node: NodeID) -> NoStep | None:
    stream = case.stream
    if node not in case.statuses:
        return NoStep(EventKind.NODE_AWAY, f"{case.absence(node)}{_prospect(case, node)}", node)
    if (status := case.known.get(node)) is None:
        return NoStep(
            EventKind.NO_SOURCE, f"{case.absence(node)}, and no replica is complete that could fill one", node
        )
    if status.state is ReplicaState.FROZEN:
        why = status.trouble or "a law broke there"
        return NoStep(
            EventKind.NO_SOURCE,
            f"the replica on node {node} is frozen, and no other is complete: {why}",
            node,
        )
    if not case.is_behind(node):
        return None
    if status.sync is not None and status.sync.state is SyncState.IN_PROGRESS:
        tenths = 10 * (status.committed_end - 1) // max(1, stream.sealed_end - 1)
        return NoStep(
            EventKind.SYNCING,
            f"the replica on node {node} is synced from node {status.sync.source}: {10 * tenths} % done",
            node,
            settled=False,
        )
    return NoStep(
        EventKind.CATCHING_UP,
        f"the replica on node {node} has {status.committed_end - 1} of {stream.sealed_end - 1} entries ordered",
        node,
        settled=False,
    )


def _prospect(case: StreamCondition, node: NodeID) -> str:
    around = case.around
    if not around.is_lost(node):
        return f"; it is replaced if that lasts {around.replace_after_s:g} s"
    if not case.is_complete_without(node):
        return ", and no other replica is complete"
    return ", and no other node has room for its replica"


def _unseal(case: StreamCondition) -> Step:
    """Every replica is SEALED, or was and RUNNING again. Backups first: the primary's first append must find
    them running."""
    stream = case.stream
    sealed = [node for node in stream.replicas if case.is_sealed(node)]
    backups = tuple(node for node in sealed if node != stream.primary)
    if backups:
        return UnsealReplicas(backups, stream.epoch)
    if sealed:
        return UnsealReplicas((stream.primary,), stream.epoch)
    return UnsealStream(stream.epoch, "every replica runs")


# PURE. Which replica of a sealed stream is made, rebuilt, synced or mended next, and from whom (R-SYNC-1, R-SYNC-2).
#
# A replica is emptied only while another one is complete, or while the stream has no entries: the last complete copy is never
# touched.


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
        return CreateReplica(node) if case.is_complete_without(node) else None
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


# PURE. Who leaves the replicas of a sealed stream, and who comes in his place (R-REG-6).
#
# A node that stays away too long leaves, and one that an operator sends away. Nobody leaves before another replica is complete.
# Those who live come first, so that the primary is never on a node that is gone.


def replacement(case: StreamCondition) -> ReplaceReplica | None:
    """The next change of the replicas, or None if none is needed or possible now."""
    if case.move is not None:
        return _move(case, case.move)
    for node in case.stream.replicas:
        if case.around.is_lost(node) and case.is_complete_without(node):
            spare = next((found for found in case.around.spares if found not in case.stream.replicas), None)
            if spare is not None:
                return _replace(case, node, spare, _loss(case, node))
    return None


def _loss(case: StreamCondition, node: NodeID) -> str:
    lasting = f"for {case.around.replace_after_s:g} s"
    if node in case.statuses:
        return f"node {node} has failed to seal or make its replica {lasting}"
    return f"storage node {node} has not answered {lasting}"


def _move(case: StreamCondition, move: Move) -> ReplaceReplica | None:
    stream = case.stream
    if not case.is_complete_without(move.old):
        # The only replica cannot leave before the new one is complete: that one joins it first.
        alone = stream.replicas == (move.old,) and case.is_sealed(move.old)
        return _join(case, move) if alone else None
    return _replace(case, move.old, move.new, "an operator moves a replica")


def _join(case: StreamCondition, move: Move) -> ReplaceReplica:
    stream = case.stream
    replicas = (*stream.replicas, move.new)
    return ReplaceReplica(
        NodeID(0), move.new, stream.epoch, replicas, f"node {move.new} takes over from {move.old}"
    )


def _replace(case: StreamCondition, old: NodeID, new: NodeID, why: str) -> ReplaceReplica:
    stream = case.stream
    staying = [node for node in stream.replicas if node not in (old, new)]
    living = [node for node in staying if node in case.known]
    gone = [node for node in staying if node not in case.known]
    return ReplaceReplica(old, new, stream.epoch, (*living, new, *gone), why)
