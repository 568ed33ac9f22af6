"""PURE. StreamCondition: a log stream, what its replicas say, and what is known around it: the ground of every repair decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from varlog.manager.repair_steps import Move
from varlog.model.cluster import LogStream, StreamState
from varlog.model.ids import NodeID
from varlog.model.lsn import FIRST_LLSN
from varlog.model.status import ReplicaState, ReplicaStatus

# What each node that answered says of its replica; None: it answered, and has none. A node that is missing did
# not answer.
Statuses = Mapping[NodeID, ReplicaStatus | None]


@dataclass(frozen=True, slots=True)
class RepairInputs:
    """What is known beside the stream: living nodes with room (best first), for how long nodes have been of no use to it, after
    how long they are replaced, what an operator wants, what replicas of it are left where it is no longer registered, why its
    topic is stopped, if it is, and the node that is to be its primary instead of a slow one."""

    spares: tuple[NodeID, ...] = ()
    away_s: Mapping[NodeID, float] = field(default_factory=dict)
    replace_after_s: float = 30.0
    move: Move | None = None
    former: Mapping[NodeID, ReplicaStatus] = field(default_factory=dict)
    stopped: str = ""
    primary: NodeID | None = None

    def is_lost(self, node: NodeID) -> bool:
        return self.away_s.get(node, 0.0) >= self.replace_after_s


ALONE = RepairInputs()


@dataclass(frozen=True, slots=True)
class StreamCondition:
    """`known`: the statuses of those replicas that there are."""

    stream: LogStream
    statuses: Statuses
    known: Mapping[NodeID, ReplicaStatus]
    around: RepairInputs

    @classmethod
    def of(cls, stream: LogStream, statuses: Statuses, around: RepairInputs) -> Self:
        known = {node: status for node in stream.replicas if (status := statuses.get(node)) is not None}
        return cls(stream, statuses, known, around)

    @property
    def move(self) -> Move | None:
        """What an operator still wants moved. Not if the new node came into the stream in another's place meanwhile: the old one
        would leave it with a replica too few."""
        move, replicas = self.around.move, self.stream.replicas
        if move is None or move.old not in replicas:
            return None
        return None if move.new in replicas and len(replicas) <= move.replicas else move

    @property
    def new_primary(self) -> NodeID | None:
        """Who is to be the primary instead of the one that is."""
        wanted = self.around.primary
        return wanted if wanted in self.known and wanted != self.stream.primary else None

    def runs(self, node: NodeID) -> bool:
        status = self.known.get(node)
        return (
            status is not None and status.state is ReplicaState.RUNNING and status.epoch == self.stream.epoch
        )

    def is_sealed(self, node: NodeID) -> bool:
        """It holds exactly what was ordered, and can be the source of a sync (R-SYNC-2)."""
        status = self.known.get(node)
        return (
            status is not None and status.state is ReplicaState.SEALED and status.epoch == self.stream.epoch
        )

    def is_behind(self, node: NodeID) -> bool:
        """It knows where to stop, and is not there yet: it needs rows, or a sync."""
        status = self.known[node]
        return (
            status.state is ReplicaState.SEALING
            and status.epoch == self.stream.epoch
            and status.committed_end < self.stream.sealed_end
        )

    def is_whole(self, node: NodeID) -> bool:
        """It has everything that was ordered before its epoch."""
        status = self.known.get(node)
        return (
            status is not None
            and status.state is not ReplicaState.FROZEN
            and status.epoch == self.stream.epoch
            and status.committed_end >= self.stream.sealed_end
        )

    def evidence(self) -> str:
        """Who contradicts the repository, in words: a replica that was asked to give up what it knows to be ordered, or that has
        more of it than the stream was sealed with. One that runs in the stream's epoch has been unsealed since this view."""
        stream = self.stream
        for node, status in {**self.around.former, **self.known}.items():
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
        """Nothing is lost if this replica is emptied, or leaves: another one has everything, undamaged, or there is nothing."""
        sound = any(not self.known[source].damage for source in self.sources(node))
        return self.stream.sealed_end == FIRST_LLSN or sound

    def absence(self, node: NodeID) -> str:
        if node in self.statuses:
            return f"node {node} has no replica of it"
        return f"storage node {node} does not answer"
