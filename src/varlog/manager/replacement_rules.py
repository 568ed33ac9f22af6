"""PURE. Who leaves the replicas of a sealed stream, and who comes in his place (R-REG-6).

A node that stays away too long leaves, and one that an operator sends away. Nobody leaves before another replica is complete.
Those who live come first, so that the primary is never on a node that is gone.
"""

from __future__ import annotations

from varlog.manager.repair_inputs import Move, StreamCondition
from varlog.manager.repair_steps import ReplaceReplica
from varlog.model.ids import NodeID


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
