"""PURE. Projections and sequencers: a proposal -> the next Members, or a refusal.

They implement R-SEQ-3. Only the next epoch is accepted, and of two proposals for it the first. A proposal is checked: no position
that may be written moves to another place, a chain keeps its order, and only sealed units serve (laws 3, 7, 8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from varlog.metarepo.membership.rules import Members, check_not_stopped, check_replicas, topic_of, with_view
from varlog.model.cluster import ClusterView, LogStream, StorageNode, StreamState, changed
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import InvalidRequest, PreconditionFailed, ProjectionConflict
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import FIRST_LLSN, GLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID

# The maximum number of registered sequencers; of those that no projection names, the oldest are forgotten.
SEQUENCERS_MAX: Final = 64
# The number of repository terms for which a topic remembers the first epoch created in them.
TERMS_MAX: Final = 64

SealedUnits = Mapping[LogStreamID, tuple[NodeID, ...]]


@dataclass(frozen=True, slots=True)
class Handover:
    """The holders that served in the epoch before `epoch` and may not know that it ends: units that were not sealed, and a replaced
    sequencer. The projection must not take effect before their leases have ended (R-SEQ-13)."""

    epoch: Epoch
    units: tuple[tuple[LogStreamID, NodeID], ...] = ()
    sequencer: SequencerID | None = None


def accept(members: Members, proposed: Projection, sealed: SealedUnits, term: int = 0) -> Members:
    """The members with this projection, created in `term`; unchanged if it is in effect already."""
    view = members.view
    topic = topic_of(members, proposed.topic)
    if not topic.sequenced:
        raise PreconditionFailed(
            f"topic {topic.name!r} is ordered as {topic.ordering}: it has no projections"
        )
    now = view.projection(topic.topic)
    if proposed == now:
        return members
    check_not_stopped(topic)
    current = now.epoch if now is not None else NO_EPOCH
    if proposed.epoch != current + 1:
        raise ProjectionConflict(topic.topic, proposed.epoch, current)
    _check_streams(view, proposed)
    for chain in proposed.chains:
        check_replicas(view, chain.log_stream, chain.members)
        _check_sealed(chain, sealed.get(chain.log_stream, ()))
    if now is None:
        _check_first(proposed, topic.first)
    else:
        _check_next(now, proposed, sealed, topic.trimmed)
    _check_sequencer(view, now, proposed)
    terms = topic.terms
    if term and (not terms or terms[-1][1] != term):
        terms = (*terms, (proposed.epoch, term))[-TERMS_MAX:]
    return _with_projection(members, proposed, terms)


def restored(
    members: Members,
    taken: Projection,
    streams: Sequence[LogStream],
    nodes: Sequence[StorageNode],
    terms: tuple[tuple[Epoch, int], ...],
) -> Members:
    """Replace an older projection by the one that storage nodes keep. `streams`, `nodes`: from the same copy; those that are
    unknown here are restored with it. `terms`: those of the topic at that time."""
    view = members.view
    named = {node for chain in taken.chains for node in chain.members}
    lost_nodes = [found for found in nodes if found.node in named and view.node(found.node) is None]
    lost = [found for found in streams if view.stream(found.log_stream) is None]
    back = with_view(
        members,
        nodes=tuple(sorted((*view.nodes, *lost_nodes), key=lambda found: found.node)),
        streams=tuple(sorted((*view.streams, *lost), key=lambda found: found.log_stream)),
    )
    ours = {found.log_stream for found in lost}
    foreign = tuple(piece for one in members.foreign for piece in _without(one, ours))
    return _with_projection(replace(back, foreign=foreign), taken, terms)


def _without(
    ids: tuple[LogStreamID, LogStreamID], taken: Collection[LogStreamID]
) -> Iterator[tuple[LogStreamID, LogStreamID]]:
    """A range [begin, end) of ids without the ids in `taken`."""
    begin, end = ids
    for one in sorted(found for found in taken if begin <= found < end):
        if begin < one:
            yield begin, one
        begin = LogStreamID(one + 1)
    if begin < end:
        yield begin, end


def handover(now: Projection | None, proposed: Projection, sealed: SealedUnits) -> Handover:
    """The holders from which `proposed` takes something without their knowledge."""
    if now is None:
        return Handover(proposed.epoch)
    units = tuple(
        (chain.log_stream, node)
        for chain in now.chains
        for node in chain.nodes
        if node not in sealed.get(chain.log_stream, ())
    )
    return Handover(proposed.epoch, units, now.sequencer if now.sequencer != proposed.sequencer else None)


def register_sequencer(members: Members, sequencer: SequencerID) -> Members:
    """Register a sequencer. One that was restarted at the same address replaces the previous one."""
    view = members.view
    if sequencer in view.sequencers:
        return members
    if not sequencer.address:
        raise InvalidRequest("a sequencer needs an address that others can reach")
    others = [found for found in view.sequencers if found.address != sequencer.address]
    if len(others) >= SEQUENCERS_MAX:
        named = [found.sequencer for found in view.projections]
        idle = [found for found in others if found not in named]
        if not idle:
            raise PreconditionFailed(
                f"the cluster has {SEQUENCERS_MAX} sequencers already, each with topics of its own"
            )
        others.remove(idle[0])
    return with_view(members, sequencers=(*others, sequencer))


def _check_streams(view: ClusterView, proposed: Projection) -> None:
    known = {found.log_stream for found in view.streams_of(proposed.topic)}
    if foreign := [chain.log_stream for chain in proposed.chains if chain.log_stream not in known]:
        raise PreconditionFailed(
            f"log stream {foreign[0]} does not belong to topic {proposed.topic}: register it first"
        )


def _check_sealed(chain: Chain, sealed: tuple[NodeID, ...]) -> None:
    if unsealed := [node for node in chain.nodes if node not in sealed]:
        raise PreconditionFailed(
            f"storage node {unsealed[0]} was not sealed for this epoch: it cannot serve log stream {chain.log_stream}"
        )


def _check_first(proposed: Projection, first: int) -> None:
    bases = [stripe.base for stripe in proposed.newest_range.stripes]
    if len(proposed.ranges) != 1 or proposed.begin != first or proposed.first != first:
        raise PreconditionFailed(
            f"the first projection of topic {proposed.topic} has one range, from position {first} on"
        )
    if any(base != FIRST_LLSN for base in bases):
        raise PreconditionFailed(
            f"the log streams of topic {proposed.topic} are empty: they begin at LLSN 1, not at {bases}"
        )


def _check_next(now: Projection, proposed: Projection, sealed: SealedUnits, trimmed: GLSN) -> None:
    if proposed.begin < now.begin:
        raise PreconditionFailed(
            f"positions up to {now.begin - 1} may be written: epoch {proposed.epoch} cannot begin at {proposed.begin}"
        )
    # A range that begins where nothing was ever written may be replaced; in all others, every position stays where it is (law 3).
    kept = tuple(found for found in now.ranges if found.begin < proposed.begin)
    if now.ranges != proposed.ranges:
        if proposed.ranges[: len(kept)] != kept or proposed.first != now.first:
            raise PreconditionFailed(
                f"positions of topic {now.topic} that may be written cannot move to other log streams"
            )
        for fresh in proposed.ranges[len(kept) :]:
            _check_fresh(now, proposed, fresh)
            # Units were ordered to remove trimmed entries by their place: nothing else may be placed there (law 9).
            if fresh.begin <= trimmed:
                raise PreconditionFailed(
                    f"a new range cannot begin at {fresh.begin}: topic {now.topic} is trimmed up to {trimmed}"
                )
    for chain in now.chains:
        _check_order(chain, proposed, sealed.get(chain.log_stream, ()))


def _check_fresh(now: Projection, proposed: Projection, fresh: Range) -> None:
    if fresh.begin < proposed.begin:
        raise PreconditionFailed(
            f"a new range cannot begin at {fresh.begin}: positions up to {proposed.begin - 1} may be written"
        )
    known = {chain.log_stream for chain in now.chains}
    for stripe in fresh.stripes:
        expected = now.llsn_from(stripe.log_stream, fresh.begin) if stripe.log_stream in known else FIRST_LLSN
        if stripe.base != expected:
            raise PreconditionFailed(
                f"log stream {stripe.log_stream} continues at LLSN {expected}, not at {stripe.base}"
            )


def _check_order(before: Chain, proposed: Projection, sealed: tuple[NodeID, ...]) -> None:
    """Law 8: everything that the new tail stores, all nodes before it must store as well. So a node that stays keeps its place,
    and a new one comes after it."""
    try:
        after = proposed.chain(before.log_stream)
    except KeyError:
        raise PreconditionFailed(
            f"log stream {before.log_stream} holds positions: its chain cannot be left out"
        ) from None
    staying = tuple(node for node in before.nodes if node in after.nodes)
    if not any(node in sealed for node in before.nodes):
        raise PreconditionFailed(
            f"log stream {before.log_stream}: one of its nodes {list(before.nodes)} must be sealed: no other knows what it stores"
        )
    if after.nodes[: len(staying)] != staying:
        raise PreconditionFailed(
            f"the chain of log stream {before.log_stream} must keep its order, {list(staying)}, and joining nodes come after these"
        )


def _check_sequencer(view: ClusterView, now: Projection | None, proposed: Projection) -> None:
    stays = now is not None and proposed.sequencer == now.sequencer
    if proposed.sequencer is not None and not stays and proposed.sequencer not in view.sequencers:
        raise PreconditionFailed(
            f"the sequencer at {proposed.sequencer.address} is not registered, or was started again since: choose another one"
        )


def _with_projection(members: Members, taken: Projection, terms: tuple[tuple[Epoch, int], ...]) -> Members:
    view = members.view
    topic = changed(topic_of(members, taken.topic), terms=terms)
    topics = tuple(topic if found.topic == topic.topic else found for found in view.topics)
    others = [found for found in view.projections if found.topic != taken.topic]
    projections = tuple(sorted([*others, taken], key=lambda found: found.topic))
    chains = {chain.log_stream: chain for chain in taken.chains}

    def follow(stream: LogStream) -> LogStream:
        chain = chains.get(stream.log_stream)
        if chain is None:
            return stream
        return changed(stream, replicas=chain.members, state=StreamState.RUNNING, epoch=taken.epoch)

    return with_view(
        members, projections=projections, streams=tuple(map(follow, view.streams)), topics=topics
    )
