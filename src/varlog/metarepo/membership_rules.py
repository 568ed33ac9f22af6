"""PURE. Nodes, topics and log streams: register, seal, unseal, trim -> the next Members, or a refusal with its reason.

Every rule may be asked again: a manager that lost the answer gets the same one (R-REG-2). What leaves the view leaves the order,
never the disks (R-REG-5).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from varlog.model.cluster import ClusterView, LogStream, Ordering, StorageNode, StreamState, Topic
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    InvalidRequest,
    Refused,
    StaleEpoch,
    TrimBeyondTail,
    UnknownLogStream,
    UnknownTopic,
)
from varlog.model.ids import LogStreamID, NodeID, TopicID, check_id, check_topic_name
from varlog.model.limits import REPLICAS_MAX
from varlog.model.lsn import GLSN, LLSN

# Log stream ids that were given out and not registered. A manager that keeps failing must not fill the repository.
UNUSED_IDS_MAX = 1_000
FIRST_TOPIC = TopicID(1)
FIRST_LOG_STREAM = LogStreamID(1)


@dataclass(frozen=True, slots=True)
class Members:
    """The view, and the ids that were never given before. `unused` were given, and not registered yet."""

    view: ClusterView
    next_topic: TopicID = FIRST_TOPIC
    next_log_stream: LogStreamID = FIRST_LOG_STREAM
    unused: tuple[LogStreamID, ...] = ()


# --- Nodes ------------------------------------------------------------------------------------------------------------


def register_node(
    members: Members, node: NodeID, address: str, volumes: tuple[str, ...], in_session: Container[NodeID]
) -> Members:
    """R-REG-1. A node may move to another address, unless the one registered with this id or at this address is in session
    with us: then the newcomer is a different node, and taking it in would put two nodes behind one name."""
    _check_id("storage node id", node)
    if not address:
        raise InvalidRequest(f"storage node {node} needs an address that others can reach")
    view = members.view
    known = view.node(node)
    fresh = StorageNode(node, address, volumes)
    if known == fresh:
        return members
    if known is not None and known.address != address and node in in_session:
        raise Refused(
            f"storage node {node} is alive at {known.address}: the one at {address} needs an id of its own, "
            "or stop the first one before it moves"
        )
    holder = next((other for other in view.nodes if other.address == address and other.node != node), None)
    if holder is not None and holder.node in in_session:
        raise Refused(
            f"{address} is the address of storage node {holder.node}, which is alive: check the node ids"
        )
    others = [other for other in view.nodes if other.node != node]
    nodes = tuple(sorted([*others, fresh], key=lambda found: found.node))
    return _with_view(members, nodes=nodes)


def unregister_node(members: Members, node: NodeID) -> Members:
    """The node leaves the view; its data stays (R-REG-5). Only one without registered replicas."""
    view = members.view
    if view.node(node) is None:
        return members
    if streams := view.streams_on(node):
        named = ", ".join(str(stream.log_stream) for stream in streams[:5])
        more = ", …" if len(streams) > 5 else ""
        raise Refused(
            f"storage node {node} holds replicas of log streams {named}{more}: delete their topics first"
        )
    return _with_view(members, nodes=tuple(found for found in view.nodes if found.node != node))


# --- Topics -----------------------------------------------------------------------------------------------------------


def register_topic(members: Members, name: str, ordering: Ordering) -> tuple[Members, Topic]:
    """A new topic, or the one that is there already with the same ordering."""
    try:
        check_topic_name(name)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    if (known := members.view.topic_named(name)) is not None:
        if known.ordering is not ordering:
            raise Refused(
                f"topic {name!r} is there already and its ordering is {known.ordering}, not {ordering}"
            )
        return members, known
    if ordering is not Ordering.COMMITTED:
        raise InvalidRequest(f"ordering {str(ordering)!r} is not available in this version: use 'committed'")
    topic = Topic(members.next_topic, name, ordering)
    grown = _with_view(members, topics=(*members.view.topics, topic))
    return replace(grown, next_topic=TopicID(topic.topic + 1)), topic


def unregister_topic(members: Members, topic: TopicID) -> Members:
    """The topic and its streams leave the view; the replicas' data stays until it is removed (R-REG-5)."""
    view = members.view
    if view.topic(topic) is None:
        return members
    return _with_view(
        members,
        topics=tuple(found for found in view.topics if found.topic != topic),
        streams=tuple(found for found in view.streams if found.topic != topic),
    )


def trim_topic(members: Members, topic: TopicID, glsn: GLSN, high_watermark: GLSN) -> Members:
    """R-TRIM-1: everything at or below `glsn` is trimmed; what was trimmed stays trimmed (law 9)."""
    known = members.view.topic(topic)
    if known is None:
        raise UnknownTopic(str(topic))
    if glsn < 0:
        raise InvalidRequest(f"positions start at 1: {glsn} cannot be trimmed")
    if glsn > high_watermark:
        raise TrimBeyondTail(glsn, high_watermark)
    if glsn <= known.trimmed:
        return members
    trimmed = Topic(known.topic, known.name, known.ordering, glsn)
    return _with_view(
        members,
        topics=tuple(trimmed if found.topic == topic else found for found in members.view.topics),
    )


# --- Log streams ------------------------------------------------------------------------------------------------------


def new_log_stream_id(members: Members) -> tuple[Members, LogStreamID]:
    """An id that was never given before. One that comes to nothing stays unused for ever."""
    log_stream = members.next_log_stream
    unused = (*members.unused, log_stream)[-UNUSED_IDS_MAX:]
    return replace(members, next_log_stream=LogStreamID(log_stream + 1), unused=unused), log_stream


def register_log_stream(
    members: Members, topic: TopicID, log_stream: LogStreamID, replicas: tuple[NodeID, ...]
) -> tuple[Members, LogStream]:
    """R-REG-2: a new stream, sealed and empty, in epoch 1."""
    view = members.view
    if (known := view.stream(log_stream)) is not None:
        if known.topic != topic or known.replicas != replicas:
            raise Refused(
                f"log stream {log_stream} is registered for topic {known.topic} with replicas {list(known.replicas)}: "
                "ask for a new id"
            )
        return members, known
    if view.topic(topic) is None:
        raise UnknownTopic(str(topic))
    if not 1 <= len(replicas) <= REPLICAS_MAX:
        raise InvalidRequest(f"a log stream has 1 to {REPLICAS_MAX} replicas, not {len(replicas)}")
    if len(dict.fromkeys(replicas)) != len(replicas):
        raise InvalidRequest(
            f"the replicas of log stream {log_stream} must be on different nodes: {list(replicas)}"
        )
    for node in replicas:
        if view.node(node) is None:
            raise Refused(f"storage node {node} is not registered: register it first")
    if log_stream not in members.unused:
        # An id that was registered once belongs to data that may still lie on disks; another stream there would meet it.
        raise Refused(f"log stream id {log_stream} was not given out, or is used up: ask for a new one")
    stream = LogStream(log_stream, topic, replicas)
    streams = tuple(sorted([*view.streams, stream], key=lambda found: found.log_stream))
    unused = tuple(found for found in members.unused if found != log_stream)
    return replace(_with_view(members, streams=streams), unused=unused), stream


def seal_stream(members: Members, log_stream: LogStreamID, committed_end: LLSN) -> tuple[Members, LogStream]:
    """R-SEAL-3: the order of this stream ends at `committed_end`, and a new epoch begins (laws 6, 7)."""
    stream = _stream(members, log_stream)
    if stream.state is StreamState.SEALED:
        return members, stream
    epoch = Epoch(stream.epoch + 1)
    sealed = LogStream(log_stream, stream.topic, stream.replicas, StreamState.SEALED, epoch, committed_end)
    return _with_stream(members, sealed), sealed


def unseal_stream(members: Members, log_stream: LogStreamID, epoch: Epoch) -> tuple[Members, LogStream]:
    """R-UNSEAL-1: the replicas run again in `epoch`, so their reports of that epoch count again."""
    stream = _stream(members, log_stream)
    if epoch < stream.epoch:
        raise StaleEpoch(log_stream, epoch, stream.epoch)
    if epoch > stream.epoch:
        raise Refused(f"log stream {log_stream} is in epoch {stream.epoch}: epoch {epoch} was never begun")
    if stream.state is StreamState.RUNNING:
        return members, stream
    running = LogStream(
        log_stream, stream.topic, stream.replicas, StreamState.RUNNING, epoch, stream.sealed_end
    )
    return _with_stream(members, running), running


# --- The manager ------------------------------------------------------------------------------------------------------


def set_manager(members: Members, address: str, auto_create_topics: bool) -> Members:
    """Where operators and clients find the manager."""
    view = members.view
    if (view.manager_address, view.auto_create_topics) == (address, auto_create_topics):
        return members
    return _with_view(members, manager_address=address, auto_create_topics=auto_create_topics)


def _stream(members: Members, log_stream: LogStreamID) -> LogStream:
    stream = members.view.stream(log_stream)
    if stream is None:
        raise UnknownLogStream(log_stream)
    return stream


def _with_stream(members: Members, stream: LogStream) -> Members:
    streams = members.view.streams
    return _with_view(
        members,
        streams=tuple(stream if found.log_stream == stream.log_stream else found for found in streams),
    )


def _with_view(
    members: Members,
    *,
    nodes: tuple[StorageNode, ...] | None = None,
    topics: tuple[Topic, ...] | None = None,
    streams: tuple[LogStream, ...] | None = None,
    manager_address: str | None = None,
    auto_create_topics: bool | None = None,
) -> Members:
    """The members with parts of their view replaced, one revision on."""
    view = members.view
    changed = ClusterView(
        view.cluster,
        view.revision + 1,
        view.nodes if nodes is None else nodes,
        view.topics if topics is None else topics,
        view.streams if streams is None else streams,
        view.manager_address if manager_address is None else manager_address,
        view.auto_create_topics if auto_create_topics is None else auto_create_topics,
    )
    return replace(members, view=changed)


def _check_id(kind: str, value: int) -> None:
    try:
        check_id(kind, value)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
