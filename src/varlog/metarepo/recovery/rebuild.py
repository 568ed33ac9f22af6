"""Rebuild of the repository's state from what storage nodes hold. No I/O.

Nothing is guessed. A position is restored only if a commit row of some replica maps it, and only if every position above the trim
point is mapped once, without a contradiction (laws 3, 4). What is not proven is a problem of its topic: it is listed, and stops
the recovery unless that topic is left out. Streams are restored sealed, in an epoch above all that were seen, at the end that is
proven.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from varlog.metarepo.membership.rules import Members, revision_after_loss
from varlog.metarepo.ordering.order import merged_rows
from varlog.metarepo.records import BaseRecord, StreamBase
from varlog.metarepo.recovery.witness_rules import ReportedRange, join, term_of, trimmed_by
from varlog.model.cluster import ClusterView, LogStream, StorageNode, StreamState, Topic, changed
from varlog.model.commit import CommitRow, TopicMark
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import NO_UUID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import FIRST_LLSN, GLSN, NO_GLSN
from varlog.model.projection import Projection, Proposal
from varlog.model.status import NodeStatus, ReplicaState, ReplicaStatus, UnitStatus
from varlog.storage.view_copy import ViewCopy

# An upper bound for the ids that were assigned after the newest copy of the view was made.
LOST_IDS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What one storage node reported. `epochs`: the epoch of the newest projection that it knows, per sequenced topic. `rows`:
    the commit rows of each of its replicas, from the oldest on; an unreadable replica has none. `proposed`: projections that were
    about to take effect."""

    address: str
    status: NodeStatus
    term: int
    in_session: bool
    marks: tuple[TopicMark, ...]
    epochs: tuple[tuple[TopicID, Epoch], ...]
    copy: ViewCopy | None
    rows: Mapping[LogStreamID, tuple[CommitRow, ...]]
    proposed: tuple[Proposal, ...] = ()

    @property
    def node(self) -> NodeID:
        return self.status.node


@dataclass(slots=True)
class TopicFound:
    """What was found of one topic. With `problems` it cannot be restored; `notes` are information for the operator."""

    topic: Topic
    high_watermark: GLSN = NO_GLSN
    streams: tuple[LogStream, ...] = ()
    projection: Projection | None = None
    base: tuple[StreamBase, ...] = ()
    version: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What would be written. `problems` concern the whole cluster; nothing can be written while there are any, here or in a topic
    that is not left out."""

    members: Members
    base: BaseRecord
    topics: tuple[TopicFound, ...]
    term: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def stops(self) -> bool:
        return bool(self.problems) or any(found.problems and not found.left_out for found in self.topics)


def rebuild(
    nodes: Sequence[NodeEvidence], leave_out: Collection[str] = (), lost: Collection[NodeID] = ()
) -> Rebuilt:
    """The state that the nodes prove. `leave_out`: names or ids of topics; their data stays on the nodes. `lost`: nodes that the
    operator has declared lost."""
    problems = _cluster_problems(nodes)
    notes: list[str] = []
    copies = [found.copy for found in nodes if found.copy is not None]
    newest = max(copies, key=lambda copy: (copy.view.revision, copy.term), default=None)
    term = max([found.term for found in nodes] + [copy.term for copy in copies], default=0)
    if newest is None:
        problems.append("no node keeps a copy of the view: names and replica sets are not known")
        empty = Members(ClusterView(nodes[0].status.cluster if nodes else 0, 1))  # type: ignore[arg-type]
        return Rebuilt(empty, BaseRecord(0, (), ()), (), term, tuple(problems), ())
    for topic in newest.view.topics:
        if (proposed := _proposed(newest, topic, nodes)) is not None:
            newest = proposed[1]
    view = newest.view
    if nodes and view.uuid != nodes[0].status.cluster_uuid:
        problems.append(f"the copy of the view is of the cluster with UUID {view.uuid}")
    answering = {found.node for found in nodes}
    for node in view.nodes:
        if node.node not in answering and node.node not in lost:
            problems.append(
                f"storage node {node.node} at {node.address} was not asked or does not answer: what it alone knows is not proven; "
                f"start it, or declare that it will not come back (--lost-node {node.node})"
            )
    topics = []
    for topic in view.topics:
        streams = view.streams_of(topic.topic)
        found = _sequenced(topic, newest, nodes) if topic.sequenced else _committed(topic, streams, nodes)
        found.left_out = topic.name in leave_out or str(topic.topic) in leave_out
        topics.append(found)
    known = {stream.log_stream for stream in view.streams}
    strange = _strange(newest, nodes, known, topics, leave_out, problems, notes)
    kept = [found for found in topics if not found.left_out]
    left = [stream.log_stream for found in topics if found.left_out for stream in found.streams]
    next_topic, next_log_stream = _next_ids(newest, nodes)
    foreign = _ranges(
        [
            *newest.foreign,
            (newest.next_log_stream, next_log_stream),
            *((one, one + 1) for one in [*left, *strange]),
        ]
    )
    members = Members(
        changed(
            view,
            revision=revision_after_loss(max(copy.view.revision for copy in copies), term + 1),
            nodes=_nodes(view, nodes, lost, kept),
            topics=tuple(found.topic for found in kept),
            streams=tuple(
                sorted((one for found in kept for one in found.streams), key=lambda one: one.log_stream)
            ),
            projections=tuple(found.projection for found in kept if found.projection is not None),
            repositories=(),
        ),
        next_topic,
        next_log_stream,
        tuple(one for one in newest.unused if one not in strange),
        foreign,
        terms_lost=term,
    )
    base = BaseRecord(
        max((found.version for found in kept), default=0) + 1,
        tuple((found.topic.topic, found.high_watermark) for found in kept if not found.topic.sequenced),
        tuple(one for found in kept for one in found.base),
    )
    return Rebuilt(members, base, tuple(topics), term, tuple(problems), tuple(notes))


def _cluster_problems(nodes: Sequence[NodeEvidence]) -> list[str]:
    problems = []
    if not nodes:
        problems.append("no storage node answers")
    uuids: dict[str, list[NodeID]] = {}
    for found in nodes:
        uuids.setdefault(found.status.cluster_uuid, []).append(found.node)
        if found.in_session:
            problems.append(
                f"storage node {found.node} is in session with a metadata repository, which knows more; stop that one first if it "
                "is to be replaced. If the repository's machine is gone, restart the node: it then notices"
            )
    if NO_UUID in uuids:
        problems.append(
            f"storage nodes {uuids.pop(NO_UUID)} belong to no cluster yet: nothing is known of them"
        )
    if len(uuids) > 1:
        shown = ", ".join(f"{uuid} (nodes {list(found)})" for uuid, found in uuids.items())
        problems.append(f"the nodes belong to different clusters: {shown}; name those of one cluster")
    twice = {found.node for found in nodes if sum(one.node == found.node for one in nodes) > 1}
    if twice:
        problems.append(f"storage nodes {sorted(twice)} answer at two addresses: name each once")
    return problems


# --- committed topics -------------------------------------------------------------------------------------------------------


def _committed(topic: Topic, streams: Sequence[LogStream], nodes: Sequence[NodeEvidence]) -> TopicFound:
    marks = [mark for found in nodes for mark in found.marks if mark.topic == topic.topic]
    trimmed = max([topic.trimmed, *(mark.trimmed for mark in marks)])
    reported = [
        ReportedRange(found.node, stream.log_stream, found.rows[stream.log_stream])
        for stream in streams
        for found in nodes
        if stream.log_stream in found.rows
    ]
    newest_known = max(
        [
            trimmed,
            GLSN(topic.first - 1),
            *(mark.high_watermark for mark in marks),
            *(row.high_watermark for one in reported for row in one.rows[-1:]),
        ]
    )
    joined = join(GLSN(max(trimmed + 1, topic.first)), newest_known, {}, reported)
    made = TopicFound(changed(topic, trimmed=trimmed), GLSN(joined.end - 1), version=joined.version)
    made.problems += [
        f"positions {begin} to {end - 1}: no answering node knows where they are"
        for begin, end in joined.missing
    ]
    made.problems += joined.conflicts
    pieces: dict[LogStreamID, list[CommitRow]] = {}
    for piece in joined.taken:
        pieces.setdefault(piece.log_stream, []).append(piece.row)
    for stream in streams:
        _stream(
            made, stream, nodes, sorted(pieces.get(stream.log_stream, []), key=lambda row: row.llsn_begin)
        )
    return made


def _stream(
    made: TopicFound, stream: LogStream, nodes: Sequence[NodeEvidence], rows: list[CommitRow]
) -> None:
    """Restore one stream of a committed topic: sealed at the newest end of a replica, in an epoch above all of them."""
    name = f"log stream {stream.log_stream}"
    found = {
        one.node: replica
        for one in nodes
        for replica in one.status.replicas
        if replica.log_stream == stream.log_stream
        and replica.cluster_uuid in (NO_UUID, one.status.cluster_uuid)
    }
    sound = {node: replica for node, replica in found.items() if _is_readable(replica)}
    for node, replica in found.items():
        if node not in sound:
            made.notes.append(f"{name}: the replica on node {node} cannot be read: {replica.trouble}")
    if not sound:
        made.problems.append(f"{name}: none of its replicas (nodes {list(stream.replicas)}) can be read")
        made.streams += (stream,)
        return
    end = max(replica.committed_end for replica in sound.values())
    proven = rows[-1].llsn_end if rows else end
    if proven != end:
        made.problems.append(
            f"{name}: a replica has ordered entries up to {end - 1}, the rows say {proven - 1}"
        )
    tail = max(replica.durable_end for replica in sound.values()) - end
    if tail > 0:
        made.notes.append(
            f"{name}: {tail} entries after entry {end - 1} were written and not ordered, so none was acknowledged: they are cut"
        )
    epoch = max(stream.epoch, *(replica.epoch for replica in sound.values()))
    sealed = changed(
        stream,
        replicas=_replicas(stream, sound, epoch),
        state=StreamState.SEALED,
        epoch=Epoch(epoch + 1),
        sealed_end=end,
    )
    made.streams += (sealed,)
    lacking = min(replica.committed_end for replica in sound.values())
    made.base += (
        StreamBase(stream.log_stream, end, tuple(merged_rows(row for row in rows if row.llsn_end > lacking))),
    )


def _is_readable(replica: ReplicaStatus) -> bool:
    """Whether a replica can be read. A frozen one that was opened still reports what it has; one that could not be opened has no
    epoch."""
    return replica.state is not ReplicaState.FROZEN or replica.epoch > NO_EPOCH


def _replicas(stream: LogStream, sound: Mapping[NodeID, ReplicaStatus], epoch: Epoch) -> tuple[NodeID, ...]:
    """The replicas by the copy of the view. If a replica is in a newer epoch, the set may have changed since: then the replicas
    in the newest epoch, which store everything that was ordered in it (law 2)."""
    if epoch <= stream.epoch:
        return stream.replicas
    newest = [node for node, replica in sound.items() if replica.epoch == epoch]
    ordered = [node for node in stream.replicas if node in newest]
    return tuple(ordered + [node for node in newest if node not in ordered])


# --- sequenced topics -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProjectionFound:
    """The newest projection of a sequenced topic of which a node has a copy. `source`: None if the repository has it itself.
    `needed`: nodes of its chains that have not answered, without which a newer projection cannot be ruled out."""

    found: TopicFound
    copy: ViewCopy
    source: NodeID | None
    needed: tuple[NodeID, ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """A projection, and the node whose copy of the view contains it; None: the repository's own."""

    node: NodeID | None
    copy: ViewCopy
    projection: Projection
    topic: Topic

    @property
    def keeper(self) -> str:
        return "the repository has" if self.node is None else f"node {self.node} keeps"


def find_projection(ours: ViewCopy, topic: Topic, nodes: Sequence[NodeEvidence]) -> ProjectionFound:
    """Find the newest projection of `topic` for a running repository that has lost projections. The next projection takes effect
    once a node of every chain of this one was sealed for it: if all nodes of one chain have answered, and none knows a newer one,
    this is the newest."""
    copies = [(None, ours), *((one.node, one.copy) for one in nodes if one.copy is not None)]
    held = [
        _Held(node, copy, projection, copy.view.topic(topic.topic) or topic)
        for node, copy in copies
        if copy.view.uuid == ours.view.uuid and (projection := copy.view.projection(topic.topic)) is not None
    ]
    newest_copy = max(held, key=_newest_held).copy if held else ours
    if (proposed := _proposed(newest_copy, topic, nodes)) is not None:
        node, copy = proposed
        projection = copy.view.projection(topic.topic)
        if projection is not None:
            held.append(_Held(node, copy, projection, copy.view.topic(topic.topic) or topic))
    if not held:
        return ProjectionFound(TopicFound(topic), ours, None, ())
    newest = max(held, key=_newest_held)
    trimmed = max(topic.trimmed, *(one.topic.trimmed for one in held))
    found = _sequenced(changed(topic, trimmed=trimmed, terms=newest.topic.terms), newest.copy, nodes)
    found.problems += [fork for one in held if (fork := _fork(newest, one))]
    answered = {one.node for one in nodes}
    chains = newest.projection.chains
    silent = [tuple(node for node in chain.nodes if node not in answered) for chain in chains]
    return ProjectionFound(found, newest.copy, newest.node, min(silent, key=len))


def _newest_held(one: _Held) -> tuple[Epoch, bool, int]:
    return one.projection.epoch, one.node is None, one.copy.term


def _newest_known(topic: TopicID, nodes: Sequence[NodeEvidence]) -> Epoch:
    return max([epoch for one in nodes for of, epoch in one.epochs if of == topic], default=NO_EPOCH)


def _proposed(copy: ViewCopy, topic: Topic, nodes: Sequence[NodeEvidence]) -> tuple[NodeID, ViewCopy] | None:
    """If a node knows a projection that no copy of the view has: the copy with it, and the node that stored it before it took
    effect. None: it is not needed, or no node has it.

    A proposal may have failed. Adopting the newest one is correct all the same: it follows the newest projection that took effect,
    whose units were sealed for it, so that nothing was written under that one since. If another projection took effect in its
    place, a later proposal exists on a node of each of its chains. So every node has to answer first.
    """
    held, known = copy.view.projection(topic.topic), _newest_known(topic.topic, nodes)
    kept = [
        (one.node, found) for one in nodes for found in one.proposed if found.projection.topic == topic.topic
    ]
    answered = {one.node for one in nodes}
    if not kept or known <= (held.epoch if held is not None else NO_EPOCH):
        return None
    if any(found.node not in answered for found in copy.view.nodes):
        return None
    node, newest = max(kept, key=lambda one: (one[1].projection.epoch, one[1].term, one[1].serial))
    return (node, _with_proposal(copy, topic, newest)) if newest.projection.epoch >= known else None


def _with_proposal(copy: ViewCopy, topic: Topic, proposal: Proposal) -> ViewCopy:
    """The copy that the repository would have sent if this projection had taken effect."""
    view, made = copy.view, proposal.projection
    known = {stream.log_stream for stream in view.streams}
    lost = [
        LogStream(chain.log_stream, made.topic, chain.members, StreamState.RUNNING)
        for chain in made.chains
        if chain.log_stream not in known
    ]
    terms = (view.topic(topic.topic) or topic).terms
    if not terms or terms[-1][1] != proposal.term:
        terms = (*terms, (made.epoch, proposal.term))
    topics = tuple(
        changed(found, terms=terms) if found.topic == topic.topic else found for found in view.topics
    )
    projections = [found for found in view.projections if found.topic != made.topic]
    streams = sorted((*view.streams, *lost), key=lambda found: found.log_stream)
    grown = changed(view, topics=topics, streams=tuple(streams), projections=(*projections, made))
    return msgspec.structs.replace(copy, term=max(copy.term, proposal.term), view=grown)


def _fork(newest: _Held, other: _Held) -> str:
    """Why one projection cannot descend from the other; "" if nothing contradicts that."""
    epoch = other.projection.epoch
    made, other_term = term_of(newest.topic, epoch), term_of(other.topic, epoch)
    same = other.projection == newest.projection or epoch < newest.projection.epoch
    if same and (made is None or other_term is None or made == other_term):
        return ""
    node = other.node if other.node is not None else newest.node
    return (
        f"{other.keeper} another projection {epoch} than {newest.keeper}: entries may be acknowledged in both; to continue without "
        f"what it alone knows, stop node {node}"
    )


def _sequenced(topic: Topic, copy: ViewCopy, nodes: Sequence[NodeEvidence]) -> TopicFound:
    """Restore a sequenced topic. Its projection maps its positions; the units store the rest. It must be the newest projection."""
    view = copy.view
    projection, streams = view.projection(topic.topic), view.streams_of(topic.topic)
    made = TopicFound(topic, streams=streams, projection=projection)
    if projection is None:
        return made
    newest_known_epoch = _newest_known(topic.topic, nodes)
    if newest_known_epoch > projection.epoch:
        by = [one.node for one in nodes if (topic.topic, newest_known_epoch) in one.epochs]
        answering = {one.node for one in nodes}
        others = [found.node for found in view.nodes if found.node not in answering]
        made.problems.append(
            f"nodes {by} know of projection {newest_known_epoch}, and the newest copy of a node that answers is projection "
            f"{projection.epoch}: which nodes held its positions since is not known; "
            + (
                f"start node {' or '.join(map(str, others))}, which may keep it"
                if others
                else "no node keeps it: restore a newer copy of the metadata repository"
            )
        )
    ids = {stream.log_stream for stream in streams}
    units = [unit for found in nodes for unit in found.status.units if unit.log_stream in ids]
    for stream in streams:
        if not any(unit.log_stream == stream.log_stream and not _is_lost(unit) for unit in units):
            made.problems.append(
                f"log stream {stream.log_stream}: none of its units (nodes {list(stream.replicas)}) can be read"
            )
    # A seal without a projection leaves units in a newer epoch than any projection: the next one must be above.
    epoch = max([projection.epoch, *(unit.epoch for unit in units)])
    made.projection = changed(projection, epoch=epoch)
    newest = [
        projection.position(unit.log_stream, unit.newest)[0] for unit in units if unit.newest >= FIRST_LLSN
    ]
    trimmed = trimmed_by(projection, ((unit.log_stream, unit.low) for unit in units if not _is_lost(unit)))
    made.topic = changed(topic, trimmed=max(topic.trimmed, trimmed))
    made.high_watermark = max([made.topic.trimmed, *newest])
    return made


def _is_lost(unit: UnitStatus) -> bool:
    return unit.epoch == NO_EPOCH and bool(unit.trouble)


# --- the rest of the cluster ------------------------------------------------------------------------------------------------


def _strange(
    copy: ViewCopy,
    nodes: Sequence[NodeEvidence],
    known: Collection[LogStreamID],
    topics: Sequence[TopicFound],
    leave_out: Collection[str],
    problems: list[str],
    notes: list[str],
) -> list[LogStreamID]:
    """List replicas and units of streams that the copy lacks: they are older than it, or newer. None of them is changed."""
    seen: dict[LogStreamID, tuple[TopicID, list[NodeID]]] = {}
    for found in nodes:
        held = [(one.log_stream, one.topic, one.epoch) for one in found.status.replicas]
        held += [(one.log_stream, one.topic, one.epoch) for one in found.status.units]
        for log_stream, topic, epoch in held:
            if log_stream not in known and epoch > NO_EPOCH:
                seen.setdefault(log_stream, (topic, []))[1].append(found.node)
    by_id = {found.topic.topic: found for found in topics}
    for log_stream, (topic, on) in sorted(seen.items()):
        what = f"log stream {log_stream} of topic {topic} on nodes {on}"
        if log_stream < copy.next_log_stream and log_stream not in copy.unused:
            notes.append(f"{what} had left the view: its data are kept, and never removed automatically")
        elif topic in by_id:
            by_id[topic].problems.append(f"{what} is newer than every copy of the view")
        elif str(topic) in leave_out:
            notes.append(f"{what} is left out: its data are kept")
        else:
            problems.append(
                f"{what} is newer than every copy of the view, and its topic has no name: leave it out with --leave-out {topic}"
            )
    return list(seen)


def _next_ids(copy: ViewCopy, nodes: Sequence[NodeEvidence]) -> tuple[TopicID, LogStreamID]:
    """Ids above all that are seen, and above those that were assigned since the copy was made and are not seen."""
    topic = max([copy.next_topic - 1, *(found.status.largest_topic for found in nodes)])
    log_stream = max([copy.next_log_stream - 1, *(found.status.largest_log_stream for found in nodes)])
    return TopicID(topic + LOST_IDS_MAX), LogStreamID(log_stream + LOST_IDS_MAX)


def _nodes(
    view: ClusterView, nodes: Sequence[NodeEvidence], lost: Collection[NodeID], topics: Sequence[TopicFound]
) -> tuple[StorageNode, ...]:
    """The nodes of the copy, at the addresses where they answer, and nodes added since. A lost one stays while a stream names it:
    the manager replaces it."""
    named = {node for found in topics for stream in found.streams for node in stream.replicas}
    found = {one.node: one for one in view.nodes if one.node not in lost or one.node in named}
    for one in nodes:
        found[one.node] = StorageNode(one.node, one.status.address or one.address, one.status.volumes)
    return tuple(found[node] for node in sorted(found))


def _ranges(found: Iterable[tuple[int, int]]) -> tuple[tuple[LogStreamID, LogStreamID], ...]:
    """The same ids in fewer ranges, ascending."""
    made: list[tuple[int, int]] = []
    for begin, end in sorted(one for one in found if one[0] < one[1]):
        if made and begin <= made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((begin, end))
    return tuple((LogStreamID(begin), LogStreamID(end)) for begin, end in made)
