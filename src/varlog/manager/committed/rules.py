"""PURE. next_step: the next repair step of a committed log stream.

Every decision starts from a fresh snapshot, so a manager may die between any two steps, and a step may be repeated.

The repair: SealStream (the repository closes the epoch) -> SealReplicas (each keeps exactly what was ordered) -> missing replicas
are created, rebuilt or synced from a complete one, and replicas that stay away are replaced -> UnsealReplicas (backups, then the
primary) -> UnsealStream. A replica that was unsealed in an epoch is never sealed in the same one: its reported tail would be cut,
and the repository could order by a report that is no longer true (laws 1, 2). If an unseal was interrupted and cannot continue,
the epoch is finished first: UnsealStream, then SealStream again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from varlog.manager.committed.inputs import ALONE, RepairInputs, Statuses, StreamCondition
from varlog.manager.repair_steps import (
    RUNNING,
    SEALED_BY_ADMIN,
    CreateReplica,
    Move,
    NoStep,
    RebuildReplica,
    RepairReplica,
    RepairStep,
    ReplaceReplica,
    SealReplicas,
    SealStream,
    SyncReplica,
    UnsealReplicas,
    UnsealStream,
)
from varlog.model.cluster import LogStream, StreamState
from varlog.model.events import EventKind
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.status import ReplicaState, ReplicaStatus, SyncState, slow_among

__all__ = ["ALONE", "RepairInputs", "Statuses", "next_step"]


def next_step(stream: LogStream, statuses: Statuses, inputs: RepairInputs = ALONE) -> RepairStep:
    """The next step for `stream`, given the statuses of its replicas."""
    case = StreamCondition.of(stream, statuses, inputs)
    # A replica that contradicts the repository may be the only correct one: nothing is touched before an operator has decided,
    # or the repository has adopted the order from the nodes.
    if inputs.stopped:
        return NoStep(EventKind.TOPIC_STOPPED, f"the topic is STOPPED: {inputs.stopped}")
    if evidence := case.evidence():
        return NoStep(EventKind.CONTRADICTION, evidence)
    if any(status.epoch > stream.epoch for status in case.known.values()):
        return NoStep(EventKind.STALE_VIEW, "a replica knows a newer epoch than this view", settled=False)
    return _while_running(case) if stream.state is StreamState.RUNNING else _while_sealed(case)


def _while_running(case: StreamCondition) -> RepairStep:
    stream = case.stream
    if stream.sealed_by_admin:
        return SealStream("an operator sealed it")
    if (move := case.move) is not None:
        return SealStream(f"its replica on node {move.old} moves to node {move.new}")
    for node in stream.replicas:
        if node not in case.known:
            return SealStream(case.absence(node))
        if not case.runs(node):
            return SealStream(_condition(case, node))
    if (step := repair_damage(case)) is not None:
        return step
    if case.new_primary is not None:
        return SealStream(_slowness(case, case.new_primary))
    return RUNNING


def _slowness(case: StreamCondition, new: NodeID) -> str:
    return f"the disk of its primary, node {case.stream.primary}, is slow: node {new} becomes the primary"


def _condition(case: StreamCondition, node: NodeID) -> str:
    status = case.known[node]
    text = f"the replica on node {node} is {status.state} in epoch {status.epoch}"
    return f"{text}: {status.trouble}" if status.trouble else text


def _while_sealed(case: StreamCondition) -> RepairStep:
    stream = case.stream
    if _must_renew(case):
        return UnsealStream(
            stream.epoch, "an unseal was interrupted: this epoch is finished before the next begins"
        )
    ready = tuple(node for node in case.known if _can_be_sealed(case, node))
    seal = SealReplicas(ready, stream.epoch, stream.sealed_end)
    # A node that has refused for long is not waited for any more, if another can replace it.
    if any(not case.inputs.is_lost(node) for node in ready):
        return _repair_before_seal(case, ready) or seal
    step = replacement(case) or _repair_before_seal(case, ready) or (seal if ready else None) or refill(case)
    if step is not None:
        return step
    if (wait := _wait(case)) is not None:
        return repair_damage(case) or wait
    if stream.sealed_by_admin:
        return SEALED_BY_ADMIN
    return _change_primary(case) or _unseal(case)


def _change_primary(case: StreamCondition) -> ReplaceReplica | None:
    """The same replicas in another order, before any of them is unsealed."""
    stream, new = case.stream, case.new_primary
    if new is None or not all(case.is_sealed(node) for node in stream.replicas):
        return None
    others = tuple(node for node in stream.replicas if node != new)
    return ReplaceReplica(NodeID(0), new, stream.epoch, (new, *others), _slowness(case, new))


def _repair_before_seal(case: StreamCondition, ready: tuple[NodeID, ...]) -> RepairStep | None:
    """All replicas left to be sealed refused it and are damaged: the damage may hide where the tail is to be cut."""
    stuck = [node for node in ready if case.known[node].damage and case.inputs.unusable_s.get(node, 0.0) > 0]
    return repair_damage(case) if ready and len(stuck) == len(ready) else None


def _must_renew(case: StreamCondition) -> bool:
    """Some replica was unsealed in the stream's epoch, and the unseal cannot continue: a replica has stopped, is gone or behind,
    or a backup of an unsealed primary is still sealed. No replica can join an epoch that was unsealed, and only a newer epoch can
    seal it; the repository starts one only for a stream that it orders."""
    stream = case.stream
    opened = [node for node, status in case.known.items() if status.epoch == stream.epoch and status.opened]
    if not opened:
        return False
    if stream.sealed_by_admin or case.move is not None:
        return True
    if any(not case.runs(node) and not case.is_sealed(node) for node in stream.replicas):
        return True
    return stream.primary in opened and not all(case.runs(node) for node in stream.replicas)


def _can_be_sealed(case: StreamCondition, node: NodeID) -> bool:
    """Whether a seal request can help: not if the replica is sealed, or waits for entries, when repeating it changes nothing."""
    status = case.known[node]
    if status.state is ReplicaState.FROZEN or case.runs(node) or case.is_sealed(node):
        return False
    return not case.is_behind(node)


def _wait(case: StreamCondition) -> NoStep | None:
    """What must change before the stream can run: the first obstacle."""
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
        return NoStep(EventKind.WAITING_FOR_NODE, f"{case.absence(node)}{_prospect(case, node)}", node)
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
    inputs = case.inputs
    if not inputs.is_lost(node):
        return f"; it is replaced if that lasts {inputs.replace_after_s:g} s"
    if not case.is_complete_without(node):
        return ", and no other replica is complete"
    return ", and no other node has room for its replica"


def _unseal(case: StreamCondition) -> RepairStep:
    """Every replica is SEALED, or was and is RUNNING again. Backups first: the primary's first append must find them running."""
    stream = case.stream
    sealed = [node for node in stream.replicas if case.is_sealed(node)]
    backups = tuple(node for node in sealed if node != stream.primary)
    if backups:
        return UnsealReplicas(backups, stream.epoch)
    if sealed:
        return UnsealReplicas((stream.primary,), stream.epoch)
    return UnsealStream(stream.epoch, "every replica runs")


# --- create, rebuild, sync, repair (R-SYNC-1, R-SYNC-2) -----------------------------------------------------------------
#
# A replica is emptied only while another one is complete, or while the stream has no entries: the last complete copy is never
# touched.


def refill(case: StreamCondition) -> RepairStep | None:
    """The next step for a replica that is missing, frozen or behind. One that refused lately comes last: it must not delay the
    others."""
    for node in sorted(case.stream.replicas, key=lambda node: case.inputs.unusable_s.get(node, 0.0) > 0):
        if node in case.statuses and (step := _refill(case, node)) is not None:
            return step
    return None


def _refill(case: StreamCondition, node: NodeID) -> RepairStep | None:
    status = case.known.get(node)
    if status is None:
        return CreateReplica(node) if case.is_complete_without(node) else None
    if status.state is ReplicaState.FROZEN or (case.is_behind(node) and _must_be_rebuilt(status)):
        return _rebuild(case, node, status)
    return _sync(case, node, status) if case.is_behind(node) else None


def _must_be_rebuilt(status: ReplicaStatus) -> bool:
    return status.sync is not None and status.sync.state is SyncState.ERROR and status.sync.rebuild


def _rebuild(case: StreamCondition, node: NodeID, status: ReplicaStatus) -> RepairStep | None:
    if not case.is_complete_without(node):
        return None
    why = status.trouble or (status.sync.why if status.sync is not None else "") or "it is frozen"
    return RebuildReplica(node, case.stream.epoch, why, case.stream.sealed_end)


def _sync(case: StreamCondition, node: NodeID, status: ReplicaStatus) -> RepairStep | None:
    """Its rows may also arrive from the repository: whichever comes first (R-CTX-4)."""
    sources, sync = case.sources(node), status.sync
    if not sources or (sync is not None and sync.state is SyncState.IN_PROGRESS):
        return None
    if sync is not None and sync.state is SyncState.ERROR:
        if (repair := repair_damage(case)) is not None:
            return repair  # the damage may be why the sync failed
        failed = sync.source
        sources.sort(key=lambda source: source == failed)
    return SyncReplica(node, sources[0], case.stream.epoch)


def repair_damage(case: StreamCondition) -> RepairReplica | None:
    """Repair a damaged replica from those that have the same entries: committed bytes never change, so the stream need not stop,
    and a former replica is as good a source as any."""
    for node, status in case.known.items():
        if status.damage and status.state is not ReplicaState.FROZEN:
            end = max(end for _, end in status.damage)
            sources = tuple(
                other
                for other, found in {**case.known, **case.inputs.former}.items()
                if other != node and found.state is not ReplicaState.FROZEN and found.committed_end >= end
            )
            if sources:
                return RepairReplica(node, sources)
    return None


# --- replace (R-REG-6) --------------------------------------------------------------------------------------------------
#
# A node leaves that stays away too long, or that an operator replaces; never before another replica is complete. Living nodes come
# first, so that the primary is never on a lost one.


def replacement(case: StreamCondition) -> ReplaceReplica | None:
    """The next change of the replicas, or None if none is needed or possible now."""
    if case.move is not None:
        return _move(case, case.move)
    for node in case.stream.replicas:
        if case.inputs.is_lost(node) and case.is_complete_without(node):
            spare = next((found for found in case.inputs.spares if found not in case.stream.replicas), None)
            if spare is not None:
                return _replace(case, node, spare, _loss(case, node))
    return None


def _loss(case: StreamCondition, node: NodeID) -> str:
    lasting = f"for {case.inputs.replace_after_s:g} s"
    if node in case.statuses:
        return f"node {node} has failed to seal or create its replica {lasting}"
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


# --- slow primaries -------------------------------------------------------------------------------------------------------------
#
# A node loses its primaries when it has been slow, compared with the others, without a break for `slow_after_s`, and another
# replica of the stream is on a node that is not slow. Too few finished writes are no break: that is how a hanging write looks. A
# move costs a seal, so each stream moves at most once per PAUSE_S and does not flap, whatever the disks do. Nothing moves back:
# which of two healthy nodes has the primary makes no difference.

# How long a move stays wanted: a seal, new replicas and an unseal take less.
WANTED_S: Final = 15.0
# Between two moves of one stream.
PAUSE_S: Final = 120.0


class SlowPrimaries:
    """Times are passed in, and only grow. In memory: another manager starts without them, and moves `slow_after_s` later."""

    def __init__(self, slow_after_s: float) -> None:
        self._slow_after_s = slow_after_s
        # Since when nodes have been slow, without a break, and when they were last seen to be.
        self._since: dict[NodeID, tuple[float, float]] = {}
        # How long a write takes on each living node.
        self._write_s: Mapping[NodeID, float] = {}
        # The newest move of each stream: to which node, and when it was begun.
        self._moves: dict[LogStreamID, tuple[NodeID, float]] = {}

    def update(self, write_s: Mapping[NodeID, float], now: float) -> None:
        """Record the time of a write on each node that answers; 0: too few to measure."""
        self._write_s = write_s
        slow = {node: (self._since.get(node, (now, now))[0], now) for node in slow_among(write_s)}
        silent = {
            node: (since, seen)
            for node, (since, seen) in self._since.items()
            if not write_s.get(node, 1.0) and now - seen < self._slow_after_s
        }
        self._since = silent | slow
        self._moves = {stream: move for stream, move in self._moves.items() if now - move[1] < PAUSE_S}

    def primary_for(self, stream: LogStream, now: float) -> NodeID | None:
        """The node that is to be the primary; None: the one that is."""
        move = self._moves.get(stream.log_stream)
        if move is not None:
            node, begun = move
            return node if now - begun < WANTED_S and node in stream.replicas else None
        if stream.state is not StreamState.RUNNING or not self._is_slow(stream.primary, now):
            return None
        sound = [
            node for node in stream.replicas if self._write_s.get(node, 0.0) > 0 and node not in self._since
        ]
        if not sound:
            return None
        self._moves[stream.log_stream] = (sound[0], now)
        return sound[0]

    def _is_slow(self, node: NodeID, now: float) -> bool:
        since, seen = self._since.get(node, (now, now))
        return now == seen and now - since >= self._slow_after_s
