"""PURE. Step: one thing that the manager does for a log stream, or why it does nothing.

Each may be done twice, half, or arrive late: it says for which epoch it was decided, and whoever is asked refuses another one
(law 7).
"""

from __future__ import annotations

from dataclasses import dataclass

from varlog.model.epoch import Epoch
from varlog.model.ids import NodeID
from varlog.model.lsn import LLSN, NO_LLSN
from varlog.reconfiguration.rules import Members, Wish


@dataclass(frozen=True, slots=True)
class SealStream:
    """Ask the repository to close the stream's epoch (R-SEAL-3)."""

    why: str

    def __str__(self) -> str:
        return f"seals the stream: {self.why}"


@dataclass(frozen=True, slots=True)
class SealReplicas:
    """Tell these replicas where the closed epoch ends (R-SEAL-4)."""

    nodes: tuple[NodeID, ...]
    epoch: Epoch
    committed_end: LLSN

    def __str__(self) -> str:
        return f"seals the replicas on {_nodes(self.nodes)} at {self.committed_end - 1} entries"


@dataclass(frozen=True, slots=True)
class UnsealReplicas:
    """Let these replicas run; all of them hold the same entries (R-UNSEAL-1)."""

    nodes: tuple[NodeID, ...]
    epoch: Epoch

    def __str__(self) -> str:
        return f"opens the replicas on {_nodes(self.nodes)}"


@dataclass(frozen=True, slots=True)
class UnsealStream:
    """Tell the repository to order again in this epoch."""

    epoch: Epoch
    why: str

    def __str__(self) -> str:
        return f"unseals the stream: {self.why}"


@dataclass(frozen=True, slots=True)
class MakeReplica:
    """Make the replica of a node that lost it, empty: a sync fills it."""

    node: NodeID

    def __str__(self) -> str:
        return f"makes the replica on node {self.node} anew, which has none"


@dataclass(frozen=True, slots=True)
class RebuildReplica:
    """Set a replica that cannot go on aside, and make an empty one in its place."""

    node: NodeID
    epoch: Epoch
    why: str
    sealed_end: LLSN = NO_LLSN

    def __str__(self) -> str:
        return f"rebuilds the replica on node {self.node}: {self.why}"


@dataclass(frozen=True, slots=True)
class SyncReplica:
    """Have a replica filled from a complete one (R-SYNC-1); with `backfill`: a log unit, while it serves."""

    node: NodeID
    source: NodeID
    epoch: Epoch
    backfill: bool = False

    def __str__(self) -> str:
        return f"has the replica on node {self.node} synced from node {self.source}"


@dataclass(frozen=True, slots=True)
class RepairReplica:
    """Have the damaged entries of a replica put right with the bytes of the others."""

    node: NodeID
    sources: tuple[NodeID, ...]

    def __str__(self) -> str:
        return f"has the damaged entries on node {self.node} mended from {_nodes(self.sources)}"


@dataclass(frozen=True, slots=True)
class ReplaceReplica:
    """R-REG-6: make a replica on `new`, then give the stream these replicas. `old` leaves; 0: nobody does yet."""

    old: NodeID
    new: NodeID
    epoch: Epoch
    replicas: tuple[NodeID, ...]
    why: str

    def __str__(self) -> str:
        return f"gives the stream the replicas on {_nodes(self.replicas)}: {self.why}"


@dataclass(frozen=True, slots=True)
class BeginTopic:
    """Seal the units of a new sequenced topic with epoch 1, and propose its first projection (R-SEQ-12)."""

    streams: Members

    def __str__(self) -> str:
        return "begins the topic: seals its units, and proposes the first projection"


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Seal a sequenced topic, and propose its next projection (R-SEQ-10)."""

    wish: Wish
    why: str

    def __str__(self) -> str:
        return f"proposes the next projection: {self.why}"


@dataclass(frozen=True, slots=True)
class Nothing:
    """No step is possible or needed. `settled`: only an event from outside changes that; else look again soon."""

    why: str
    settled: bool = True

    def __str__(self) -> str:
        return self.why


Step = (
    SealStream
    | SealReplicas
    | UnsealReplicas
    | UnsealStream
    | MakeReplica
    | RebuildReplica
    | SyncReplica
    | RepairReplica
    | ReplaceReplica
    | BeginTopic
    | Reconfigure
    | Nothing
)

RUNS = Nothing("it runs")
HELD = Nothing("sealed by hand")


def _nodes(nodes: tuple[NodeID, ...]) -> str:
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(map(str, nodes))
