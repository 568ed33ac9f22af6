"""`varlog status`: the state of the cluster as tables, once or with --watch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from varlog.cli.output import FAILED, fail, make_console, make_table, print_json, run_async, short_bytes
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, JsonOption, Target, target
from varlog.client.cluster_status import (
    chain_of,
    evidence_in,
    foreign_on,
    is_sequenced,
    node_statuses,
    one_copy_left,
    replica_statuses,
    role,
    slow_nodes,
    synced_percent,
    unit_statuses,
)
from varlog.model.cluster import ClusterView, LogStream, NamedReader, Topic
from varlog.model.commit import TopicMark
from varlog.model.errors import UnknownTopic
from varlog.model.events import sentence
from varlog.model.lsn import FIRST_GLSN
from varlog.model.projection import Projection
from varlog.model.status import ReplicaStatus, SyncState, SyncStatus, UnitStatus
from varlog.runtime.logging import escaped

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from varlog.model.status import ClusterStatus, NodeHealth

WATCH_S = 1.0
INTERRUPTED = 130


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second, until Ctrl-C.")] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Show nodes, topics, log streams, replica states, reader lag and recent manager activity.

    Exit code 1: a topic is STOPPED, because a storage node knows more of its order than the metadata repository."""
    where = target(cluster, data)
    if watch:
        _run_until_interrupted(where, json_)
        return
    seen = run_async(_status(where))
    if json_:
        print_json(status_json(seen))
    else:
        print_parts(parts(seen))
    if stopped_lines(seen):
        raise typer.Exit(FAILED)


async def _status(where: Target) -> ClusterStatus:
    async with where.admin() as admin:
        return await admin.status()


def _run_until_interrupted(where: Target, as_json: bool) -> None:
    try:
        run_async(_watch(where, as_json))
    except typer.Exit as ended:
        if ended.exit_code != INTERRUPTED:  # Ctrl-C is how a watch ends
            raise


async def _watch(where: Target, as_json: bool) -> None:
    console = make_console()
    if as_json or not console.is_terminal:
        async for seen in _poll(where):
            if as_json:
                print_json({"error": seen} if isinstance(seen, str) else status_json(seen), flush=True)
            else:
                print_parts([*_shown(seen), ""])
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=console, auto_refresh=False, screen=True) as live:
        async for seen in _poll(where):
            live.update(Group(*_shown(seen)), refresh=True)


async def _poll(where: Target) -> AsyncIterator[ClusterStatus | str]:
    """One status per second, or an error message. The first one must succeed."""
    from varlog.model.errors import VarlogError

    async with where.admin() as admin:
        yield await admin.status()
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                yield await admin.status()
            except VarlogError as error:
                yield str(error)


def _shown(seen: ClusterStatus | str) -> list[RenderableType]:
    from rich.text import Text

    shown: list[RenderableType] = [f"no answer: {seen}"] if isinstance(seen, str) else parts(seen)
    return [Text(escaped(part)) if isinstance(part, str) else part for part in shown]


# Tables of `varlog status`: nodes, topics, log streams, chains, readers, events.

EVENTS_SHOWN = 10


def parts(seen: ClusterStatus) -> list[RenderableType]:
    """Everything, from top to bottom; empty parts are left out."""
    view = seen.view
    found: list[RenderableType] = [f"cluster {view.cluster}, manager at {view.manager_address or '(none)'}"]
    if len(view.repositories) > 1:
        found.append(f"metadata repositories at {', '.join(view.repositories)}")
    found += stopped_lines(seen)
    found += evidence_lines(seen)
    found += [f"REPOSITORY: {complaint}" for complaint in seen.complaints]
    found += thin_lines(seen)
    found += ["", nodes_table(seen), "", topics_table(seen)]
    if any(topic.sequenced for topic in view.topics):
        found += ["", projections_table(seen)]
    found += [part for table in stream_tables(seen, view.streams) for part in ("", table)]
    if seen.readers:
        found += ["", readers_table(reader_lags(seen))]
    if seen.waits:
        found += ["", waits_table(seen)]
    if seen.events:
        found += ["", events_table(seen)]
    return found


def stopped_lines(seen: ClusterStatus) -> list[str]:
    """Topics whose order a storage node knows better than the repository, or whose nodes are missing: an operator must act."""
    return [
        f"STOPPED: topic {topic.name}: {topic.stopped}; run `varlog topic adopt-order {topic.name}`"
        for topic in seen.view.topics
        if topic.stopped
    ]


def evidence_lines(seen: ClusterStatus) -> list[str]:
    """Replicas that contradict the repository: nothing rebuilds, truncates or removes them."""
    return [
        f"EVIDENCE: log stream {log_stream} on node {node} contradicts the metadata repository and is left as it is: {why}"
        for log_stream, node, why in evidence_in(seen)
    ]


def print_parts(found: Sequence[RenderableType]) -> None:
    console = make_console()
    for part in found:
        console.print(escaped(part) if isinstance(part, str) else part, markup=False)


def nodes_table(seen: ClusterStatus) -> Table:
    health = {found.node: found for found in seen.nodes}
    slow = slow_nodes(seen)
    rows = []
    for known in seen.view.nodes:
        found = health.get(known.node)
        said = found.status if found is not None else None
        held: list[ReplicaStatus | UnitStatus] = [*said.replicas, *said.units] if said else []
        size = short_bytes(sum(one.bytes for one in held)) if said else "?"
        count = f"{len(held)} of {said.streams_max}" if said else "?"
        state = _node_text(found, suspected=known.node in seen.suspects)
        if known.node in slow:
            state += f", slow: {1000 * slow[known.node]:.0f} ms per write"
        if said and (foreign := foreign_on(seen, said)):
            state += f", {len(foreign)} of another cluster"
        rows.append((known.node, state, known.address, count, size, ", ".join(known.volumes)))
    return make_table("", ("node", "state", "address", "#replicas", "#bytes", "volumes"), rows)


def _node_text(health: NodeHealth | None, *, suspected: bool) -> str:
    if health is None or not health.alive:
        silent_s = health.unreachable_s if health is not None else 0.0
        return f"unreachable {_span(silent_s)}" if silent_s else "unreachable"
    said = ["alive"]
    status = health.status
    if status is not None:
        if any(one.full for one in status.replicas) or any(one.full for one in status.units):
            said.append("disk full")
        if status.units and not status.leased:
            said.append("no lease")
    if suspected:
        said.append("suspected by a client")
    return ", ".join(said)


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def topics_table(seen: ClusterStatus) -> Table:
    marks = {mark.topic: mark for mark in seen.tails}
    rows = []
    for topic in seen.view.topics:
        mark = marks.get(topic.topic)
        streams = len(seen.view.streams_of(topic.topic))
        oldest = mark.trimmed + 1 if mark else "?"
        newest = mark.high_watermark if mark else "?"
        rows.append((topic.name, topic.ordering, streams, oldest, newest, topic.first))
    columns = ("topic", "ordering", "#streams", "#oldest", "#newest", "#first")
    shown = len(columns) if any(topic.first != FIRST_GLSN for topic in seen.view.topics) else -1
    return make_table("", columns[:shown], [row[:shown] for row in rows])


def stream_tables(seen: ClusterStatus, streams: Sequence[LogStream]) -> list[Table]:
    """One table per ordering, because their columns differ. An empty one is left out."""
    sequenced = [found for found in streams if is_sequenced(seen.view, found)]
    committed = [found for found in streams if not is_sequenced(seen.view, found)]
    tables = [streams_table(seen, committed)] if committed or not sequenced else []
    return [*tables, chains_table(seen, sequenced)] if sequenced else tables


def streams_table(seen: ClusterStatus, streams: Sequence[LogStream]) -> Table:
    """Of committed topics."""
    rows = []
    for found in streams:
        topic = seen.view.topic(found.topic)
        statuses = replica_statuses(seen, found)
        ends = [status.committed_end for status in statuses.values() if status is not None]
        replicas = "  ".join(_replica_text(number, status) for number, status in statuses.items())
        entries = max(ends) - 1 if ends else "?"
        name = topic.name if topic else str(found.topic)
        state = f"{found.state} by admin" if found.sealed_by_admin else found.state
        rows.append((found.log_stream, name, state, found.epoch, entries, replicas))
    columns = ("stream", "topic", "state", "#epoch", "#entries", "replicas (node:state, primary first)")
    return make_table("", columns, rows)


# --- readers --------------------------------------------------------------------------------------------------


class ReaderLag(TypedDict):
    """For programs. `lag`: entries not read yet; `age_s`: time since its last update."""

    topic: str
    name: str
    position: int
    newest: int | None
    lag: int | None
    age_s: float
    updated_us: int


def reader_lags(seen: ClusterStatus) -> list[ReaderLag]:
    now_us = time.time_ns() // 1000
    return [reader_lag(seen.view, seen.tails, found, now_us=now_us) for found in seen.readers]


def reader_lag(
    view: ClusterView, tails: Sequence[TopicMark], found: NamedReader, *, now_us: int
) -> ReaderLag:
    topic = view.topic(found.topic)
    newest = next((mark.high_watermark for mark in tails if mark.topic == found.topic), None)
    return ReaderLag(
        topic=topic.name if topic else str(found.topic),
        name=found.name,
        position=found.position,
        newest=newest,
        lag=None if newest is None else max(0, newest - found.position),
        age_s=_age_s(now_us, found.updated_us),
        updated_us=found.updated_us,
    )


def readers_table(readers: Sequence[ReaderLag]) -> Table:
    rows = [
        (
            one["topic"],
            one["name"],
            one["position"],
            "?" if one["lag"] is None else one["lag"],
            f"{_span(one['age_s'])} ago",
        )
        for one in readers
    ]
    return make_table("", ("topic", "reader", "#position", "#lag", "#updated"), rows)


def format_age(now_us: int, then_us: int) -> str:
    return f"{_span(_age_s(now_us, then_us))} ago"


def _age_s(now_us: int, then_us: int) -> float:
    return max(0.0, (now_us - then_us) / 1e6)


# --- what the manager does ------------------------------------------------------------------------------------


def waits_table(seen: ClusterStatus) -> Table:
    rows = [(wait.log_stream, sentence(wait)) for wait in seen.waits]
    return make_table("", ("stream", "what the manager does, or waits for"), rows)


def events_table(seen: ClusterStatus) -> Table:
    rows = [
        (f"{_local(event.time_us):%H:%M:%S}", event.log_stream or "", sentence(event))
        for event in seen.events[-EVENTS_SHOWN:]
    ]
    return make_table("", ("time", "stream", "recent manager events"), rows)


def _local(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / 1e6, tz=UTC).astimezone()


# --- replicas -------------------------------------------------------------------------------------------------


def streams_named(seen: ClusterStatus, topic: str) -> tuple[LogStream, ...]:
    """The streams of the topic with this name; an unknown one ends the command."""
    found = seen.view.topic_named(topic)
    if found is None:
        fail(UnknownTopic(topic))
    return seen.view.streams_of(found.topic)


def _replica_text(number: int, status: ReplicaStatus | None) -> str:
    if status is None:
        return f"{number}:missing"
    said = [status.trouble] if status.trouble else []
    if status.sync is not None and status.sync.state is SyncState.IN_PROGRESS:
        said.append(f"synced from {status.sync.source}, {percent(status.sync)}")
    if status.damage:
        said.append(f"{sum(end - begin for begin, end in status.damage)} entries damaged")
    if status.full:
        said.append("disk full")
    return f"{number}:{status.state}" + (f" ({'; '.join(said)})" if said else "")


def status_json(seen: ClusterStatus) -> dict[str, object]:
    """For programs: everything, the readers with their lag, and what to raise an alarm on: the log streams that have one copy left,
    the topics that are stopped, nodes with a slow disk (milliseconds per write), replicas that contradict the repository, and data
    of other clusters (log streams by node)."""
    everything = {name: getattr(seen, name) for name in seen.__struct_fields__}
    stopped = {topic.name: topic.stopped for topic in seen.view.topics if topic.stopped}
    readers = reader_lags(seen)
    evidence = [{"log_stream": stream, "node": node, "why": why} for stream, node, why in evidence_in(seen)]
    statuses = {found.node: found.status for found in seen.nodes if found.status is not None}
    foreign = {node: streams for node, status in statuses.items() if (streams := foreign_on(seen, status))}
    return everything | {
        "readers": readers,
        "no_redundancy": one_copy_left(seen.view),
        "stopped": stopped,
        "slow": {node: round(1000 * write_s, 1) for node, write_s in slow_nodes(seen).items()},
        "evidence": evidence,
        "foreign": foreign,
    }


def stream_json(seen: ClusterStatus, found: LogStream) -> dict[str, object]:
    """For programs."""
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    sequenced = is_sequenced(seen.view, found)
    return fields | {"statuses": unit_statuses(seen, found) if sequenced else replica_statuses(seen, found)}


NO_REDUNDANCY = "NO REDUNDANCY"


# --- sequenced topics -------------------------------------------------------------------------------------------------------


def projections_table(seen: ClusterStatus) -> Table:
    """One row per sequenced topic: epoch, sequencer and striping."""
    rows: list[tuple[object, ...]] = []
    for topic in seen.view.topics:
        if not topic.sequenced:
            continue
        projection = seen.view.projection(topic.topic)
        if projection is None:
            rows.append((topic.name, "?", "being created", "", topic.stripe_size, topic.grouping))
            continue
        stripes = len(projection.newest_range.stripes)
        size = projection.newest_range.stripe_size if stripes > 1 else "–"
        rows.append(
            (
                topic.name,
                projection.epoch,
                sequencer_text(seen.view, projection),
                f"{stripes} since {projection.newest_range.begin}",
                size,
                topic.grouping,
            )
        )
    columns = ("sequenced topic", "#epoch", "sequencer", "stripes", "#stripe size", "replica groups by")
    return make_table("", columns, rows)


def sequencer_text(view: ClusterView, projection: Projection) -> str:
    found = projection.sequencer
    if found is None:
        return "NONE: start one with `vseq start`"
    if found in view.sequencers:
        return found.address
    if any(known.address == found.address for known in view.sequencers):
        return f"{found.address} (restarted: the next epoch continues after the last written position)"
    return f"{found.address} (gone)"


def chains_table(seen: ClusterStatus, streams: Sequence[LogStream]) -> Table:
    """One row per log stream of a sequenced topic."""
    rows = []
    for found in streams:
        topic = seen.view.topic(found.topic)
        chain = chain_of(seen.view, found)
        statuses = unit_statuses(seen, found)
        newest = [status.newest for status in statuses.values() if status is not None]
        members = "  ".join(member_text(seen, found, number) for number in statuses)
        state = f"{found.state}, {NO_REDUNDANCY}" if chain and chain.has_one_copy else str(found.state)
        name = topic.name if topic else str(found.topic)
        rows.append((found.log_stream, name, state, found.epoch, max(newest) if newest else "?", members))
    columns = ("stream", "topic", "state", "#epoch", "#newest LLSN", "chain (node:state, head first)")
    return make_table("", columns, rows)


def member_text(seen: ClusterStatus, found: LogStream, number: int) -> str:
    chain, status = chain_of(seen.view, found), unit_statuses(seen, found)[number]
    serves = chain is not None and number in chain.nodes
    if status is None:
        return f"{number}:{'missing' if serves or chain is None else 'out of sync'}"
    said = []
    if not node_statuses(seen)[number].leased:
        said.append("no lease")
    if status.epoch != found.epoch:
        said.append(f"in epoch {status.epoch}")
    if status.sync is not None and status.sync.state is SyncState.IN_PROGRESS:
        said.append(f"filled from {status.sync.source}, {percent(status.sync)}")
    if status.damage:
        said.append(f"{sum(end - begin for begin, end in status.damage)} entries damaged")
    if status.full:
        said.append("disk full")
    elif status.trouble:
        said.append(status.trouble)
    state = "serves" if serves else "out of sync"
    return f"{number}:{state}" + (f" ({'; '.join(said)})" if said else "")


def percent(sync: SyncStatus) -> str:
    return f"{synced_percent(sync)} %"


def thin_lines(seen: ClusterStatus, topic: int | None = None) -> list[str]:
    """Log streams with one copy left, of one topic or of all."""
    return [
        f"{NO_REDUNDANCY}: log stream {chain.log_stream} has one copy left, on node {chain.head}; "
        f"out of sync: {', '.join(map(str, chain.out_of_sync))}"
        for projection in seen.view.projections
        for chain in projection.chains
        if chain.has_one_copy and topic in (None, projection.topic)
    ]


# --- one topic ----------------------------------------------------------------------------------------------------------


def units_table(seen: ClusterStatus, streams: Sequence[LogStream]) -> Table:
    """One row per log unit of a sequenced topic, head first."""
    rows: list[tuple[object, ...]] = []
    for found in streams:
        chain = chain_of(seen.view, found)
        for number, status in unit_statuses(seen, found).items():
            what = (found.log_stream, found.state, number, role(chain, number).replace("_", " "))
            if status is None:
                rows.append((*what, "silent", "?", "?", "?", "?", "?"))
                continue
            leased = "leased" if node_statuses(seen)[number].leased else "no lease"
            state = ", ".join(filter(None, (leased, status.trouble)))
            ends = (status.low, status.dense_end - 1, status.newest)
            rows.append((*what, state, status.epoch, *ends, short_bytes(status.bytes)))
    columns = (
        "stream",
        "state",
        "node",
        "role",
        "unit",
        "#epoch",
        "#low",
        "#gap-free up to",
        "#newest",
        "#bytes",
    )
    return make_table("", columns, rows)


def projection_lines(seen: ClusterStatus, topic: Topic) -> list[str]:
    """The projection of a sequenced topic, as lines of text."""
    projection = seen.view.projection(topic.topic)
    if projection is None:
        return ["its first projection is still being created: nothing can be appended yet"]
    sequencer = sequencer_text(seen.view, projection)
    lines = [f"epoch {projection.epoch}, sequencer {sequencer}; replica groups by {topic.grouping}"]
    for number, found in enumerate(projection.ranges):
        end = f"to {projection.ranges[number + 1].begin - 1}" if number + 1 < len(projection.ranges) else "on"
        streams = ", ".join(str(stripe.log_stream) for stripe in found.stripes)
        turns = f", {found.stripe_size} positions per stripe" if len(found.stripes) > 1 else ""
        lines.append(f"positions {found.begin} {end}: log stream{'s' if turns else ''} {streams}{turns}")
    return lines
