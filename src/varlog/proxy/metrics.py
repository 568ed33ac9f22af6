"""Metrics: /metrics for Prometheus: what the proxy counts of itself, and how the cluster behind it is."""

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
from varlog.model.cluster import NodeStatus
from varlog.model.errors import VarlogError
from varlog.model.traffic import LATENCY_BOUNDS_S, Traffic
from varlog.proxy.dependencies import GatewayDependency, MetersDependency
from varlog.proxy.rate_rules import merged
from varlog.proxy.status_publisher import status_document
from varlog.proxy.wire import LogStreamOut, StatusOut
from varlog.rpc.messages import GetClusterStatusReply
from varlog.runtime.environment import system_environment
from varlog.runtime.logging import get_logger, logfmt

# Prometheus waits for ten seconds, and what the proxy counts of itself is worth having without the rest.
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
        logger.warning(logfmt("metrics of the cluster cannot be had", why=str(error) or "no answer in time"))
        seen = None
    cluster = CollectorRegistry()
    cluster.register(ClusterCollector(seen, _clock.wall_us()))
    return Response(
        generate_latest(meters.registry) + generate_latest(cluster), media_type=CONTENT_TYPE_LATEST
    )


class ClusterCollector(Collector):
    """One look at the cluster as Prometheus has it."""

    def __init__(self, seen: GetClusterStatusReply | None, now_us: int) -> None:
        self._seen = seen
        self._now_us = now_us

    def collect(self) -> Iterator[Metric]:
        yield _gauge(
            "varlog_cluster_up", "Whether the cluster can be asked.", (), [((), self._seen is not None)]
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
                "varlog_repository_complaints",
                "Copies of the metadata repository's files that were found bad since its start, and mirrors that failed.",
                (),
                [((), len(status.complaints))],
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
        "varlog_node_away_seconds",
        "For how long it has not answered.",
        labels,
        [((str(one.node), one.address), one.away_s) for one in nodes],
    )
    yield _gauge(
        "varlog_node_bytes",
        "What its replicas have on disk.",
        ("node",),
        [((str(one.node),), one.bytes) for one in nodes],
    )
    yield _gauge(
        "varlog_node_replicas",
        "How many replicas it has.",
        ("node",),
        [((str(one.node),), one.replicas) for one in nodes],
    )
    yield _gauge(
        "varlog_node_write_seconds",
        "The mean time of a write with its sync in the last seconds.",
        ("node",),
        [((str(one.node),), None if one.write_ms is None else one.write_ms / 1000) for one in nodes],
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
        [((str(one.node),), len(one.foreign)) for one in nodes],
    )


def _traffic(nodes: dict[int, NodeStatus]) -> Iterator[Metric]:
    """Counters start at zero when a node restarts, as Prometheus expects of them."""
    done = {str(node): [held.traffic for held in held_by(status)] for node, status in nodes.items()}
    for name, what in (
        ("appends", "Batches that it acknowledged."),
        ("append_entries", "Entries of these."),
        ("append_bytes", "Bytes of these."),
        ("reads", "Answers with entries."),
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
        "varlog_node_append_seconds", "Time from a batch's arrival to its acknowledgement.", labels=["node"]
    )
    for node, parts in done.items():
        counts = merged([part.append_buckets for part in parts]) or [0] * (len(LATENCY_BOUNDS_S) + 1)
        ends = [*(f"{bound:g}" for bound in LATENCY_BOUNDS_S), "+Inf"]
        buckets = list(zip(ends, accumulate(counts), strict=True))
        family.add_metric([node], buckets, sum(part.append_s for part in parts))
    return family


def _corrupt_frames(seen: GetClusterStatusReply) -> Metric:
    family = CounterMetricFamily(
        "varlog_corrupt_frames",
        "Frames that came to a process with a wrong checksum since it started.",
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
        "varlog_topic_newest",
        "The newest position of a topic.",
        ("topic",),
        [((one.name,), one.newest) for one in topics],
    )
    yield _gauge(
        "varlog_topic_stopped",
        "1 where a storage node knows the order of a topic better than the metadata repository: nothing is ordered in it.",
        ("topic",),
        [((one.name,), bool(one.stopped)) for one in topics],
    )
    yield _gauge(
        "varlog_topic_oldest",
        "The oldest position that can be read.",
        ("topic",),
        [((one.name,), one.oldest) for one in topics],
    )
    yield _gauge(
        "varlog_reader_position",
        "How far a named reader is.",
        ("topic", "reader"),
        [((one.topic, one.name), one.position) for one in status.readers],
    )
    yield _gauge(
        "varlog_reader_lag_entries",
        "What a named reader has not read.",
        ("topic", "reader"),
        [((one.topic, one.name), one.lag) for one in status.readers],
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
    yield _gauge("varlog_log_stream_entries", "Its newest LLSN.", labels, each("entries"))
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
    yield _gauge("varlog_log_stream_no_redundancy", "One copy is left.", labels, each("no_redundancy"))
    yield _gauge("varlog_log_stream_copies", "Its copies.", labels, each("copies"))
    yield _gauge("varlog_log_stream_copies_alive", "Those whose node answers.", labels, each("copies_alive"))


def _replicas(streams: Sequence[LogStreamOut]) -> Iterator[Metric]:
    labels = ("topic", "log_stream", "node")
    state = GaugeMetricFamily(
        "varlog_replica_state", "1 for the state that a replica is in.", labels=[*labels, "role", "state"]
    )
    lag = GaugeMetricFamily(
        "varlog_replica_lag_entries", "How far it is behind the furthest copy.", labels=labels
    )
    damaged = GaugeMetricFamily("varlog_replica_damaged_entries", "Entries damaged on disk.", labels=labels)
    evidence = GaugeMetricFamily(
        "varlog_replica_evidence", "1 where a replica contradicts the metadata repository.", labels=labels
    )
    for stream in streams:
        for one in stream.replicas:
            place = [stream.topic, str(stream.log_stream), str(one.node)]
            state.add_metric([*place, one.role, one.state], 1)
            if one.lag is not None:
                lag.add_metric(place, one.lag)
                damaged.add_metric(place, one.damaged)
                evidence.add_metric(place, bool(one.evidence))
    yield from (state, lag, damaged, evidence)


def _gauge(
    name: str, what: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float | None]]
) -> Metric:
    """What is not known is left out."""
    family = GaugeMetricFamily(name, what, labels=labels)
    for of, value in values:
        if value is not None:
            family.add_metric(of, value)
    return family
