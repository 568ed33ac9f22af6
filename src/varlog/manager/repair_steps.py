"""PURE. Step: one repair action for a log stream, or why there is none.

Either ordering decides its own: manager/committed/rules.py and manager/sequenced/rules.py. Each step may be carried out twice, in
part, or late: it names the epoch that it was decided for, and its receiver refuses any other (law 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.events import NO_LOG_STREAM, NO_NODE, Event, EventKind
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import LLSN, NO_LLSN
from varlog.reconfiguration.rules import ChainMembers, Wish


@dataclass(frozen=True, slots=True)
class Move:
    """An operator's request to move the replica on `old` to `new`. `replicas`: how many the stream had at that time."""

    old: NodeID
    new: NodeID
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class SealStream:
    """Ask the repository to close the stream's epoch (R-SEAL-3)."""

    reason: str


@dataclass(frozen=True, slots=True)
class SealReplicas:
    """Seal these replicas at the end of the closed epoch (R-SEAL-4)."""

    nodes: tuple[NodeID, ...]
    epoch: Epoch
    committed_end: LLSN


@dataclass(frozen=True, slots=True)
class UnsealReplicas:
    """Unseal these replicas; all of them have the same entries (R-UNSEAL-1)."""

    nodes: tuple[NodeID, ...]
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class UnsealStream:
    """Ask the repository to order the stream's entries again, in this epoch."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class CreateReplica:
    """Create an empty replica on a node that lost its own: a sync fills it."""

    node: NodeID


@dataclass(frozen=True, slots=True)
class RebuildReplica:
    """Set a replica that cannot be used any more aside, and create an empty one in its place."""

    node: NodeID
    epoch: Epoch
    reason: str
    sealed_end: LLSN = NO_LLSN


@dataclass(frozen=True, slots=True)
class SyncReplica:
    """Fill a replica from a complete one (R-SYNC-1); with `backfill`: a log unit, while it serves."""

    node: NodeID
    source: NodeID
    epoch: Epoch
    backfill: bool = False


@dataclass(frozen=True, slots=True)
class RepairReplica:
    """Overwrite the damaged entries of a replica with the bytes of the others."""

    node: NodeID
    sources: tuple[NodeID, ...]


@dataclass(frozen=True, slots=True)
class ReplaceReplica:
    """R-REG-6: create a replica on `new`, then register these replicas. `old` leaves; 0: none does yet."""

    old: NodeID
    new: NodeID
    epoch: Epoch
    replicas: tuple[NodeID, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class BeginTopic:
    """Seal the units of a new sequenced topic with epoch 1, and propose its first projection (R-SEQ-12)."""

    streams: ChainMembers


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Seal a sequenced topic, and propose its next projection (R-SEQ-10)."""

    wish: Wish
    reason: str


@dataclass(frozen=True, slots=True)
class NoStep:
    """No step is needed or possible. `settled`: only an event from outside changes that; otherwise check again soon."""

    kind: EventKind
    reason: str = ""
    node: NodeID = NO_NODE
    settled: bool = True


RepairStep = (
    SealStream
    | SealReplicas
    | UnsealReplicas
    | UnsealStream
    | CreateReplica
    | RebuildReplica
    | SyncReplica
    | RepairReplica
    | ReplaceReplica
    | BeginTopic
    | Reconfigure
    | NoStep
)

RUNNING: Final = NoStep(EventKind.RUNNING)
SEALED_BY_ADMIN: Final = NoStep(EventKind.SEALED_BY_ADMIN)


def step_event(
    step: RepairStep, *, log_stream: LogStreamID = NO_LOG_STREAM, topic: str = "", epoch: Epoch = NO_EPOCH
) -> Event:
    """The event that says that this step is being carried out, or that there is none."""
    kind, node, nodes, count, reason = _facts(step)
    return Event(
        kind,
        log_stream=log_stream,
        topic=topic,
        node=node,
        nodes=nodes,
        epoch=epoch,
        count=count,
        reason=reason,
    )


def _facts(step: RepairStep) -> tuple[EventKind, NodeID, tuple[NodeID, ...], int, str]:
    """Kind, node, further nodes, count and reason, as Event has them."""
    match step:
        case SealStream(reason):
            return EventKind.SEAL_STREAM, NO_NODE, (), 0, reason
        case SealReplicas(nodes, _, committed_end):
            return EventKind.SEAL_REPLICAS, NO_NODE, nodes, committed_end - 1, ""
        case UnsealReplicas(nodes):
            return EventKind.UNSEAL_REPLICAS, NO_NODE, nodes, 0, ""
        case UnsealStream(_, reason):
            return EventKind.UNSEAL_STREAM, NO_NODE, (), 0, reason
        case CreateReplica(node):
            return EventKind.CREATE_REPLICA, node, (), 0, ""
        case RebuildReplica(node, _, reason):
            return EventKind.REBUILD_REPLICA, node, (), 0, reason
        case SyncReplica(node, source):
            return EventKind.SYNC_REPLICA, node, (source,), 0, ""
        case RepairReplica(node, sources):
            return EventKind.REPAIR_REPLICA, node, sources, 0, ""
        case ReplaceReplica(_, new, _, replicas, reason):
            return EventKind.CHANGE_REPLICAS, new, replicas, 0, reason
        case BeginTopic():
            return EventKind.START_TOPIC, NO_NODE, (), 0, ""
        case Reconfigure(_, reason):
            return EventKind.RECONFIGURE, NO_NODE, (), 0, reason
        case NoStep(kind, reason, node):
            return kind, node, (), 0, reason
