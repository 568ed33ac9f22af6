"""Messages from clients and the manager to the metadata repository."""

from __future__ import annotations

from varlog.model.cluster import ClusterView, Grouping, LogStream, NamedReader, NamedWriter, Ordering, Topic
from varlog.model.commit import OrderAdoption
from varlog.model.epoch import Epoch
from varlog.model.ids import NO_UUID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN
from varlog.model.projection import Projection
from varlog.rpc.messages.base import Message


class GetView(Message, frozen=True):
    """The whole view; with `newer_than` it waits up to `wait_s` for a newer revision than that."""

    newer_than: int = 0
    wait_s: float = 0.0


class GetViewReply(Message, frozen=True):
    """`suspects`: nodes that clients could not use recently (R-FAIL-2). Other clients should try them last until they
    have answered.

    Log stream ids below `next_log_stream` were given out here; those in `unused` were never registered, and those in
    `foreign` (ranges [begin, end)) are other clusters' or lost ones, which nodes have shown. `complaints`: what is
    wrong with the repository's own files, as sentences: a copy that was found bad, a mirror that failed.
    `corrupt_frames`: those that came to the repository with a wrong checksum since it started.
    """

    view: ClusterView
    suspects: tuple[NodeID, ...] = ()
    next_log_stream: LogStreamID = LogStreamID(0)
    unused: tuple[LogStreamID, ...] = ()
    foreign: tuple[tuple[LogStreamID, LogStreamID], ...] = ()
    complaints: tuple[str, ...] = ()
    corrupt_frames: int = 0


class GetBackup(Message, frozen=True):
    """A consistent copy of all that the repository knows, piece by piece: `offset` 0 makes the copy, the `stamp` of the
    answer continues it. Answered by GetBackupReply."""

    offset: int = 0
    stamp: int = 0


class GetBackupReply(Message, frozen=True):
    """Payload: the bytes from the asked offset on, of `bytes_total`: a MessagePack map from key to value, as a store
    holds them."""

    stamp: int
    bytes_total: int
    term: int


class GetTail(Message, frozen=True):
    topic: TopicID


class GetTailReply(Message, frozen=True):
    """Newest ordered position and newest trimmed one."""

    high_watermark: GLSN
    trimmed: GLSN


class TrimTopic(Message, frozen=True):
    """Delete everything at or below `glsn`. Answered once it is durable here and applied by every node in session.
    `respect_readers`: ReaderBehind if a named reader of the topic has not read so far."""

    topic: TopicID
    glsn: GLSN
    respect_readers: bool = False


class SetReader(Message, frozen=True):
    """A named reader of a topic has finished everything up to `position`. A position never falls, unless `back` allows
    it. Answered by GetReadersReply, with this one."""

    topic: TopicID
    name: str
    position: GLSN
    time_us: int = 0
    back: bool = False


class ForgetReader(Message, frozen=True):
    topic: TopicID
    name: str


class GetReaders(Message, frozen=True):
    """The named readers of a topic (0: of all), by topic and name, those behind `after`."""

    topic: TopicID = TopicID(0)
    after: tuple[TopicID, str] = (TopicID(0), "")


class GetReadersReply(Message, frozen=True):
    """`more`: ask again, after the last one."""

    readers: tuple[NamedReader, ...]
    more: bool = False


class BeginWrite(Message, frozen=True):
    """A writer that is made of many tasks begins batch number `batch`, or one of its tasks asks where it began.
    Answered by WriterReply: the first to ask fixes `streams` (those it writes to) and where in the log it began;
    everyone after gets the same. Refused if the writer is at a later batch. `kept`: the writer is remembered after its
    end, until ForgetWriter; else among the newest ones only."""

    topic: TopicID
    name: str
    batch: int
    streams: tuple[LogStreamID, ...]
    kept: bool = False
    time_us: int = 0


class WriterReply(Message, frozen=True):
    writer: NamedWriter


class EndWrite(Message, frozen=True):
    """Everything of this batch is in the log: a later BeginWrite of it is answered with `finished`. Answered by WriterReply."""

    topic: TopicID
    name: str
    batch: int
    time_us: int = 0


class ForgetWriter(Message, frozen=True):
    topic: TopicID
    name: str


class GetWriters(Message, frozen=True):
    """The named writers of a topic (0: of all), by topic and name, those behind `after`."""

    topic: TopicID = TopicID(0)
    after: tuple[TopicID, str] = (TopicID(0), "")


class GetWritersReply(Message, frozen=True):
    """`more`: ask again, after the last one."""

    writers: tuple[NamedWriter, ...]
    more: bool = False


class RegisterNode(Message, frozen=True):
    """`cluster_uuid`: the cluster that the node is bound to; another one than the repository's is refused. The ids are the
    largest that the node knows of: new ones are above them."""

    node: NodeID
    address: str
    volumes: tuple[str, ...]
    cluster_uuid: ClusterUUID = NO_UUID
    largest_topic: TopicID = TopicID(0)
    largest_log_stream: LogStreamID = LogStreamID(0)


class UnregisterNode(Message, frozen=True):
    node: NodeID


class RegisterTopic(Message, frozen=True):
    """Answered by TopicReply; an existing topic of that name is returned if it has the same ordering and first position."""

    name: str
    ordering: Ordering = Ordering.COMMITTED
    first: GLSN = GLSN(1)
    stripe_size: int = 0
    grouping: Grouping = Grouping.STREAM


class TopicReply(Message, frozen=True):
    topic: Topic


class UnregisterTopic(Message, frozen=True):
    """The topic and its streams leave the view; the replicas' data stays until it is removed (R-REG-5). A stopped one
    only if that is `forced`."""

    topic: TopicID
    forced: bool = False


class AdoptOrder(Message, frozen=True):
    """Adopt the order of a stopped topic from the nodes, or (`dry_run`) report what would be adopted. Answered by
    AdoptOrderReply."""

    topic: TopicID
    dry_run: bool = True


class AdoptOrderReply(Message, frozen=True):
    """What was adopted, or would be."""

    adoption: OrderAdoption


class NewLogStreamID(Message, frozen=True):
    """A log stream id that was never given out before, also if it is never used."""


class NewLogStreamIDReply(Message, frozen=True):
    log_stream: LogStreamID


class RegisterLogStream(Message, frozen=True):
    """A new stream starts sealed, empty, in epoch 1: the manager unseals it like any other. Refused where the topic has
    `streams_max` of them already (0: no limit)."""

    topic: TopicID
    log_stream: LogStreamID
    replicas: tuple[NodeID, ...]
    streams_max: int = 0


class SealStream(Message, frozen=True):
    """R-SEAL-3: what was reported before is ordered, what is reported later is not. Answered by StreamReply."""

    log_stream: LogStreamID


class UnsealStream(Message, frozen=True):
    """The replicas run again in `epoch`; the repository orders again."""

    log_stream: LogStreamID
    epoch: Epoch


class StreamReply(Message, frozen=True):
    stream: LogStream


class SetSealedByAdmin(Message, frozen=True):
    """Keep a stream sealed (an operator asked for it), or let it run again. Answered by StreamReply."""

    log_stream: LogStreamID
    sealed_by_admin: bool


class SetReplicas(Message, frozen=True):
    """R-REG-6: a sealed stream, in `epoch`, gets other replicas, and a new epoch with them. At least one old replica
    stays, unless the stream is empty. Answered by StreamReply; asked again with the same replicas it is done already."""

    log_stream: LogStreamID
    epoch: Epoch
    replicas: tuple[NodeID, ...]


class Suspect(Message, frozen=True):
    """R-FAIL-2: a client could not use this node. The other clients and the manager are informed; nothing else follows."""

    node: NodeID
    why: str


class SetManager(Message, frozen=True):
    """The address of the manager, for operators and clients."""

    address: str
    auto_create_topics: bool = False


class ProposeProjection(Message, frozen=True):
    """The next projection of a sequenced topic (R-SEQ-3): its epoch is the present one plus one, else
    ProjectionConflict. `sealed`: for each log stream the nodes that have answered a seal with that epoch; only they can
    be in its chain. Answered by ProposeProjectionReply once it is durable: where a former member has not been sealed,
    or a sequencer is replaced, not before their leases are over (R-SEQ-13)."""

    projection: Projection
    sealed: tuple[tuple[LogStreamID, tuple[NodeID, ...]], ...]


class ProposeProjectionReply(Message, frozen=True):
    projection: Projection
