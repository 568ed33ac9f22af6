"""Routing of reads: every replica in turn, failed ones last; few nodes for a whole topic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from varlog.client.routing_rules import cover, in_turn, preferred, running_streams
from varlog.model.cluster import ClusterView, LogStream, StreamState
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID

TOPIC = TopicID(1)
NODES = st.integers(1, 5).map(NodeID)


def view_of(replicas: list[list[NodeID]], state: StreamState = StreamState.RUNNING) -> ClusterView:
    streams = [LogStream(LogStreamID(i + 1), TOPIC, tuple(nodes), state) for i, nodes in enumerate(replicas)]
    other = LogStream(LogStreamID(99), TopicID(2), (NodeID(9),), state)
    return ClusterView(ClusterID(1), 1, streams=(*streams, other))


@given(st.lists(NODES, min_size=1, max_size=4, unique=True), st.integers(0, 100), st.sets(NODES))
def test_every_replica_has_its_turn_and_the_shunned_come_last(
    replicas: list[NodeID], turn: int, shunned: set[NodeID]
) -> None:
    order = in_turn(replicas, turn, shunned)
    assert sorted(order) == sorted(replicas)
    assert [node in shunned for node in order] == sorted(node in shunned for node in order)
    if not shunned:
        assert order[0] == replicas[turn % len(replicas)]


@given(
    st.lists(st.lists(NODES, min_size=1, max_size=3, unique=True), min_size=1, max_size=6),
    st.integers(0, 9),
    st.sets(NODES),
)
def test_a_cover_holds_every_stream_once_and_asks_no_shunned_node(
    replicas: list[list[NodeID]], turn: int, shunned: set[NodeID]
) -> None:
    view = view_of(replicas)
    chosen = cover(view, TOPIC, turn, shunned)
    if any(shunned.issuperset(nodes) for nodes in replicas):
        assert chosen is None
        return
    assert chosen is not None
    assert not shunned & set(chosen)
    assert sorted(ls for streams in chosen.values() for ls in streams) == list(range(1, len(replicas) + 1))
    for node, streams in chosen.items():
        assert all(node in replicas[ls - 1] for ls in streams)


def test_one_node_is_enough_where_it_holds_everything() -> None:
    one, two, three = NodeID(1), NodeID(2), NodeID(3)
    chosen = cover(view_of([[one, two], [two, three], [three, two]]), TOPIC, 0, ())
    assert chosen == {two: [1, 2, 3]}


def test_only_running_streams_of_the_topic_take_appends() -> None:
    assert [s.log_stream for s in running_streams(view_of([[NodeID(1)], [NodeID(2)]]), TOPIC)] == [1, 2]
    assert running_streams(view_of([[NodeID(1)]], StreamState.SEALED), TOPIC) == ()


STREAMS = st.sets(st.integers(1, 5).map(LogStreamID))


@given(STREAMS, STREAMS)
def test_a_stream_in_doubt_is_chosen_only_when_no_other_is_left(
    tried: set[LogStreamID], doubted: set[LogStreamID]
) -> None:
    streams = running_streams(view_of([[NodeID(n)] for n in range(1, 6)]), TOPIC)
    chosen = [s.log_stream for s in preferred(streams, tried, lambda s: s.log_stream in doubted)]
    assert chosen, "last, but not never"
    untried = set(range(1, 6)) - tried or set(range(1, 6))
    assert set(chosen) == (untried - doubted or untried)
