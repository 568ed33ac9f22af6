"""PURE. Answers to a seal -> the next projection, or why there is none (R-SEQ-10).

Survivors of a chain keep their order, so whatever the new tail has, all before it have as well (law 8). Nothing else
moves: old positions stay where they are. The slow tail is the largest position that any unit has; no position from
`begin` on was ever written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from varlog.model.cluster import changed
from varlog.model.epoch import Epoch
from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN, NO_GLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID, Stripe

ChainMembers = Mapping[LogStreamID, tuple[NodeID, ...]]


class SealAnswer(NamedTuple):
    """A unit's answer to a seal: the largest LLSN it has (0: none), why it should not serve, whether it was restored
    from its disk and not compared with its chain since, and whether that disk is known to have gone back in time."""

    newest: LLSN
    trouble: str = ""
    unverified: bool = False
    went_back: bool = False


SealAnswers = Mapping[LogStreamID, Mapping[NodeID, SealAnswer]]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the next projection is to be like, besides leaving out the nodes that do not answer.

    `accused`: nodes that failed a caller; they serve only where there is no other. `without`: the same, of single log
    streams. `join`: nodes that have been filled, behind the tail of their chain. `leave`: nodes that are no members any
    more, once all that join that chain have joined. `streams`: new log streams, whose stripes begin now. `lost`:
    members that have not answered for so long that units which were restored from their disks count without them.
    """

    accused: frozenset[NodeID] = frozenset()
    without: ChainMembers = field(default_factory=dict)
    join: ChainMembers = field(default_factory=dict)
    leave: ChainMembers = field(default_factory=dict)
    streams: ChainMembers = field(default_factory=dict)
    lost: ChainMembers = field(default_factory=dict)


def first_projection(
    topic: TopicID,
    first: GLSN,
    stripe_size: int,
    streams: ChainMembers,
    sealed: SealAnswers,
    sequencer: SequencerID | None,
) -> Projection:
    """R-SEQ-12: a new topic's, all of whose units are empty; those that have answered were sealed with epoch 1."""
    stripes = tuple(Stripe(log_stream) for log_stream in streams)
    chains = _new_chains(streams, sealed)
    return Projection(topic, Epoch(1), first, (Range(first, stripes, stripe_size),), chains, sequencer)


def next_projection(
    now: Projection,
    sealed: SealAnswers,
    wish: Wish,
    sequencer: SequencerID | None,
    trimmed: GLSN = NO_GLSN,
) -> Projection:
    """Unavailable: no unit of some log stream has answered, so it is not known what that holds.

    `trimmed` counts as written: units were ordered to remove it, where this projection has it, also if it was never written."""
    chains = tuple(_next_chain(chain, sealed.get(chain.log_stream, {}), wish) for chain in now.chains)
    begin = max(now.begin, GLSN(slow_tail(now, sealed) + 1), GLSN(trimmed + 1))
    known = {chain.log_stream for chain in now.chains}
    # A new one of which no node answers waits for the next projection; the others must not wait for it.
    streams = {at: nodes for at, nodes in wish.streams.items() if at not in known and sealed.get(at)}
    ranges = _with_streams(now, begin, tuple(streams)) if streams else now.ranges
    return changed(
        now,
        epoch=Epoch(now.epoch + 1),
        begin=begin,
        ranges=ranges,
        chains=(*chains, *_new_chains(streams, sealed)),
        sequencer=sequencer,
    )


def slow_tail(now: Projection, sealed: SealAnswers) -> GLSN:
    """The largest position that a unit has reported; the one before the topic's first if there is none (R-SEQ-2)."""
    newest = [
        now.position(chain.log_stream, answer.newest)[0]
        for chain in now.chains
        for answer in sealed.get(chain.log_stream, {}).values()
        if answer.newest >= FIRST_LLSN
    ]
    return GLSN(max(newest, default=now.first - 1))


def thin(projection: Projection) -> tuple[Chain, ...]:
    """The chains of one node that had more once: what they hold exists nowhere else."""
    return tuple(chain for chain in projection.chains if chain.has_one_copy)


def _next_chain(chain: Chain, answers: Mapping[NodeID, SealAnswer], wish: Wish) -> Chain:
    answered = [node for node in chain.nodes if node in answers]
    if not answered:
        raise Unavailable(
            f"log stream {chain.log_stream}: none of its nodes {list(chain.nodes)} answers, so nobody knows what it holds"
        )
    whole = proven(_candidates(chain, answers, wish), answers) or proven(answered, answers)
    if not whole:
        missing = [node for node in chain.nodes if node not in answers]
        raise Unavailable(
            f"log stream {chain.log_stream}: nodes {answered} were restarted, and "
            + (
                f"nodes {missing} do not answer, which may hold newer entries: start them"
                if missing
                else "could not be compared with each other yet"
            )
        )
    asked = wish.join.get(chain.log_stream, ())
    joining = [
        node for node in asked if node in answers and node not in chain.nodes and not answers[node].trouble
    ]
    serving = [*whole, *joining]
    # No node leaves for one that could not join: the stream would have a copy too few, unnoticed.
    leave = wish.leave.get(chain.log_stream, ()) if all(node in serving for node in asked) else ()
    nodes = [node for node in serving if node not in leave] or serving
    out_of_sync = tuple(node for node in chain.members if node not in nodes and node not in leave)
    return Chain(chain.log_stream, tuple(nodes), out_of_sync)


def _candidates(chain: Chain, answers: Mapping[NodeID, SealAnswer], wish: Wish) -> list[NodeID]:
    """Which nodes serve in the next projection, if they are whole: those without objections, else all that have answered."""
    avoided = wish.accused.union(wish.without.get(chain.log_stream, ()))
    answered = [node for node in chain.nodes if node in answers]
    sound = [
        node
        for node in answered
        if not answers[node].trouble and not answers[node].went_back and node not in avoided
    ]
    return sound or answered


def proven(nodes: Sequence[NodeID], answers: Mapping[NodeID, SealAnswer]) -> list[NodeID]:
    """Without those that were restored from their disks and not compared with the chain since: a disk that went back in
    time lacks what was acknowledged, and looks sound."""
    return [node for node in nodes if not answers[node].unverified]


def to_compare(
    chain: Chain, answers: Mapping[NodeID, SealAnswer], wish: Wish
) -> dict[NodeID, tuple[NodeID, ...]]:
    """Units that have to be compared before one of them counts, each with which: after a restart of all. Every member
    has to answer first, or be lost: one that is away may hold what the others have lost. Empty: it is known which are
    whole, or it cannot be known."""
    candidates = _candidates(chain, answers, wish)
    lost = wish.lost.get(chain.log_stream, ())
    if proven(candidates, answers) or any(node not in answers and node not in lost for node in chain.nodes):
        return {}
    answered = [node for node in chain.nodes if node in answers]
    # One that is of an older epoch may hold what was decided otherwise since. Units that were made, and restarted before a
    # projection had them, are all of an older one.
    sources = [node for node in answered if not answers[node].went_back] or answered
    return {node: tuple(other for other in sources if other != node) for node in candidates}


def _new_chains(streams: ChainMembers, sealed: SealAnswers) -> tuple[Chain, ...]:
    """The nodes that were sealed, with empty units, as new ones are; the others are filled once they answer."""
    chains = []
    for log_stream, members in streams.items():
        answers = sealed.get(log_stream, {})
        empty = [node for node in members if node in answers and answers[node].newest < FIRST_LLSN]
        nodes = [node for node in empty if not answers[node].trouble] or empty
        if not nodes:
            raise Unavailable(
                f"log stream {log_stream} is new, and none of its nodes {list(members)} answers"
            )
        chains.append(Chain(log_stream, tuple(nodes), tuple(node for node in members if node not in nodes)))
    return tuple(chains)


def _with_streams(now: Projection, begin: GLSN, streams: tuple[LogStreamID, ...]) -> tuple[Range, ...]:
    """From `begin` on the new streams take turns with those of the newest range."""
    newest = now.newest_range
    going_on = tuple(
        Stripe(stripe.log_stream, now.llsn_from(stripe.log_stream, begin)) for stripe in newest.stripes
    )
    fresh = Range(begin, (*going_on, *map(Stripe, streams)), newest.stripe_size)
    kept = now.ranges if newest.begin < begin else now.ranges[:-1]
    return (*kept, fresh)
