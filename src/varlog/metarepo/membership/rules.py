"""PURE. Membership rules of nodes, topics and log streams.

Register, seal, unseal, move, trim -> the next Members, or a refusal with its reason.

Every rule is idempotent: a manager that lost the answer repeats the request and gets the same one (R-REG-2). What leaves the view
leaves the order, never the disks (R-REG-5).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from varlog.metarepo.membership.named import Named
from varlog.model.cluster import (
    ClusterView,
    Grouping,
    LogStream,
    NamedReader,
    NamedWriter,
    Ordering,
    StorageNode,
    StreamState,
    Topic,
    changed,
)
from varlog.model.epoch import FIRST_EPOCH, NO_EPOCH, Epoch
from varlog.model.errors import (
    InvalidRequest,
    PreconditionFailed,
    StaleEpoch,
    TrimBeyondTail,
    UnknownLogStream,
    UnknownTopic,
)
from varlog.model.ids import (
    ID_MAX,
    NO_UUID,
    ClusterUUID,
    LogStreamID,
    NodeID,
    TopicID,
    check_id,
    check_topic_name,
)
from varlog.model.limits import BATCH_ENTRIES_MAX, REPLICAS_MAX, TERM_JUMP_MAX
from varlog.model.lsn import FIRST_GLSN, FIRST_LLSN, GLSN, LLSN, LSN_MAX
from varlog.model.projection import STRIPE_SIZE

# Log stream ids that were assigned and not registered. A manager that keeps failing must not fill the repository.
UNUSED_IDS_MAX = 1_000
# A store that was rolled back has lost fewer view changes than this, apart from the jumps that `revision_after_loss` makes.
LOST_REVISIONS_MAX = 1_000_000
# Larger terms do not count for revisions, which must stay below 2^63.
_TERM_COUNTED_MAX = 1 << 42
FIRST_TOPIC = TopicID(1)
FIRST_LOG_STREAM = LogStreamID(1)


@dataclass(frozen=True, slots=True)
class Members:
    """The view, and the next ids to assign. `unused` ids were assigned and not registered yet. Readers and writers are stored
    here alone: they change often, and no process follows them."""

    view: ClusterView
    next_topic: TopicID = FIRST_TOPIC
    next_log_stream: LogStreamID = FIRST_LOG_STREAM
    unused: tuple[LogStreamID, ...] = ()
    # Ranges [begin, end) of log stream ids that were skipped, ascending: nodes have shown them, and this cluster never had them.
    foreign: tuple[tuple[LogStreamID, LogStreamID], ...] = ()
    # Added to the store's terms: nodes have seen larger ones, from a time that the store has lost.
    terms_lost: int = 0
    readers: Named[NamedReader] = field(default_factory=Named)
    writers: Named[NamedWriter] = field(default_factory=Named)


# --- Nodes ------------------------------------------------------------------------------------------------------------


def register_node(
    members: Members,
    node: NodeID,
    address: str,
    volumes: tuple[str, ...],
    in_session: Container[NodeID],
    cluster_uuid: ClusterUUID = NO_UUID,
) -> Members:
    """R-REG-1. A node may move to another address, unless the one registered with this id or at this address is in session: then
    the newcomer is a different node, and accepting it would give two nodes one name. A node of another cluster is refused."""
    _check_id("storage node id", node)
    if cluster_uuid not in (NO_UUID, members.view.uuid):
        raise PreconditionFailed(
            f"storage node {node} belongs to the cluster with UUID {cluster_uuid}, and this metadata repository to "
            f"{members.view.uuid}: start the repository on the store of {cluster_uuid}; if that is lost, rebuild it from the nodes "
            "with `vmr recover`; a node for this cluster needs empty volumes"
        )
    if not address:
        raise InvalidRequest(f"storage node {node} needs an address that others can reach")
    view = members.view
    known = view.node(node)
    fresh = StorageNode(node, address, volumes)
    if known == fresh:
        return members
    if known is not None and known.address != address and node in in_session:
        raise PreconditionFailed(
            f"storage node {node} is alive at {known.address}: the one at {address} needs an id of its own, "
            "or stop the first one before it moves"
        )
    holder = next((other for other in view.nodes if other.address == address and other.node != node), None)
    if holder is not None and holder.node in in_session:
        raise PreconditionFailed(
            f"{address} is the address of storage node {holder.node}, which is alive: check the node ids"
        )
    others = [other for other in view.nodes if other.node != node]
    nodes = tuple(sorted([*others, fresh], key=lambda found: found.node))
    return with_view(members, nodes=nodes)


def unregister_node(members: Members, node: NodeID) -> Members:
    """Remove a node from the view; its data stays (R-REG-5). Refused while it has registered replicas."""
    view = members.view
    if view.node(node) is None:
        return members
    if streams := view.streams_on(node):
        named = ", ".join(str(stream.log_stream) for stream in streams[:5])
        more = ", …" if len(streams) > 5 else ""
        raise PreconditionFailed(
            f"storage node {node} holds replicas of log streams {named}{more}: move them away with "
            "`varlog stream replace`, or delete their topics"
        )
    return with_view(members, nodes=tuple(found for found in view.nodes if found.node != node))


def raise_ids(members: Members, largest_topic: TopicID, largest_log_stream: LogStreamID) -> Members:
    """Raise the next ids above everything that nodes show: an id that was ever used, by any cluster, belongs to data that may
    still be on disks. The skipped ids were never this cluster's, and their data is not removed."""
    next_topic = max(members.next_topic, TopicID(largest_topic + 1))
    next_log_stream = max(members.next_log_stream, LogStreamID(largest_log_stream + 1))
    if next_topic > ID_MAX or next_log_stream > ID_MAX:
        raise PreconditionFailed(
            f"a storage node shows topic {largest_topic} and log stream {largest_log_stream}: no ids are left above"
        )
    foreign = members.foreign
    if next_log_stream > members.next_log_stream:
        passed = (members.next_log_stream, next_log_stream)
        if foreign and foreign[-1][1] == passed[0]:
            foreign, passed = foreign[:-1], (foreign[-1][0], passed[1])
        foreign = (*foreign, passed)
    if (next_topic, next_log_stream) == (members.next_topic, members.next_log_stream):
        return members
    return replace(members, next_topic=next_topic, next_log_stream=next_log_stream, foreign=foreign)


# --- Topics -----------------------------------------------------------------------------------------------------------


def register_topic(
    members: Members,
    name: str,
    ordering: Ordering,
    first: GLSN = FIRST_GLSN,
    stripe_size: int = 0,
    grouping: Grouping = Grouping.STREAM,
) -> tuple[Members, Topic]:
    """Register a topic, or return the existing one of the same ordering and first position. Positions below the first count as
    trimmed. `stripe_size` (0: the default) and `grouping` apply to a new sequenced topic."""
    try:
        check_topic_name(name)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    if (known := members.view.topic_named(name)) is not None:
        if known.ordering is not ordering:
            raise PreconditionFailed(
                f"topic {name!r} already exists and its ordering is {known.ordering}, not {ordering}"
            )
        if known.first != first:
            raise PreconditionFailed(
                f"topic {name!r} already exists and its first position is {known.first}, not {first}"
            )
        if known.sequenced and stripe_size not in (0, known.stripe_size):
            raise PreconditionFailed(
                f"topic {name!r} already exists with stripes of {known.stripe_size} positions, not {stripe_size}"
            )
        return members, known
    if not 0 <= stripe_size <= BATCH_ENTRIES_MAX:
        raise InvalidRequest(
            f"a stripe takes 1 to {BATCH_ENTRIES_MAX} consecutive positions, not {stripe_size}: choose another size"
        )
    if not FIRST_GLSN <= first <= LSN_MAX // 2:
        raise InvalidRequest(f"the first position of a topic is between 1 and {LSN_MAX // 2}, not {first}")
    topic = Topic(
        members.next_topic, name, ordering, GLSN(first - 1), first, stripe_size or STRIPE_SIZE, grouping
    )
    grown = with_view(members, topics=(*members.view.topics, topic))
    return replace(grown, next_topic=TopicID(topic.topic + 1)), topic


def unregister_topic(members: Members, topic: TopicID, *, forced: bool = False) -> Members:
    """Remove a topic, its streams and its projection from the view, and forget its readers and writers. The replicas' data stays
    until it is removed (R-REG-5)."""
    view = members.view
    if (known := view.topic(topic)) is None:
        return members
    if not forced:
        check_not_stopped(known)
    left = replace(
        members,
        readers=members.readers.without_topic(topic),
        writers=members.writers.without_topic(topic),
    )
    return with_view(
        left,
        topics=tuple(found for found in view.topics if found.topic != topic),
        streams=tuple(found for found in view.streams if found.topic != topic),
        projections=tuple(found for found in view.projections if found.topic != topic),
    )


def trim_topic(members: Members, topic: TopicID, glsn: GLSN, high_watermark: GLSN) -> Members:
    """R-TRIM-1: trim everything at or below `glsn`; what was trimmed stays trimmed (law 9)."""
    known = topic_of(members, topic)
    check_not_stopped(known)
    if glsn < 0:
        raise InvalidRequest(f"positions start at 1: {glsn} cannot be trimmed")
    if glsn > high_watermark:
        raise TrimBeyondTail(glsn, high_watermark)
    if glsn <= known.trimmed:
        return members
    return with_view(members, topics=_with_topic(members, changed(known, trimmed=glsn)))


def revision_after_loss(begun: int, term: int) -> int:
    """The smallest revision for a view after lost history. Clients and sequencers ignore a view older than theirs, and theirs may
    be from the history that the store has lost. `begun` is the revision at the start of this term.

    It is derived from the term, because a copy of the store knows nothing of jumps made after it; nodes remember terms."""
    return max(begun + LOST_REVISIONS_MAX, min(term, _TERM_COUNTED_MAX) * LOST_REVISIONS_MAX)


def stop_topic(
    members: Members,
    topic: TopicID,
    why: str,
    known: GLSN,
    known_epoch: Epoch = NO_EPOCH,
    *,
    revision: int = 0,
) -> Members:
    """Stop a topic because a node contradicts the repository: nothing is ordered in it until the order is adopted from the nodes
    (law 3). Stored here, so that a repository that starts while the node is away orders nothing either. The view gets at least
    revision `revision`."""
    found = members.view.topic(topic)
    if found is None or is_stopped_for(found, known, known_epoch):
        return members
    stopped = changed(
        found,
        stopped=why,
        known=max(known, found.known),
        known_epoch=max(known_epoch, found.known_epoch),
        missed=(),
    )
    return with_view(members, revision, topics=_with_topic(members, stopped))


def is_stopped_for(topic: Topic, known: GLSN, known_epoch: Epoch) -> bool:
    """Whether the topic is stopped by a claim that reaches at least as far."""
    contradicted = bool(topic.stopped) and not topic.missed
    return contradicted and topic.known >= known and topic.known_epoch >= known_epoch


def miss_nodes(
    members: Members, topic: TopicID, why: str, missed: tuple[NodeID, ...], *, revision: int = 0
) -> Members:
    """Stop a topic because no replica of some log stream has reported, so that its newest position is unknown: nothing is ordered
    until one has (law 3). The view gets at least revision `revision`."""
    found = members.view.topic(topic)
    if found is None or (found.stopped and not found.missed) or found.missed == missed:
        return members
    stopped = changed(found, stopped=why, missed=missed)
    return with_view(members, revision, topics=_with_topic(members, stopped))


def end_missing(members: Members, topic: TopicID) -> Members:
    """Resume a topic: every log stream has reported, and no node contradicts. A topic that a node contradicts stays stopped."""
    found = members.view.topic(topic)
    if found is None or not found.missed:
        return members
    return with_view(members, topics=_with_topic(members, changed(found, stopped="", missed=())))


def adopt_order(
    members: Members, topic: TopicID, trimmed: GLSN, raised: Mapping[LogStreamID, tuple[Epoch, LLSN]]
) -> Members:
    """Resume a topic whose order was adopted from the nodes. Streams in `raised` are sealed in that epoch, at that end."""
    found = topic_of(members, topic)
    running = changed(
        found,
        stopped="",
        known=GLSN(0),
        known_epoch=NO_EPOCH,
        missed=(),
        trimmed=max(trimmed, found.trimmed),
    )
    streams = list(members.view.streams)
    for place, stream in enumerate(streams):
        if stream.log_stream in raised:
            epoch, end = raised[stream.log_stream]
            streams[place] = changed(stream, state=StreamState.SEALED, epoch=epoch, sealed_end=end)
    return with_view(members, topics=_with_topic(members, running), streams=tuple(streams))


def check_not_stopped(topic: Topic) -> None:
    if topic.stopped:
        raise PreconditionFailed(
            f"topic {topic.name!r} is STOPPED: {topic.stopped}; run `varlog topic adopt-order {topic.name}`"
        )


# --- Log streams ------------------------------------------------------------------------------------------------------


def new_log_stream_id(members: Members) -> tuple[Members, LogStreamID]:
    """An id that was never assigned before. If it is never registered, it stays unused forever."""
    log_stream = members.next_log_stream
    unused = (*members.unused, log_stream)[-UNUSED_IDS_MAX:]
    return replace(members, next_log_stream=LogStreamID(log_stream + 1), unused=unused), log_stream


def register_log_stream(
    members: Members,
    topic: TopicID,
    log_stream: LogStreamID,
    replicas: tuple[NodeID, ...],
    streams_max: int = 0,
) -> tuple[Members, LogStream]:
    """R-REG-2: register a new stream, sealed and empty, in epoch 1. Refused if the topic has `streams_max` streams (0: no limit),
    so that two managers that create the same topic do not create too many streams."""
    view = members.view
    if (known := view.stream(log_stream)) is not None:
        if known.topic != topic or known.replicas != replicas:
            raise PreconditionFailed(
                f"log stream {log_stream} is registered for topic {known.topic} with replicas {list(known.replicas)}: "
                "ask for a new id"
            )
        return members, known
    found = topic_of(members, topic)
    check_not_stopped(found)
    check_replicas(view, log_stream, replicas)
    if streams_max and len(view.streams_of(topic)) >= streams_max:
        raise PreconditionFailed(f"topic {topic} already has its {streams_max} log streams")
    if log_stream not in members.unused:
        # An id that was ever registered belongs to data that may still be on disks; a new stream must not meet it.
        raise PreconditionFailed(
            f"log stream id {log_stream} was not assigned, or was used before: request a new one"
        )
    # A stream of a sequenced topic has no epoch until a projection contains it.
    stream = LogStream(log_stream, topic, replicas, epoch=NO_EPOCH if found.sequenced else FIRST_EPOCH)
    streams: tuple[LogStream, ...] = (*view.streams, stream)
    if view.streams and view.streams[-1].log_stream > log_stream:
        streams = tuple(sorted(streams, key=lambda found: found.log_stream))
    unused = tuple(found for found in members.unused if found != log_stream)
    return replace(with_view(members, streams=streams), unused=unused), stream


def seal_stream(members: Members, log_stream: LogStreamID, committed_end: LLSN) -> tuple[Members, LogStream]:
    """R-SEAL-3: end the order of this stream at `committed_end`, and begin a new epoch (laws 6, 7)."""
    stream = _committed_stream(members, log_stream)
    if stream.state is StreamState.SEALED:
        return members, stream
    epoch = Epoch(stream.epoch + 1)
    sealed = changed(stream, state=StreamState.SEALED, epoch=epoch, sealed_end=committed_end)
    return _with_stream(members, sealed), sealed


def unseal_stream(members: Members, log_stream: LogStreamID, epoch: Epoch) -> tuple[Members, LogStream]:
    """R-UNSEAL-1: let the replicas run in `epoch`, so that their reports of that epoch count again."""
    stream = _committed_stream(members, log_stream)
    if epoch < stream.epoch:
        raise StaleEpoch(log_stream, epoch, stream.epoch)
    if epoch > stream.epoch:
        raise PreconditionFailed(
            f"log stream {log_stream} is in epoch {stream.epoch}: epoch {epoch} was never begun"
        )
    if stream.state is StreamState.RUNNING:
        return members, stream
    running = changed(stream, state=StreamState.RUNNING)
    return _with_stream(members, running), running


def set_sealed_by_admin(
    members: Members, log_stream: LogStreamID, sealed_by_admin: bool
) -> tuple[Members, LogStream]:
    """Hold the stream sealed until an operator releases it. Stored here, so that no manager forgets it."""
    stream = _committed_stream(members, log_stream)
    if stream.sealed_by_admin == sealed_by_admin:
        return members, stream
    marked = changed(stream, sealed_by_admin=sealed_by_admin)
    return _with_stream(members, marked), marked


def set_replicas(
    members: Members, log_stream: LogStreamID, epoch: Epoch, replicas: tuple[NodeID, ...]
) -> tuple[Members, LogStream]:
    """R-REG-6: change the replicas of a sealed stream, and with them its epoch: a process that knows only the old replicas cannot
    unseal or seal anything any more (law 7). The ordered entries are unaffected."""
    stream = _committed_stream(members, log_stream)
    if stream.replicas == replicas and epoch <= stream.epoch:
        return members, stream
    if epoch < stream.epoch:
        raise StaleEpoch(log_stream, epoch, stream.epoch)
    if epoch > stream.epoch or stream.state is not StreamState.SEALED:
        raise PreconditionFailed(
            f"log stream {log_stream} is {stream.state} in epoch {stream.epoch}: replicas change only while it is sealed"
        )
    check_replicas(members.view, log_stream, replicas)
    if stream.sealed_end > FIRST_LLSN and not any(node in stream.replicas for node in replicas):
        raise PreconditionFailed(
            f"log stream {log_stream} has entries, and none of {list(replicas)} holds them: one of its replicas "
            f"{list(stream.replicas)} must stay"
        )
    moved = changed(stream, replicas=replicas, epoch=Epoch(epoch + 1))
    return _with_stream(members, moved), moved


# --- The repository itself --------------------------------------------------------------------------------------------


def raise_term(members: Members, term: int, seen: int) -> Members:
    """Raise the terms above one that a node has seen and that this store never assigned, or assigned to another opening."""
    if seen - term > TERM_JUMP_MAX:
        raise PreconditionFailed(f"a node claims to have seen term {seen}: it cannot be so far above {term}")
    raised = with_view(members, revision_after_loss(0, seen + 1))
    return replace(raised, terms_lost=members.terms_lost + max(0, seen + 1 - term))


# --- The manager ------------------------------------------------------------------------------------------------------


def set_manager(members: Members, address: str, auto_create_topics: bool) -> Members:
    """Set the address at which operators and clients find the manager."""
    view = members.view
    if (view.manager_address, view.auto_create_topics) == (address, auto_create_topics):
        return members
    return with_view(members, manager_address=address, auto_create_topics=auto_create_topics)


def set_repositories(members: Members, addresses: tuple[str, ...]) -> Members:
    """Set the addresses of the metadata repositories, the leading one and the standbys."""
    if members.view.repositories == addresses:
        return members
    return with_view(members, repositories=addresses)


def topic_of(members: Members, topic: TopicID) -> Topic:
    known = members.view.topic(topic)
    if known is None:
        raise UnknownTopic(str(topic))
    return known


def _committed_stream(members: Members, log_stream: LogStreamID) -> LogStream:
    stream = members.view.stream(log_stream)
    if stream is None:
        raise UnknownLogStream(log_stream)
    topic = topic_of(members, stream.topic)
    if topic.sequenced:
        raise PreconditionFailed(
            f"log stream {log_stream} belongs to the sequenced topic {topic.name!r}: its projection determines its replicas, "
            "and the manager changes that when necessary"
        )
    check_not_stopped(topic)
    return stream


def check_replicas(view: ClusterView, log_stream: LogStreamID, replicas: tuple[NodeID, ...]) -> None:
    if not 1 <= len(replicas) <= REPLICAS_MAX:
        raise InvalidRequest(f"a log stream has 1 to {REPLICAS_MAX} replicas, not {len(replicas)}")
    if len(dict.fromkeys(replicas)) != len(replicas):
        raise InvalidRequest(
            f"the replicas of log stream {log_stream} must be on different nodes: {list(replicas)}"
        )
    for node in replicas:
        if view.node(node) is None:
            raise PreconditionFailed(f"storage node {node} is not registered: register it first")


def _with_stream(members: Members, stream: LogStream) -> Members:
    streams = list(members.view.streams)
    place = next(place for place, found in enumerate(streams) if found.log_stream == stream.log_stream)
    streams[place] = stream
    return with_view(members, streams=tuple(streams))


def with_view(members: Members, least: int = 0, **changes: object) -> Members:
    """The members with parts of their view replaced, at the next revision, or at revision `least` if that is higher."""
    view = members.view
    return replace(members, view=changed(view, revision=max(view.revision + 1, least), **changes))


def _with_topic(members: Members, topic: Topic) -> tuple[Topic, ...]:
    return tuple(topic if found.topic == topic.topic else found for found in members.view.topics)


def _check_id(kind: str, value: int) -> None:
    try:
        check_id(kind, value)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
