"""Messages from the manager to storage nodes: administration."""

from __future__ import annotations

from varlog.model.cluster import Ordering
from varlog.model.commit import TopicMark
from varlog.model.epoch import Epoch
from varlog.model.ids import NO_UUID, ClusterUUID, LogStreamID, TopicID
from varlog.model.lsn import LLSN
from varlog.model.projection import Proposal
from varlog.model.status import NodeStatus, ReplicaState, SyncStatus
from varlog.rpc.messages.base import Message
from varlog.rpc.messages.replica import ReplicaAddress


class GetNodeStatus(Message, frozen=True):
    """The id of the node and the status of its replicas."""


class GetNodeStatusReply(Message, frozen=True):
    status: NodeStatus


class AddLogStream(Message, frozen=True):
    """Make a replica, on `volume` or on the emptiest one. It starts SEALING, in epoch 0. Of a sequenced topic: a log
    unit, empty, in epoch 0."""

    topic: TopicID
    log_stream: LogStreamID
    volume: str = ""
    ordering: Ordering = Ordering.COMMITTED
    cluster_uuid: ClusterUUID = NO_UUID


class RemoveLogStream(Message, frozen=True):
    """Delete a replica and its data. With `epoch` (-1: whatever it is) only if the replica is still in that epoch: one that was
    added to a stream since it was examined stays. Refused if its directory belongs to another cluster than `cluster_uuid`. One
    that is evidence against the repository stays as well, unless an operator has decided otherwise (`forced`)."""

    log_stream: LogStreamID
    epoch: int = -1
    cluster_uuid: ClusterUUID = NO_UUID
    forced: bool = False


class RebuildReplica(Message, frozen=True):
    """Set a replica aside that cannot continue (damaged, frozen, too far behind), and make an empty one in its place,
    as AddLogStream does. Refused if the replica can continue in `epoch`, or knows a newer one, or belongs to another
    cluster than `cluster_uuid`, or has ordered entries at or above `sealed_end` (0: not given): they are evidence."""

    topic: TopicID
    log_stream: LogStreamID
    epoch: Epoch
    cluster_uuid: ClusterUUID = NO_UUID
    sealed_end: LLSN = LLSN(0)


class SyncReplica(Message, frozen=True):
    """R-SYNC-1: fill this SEALING replica up to its sealed end from the SEALED one at `source`. Answered immediately by
    SyncReply; asked again, it reports the progress. AlreadySyncing while it is filled from another source."""

    log_stream: LogStreamID
    epoch: Epoch
    source: ReplicaAddress


class SyncReply(Message, frozen=True):
    sync: SyncStatus


class RepairReplica(Message, frozen=True):
    """Repair the damaged entries of a replica in place with the bytes of the others, in any state. Answered by Done
    when it has begun; ReplicaStatus.damage shows what is left."""

    log_stream: LogStreamID
    sources: tuple[ReplicaAddress, ...]


class SealReplica(Message, frozen=True):
    """R-SEAL-4: nothing at or above `committed_end` is in the log; everything below is."""

    log_stream: LogStreamID
    epoch: Epoch
    committed_end: LLSN


class ReplicaStateReply(Message, frozen=True):
    state: ReplicaState
    committed_end: LLSN


class UnsealReplica(Message, frozen=True):
    """R-UNSEAL-1. The first of `replicas` is the primary."""

    log_stream: LogStreamID
    epoch: Epoch
    replicas: tuple[ReplicaAddress, ...]


class GetNodeFacts(Message, frozen=True):
    """What this node has seen of the repository's work, for rebuilding one. Answered by GetNodeFactsReply."""


class GetNodeFactsReply(Message, frozen=True):
    """Payload: the copy of the view that the node keeps, if it has one. `term`: the newest it has seen. `in_session`: a
    repository has a session with it now. `marks`: the newest position and trim of each topic of its replicas that it
    knows. `epochs`: of the newest projections of the topics of its units that it knows. `proposed`: projections that
    were about to be made."""

    term: int
    in_session: bool
    marks: tuple[TopicMark, ...] = ()
    epochs: tuple[tuple[TopicID, Epoch], ...] = ()
    proposed: tuple[Proposal, ...] = ()
