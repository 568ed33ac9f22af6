"""StatusPublisher: turns the manager's status into the JSON document, with rates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from varlog.client.cluster_status import (
    chain_of,
    foreign_on,
    held_by,
    is_sequenced,
    node_statuses,
    replica_statuses,
    role,
    slow_nodes,
    synced_percent,
    unit_statuses,
)
from varlog.model.cluster import LogStream, Topic
from varlog.model.events import Event, sentence
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.status import (
    ClusterStatus,
    NodeHealth,
    NodeStatus,
    ReplicaStatus,
    SyncState,
    SyncStatus,
    UnitStatus,
)
from varlog.proxy.gateway import Gateway
from varlog.proxy.rate_rules import ClusterRates, Rate, RateMeter, TrafficSample
from varlog.proxy.wire import (
    EventOut,
    LatencyMs,
    LogStreamOut,
    NodeOut,
    Rates,
    ReaderOut,
    ReplicaOut,
    StatusOut,
    SyncOut,
    TopicOut,
)
from varlog.runtime.environment import Clock, system_environment


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """The document, and its JSON, encoded once for all requests."""

    status: StatusOut
    json: bytes


class StatusPublisher:
    """The status of the cluster behind a gateway, and the samples that rates are computed from. One per proxy."""

    def __init__(self, gateway: Gateway, clock: Clock | None = None) -> None:
        self._gateway = gateway
        self._clock = clock or system_environment().clock
        self._meter = RateMeter()
        self._newest: tuple[ClusterStatus, StatusSnapshot] | None = None

    async def snapshot(self) -> StatusSnapshot:
        """The status now, or a moment ago. Raises what keeps the manager from answering."""
        seen = await self._gateway.status()
        if self._newest is None or self._newest[0] is not seen:
            self._newest = (seen, self._make_snapshot(seen))
        return self._newest[1]

    def _make_snapshot(self, seen: ClusterStatus) -> StatusSnapshot:
        self._meter.add(traffic_sample(seen, asyncio.get_running_loop().time()))
        status = status_document(seen, self._meter.rates(), self._clock.wall_us())
        return StatusSnapshot(status, status.model_dump_json().encode())


def traffic_sample(seen: ClusterStatus, at_s: float) -> TrafficSample:
    """The counters of a status."""
    said = node_statuses(seen)
    return TrafficSample(
        at_s,
        {mark.topic: mark.high_watermark for mark in seen.tails},
        {
            (NodeID(node), held.log_stream): held.traffic
            for node, status in said.items()
            for held in held_by(status)
        },
        {found.log_stream: writer_of(seen, found) for found in seen.view.streams},
    )


def writer_of(seen: ClusterStatus, found: LogStream) -> NodeID:
    """The node whose appends count as the stream's: the primary acknowledges, and the head of a chain gets every entry."""
    chain = chain_of(seen.view, found)
    return chain.head if chain is not None else found.primary


def status_document(seen: ClusterStatus, rates: ClusterRates | None, now_us: int) -> StatusOut:
    view = seen.view
    waits = {wait.log_stream: wait for wait in seen.waits}
    return StatusOut(
        cluster=view.cluster,
        time=rfc3339(now_us),
        manager=view.manager_address,
        repositories=list(view.repositories),
        sequencers=[found.address for found in view.sequencers],
        nodes=_nodes(seen, rates),
        topics=_topics(seen, rates),
        log_streams=[log_stream_row(seen, found, waits) for found in view.streams],
        readers=reader_rows(seen, now_us),
        events=[
            EventOut(
                time=rfc3339(event.time_us),
                kind=event.kind,
                log_stream=event.log_stream or None,
                topic=event.topic,
                node=event.node or None,
                epoch=event.epoch or None,
                failure=event.failure,
                message=sentence(event),
            )
            for event in seen.events
        ],
        rates=_rates(rates),
        repository_errors=list(seen.complaints),
    )


def rfc3339(time_us: int) -> str:
    """A time of day, UTC, to the microsecond."""
    return datetime.fromtimestamp(time_us / 1e6, tz=UTC).isoformat(timespec="microseconds")[:-6] + "Z"


# --- nodes and topics ---------------------------------------------------------------------------------------------------


def _nodes(seen: ClusterStatus, rates: ClusterRates | None) -> list[NodeOut]:
    health = {found.node: found for found in seen.nodes}
    slow = slow_nodes(seen)
    rows = []
    for known in seen.view.nodes:
        found = health.get(known.node, NodeHealth(known.node, False, None))
        said = found.status if found.alive else None
        held = held_by(said) if said is not None else []
        rate = _rate_of(said, rates)
        rows.append(
            NodeOut(
                node=known.node,
                address=known.address,
                alive=found.alive,
                unreachable_s=round(found.unreachable_s, 3),
                suspected=known.node in seen.suspects,
                leased=said.leased if said is not None and said.units else None,
                disk_full=any(one.full for one in held),
                volumes=list(known.volumes),
                stored_bytes=sum(one.bytes for one in held) if said is not None else None,
                replica_count=len(held) if said is not None else None,
                replicas_max=said.streams_max if said is not None else None,
                started_at=rfc3339(said.started_us) if said is not None else None,
                append_entries_per_s=rate.append_entries_per_s if rate is not None else None,
                append_bytes_per_s=rate.append_bytes_per_s if rate is not None else None,
                read_entries_per_s=rate.read_entries_per_s if rate is not None else None,
                read_bytes_per_s=rate.read_bytes_per_s if rate is not None else None,
                reason=found.why,
                write_latency_ms=_write_latency_ms(held),
                slow=known.node in slow,
                foreign_log_streams=foreign_on(seen, said) if said is not None else [],
            )
        )
    return rows


def _write_latency_ms(held: Sequence[ReplicaStatus | UnitStatus]) -> float | None:
    longest_s = max((one.traffic.write_s for one in held), default=0.0)
    return round(1000 * longest_s, 3) if longest_s > 0 else None


def _rate_of(said: NodeStatus | None, rates: ClusterRates | None) -> Rate | None:
    if said is None or rates is None:
        return None
    return rates.nodes.get(said.node, Rate())


def _remedy(topic: Topic) -> str:
    return (
        f"Start all storage nodes; if it stays stopped, run: varlog topic adopt-order {topic.name}"
        if topic.stopped
        else ""
    )


def _topics(seen: ClusterStatus, rates: ClusterRates | None) -> list[TopicOut]:
    marks = {mark.topic: mark for mark in seen.tails}
    rows = []
    for topic in seen.view.topics:
        mark = marks.get(topic.topic)
        rows.append(
            TopicOut(
                name=topic.name,
                topic_id=topic.topic,
                ordering=topic.ordering,
                log_stream_ids=[found.log_stream for found in seen.view.streams_of(topic.topic)],
                first=topic.first,
                oldest=max(topic.first, mark.trimmed + 1) if mark is not None else None,
                newest=mark.high_watermark if mark is not None else None,
                append_entries_per_s=rates.topics.get(topic.topic, 0.0) if rates is not None else None,
                stopped_reason=topic.stopped,
                remedy=_remedy(topic),
            )
        )
    return rows


# --- log streams --------------------------------------------------------------------------------------------------------


def log_stream_row(seen: ClusterStatus, found: LogStream, waits: Mapping[LogStreamID, Event]) -> LogStreamOut:
    sequenced = is_sequenced(seen.view, found)
    replicas = _units(seen, found) if sequenced else _replicas(seen, found)
    topic, chain = seen.view.topic(found.topic), chain_of(seen.view, found)
    wait = waits.get(found.log_stream)
    return LogStreamOut(
        log_stream=found.log_stream,
        topic=topic.name if topic is not None else str(found.topic),
        ordering=topic.ordering if topic is not None else "",
        state=found.state,
        sealed_by_admin=found.sealed_by_admin,
        epoch=found.epoch,
        newest_llsn=_most(one.newest_llsn for one in replicas),
        high_watermark=_most(one.high_watermark for one in replicas),
        low_watermark=_most(one.low_watermark for one in replicas),
        waiting_for=sentence(wait) if wait is not None else "",
        waiting_kind=wait.kind if wait is not None else "",
        no_redundancy=chain is not None and chain.has_one_copy,
        replica_count=len(replicas),
        replicas_alive=sum(one.alive and one.state != "missing" for one in replicas),
        replicas=replicas,
    )


def _replicas(seen: ClusterStatus, found: LogStream) -> list[ReplicaOut]:
    statuses = replica_statuses(seen, found)
    alive = node_statuses(seen)
    furthest = _most(said.committed_end for said in statuses.values() if said is not None)
    return [
        _copy(
            node,
            "primary" if node == found.primary else "backup",
            said.state if said is not None else "missing",
            said,
            alive=node in alive,
            end=said.committed_end if said is not None else None,
            furthest=furthest,
        )
        for node, said in statuses.items()
    ]


def _units(seen: ClusterStatus, found: LogStream) -> list[ReplicaOut]:
    statuses = unit_statuses(seen, found)
    alive, chain = node_statuses(seen), chain_of(seen.view, found)
    ends = {node: said.newest + 1 for node, said in statuses.items() if said is not None}
    return [
        _copy(
            node,
            role(chain, node),
            _unit_state(said, serves=chain is not None and node in chain.nodes),
            said,
            alive=node in alive,
            end=ends.get(node),
            furthest=_most(ends.values()),
        )
        for node, said in statuses.items()
    ]


def _unit_state(said: UnitStatus | None, *, serves: bool) -> str:
    if said is None:
        return "missing"
    return "serves" if serves else "out_of_sync"


def _copy(
    node: int,
    role: str,
    state: str,
    said: ReplicaStatus | UnitStatus | None,
    *,
    alive: bool,
    end: int | None,
    furthest: int | None,
) -> ReplicaOut:
    committed = said if isinstance(said, ReplicaStatus) else None
    return ReplicaOut(
        node=node,
        role=role,
        state=state,
        alive=alive,
        newest_llsn=end - 1 if end is not None else None,
        lag_entries=furthest - end if end is not None and furthest is not None else None,
        low_watermark=committed.low_watermark if committed is not None else None,
        high_watermark=committed.high_watermark if committed is not None else None,
        stored_bytes=said.bytes if said is not None else None,
        error=said.trouble if said is not None else "",
        corrupt_entries=sum(last - begin for begin, last in said.damage) if said is not None else 0,
        disk_full=said.full if said is not None else False,
        sync=_sync(said.sync) if said is not None and said.sync is not None else None,
        evidence=committed.evidence if committed is not None else "",
    )


def _sync(sync: SyncStatus) -> SyncOut:
    percent = 100 if sync.state is SyncState.COMPLETE else synced_percent(sync)
    return SyncOut(state=sync.state, source_node=sync.source, percent=percent, reason=sync.why)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


# --- readers, rates -----------------------------------------------------------------------------------------------------


def reader_rows(seen: ClusterStatus, now_us: int) -> list[ReaderOut]:
    newest = {mark.topic: mark.high_watermark for mark in seen.tails}
    rows = []
    for found in seen.readers:
        topic, last = seen.view.topic(found.topic), newest.get(found.topic)
        rows.append(
            ReaderOut(
                topic=topic.name if topic is not None else str(found.topic),
                name=found.name,
                kind=found.name.partition(":")[0] if ":" in found.name else "reader",
                position=found.position,
                lag_entries=None if last is None else max(0, last - found.position),
                updated_at=rfc3339(found.updated_us),
                age_s=round(max(0.0, (now_us - found.updated_us) / 1e6), 3),
            )
        )
    return rows


def _rates(rates: ClusterRates | None) -> Rates:
    if rates is None:
        nothing = LatencyMs(p50=None, p99=None)
        return Rates(
            append_entries_per_s=None,
            append_bytes_per_s=None,
            read_entries_per_s=None,
            read_bytes_per_s=None,
            append_latency_ms=nothing,
        )
    whole = rates.whole
    return Rates(
        append_entries_per_s=sum(rates.topics.values()),
        append_bytes_per_s=whole.append_bytes_per_s,
        read_entries_per_s=whole.read_entries_per_s,
        read_bytes_per_s=whole.read_bytes_per_s,
        append_latency_ms=LatencyMs(p50=_ms(whole.append_p50_s), p99=_ms(whole.append_p99_s)),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
