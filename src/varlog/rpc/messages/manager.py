"""Messages from operators and clients to the manager."""

from __future__ import annotations

from varlog.model.cluster import Grouping, Ordering
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import GLSN
from varlog.model.status import ClusterStatus
from varlog.rpc.messages.base import Message

# --- Manager: operators and clients -> manager --------------------------------------------------------------
#
# `within_ms`: how long the caller waits (0: not given). A request that has not begun by then is not begun.


class AddNode(Message, frozen=True):
    """Ask the node at `address` who it is, and register it."""

    address: str


class RemoveNode(Message, frozen=True):
    node: NodeID
    within_ms: int = 0


class CreateTopic(Message, frozen=True):
    """A topic with `streams` running log streams of `replicas` replicas each (0: the manager's default), whose first
    entry gets position `first`. A sequenced one: in stripes of `stripe_size` positions (0: the default), with replica
    groups by `grouping`."""

    name: str
    streams: int = 0
    replicas: int = 0
    ordering: Ordering = Ordering.COMMITTED
    first: GLSN = GLSN(1)
    stripe_size: int = 0
    grouping: Grouping = Grouping.STREAM
    within_ms: int = 0


class DeleteTopic(Message, frozen=True):
    """A stopped topic only if that is `forced`: what its nodes hold is all there is of its order."""

    name: str
    forced: bool = False
    within_ms: int = 0


class AddStream(Message, frozen=True):
    """One more log stream for a topic."""

    topic: str
    replicas: int = 0
    within_ms: int = 0


class AdminSealStream(Message, frozen=True):
    """Seal a stream for an operator, and keep it sealed until an operator unseals it."""

    log_stream: LogStreamID
    within_ms: int = 0


class AdminUnsealStream(Message, frozen=True):
    log_stream: LogStreamID
    within_ms: int = 0


class AdminReplaceReplica(Message, frozen=True):
    """Move a replica of a stream from node `old` to node `new` (0: the one with the most room)."""

    log_stream: LogStreamID
    old: NodeID
    new: NodeID = NodeID(0)
    within_ms: int = 0


class AdminSyncReplica(Message, frozen=True):
    """Fill the replica on `node` from a sealed one now; asked again, it reports the progress. Answered by SyncReply."""

    log_stream: LogStreamID
    node: NodeID
    within_ms: int = 0


class GetClusterStatus(Message, frozen=True):
    """The view, and the newest status of each node."""


class GetClusterStatusReply(Message, frozen=True):
    status: ClusterStatus
