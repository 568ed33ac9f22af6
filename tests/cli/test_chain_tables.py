"""What people see of sequenced topics: epochs, chains, members out of sync, NO REDUNDANCY, the sequencer, leases."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from varlog.cli.status import (
    chains_table,
    parts,
    projection_lines,
    projections_table,
    status_json,
    stream_json,
    thin_lines,
    units_table,
)
from varlog.client.cluster_status import chain_is_whole, role
from varlog.localcluster.wait import is_fully_running
from varlog.model.cluster import ClusterView, LogStream, Ordering, StorageNode, StreamState, Topic
from varlog.model.commit import TopicMark
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID, Stripe
from varlog.model.status import ClusterStatus, NodeHealth, NodeStatus, SyncState, SyncStatus, UnitStatus

TOPIC, LS = TopicID(7), LogStreamID(3)
NODES = NodeID(1), NodeID(2), NodeID(3)
EPOCH = Epoch(4)
SEQUENCER = SequencerID("127.0.0.1:7109", 11)
UNIT = UnitStatus(LS, TOPIC, EPOCH, LLSN(90), LLSN(81), LLSN(11), "/a/lsid=3", 4096)


def seen(
    chain: Chain,
    units: dict[NodeID, UnitStatus],
    *,
    unleased: frozenset[NodeID] = frozenset(),
    sequencers: tuple[SequencerID, ...] = (SEQUENCER,),
) -> ClusterStatus:
    """One sequenced topic of one log stream; nodes without a unit do not answer."""
    projection = Projection(TOPIC, EPOCH, GLSN(91), (Range(GLSN(1), (Stripe(LS),)),), (chain,), SEQUENCER)
    view = ClusterView(
        ClusterID(1),
        9,
        nodes=tuple(StorageNode(node, f"n{node}:1", ("/a",)) for node in NODES),
        topics=(Topic(TOPIC, "fast", Ordering.SEQUENCED),),
        streams=(LogStream(LS, TOPIC, NODES, StreamState.RUNNING, EPOCH),),
        projections=(projection,),
        sequencers=sequencers,
    )
    health = [
        NodeHealth(
            node,
            node in units,
            NodeStatus(
                ClusterID(1),
                node,
                f"n{node}:1",
                ("/a",),
                (),
                units=(units[node],),
                leased=node not in unleased,
            )
            if node in units
            else None,
            0.0 if node in units else 90.0,
        )
        for node in NODES
    ]
    return ClusterStatus(view, tuple(health), (TopicMark(TOPIC, GLSN(90), GLSN(0)),))


ALL = dict.fromkeys(NODES, UNIT)
WHOLE = seen(Chain(LS, NODES), ALL)
ALONE = seen(Chain(LS, NODES[1:2], (NODES[0], NODES[2])), {NODES[1]: UNIT})


def text(*found: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False)
    for part in found:
        console.print(part, markup=False)
    return out.getvalue()


def test_a_node_of_a_chain_is_head_middle_tail_or_out_of_sync() -> None:
    chain = Chain(LS, NODES)
    assert [role(chain, node) for node in NODES] == ["head", "middle", "tail"]
    assert [role(Chain(LS, NODES[:1], NODES[1:]), node) for node in NODES] == [
        "only",
        "out_of_sync",
        "out_of_sync",
    ]
    assert role(None, 1) == role(chain, 9) == "no_member_yet"


def test_status_shows_epoch_sequencer_and_chain() -> None:
    output = text(*parts(WHOLE))
    assert "127.0.0.1:7109" in output and "1:serves  2:serves  3:serves" in output
    assert "NO REDUNDANCY" not in output
    assert "primary" not in output, "there is no committed stream to show"


def test_one_copy_left_is_shown_loudly() -> None:
    """R-SEQ-10: it continues with one replica, and shows that."""
    assert thin_lines(ALONE) == [
        "NO REDUNDANCY: log stream 3 has one copy left, on node 2; out of sync: 1, 3",
    ]
    assert "running, NO REDUNDANCY" in text(chains_table(ALONE, ALONE.view.streams))
    assert "2:serves  1:out of sync  3:out of sync" in text(*parts(ALONE))
    assert status_json(ALONE)["no_redundancy"] == [3] and status_json(WHOLE)["no_redundancy"] == []
    assert thin_lines(WHOLE) == [] and thin_lines(ALONE, TopicID(8)) == []


def test_a_member_shows_why_it_is_degraded() -> None:
    sync = SyncStatus(SyncState.IN_PROGRESS, NODES[2], LLSN(51), LLSN(101))
    units = {
        NODES[0]: replace(UNIT, epoch=Epoch(3), sync=sync),
        NODES[1]: replace(UNIT, full=True, trouble="full"),
        NODES[2]: replace(UNIT, damage=((LLSN(3), LLSN(7)),)),
    }
    output = text(
        chains_table(
            one := seen(Chain(LS, NODES[1:], NODES[:1]), units, unleased=frozenset(NODES[2:])),
            one.view.streams,
        )
    )
    assert "1:out of sync (in epoch 3; filled from 3, 50 %)" in output
    assert "2:serves (disk full)" in output
    assert "3:serves (no lease; 4 entries damaged)" in output


def test_a_node_without_a_lease_is_shown() -> None:
    assert "alive, no lease" in text(*parts(seen(Chain(LS, NODES), ALL, unleased=frozenset(NODES))))


@pytest.mark.parametrize(
    ("sequencers", "shown"),
    [
        ((SEQUENCER,), "127.0.0.1:7109 "),
        ((SequencerID(SEQUENCER.address, 12),), "restarted"),
        ((), "(gone)"),
    ],
)
def test_a_replaced_or_missing_sequencer_is_shown(sequencers: tuple[SequencerID, ...], shown: str) -> None:
    """One that was restarted has counted nothing yet."""
    assert shown in text(projections_table(seen(Chain(LS, NODES), ALL, sequencers=sequencers)))


@pytest.mark.parametrize(
    ("found", "whole"),
    [
        (WHOLE, True),
        (ALONE, False),
        (seen(Chain(LS, NODES[:2], NODES[2:]), ALL), False),
        (seen(Chain(LS, NODES), ALL | {NODES[0]: replace(UNIT, epoch=Epoch(5))}), False),
        (seen(Chain(LS, NODES), ALL | {NODES[0]: replace(UNIT, trouble="full")}), False),
        (seen(Chain(LS, NODES), {NODES[0]: UNIT}), False),
        (seen(Chain(LS, NODES), ALL, unleased=frozenset(NODES[:1])), False),
        (seen(Chain(LS, NODES), ALL, sequencers=(SequencerID(SEQUENCER.address, 12),)), False),
    ],
)
def test_a_chain_is_whole_when_every_member_serves(found: ClusterStatus, whole: bool) -> None:
    assert chain_is_whole(found, found.view.streams[0]) is is_fully_running(found) is whole


def test_a_topic_is_described_by_its_ranges_and_units() -> None:
    assert projection_lines(WHOLE, WHOLE.view.topics[0]) == [
        "epoch 4, sequencer 127.0.0.1:7109; replica groups by stream",
        "positions 1 on: log stream 3",
    ]
    output = text(units_table(WHOLE, WHOLE.view.streams))
    assert all(word in output for word in ("head", "middle", "tail", "leased", "4.0 KiB"))
    assert "silent" in text(units_table(ALONE, ALONE.view.streams))


def test_stripes_are_shown_range_by_range() -> None:
    ranges = (
        Range(GLSN(1), (Stripe(LS),)),
        Range(GLSN(91), (Stripe(LS, LLSN(91)), Stripe(LogStreamID(4))), 128),
    )
    chains = (Chain(LS, NODES), Chain(LogStreamID(4), NODES))
    view = replace(WHOLE.view, projections=(Projection(TOPIC, EPOCH, GLSN(91), ranges, chains, None),))
    found = replace(WHOLE, view=view)
    lines = projection_lines(found, view.topics[0])
    assert lines[1:] == [
        "positions 1 to 90: log stream 3",
        "positions 91 on: log streams 3, 4, 128 positions per stripe",
    ]
    assert "NONE: start one" in lines[0]


def test_before_its_first_projection_a_topic_is_being_made() -> None:
    found = replace(WHOLE, view=replace(WHOLE.view, projections=()))
    assert "being created" in text(*parts(found))
    assert projection_lines(found, found.view.topics[0])[0].startswith("its first projection")
    assert not is_fully_running(found)


def test_programs_get_the_units_of_a_stream() -> None:
    assert stream_json(WHOLE, WHOLE.view.streams[0])["statuses"] == ALL
