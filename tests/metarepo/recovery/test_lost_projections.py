"""A lost projection is found at the nodes that kept it before it was made, and only where nothing newer can have been made."""

from __future__ import annotations

from collections.abc import Sequence

from varlog.metarepo.recovery.rebuild import NodeEvidence, ProjectionFound, find_projection, rebuild
from varlog.model.cluster import ClusterView, LogStream, Ordering, StorageNode, StreamState, Topic, changed
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, Proposal, Range, Stripe
from varlog.model.status import NodeStatus, UnitStatus
from varlog.storage.view_copy import ViewCopy

UUID = ClusterUUID("01234567-89ab-4cde-8f01-23456789abcd")
STREAM = LogStreamID(4)
TOPIC = Topic(TopicID(8), "orders", Ordering.SEQUENCED, terms=((Epoch(1), 1),))
NODES = (NodeID(1), NodeID(2), NodeID(3))


def projection(epoch: int, *nodes: int, streams: Sequence[int] = (STREAM,)) -> Projection:
    return Projection(
        TOPIC.topic,
        Epoch(epoch),
        GLSN(1),
        (Range(GLSN(1), tuple(Stripe(LogStreamID(one)) for one in streams)),),
        tuple(Chain(LogStreamID(one), tuple(map(NodeID, nodes))) for one in streams),
    )


def copy(made: Projection | None) -> ViewCopy:
    view = ClusterView(
        ClusterID(1),
        12,
        tuple(StorageNode(node, f"n{node}:1", ("/a",)) for node in NODES),
        (TOPIC,),
        (LogStream(STREAM, TOPIC.topic, NODES, StreamState.RUNNING),),
        projections=(made,) if made is not None else (),
        uuid=UUID,
    )
    return ViewCopy(1, view, TopicID(9), LogStreamID(12))


def node(number: int, known: int, *proposed: Proposal, kept: Projection | None = None) -> NodeEvidence:
    """It knows projection `known`, and keeps the copy of the view with `kept`."""
    unit = UnitStatus(STREAM, TOPIC.topic, Epoch(known), LLSN(3), LLSN(1), LLSN(4), "/a")
    status = NodeStatus(
        ClusterID(1), NodeID(number), f"n{number}:1", ("/a",), (), units=(unit,), cluster_uuid=UUID
    )
    epochs = ((TOPIC.topic, Epoch(known)),)
    return NodeEvidence(status.address, status, 2, False, (), epochs, copy(kept), {}, proposed)


FIRST = projection(1, 1, 2, 3)
SECOND = projection(2, 1, 2)


def found(*nodes: NodeEvidence) -> ProjectionFound:
    return find_projection(copy(FIRST), TOPIC, nodes)


def test_what_a_chain_kept_before_it_was_made_is_taken_where_no_copy_of_the_view_has_it() -> None:
    kept = Proposal(2, 1, SECOND)
    taken = found(node(1, 2, kept, kept=FIRST), node(2, 2, kept=FIRST), node(3, 1, kept=FIRST))
    assert (taken.source, taken.found.projection, taken.found.problems) == (1, SECOND, [])
    assert taken.found.topic.terms == ((1, 1), (2, 2)), "it was made in the term of its proposal"
    rebuilt = rebuild([node(1, 2, kept, kept=FIRST), node(2, 2, kept=FIRST), node(3, 1, kept=FIRST)])
    assert not rebuilt.stops and rebuilt.members.view.projections == (SECOND,)


def test_a_proposal_that_no_node_knows_is_left_alone() -> None:
    """A repository that ends between the two loses nothing: the topic continues in the epoch that it has."""
    nodes = [node(number, 1, Proposal(2, 1, SECOND), kept=FIRST) for number in NODES]
    taken = found(*nodes)
    assert (taken.source, taken.found.projection, taken.found.problems) == (None, FIRST, [])


def test_of_two_proposals_the_later_one_is_taken() -> None:
    """The earlier one came to nothing: the repository proposes one at a time."""
    later = projection(2, 2, 3)
    for number, proposal in enumerate((Proposal(2, 2, later), Proposal(3, 1, later))):
        taken = found(
            node(1, 1, Proposal(2, 1, SECOND), kept=FIRST),
            node(2, 2, proposal, kept=FIRST),
            node(3, 2, kept=FIRST),
        )
        assert (taken.source, taken.found.projection) == (2, later), number


def test_while_a_node_is_away_a_proposal_proves_nothing() -> None:
    """It may keep a later one, by which clients have acted."""
    taken = found(node(1, 2, Proposal(2, 1, SECOND), kept=FIRST), node(2, 2, kept=FIRST))
    assert taken.source is None and "start node 3, which may keep it" in taken.found.problems[0]


def test_a_projection_that_nobody_keeps_is_in_a_newer_copy_of_the_store_at_best() -> None:
    old = Proposal(2, 1, SECOND)
    taken = found(node(1, 3, old, kept=FIRST), node(2, 3, kept=FIRST), node(3, 1, kept=FIRST))
    assert taken.source is None
    assert "no node keeps it: restore a newer copy of the metadata repository" in taken.found.problems[0]


def test_log_streams_that_only_the_proposal_names_come_back_with_it() -> None:
    grown = projection(2, 1, 2, streams=(STREAM, 7))
    nodes = [node(number, 2, Proposal(2, 1, grown), kept=FIRST) for number in NODES]
    units = nodes[0].status.units
    both = changed(nodes[0].status, units=(*units, changed(units[0], log_stream=LogStreamID(7))))
    nodes[0] = NodeEvidence("n1:1", both, 2, False, (), nodes[0].epochs, nodes[0].copy, {}, nodes[0].proposed)
    taken = found(*nodes)
    assert taken.found.projection == grown and taken.found.problems == []
    (lost,) = [stream for stream in taken.found.streams if stream.log_stream == 7]
    assert (lost.topic, lost.replicas, lost.state) == (TOPIC.topic, (1, 2), StreamState.RUNNING)


def test_the_first_projection_of_a_topic_can_be_lost_as_well() -> None:
    nodes = [node(number, 1, Proposal(1, 1, FIRST)) for number in NODES]
    taken = find_projection(copy(None), changed(TOPIC, terms=()), nodes)
    assert (taken.source is not None, taken.found.projection) == (True, FIRST)
