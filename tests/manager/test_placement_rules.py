"""Placement: different, least loaded nodes; primaries spread; a refusal where there is no room (R-REG-3)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.manager.placement_rules import NodeLoad, loads, place
from varlog.model.cluster import ClusterView, LogStream, StorageNode
from varlog.model.errors import Refused
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID


@given(nodes=st.integers(1, 12), replicas=st.integers(1, 5), streams=st.integers(1, 30))
def test_streams_made_one_after_the_other_load_all_nodes_alike(
    nodes: int, replicas: int, streams: int
) -> None:
    replicas = min(nodes, replicas)
    alive = [NodeID(number) for number in range(1, nodes + 1)]
    view = ClusterView(ClusterID(1), 1, tuple(StorageNode(node, f"sn:{node}") for node in alive))
    for number in range(1, streams + 1):
        chosen = place(loads(view, alive), replicas)
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
        with pytest.raises(Refused, match="living storage nodes"):
            place(nodes, replicas)
        return
    chosen = place(nodes, replicas)
    load = {node.node: node for node in nodes}
    rest = [node.replicas for node in nodes if node.node not in chosen]
    assert all(load[node].replicas <= least for node in chosen for least in rest)
    assert load[chosen[0]].primaries == min(load[node].primaries for node in chosen)


def test_a_full_node_is_left_out_and_named() -> None:
    nodes = [NodeLoad(NodeID(1), 5, 0), NodeLoad(NodeID(2), 0, 0)]
    assert place(nodes, 1, streams_max=5) == (2,)
    with pytest.raises(Refused, match="1 more hold 5 streams already"):
        place(nodes, 2, streams_max=5)


@pytest.mark.parametrize("replicas", [0, -1, 17])
def test_an_impossible_number_of_replicas_is_refused(replicas: int) -> None:
    with pytest.raises(Refused, match="1 to 16 replicas"):
        place([NodeLoad(NodeID(1), 0, 0)], replicas)
