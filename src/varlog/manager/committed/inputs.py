"""PURE. RepairInputs and StreamCondition: what repair decisions are based on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from varlog.manager.repair_steps import Move
from varlog.model.cluster import LogStream, StreamState
from varlog.model.ids import NodeID
from varlog.model.lsn import FIRST_LLSN
from varlog.model.status import ReplicaState, ReplicaStatus

# The replica status of each node that answered; None: it has no replica. A node that is missing did not answer.
Statuses = Mapping[NodeID, ReplicaStatus | None]


@dataclass(frozen=True, slots=True)
class RepairInputs:
    """`spares`: living nodes with room, best first. `unusable_s`: how long nodes have been unusable for the stream;
    they are replaced after `replace_after_s`. `move`: an operator's request. `former`: replicas left on nodes where it
    is no longer registered. `stopped`: why its topic is stopped; empty if it is not. `primary`: the node that is to be
    the primary instead of a slow one."""

    spares: tuple[NodeID, ...] = ()
    unusable_s: Mapping[NodeID, float] = field(default_factory=dict)
    replace_after_s: float = 30.0
    move: Move | None = None
    former: Mapping[NodeID, ReplicaStatus] = field(default_factory=dict)
    stopped: str = ""
    primary: NodeID | None = None

    def is_lost(self, node: NodeID) -> bool:
        return self.unusable_s.get(node, 0.0) >= self.replace_after_s


ALONE = RepairInputs()


@dataclass(frozen=True, slots=True)
class StreamCondition:
    """A log stream and its replicas. `known`: the statuses of those replicas that exist."""

    stream: LogStream
    statuses: Statuses
    known: Mapping[NodeID, ReplicaStatus]
    inputs: RepairInputs

    @classmethod
    def of(cls, stream: LogStream, statuses: Statuses, inputs: RepairInputs) -> Self:
        known = {node: status for node in stream.replicas if (status := statuses.get(node)) is not None}
        return cls(stream, statuses, known, inputs)

    @property
    def move(self) -> Move | None:
        """The operator's request, while it is open. Not if the new node has replaced another one meanwhile: without the old one the
        stream would have one replica too few."""
        move, replicas = self.inputs.move, self.stream.replicas
        if move is None or move.old not in replicas:
            return None
        return None if move.new in replicas and len(replicas) <= move.replicas else move

    @property
    def new_primary(self) -> NodeID | None:
        """The node that is to be the primary instead of the present one."""
        wanted = self.inputs.primary
        return wanted if wanted in self.known and wanted != self.stream.primary else None

    def runs(self, node: NodeID) -> bool:
        status = self.known.get(node)
        return (
            status is not None and status.state is ReplicaState.RUNNING and status.epoch == self.stream.epoch
        )

    def is_sealed(self, node: NodeID) -> bool:
        """Whether the replica has exactly what was ordered, and can be the source of a sync (R-SYNC-2)."""
        status = self.known.get(node)
        return (
            status is not None and status.state is ReplicaState.SEALED and status.epoch == self.stream.epoch
        )

    def is_behind(self, node: NodeID) -> bool:
        """Whether the replica knows the sealed end and has not reached it: it needs commit rows, or a sync."""
        status = self.known[node]
        return (
            status.state is ReplicaState.SEALING
            and status.epoch == self.stream.epoch
            and status.committed_end < self.stream.sealed_end
        )

    def is_whole(self, node: NodeID) -> bool:
        """Whether the replica has everything that was ordered before its epoch."""
        status = self.known.get(node)
        return (
            status is not None
            and status.state is not ReplicaState.FROZEN
            and status.epoch == self.stream.epoch
            and status.committed_end >= self.stream.sealed_end
        )

    def evidence(self) -> str:
        """How a replica contradicts the repository, for people: it was asked to give up ordered entries, or has more of them than
        the stream was sealed with. One that runs in the stream's epoch has been unsealed since this view."""
        stream = self.stream
        for node, status in {**self.inputs.former, **self.known}.items():
            if status.evidence:
                return f"the replica on node {node} contradicts the metadata repository: {status.evidence}"
            unsealed = status.epoch == stream.epoch and status.opened
            sealed = stream.state is StreamState.SEALED and status.epoch <= stream.epoch and not unsealed
            if sealed and status.committed_end > stream.sealed_end:
                return (
                    f"the replica on node {node} knows {status.committed_end - 1} ordered entries, up to position "
                    f"{status.high_watermark}, and the stream was sealed with {stream.sealed_end - 1}: it is kept as evidence"
                )
        return ""

    def sources(self, but: NodeID) -> list[NodeID]:
        """The complete replicas that `but` can be filled from; undamaged ones first."""
        found = [node for node in self.stream.replicas if node != but and self.is_sealed(node)]
        return sorted(found, key=lambda node: bool(self.known[node].damage))

    def is_complete_without(self, node: NodeID) -> bool:
        """Nothing is lost if this replica is emptied, or leaves: another one has everything undamaged, or there are no entries."""
        sound = any(not self.known[source].damage for source in self.sources(node))
        return self.stream.sealed_end == FIRST_LLSN or sound

    def absence(self, node: NodeID) -> str:
        if node in self.statuses:
            return f"node {node} has no replica of it"
        return f"storage node {node} does not answer"
