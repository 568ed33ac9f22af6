"""Metrics: /metrics for Prometheus, of the proxy and of the cluster behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from varlog.client.cluster_status import held_by, node_statuses
from varlog.model.errors import VarlogError
from varlog.model.status import LATENCY_BOUNDS_S, ClusterStatus, NodeStatus, Traffic
from varlog.proxy.dependencies import GatewayDependency, MetersDependency
from varlog.proxy.rate_rules import merged_buckets
from varlog.proxy.status_publisher import status_document
from varlog.proxy.wire import LogStreamOut, StatusOut
from varlog.runtime.environment import system_environment
from varlog.runtime.logging import get_logger, logfmt

# Prometheus waits for ten seconds; the proxy's own metrics are useful without those of the cluster.
STATUS_TIMEOUT_S: Final = 5.0

router = APIRouter(include_in_schema=False)
logger = get_logger("proxy")
_clock = system_environment().clock


@router.get("/metrics")
async def metrics(gateway: GatewayDependency, meters: MetersDependency) -> Response:
    """In the text format. A cluster that cannot be reached is `varlog_cluster_up 0`, not an error."""
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            seen = await gateway.status()
    except (TimeoutError, VarlogError) as error:
        logger.warning(
            logfmt("metrics of the cluster are not available", why=str(error) or "no answer in time")
        )
        seen = None
    cluster = CollectorRegistry()
    cluster.register(ClusterCollector(seen, _clock.wall_us()))
    return Response(
        generate_latest(meters.registry) + generate_latest(cluster), media_type=CONTENT_TYPE_LATEST
    )


class ClusterCollector(Collector):
    """One status of the cluster as Prometheus metrics."""

    def __init__(self, seen: ClusterStatus | None, now_us: int) -> None:
        self._seen = seen
        self._now_us = now_us

    def collect(self) -> Iterator[Metric]:
        yield _gauge(
            "varlog_cluster_up", "Whether the cluster can be reached.", (), [((), self._seen is not None)]
        )
        if self._seen is not None:
            status = status_document(self._seen, None, self._now_us)
            yield from _nodes(status)
            yield from _traffic(node_statuses(self._seen))
            yield from _topics(status)
            yield from _log_streams(status.log_streams)
            yield from _replicas(status.log_streams)
            yield _corrupt_frames(self._seen)
            yield _gauge(
                "varlog_repository_errors",
                "Corrupt copies of the metadata repository's files since its start, and mirrors that failed.",
                (),
                [((), len(status.repository_errors))],
            )


def _nodes(status: StatusOut) -> Iterator[Metric]:
    nodes = status.nodes
    labels = ("node", "address")
    yield _gauge(
        "varlog_node_up",
        "Whether a storage node answers.",
        labels,
        [((str(one.node), one.address), one.alive) for one in nodes],
    )
    yield _gauge(
        "varlog_node_unreachable_seconds",
        "How long it has not answered, 0 while it does.",
        labels,
        [((str(one.node), one.address), one.unreachable_s) for one in nodes],
    )
    yield _gauge(
        "varlog_node_stored_bytes",
        "Bytes of its replicas on disk.",
        ("node",),
        [((str(one.node),), one.stored_bytes) for one in nodes],
    )
    yield _gauge(
        "varlog_node_replicas",
        "The number of its replicas.",
        ("node",),
        [((str(one.node),), one.replica_count) for one in nodes],
    )
    yield _gauge(
        "varlog_node_write_duration_seconds",
        "The mean time of a write with its sync in the last seconds.",
        ("node",),
        [
            ((str(one.node),), None if one.write_latency_ms is None else one.write_latency_ms / 1000)
            for one in nodes
        ],
    )
    yield _gauge(
        "varlog_node_slow",
        "1 where the disk takes several times as long for a write as the disks of the other nodes.",
        ("node",),
        [((str(one.node),), one.slow) for one in nodes],
    )
    yield _gauge(
        "varlog_node_foreign_replicas",
        "Replicas and log units on its disks that belong to another cluster.",
        ("node",),
        [((str(one.node),), len(one.foreign_log_streams)) for one in nodes],
    )


def _traffic(nodes: dict[int, NodeStatus]) -> Iterator[Metric]:
    """Counters start at zero when a node restarts, as Prometheus expects of them."""
    done = {str(node): [held.traffic for held in held_by(status)] for node, status in nodes.items()}
    for name, what in (
        ("appends", "Batches acknowledged."),
        ("append_entries", "Entries of these."),
        ("append_bytes", "Bytes of these."),
        ("reads", "Read requests answered with entries."),
        ("read_entries", "Entries of these."),
        ("read_bytes", "Bytes of these."),
    ):
        family = CounterMetricFamily(f"varlog_node_{name}", what, labels=["node"])
        for node, parts in done.items():
            family.add_metric([node], sum(getattr(part, name) for part in parts))
        yield family
    yield _latencies(done)


def _latencies(done: dict[str, list[Traffic]]) -> Metric:
    family = HistogramMetricFamily(
        "varlog_node_append_duration_seconds",
        "Time from a batch's arrival to its acknowledgement.",
        labels=["node"],
    )
    for node, parts in done.items():
        counts = merged_buckets([part.append_buckets for part in parts]) or [0] * (len(LATENCY_BOUNDS_S) + 1)
        ends = [*(f"{bound:g}" for bound in LATENCY_BOUNDS_S), "+Inf"]
        buckets = list(zip(ends, accumulate(counts), strict=True))
        family.add_metric([node], buckets, sum(part.append_s for part in parts))
    return family


def _corrupt_frames(seen: ClusterStatus) -> Metric:
    family = CounterMetricFamily(
        "varlog_corrupt_frames",
        "Frames received with a wrong checksum since the process started.",
        labels=["process"],
    )
    for node, status in node_statuses(seen).items():
        family.add_metric([f"node {node}"], status.corrupt_frames)
    family.add_metric(["repository"], seen.repository_corrupt_frames)
    family.add_metric(["manager"], seen.manager_corrupt_frames)
    return family


def _topics(status: StatusOut) -> Iterator[Metric]:
    topics = status.topics
    yield _gauge(
        "varlog_topic_newest_position",
        "The newest position of a topic.",
        ("topic",),
        [((one.name,), one.newest) for one in topics],
    )
    yield _gauge(
        "varlog_topic_stopped",
        "1 where nothing is ordered: a storage node knows more of the topic's order than the metadata repository.",
        ("topic",),
        [((one.name,), bool(one.stopped_reason)) for one in topics],
    )
    yield _gauge(
        "varlog_topic_oldest_position",
        "The oldest position that can be read.",
        ("topic",),
        [((one.name,), one.oldest) for one in topics],
    )
    yield _gauge(
        "varlog_reader_position",
        "The newest position that a named reader has read.",
        ("topic", "reader"),
        [((one.topic, one.name), one.position) for one in status.readers],
    )
    yield _gauge(
        "varlog_reader_lag_entries",
        "Entries that a named reader has not read.",
        ("topic", "reader"),
        [((one.topic, one.name), one.lag_entries) for one in status.readers],
    )


def _log_streams(streams: Sequence[LogStreamOut]) -> Iterator[Metric]:
    labels = ("topic", "log_stream")

    def each(name: str) -> list[tuple[tuple[str, ...], float | None]]:
        return [((one.topic, str(one.log_stream)), getattr(one, name)) for one in streams]

    yield _gauge(
        "varlog_log_stream_running",
        "Whether a log stream takes appends.",
        labels,
        [((one.topic, str(one.log_stream)), one.state == "running") for one in streams],
    )
    yield _gauge("varlog_log_stream_epoch", "Its epoch.", labels, each("epoch"))
    yield _gauge("varlog_log_stream_newest_llsn", "Its newest LLSN.", labels, each("newest_llsn"))
    yield _gauge(
        "varlog_log_stream_high_watermark",
        "The newest position that it knows of its topic.",
        labels,
        each("high_watermark"),
    )
    yield _gauge(
        "varlog_log_stream_low_watermark",
        "The newest trimmed position of its topic.",
        labels,
        each("low_watermark"),
    )
    yield _gauge(
        "varlog_log_stream_no_redundancy",
        "1 where one replica is left of several.",
        labels,
        each("no_redundancy"),
    )
    yield _gauge("varlog_log_stream_replicas", "Its replicas.", labels, each("replica_count"))
    yield _gauge(
        "varlog_log_stream_replicas_alive", "Its replicas whose node answers.", labels, each("replicas_alive")
    )


def _replicas(streams: Sequence[LogStreamOut]) -> Iterator[Metric]:
    labels = ("topic", "log_stream", "node")
    state = GaugeMetricFamily(
        "varlog_replica_state", "1 for the state that a replica is in.", labels=[*labels, "role", "state"]
    )
    lag = GaugeMetricFamily(
        "varlog_replica_lag_entries", "How far it is behind the furthest replica.", labels=labels
    )
    corrupt = GaugeMetricFamily(
        "varlog_replica_corrupt_entries",
        "Entries whose bytes on disk do not match their checksums.",
        labels=labels,
    )
    evidence = GaugeMetricFamily(
        "varlog_replica_evidence", "1 where a replica contradicts the metadata repository.", labels=labels
    )
    for stream in streams:
        for one in stream.replicas:
            place = [stream.topic, str(stream.log_stream), str(one.node)]
            state.add_metric([*place, one.role, one.state], 1)
            if one.lag_entries is not None:
                lag.add_metric(place, one.lag_entries)
                corrupt.add_metric(place, one.corrupt_entries)
                evidence.add_metric(place, bool(one.evidence))
    yield from (state, lag, corrupt, evidence)


def _gauge(
    name: str, what: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float | None]]
) -> Metric:
    """Unknown values are left out."""
    family = GaugeMetricFamily(name, what, labels=labels)
    for of, value in values:
        if value is not None:
            family.add_metric(of, value)
    return family
