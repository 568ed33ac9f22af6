"""Messages of the session between the metadata repository and a storage node."""

from __future__ import annotations

from varlog.model.commit import CommitRow, Report, TopicMark
from varlog.model.epoch import Epoch
from varlog.model.ids import NO_UUID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Proposal
from varlog.model.status import ReplicaState
from varlog.rpc.messages.base import Message


class OpenSession(Message, frozen=True):
    """First on the repository's connection to a node. An older term than one seen before is refused, and another
    opening of the store (`nonce`, drawn for each; 0: not given) in the same term (law 7): StaleTerm; and so is another
    cluster than the one that the node is bound to. `registered`: the streams that the view has on this node, of either
    ordering; those that belong to no cluster yet belong to this one from now on."""

    term: int
    cluster_uuid: ClusterUUID = NO_UUID
    registered: tuple[LogStreamID, ...] = ()
    nonce: int = 0


class ReplicaPoint(Message, frozen=True):
    """The state of one replica when a session opens. `last_glsn`: the position of its last ordered entry (-1: not given)."""

    log_stream: LogStreamID
    epoch: Epoch
    state: ReplicaState
    committed_end: LLSN
    durable_end: LLSN
    rows_synced_end: LLSN
    last_glsn: GLSN = GLSN(-1)
    topic: TopicID = TopicID(0)


class UnitPoint(Message, frozen=True):
    """What a node reports of a log unit at the start of a session: it is in this epoch, and has nothing below `low`."""

    log_stream: LogStreamID
    topic: TopicID
    epoch: Epoch
    low: LLSN


class OpenSessionReply(Message, frozen=True):
    """The node's replicas. The repository answers with the rows each lacks. `largest_topic`, `largest_log_stream`: as of
    NodeStatus; new ids are above them. `view_revision`: of the copy of the view that the node keeps.

    The node is a witness of the order. `marks`: the newest position and trim that it knows of, for every topic of which
    it holds a replica. `epochs`: for the sequenced topics of its log units, the epoch of the newest projection that it
    knows to exist. `units`: of its log units, which know what was trimmed. `copied`: (topic, epoch, term) of each
    projection in its copy of the view, and the term of the repository that sent the copy.
    """

    node: NodeID
    replicas: tuple[ReplicaPoint, ...]
    largest_topic: TopicID = TopicID(0)
    largest_log_stream: LogStreamID = LogStreamID(0)
    view_revision: int = 0
    marks: tuple[TopicMark, ...] = ()
    epochs: tuple[tuple[TopicID, Epoch], ...] = ()
    units: tuple[UnitPoint, ...] = ()
    copied: tuple[tuple[TopicID, Epoch, int], ...] = ()


class ListRows(Message, frozen=True):
    """Repository -> node: the commit rows that a replica has, from the one that orders `llsn` on, in whatever state it
    is. Answered by ListRowsReply."""

    log_stream: LogStreamID
    llsn: LLSN


class ListRowsReply(Message, frozen=True):
    """`rows` are contiguous in LLSN. Continue at `next_llsn`, unless that is `committed_end`."""

    rows: tuple[CommitRow, ...]
    next_llsn: LLSN
    committed_end: LLSN


class Reports(Message, frozen=True):
    """One way, node -> repository: the newest report of each replica that has changed."""

    reports: tuple[Report, ...]
    marks_applied: int = 0


class Commits(Message, frozen=True):
    """One way, repository -> node: rows of the node's own streams, in version order, and the marks of their topics.

    `serial` counts the Commits of one session; the node reports in Reports.marks_applied which one it has applied
    (trims wait for it).
    """

    serial: int
    version: int
    marks: tuple[TopicMark, ...]
    rows: tuple[tuple[LogStreamID, tuple[CommitRow, ...]], ...]


class KeepView(Message, frozen=True):
    """One way, repository -> node. Payload: a copy of the view of this revision (storage/view_copy.py), to be kept on disk."""

    revision: int


class KeepProjection(Message, frozen=True):
    """Repository -> node, in session: the next projection of a sequenced topic, which is made once a node of each of
    its chains has it on its disk. Answered by Done then; Unavailable: no disk could keep it."""

    proposal: Proposal
