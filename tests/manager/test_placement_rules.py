"""Placement: different, least loaded nodes; primaries spread; a refusal where there is no room."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.manager.placement_rules import NodeLoad, loads, place_chain, place_replicas, spares
from varlog.model.cluster import ClusterView, Grouping, LogStream, StorageNode, changed
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import NodeStatus, ReplicaState, ReplicaStatus, UnitStatus


@given(nodes=st.integers(1, 12), replicas=st.integers(1, 5), streams=st.integers(1, 30))
def test_streams_made_one_after_the_other_load_all_nodes_alike(
    nodes: int, replicas: int, streams: int
) -> None:
    replicas = min(nodes, replicas)
    alive = {node: _status(node) for node in map(NodeID, range(1, nodes + 1))}
    view = ClusterView(ClusterID(1), 1, tuple(StorageNode(node, f"sn:{node}") for node in alive))
    for number in range(1, streams + 1):
        chosen = place_replicas(loads(view, alive), replicas)
        assert len(dict.fromkeys(chosen)) == replicas
        made = LogStream(LogStreamID(number), TopicID(1), chosen)
        view = ClusterView(view.cluster, view.revision + 1, view.nodes, (), (*view.streams, made))
    carried = Counter(node for stream in view.streams for node in stream.replicas)
    assert max(carried.values()) - min(carried[node] for node in alive) <= 1
    leading = Counter(stream.primary for stream in view.streams)
    if nodes == replicas:  # every node is in every stream: primaries can be spread evenly, and are
        assert max(leading.values()) - min(leading[node] for node in alive) <= 1


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=10), st.integers(1, 10)
)
def test_the_chosen_are_never_busier_than_the_others(carried: list[tuple[int, int]], replicas: int) -> None:
    nodes = [NodeLoad(NodeID(at + 1), total, primaries) for at, (total, primaries) in enumerate(carried)]
    if replicas > len(nodes):
        with pytest.raises(PreconditionFailed, match="living storage nodes"):
            place_replicas(nodes, replicas)
        return
    chosen = place_replicas(nodes, replicas)
    load = {node.node: node for node in nodes}
    rest = [node.replicas for node in nodes if node.node not in chosen]
    assert all(load[node].replicas <= least for node in chosen for least in rest)
    assert load[chosen[0]].primaries == min(load[node].primaries for node in chosen)


def _status(node: NodeID, *replicas: ReplicaStatus, streams_max: int = 1_000) -> NodeStatus:
    return NodeStatus(ClusterID(1), node, f"sn:{node}", ("/v",), replicas, streams_max=streams_max)


def test_a_node_at_its_limit_is_left_out_and_named() -> None:
    """R-REG-3."""
    nodes = [NodeLoad(NodeID(1), 5, 0, streams_max=5), NodeLoad(NodeID(2), 0, 0)]
    assert place_replicas(nodes, 1) == (2,)
    assert spares(nodes) == (2,)
    with pytest.raises(PreconditionFailed, match="1 more already have 5 streams"):
        place_replicas(nodes, 2)


def test_a_node_without_disk_space_is_left_out_and_named() -> None:
    nodes = [NodeLoad(NodeID(1), 0, 0, full=True), NodeLoad(NodeID(2), 3, 0)]
    assert place_replicas(nodes, 1) == (2,)
    assert spares(nodes) == (2,)
    with pytest.raises(PreconditionFailed, match="the disk of 1 more is full"):
        place_replicas(nodes, 2)


def test_a_load_counts_what_lies_on_a_node_unregistered_and_knows_its_limit() -> None:
    left = ReplicaStatus(
        log_stream=LogStreamID(9),
        topic=TopicID(1),
        state=ReplicaState.SEALING,
        epoch=Epoch(0),
        committed_end=LLSN(1),
        durable_end=LLSN(1),
        low_watermark=GLSN(0),
        high_watermark=GLSN(0),
        path="",
        full=True,
    )
    view = ClusterView(ClusterID(1), 1, (StorageNode(NodeID(1), "sn:1"),))
    (load,) = loads(view, {NodeID(1): _status(NodeID(1), left, streams_max=2)})
    assert load == NodeLoad(NodeID(1), 1, 0, streams_max=2, full=True)
    assert not load.has_room


def test_the_least_loaded_node_is_the_first_spare() -> None:
    nodes = [NodeLoad(NodeID(1), 2, 0), NodeLoad(NodeID(2), 1, 1), NodeLoad(NodeID(3), 1, 0)]
    assert spares(nodes) == (2, 3, 1)
    assert spares([nodes[0], nodes[1].with_one_more().with_one_more()]) == (1, 2)


@pytest.mark.parametrize("replicas", [0, -1, 17])
def test_an_impossible_number_of_replicas_is_refused(replicas: int) -> None:
    with pytest.raises(PreconditionFailed, match="1 to 16 replicas"):
        place_replicas([NodeLoad(NodeID(1), 0, 0)], replicas)


def _free(*numbers: int) -> list[NodeLoad]:
    return [NodeLoad(NodeID(number), 0, 0) for number in numbers]


def test_chains_of_streams_go_round_so_that_not_one_node_is_everybodys_tail() -> None:
    alive = {node: _status(node) for node in map(NodeID, (1, 2, 3))}
    view = ClusterView(ClusterID(1), 1, tuple(StorageNode(node, f"sn:{node}") for node in alive))
    for number in (1, 2, 3):
        chain = place_chain(loads(view, alive), 3, Grouping.STREAM, ())
        made = LogStream(LogStreamID(number), TopicID(1), chain)
        view = ClusterView(view.cluster, view.revision + 1, view.nodes, (), (*view.streams, made))
    assert {stream.replicas[0] for stream in view.streams} == {1, 2, 3}
    assert {stream.replicas[-1] for stream in view.streams} == {1, 2, 3}


def test_a_storage_node_is_in_one_replica_group_of_a_topic() -> None:
    """R-SEQ-3, figure a: groups are disjoint, and all chains of one have the same nodes, in turned order."""
    chains: list[tuple[NodeID, ...]] = []
    for _ in range(6):
        chains.append(place_chain(_free(1, 2, 3, 4, 5, 6, 7), 3, Grouping.NODE, chains))
    groups = Counter(frozenset(chain) for chain in chains)
    assert groups == {frozenset({1, 2, 3}): 3, frozenset({4, 5, 6}): 3}
    assert {chain[0] for chain in chains} == {chain[-1] for chain in chains} == {1, 2, 3, 4, 5, 6}


def test_a_group_without_room_and_too_few_other_nodes_refuse_the_next_stream() -> None:
    full = [*_free(1, 2, 4), NodeLoad(NodeID(3), 9, 0, streams_max=9)]
    with pytest.raises(PreconditionFailed, match="replica group"):
        place_chain(full, 3, Grouping.NODE, [(NodeID(1), NodeID(2), NodeID(3))])
    with pytest.raises(PreconditionFailed, match="replica group"):
        place_chain(_free(1, 2, 3, 4), 2, Grouping.NODE, [(NodeID(1), NodeID(2), NodeID(3))])


def test_log_units_count_as_what_a_node_carries() -> None:
    unit = UnitStatus(LogStreamID(1), TopicID(1), Epoch(1), LLSN(0), LLSN(1), LLSN(1), "/v", full=True)
    status = changed(_status(NodeID(1)), units=(unit,))
    (load,) = loads(ClusterView(ClusterID(1), 1), {NodeID(1): status})
    assert (load.replicas, load.full) == (1, True)
