"""The status document: what is said of nodes that are away, of replicas that lag, and of chains with one copy left."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from varlog.model.cluster import (
    ClusterView,
    LogStream,
    NamedReader,
    Ordering,
    StorageNode,
    StreamState,
    Topic,
)
from varlog.model.commit import TopicMark
from varlog.model.epoch import Epoch
from varlog.model.events import Event, EventKind
from varlog.model.ids import ClusterID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID, Stripe
from varlog.model.status import (
    ClusterStatus,
    NodeHealth,
    NodeStatus,
    ReplicaState,
    ReplicaStatus,
    SyncState,
    SyncStatus,
    Traffic,
    UnitStatus,
)
from varlog.proxy.metrics import ClusterCollector
from varlog.proxy.status_publisher import rfc3339, status_document, traffic_sample
from varlog.proxy.wire import StatusOut

ORDERS, FAST = Topic(TopicID(1), "orders"), Topic(TopicID(2), "fast", Ordering.SEQUENCED)
ONE, TWO, THREE = NodeID(1), NodeID(2), NodeID(3)
COMMITTED, SEQUENCED = LogStreamID(5), LogStreamID(6)
SEQUENCER = SequencerID("127.0.0.1:7113", 9)
NOW_US = 1_700_000_010_000_000


def replica(end: int, *, sync: SyncStatus | None = None) -> ReplicaStatus:
    return ReplicaStatus(
        COMMITTED, ORDERS.topic, ReplicaState.RUNNING, Epoch(3), LLSN(end), LLSN(end), GLSN(2), GLSN(end - 1),
        "/data", 1_000, sync=sync, traffic=Traffic(1, 10),
    )  # fmt: skip


def unit(newest: int) -> UnitStatus:
    return UnitStatus(SEQUENCED, FAST.topic, Epoch(2), LLSN(newest), LLSN(newest + 1), LLSN(1), "/data", 500)


def node(number: NodeID, *, replicas: tuple[ReplicaStatus, ...], units: tuple[UnitStatus, ...]) -> NodeHealth:
    status = NodeStatus(
        ClusterID(4), number, f"127.0.0.1:711{number}", ("/data",), replicas, 1_700_000_000_000_000, 100, units, True
    )  # fmt: skip
    return NodeHealth(number, True, status)


def seen() -> ClusterStatus:
    """Node 3 is away; the replica on node 2 lags; the chain has node 1 alone."""
    chain = Chain(SEQUENCED, (ONE,), (TWO, THREE))
    projection = Projection(
        FAST.topic, Epoch(2), GLSN(1), (Range(GLSN(1), (Stripe(SEQUENCED),), 16),), (chain,), SEQUENCER
    )
    view = ClusterView(
        ClusterID(4),
        7,
        tuple(StorageNode(number, f"127.0.0.1:711{number}", ("/data",)) for number in (ONE, TWO, THREE)),
        (ORDERS, FAST),
        (
            LogStream(COMMITTED, ORDERS.topic, (ONE, TWO, THREE), StreamState.SEALED, Epoch(3)),
            LogStream(SEQUENCED, FAST.topic, (ONE, TWO, THREE), StreamState.RUNNING, Epoch(2)),
        ),
        "127.0.0.1:7101",
        projections=(projection,),
        sequencers=(SEQUENCER,),
    )
    syncing = SyncStatus(SyncState.IN_PROGRESS, ONE, LLSN(51), LLSN(101))
    return ClusterStatus(
        view,
        (
            node(ONE, replicas=(replica(101),), units=(unit(20),)),
            node(TWO, replicas=(replica(51, sync=syncing),), units=(unit(12),)),
            NodeHealth(THREE, False, None, 12.5),
        ),
        (TopicMark(ORDERS.topic, GLSN(100), GLSN(2)), TopicMark(FAST.topic, GLSN(20), GLSN(0))),
        (Event(EventKind.WAITING_FOR_NODE, 0, COMMITTED, node=THREE, reason="waits for storage node 3"),),
        (Event(EventKind.NODE_UNREACHABLE, 1_700_000_001_000_000, node=THREE, reason="no answer"),),
        (THREE,),
        (NamedReader(ORDERS.topic, "spark:daily", GLSN(90), 1_700_000_004_000_000),),
    )


def document() -> StatusOut:
    return status_document(seen(), None, NOW_US)


def test_an_unreachable_node_has_no_figures() -> None:
    away = document().nodes[2]
    assert (away.alive, away.unreachable_s, away.suspected) == (False, 12.5, True)
    assert (away.stored_bytes, away.replica_count, away.leased, away.started_at) == (None, None, None, None)
    there = document().nodes[0]
    assert (there.alive, there.stored_bytes, there.replica_count, there.leased) == (True, 1_500, 2, True)


def test_a_copy_on_an_unreachable_node_is_missing_and_a_lagging_one_has_its_lag() -> None:
    stream = document().log_streams[0]
    assert (stream.state, stream.waiting_for, stream.newest_llsn) == (
        "sealed",
        "waits for storage node 3",
        100,
    )
    assert stream.waiting_kind == "waiting_for_node"
    assert (stream.replica_count, stream.replicas_alive) == (3, 2)
    first, second, third = stream.replicas
    assert (first.role, first.state, first.lag_entries, first.high_watermark) == (
        "primary",
        "running",
        0,
        100,
    )
    assert (second.role, second.lag_entries) == ("backup", 50)
    assert second.sync is not None and (second.sync.source_node, second.sync.percent) == (1, 50)
    assert (third.state, third.alive, third.newest_llsn, third.lag_entries) == ("missing", False, None, None)


def test_a_chain_with_one_copy_left_is_an_alarm() -> None:
    """R-SEQ-10: a log with one replica says that it has no redundancy."""
    stream = document().log_streams[1]
    assert stream.no_redundancy and stream.ordering == "sequenced"
    assert [(one.node, one.role, one.state) for one in stream.replicas] == [
        (1, "only", "serves"),
        (2, "out_of_sync", "out_of_sync"),
        (3, "out_of_sync", "missing"),
    ]
    assert not document().log_streams[0].no_redundancy


def test_readers_lag_behind_the_newest_entry_and_events_have_a_time() -> None:
    [reader] = document().readers
    assert (reader.topic, reader.kind, reader.lag_entries, reader.age_s) == ("orders", "spark", 10, 6.0)
    [event] = document().events
    assert (event.time, event.log_stream) == ("2023-11-14T22:13:21.000000Z", None)
    assert (event.kind, event.node) == ("node_unreachable", THREE)
    assert event.message == "storage node 3 does not answer: no answer"


def test_a_topic_whose_end_is_unknown_shows_that() -> None:
    without = status_document(replace(seen(), tails=()), None, NOW_US)
    assert [(topic.oldest, topic.newest) for topic in without.topics] == [(None, None), (None, None)]
    assert without.readers[0].lag_entries is None
    assert [(topic.oldest, topic.newest) for topic in document().topics] == [(3, 100), (1, 20)]


def test_appends_are_counted_where_every_entry_is_written_once() -> None:
    look = traffic_sample(seen(), 1.0)
    assert look.writers == {COMMITTED: ONE, SEQUENCED: ONE}
    assert (THREE, COMMITTED) not in look.traffic and look.traffic[ONE, COMMITTED].append_entries == 10


def test_a_time_is_rendered_to_the_microsecond_even_if_they_are_zero() -> None:
    assert rfc3339(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"
    assert rfc3339(1_700_000_000_000_000) == "2023-11-14T22:13:20.000000Z"


def test_a_slow_disk_is_reported_for_its_node_only() -> None:
    """O2: by the mean time of its writes, against those of the other nodes."""
    found = seen()
    status = found.nodes[1].status
    assert status is not None
    slow = replace(status, replicas=(replace(status.replicas[0], traffic=Traffic(write_s=0.08)),))
    quick = found.nodes[0].status
    assert quick is not None
    quick = replace(quick, replicas=(replace(quick.replicas[0], traffic=Traffic(write_s=0.002)),))
    nodes = (replace(found.nodes[0], status=quick), replace(found.nodes[1], status=slow), found.nodes[2])
    rows = status_document(replace(found, nodes=nodes), None, NOW_US).nodes
    assert [(one.slow, one.write_latency_ms) for one in rows] == [
        (False, 2.0),
        (True, 80.0),
        (False, None),
    ]
    # Where all of them are as slow, no node is the slow one.
    both = (replace(found.nodes[0], status=slow), replace(found.nodes[1], status=slow), found.nodes[2])
    assert not any(one.slow for one in status_document(replace(found, nodes=both), None, NOW_US).nodes)


def test_stopped_topics_evidence_foreign_data_and_repository_errors_are_shown() -> None:
    found = seen()
    status = found.nodes[0].status
    assert status is not None
    replicas = (replace(status.replicas[0], evidence="it knows 7"),)
    units = (replace(status.units[0], cluster_uuid=ClusterUUID("other")),)
    nodes = (
        replace(found.nodes[0], status=replace(status, replicas=replicas, units=units)),
        found.nodes[1],
        replace(found.nodes[2], why="another cluster"),
    )
    view = replace(
        found.view, uuid=ClusterUUID("ours"), topics=(replace(ORDERS, stopped="node 1 knows 7"), FAST)
    )
    changed = replace(found, view=view, nodes=nodes, complaints=("no mirror any more",))
    status_out = status_document(changed, None, NOW_US)
    assert status_out.topics[0].stopped_reason == "node 1 knows 7"
    assert (
        "varlog topic adopt-order orders" in status_out.topics[0].remedy and not status_out.topics[1].remedy
    )
    assert status_out.log_streams[0].replicas[0].evidence == "it knows 7"
    assert status_out.nodes[0].foreign_log_streams == [SEQUENCED]
    assert not status_out.nodes[1].foreign_log_streams
    assert status_out.nodes[2].reason == "another cluster"
    assert status_out.repository_errors == ["no mirror any more"]
    samples = dict(_samples(changed))
    assert samples["varlog_topic_stopped", "orders"] == 1 and samples["varlog_topic_stopped", "fast"] == 0
    assert samples["varlog_replica_evidence", "orders"] == 1
    assert samples["varlog_node_foreign_replicas", "1"] == 1
    assert samples["varlog_repository_errors", ""] == 1


def _samples(changed: ClusterStatus) -> Iterator[tuple[tuple[str, str], float]]:
    """By name and first label, the largest."""
    found: dict[tuple[str, str], float] = {}
    for metric in ClusterCollector(changed, NOW_US).collect():
        for sample in metric.samples:
            key = (sample.name, next(iter(sample.labels.values()), ""))
            found[key] = max(found.get(key, 0.0), sample.value)
    yield from found.items()
