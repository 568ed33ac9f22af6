"""What `varlog status` and `varlog topic describe` show of sequenced topics: projections, chains, log units, sequencer, leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from varlog.cli.output import make_table, short_bytes
from varlog.client.cluster_status import chain_of, node_statuses, role, synced_percent, unit_statuses
from varlog.model.cluster import ClusterView, LogStream, SyncState, SyncStatus, Topic
from varlog.model.projection import Projection

if TYPE_CHECKING:
    from rich.table import Table

    from varlog.rpc.messages import GetClusterStatusReply

NO_REDUNDANCY = "NO REDUNDANCY"


# --- tables -------------------------------------------------------------------------------------------------------------


def projections_table(seen: GetClusterStatusReply) -> Table:
    """One row a sequenced topic: its epoch, who gives its positions, how they lie."""
    rows: list[tuple[object, ...]] = []
    for topic in seen.view.topics:
        if not topic.sequenced:
            continue
        projection = seen.view.projection(topic.topic)
        if projection is None:
            rows.append((topic.name, "?", "being made", "", topic.stripe_size, topic.grouping))
            continue
        stripes = len(projection.newest_range.stripes)
        unit = projection.newest_range.stripe_size if stripes > 1 else "–"
        rows.append(
            (
                topic.name,
                projection.epoch,
                sequencer_text(seen.view, projection),
                f"{stripes} since {projection.newest_range.begin}",
                unit,
                topic.grouping,
            )
        )
    columns = ("sequenced topic", "#epoch", "sequencer", "stripes", "#unit", "replica groups by")
    return make_table("", columns, rows)


def sequencer_text(view: ClusterView, projection: Projection) -> str:
    found = projection.sequencer
    if found is None:
        return "NONE: no sequencer was there; start one with `vseq start`"
    if found in view.sequencers:
        return found.address
    if any(known.address == found.address for known in view.sequencers):
        return f"{found.address} (started again: the next epoch counts on from what is written)"
    return f"{found.address} (gone)"


def chains_table(seen: GetClusterStatusReply, streams: Sequence[LogStream]) -> Table:
    """One row a log stream of a sequenced topic."""
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


def member_text(seen: GetClusterStatusReply, found: LogStream, number: int) -> str:
    chain, status = chain_of(seen.view, found), unit_statuses(seen, found)[number]
    away = chain is None or number not in chain.nodes
    if status is None:
        return f"{number}:{'away' if away and chain is not None else 'missing'}"
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
    state = "away" if away else "serves"
    return f"{number}:{state}" + (f" ({'; '.join(said)})" if said else "")


def percent(sync: SyncStatus) -> str:
    return f"{synced_percent(sync)} %"


def thin_lines(seen: GetClusterStatusReply, topic: int | None = None) -> list[str]:
    """What nobody may overlook: log streams with one copy left, of one topic or of all."""
    return [
        f"{NO_REDUNDANCY}: log stream {chain.log_stream} has one copy left, on node {chain.head}; "
        f"away: {', '.join(map(str, chain.away))}"
        for projection in seen.view.projections
        for chain in projection.chains
        if chain.has_one_copy and topic in (None, projection.topic)
    ]


# --- one topic ----------------------------------------------------------------------------------------------------------


def units_table(seen: GetClusterStatusReply, streams: Sequence[LogStream]) -> Table:
    """One row a log unit of a sequenced topic, head first."""
    rows: list[tuple[object, ...]] = []
    for found in streams:
        chain = chain_of(seen.view, found)
        for number, status in unit_statuses(seen, found).items():
            what = (found.log_stream, found.state, number, role(chain, number))
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
        "#no hole up to",
        "#newest",
        "#bytes",
    )
    return make_table("", columns, rows)


def projection_lines(seen: GetClusterStatusReply, topic: Topic) -> list[str]:
    """A sequenced topic's projection in words."""
    projection = seen.view.projection(topic.topic)
    if projection is None:
        return ["its first projection is still being made: nothing can be appended yet"]
    sequencer = sequencer_text(seen.view, projection)
    lines = [f"epoch {projection.epoch}, sequencer {sequencer}; replica groups by {topic.grouping}"]
    for number, found in enumerate(projection.ranges):
        end = f"to {projection.ranges[number + 1].begin - 1}" if number + 1 < len(projection.ranges) else "on"
        streams = ", ".join(str(stripe.log_stream) for stripe in found.stripes)
        turns = f", {found.stripe_size} positions a turn" if len(found.stripes) > 1 else ""
        lines.append(f"positions {found.begin} {end}: log stream{'s' if turns else ''} {streams}{turns}")
    return lines
