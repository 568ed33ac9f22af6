"""The members of a cluster with one sequenced topic, as the metadata repository has them."""

from __future__ import annotations

from collections.abc import Mapping

from varlog.metarepo.membership import projection_rules, rules
from varlog.metarepo.membership.rules import Members
from varlog.model.cluster import ClusterView, Ordering
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import LLSN
from varlog.model.projection import Projection, SequencerID
from varlog.reconfiguration.rules import SealAnswer, Wish, first_projection, next_projection

ONE, TWO, THREE, FOUR = NodeID(1), NodeID(2), NodeID(3), NodeID(4)
NODES = (ONE, TWO, THREE)
TOPIC, LS = TopicID(1), LogStreamID(1)
SEQUENCER, OTHER = SequencerID("s1:1", 1), SequencerID("s2:1", 2)
UNIT = 4

Nodes = Mapping[LogStreamID, tuple[NodeID, ...]]


def registered(streams: int = 1) -> Members:
    """A sequenced topic whose streams are registered, on three of four nodes; no projection yet."""
    members = Members(ClusterView(ClusterID(1), revision=1))
    for node in (*NODES, FOUR):
        members = rules.register_node(members, node, f"n{node}:1", (), ())
    for sequencer in (SEQUENCER, OTHER):
        members = projection_rules.register_sequencer(members, sequencer)
    members, topic = rules.register_topic(members, "orders", Ordering.SEQUENCED, stripe_size=UNIT)
    for _ in range(streams):
        members, log_stream = rules.new_log_stream_id(members)
        members, _ = rules.register_log_stream(members, topic.topic, log_stream, NODES)
    return members


def first(members: Members) -> Projection:
    topic = members.view.topics[0]
    streams = {found.log_stream: found.replicas for found in members.view.streams_of(topic.topic)}
    sealed = {log_stream: dict.fromkeys(nodes, SealAnswer(LLSN(0))) for log_stream, nodes in streams.items()}
    return first_projection(topic.topic, topic.first, topic.stripe_size, streams, sealed, SEQUENCER)


def begun(streams: int = 1) -> Members:
    """With its first projection."""
    members = registered(streams)
    chosen = first(members)
    return projection_rules.accept(members, chosen, sealed_by(chosen))


def sealed_by(projection: Projection) -> dict[LogStreamID, tuple[NodeID, ...]]:
    return {chain.log_stream: chain.nodes for chain in projection.chains}


def present(members: Members) -> Projection:
    found = members.view.projection(TOPIC)
    assert found is not None
    return found


def reconfigured(
    members: Members,
    sealed: Nodes,
    *,
    newest: int = 0,
    wish: Wish | None = None,
    sequencer: SequencerID | None = SEQUENCER,
) -> Members:
    """The next projection, when these have answered that they have everything up to `newest`."""
    answers = {
        log_stream: dict.fromkeys(nodes, SealAnswer(LLSN(newest))) for log_stream, nodes in sealed.items()
    }
    proposed = next_projection(present(members), answers, wish or Wish(), sequencer)
    return projection_rules.accept(members, proposed, sealed)
