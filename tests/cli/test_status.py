"""`varlog status`: what it shows of nodes, streams, syncs, damage and events; how a watch continues and ends."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import typer
from rich.console import Console

from tests.rpc.samples import STATUS, VIEW
from varlog.cli import status as command
from varlog.cli.status import nodes_table, parts, status_json, streams_table
from varlog.model.cluster import LogStream, StorageNode, StreamState
from varlog.model.commit import TopicMark
from varlog.model.epoch import Epoch
from varlog.model.errors import Unavailable
from varlog.model.events import Event, EventKind
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ClusterStatus, NodeHealth, ReplicaState, SyncState, SyncStatus

LS = STATUS.replicas[0].log_stream
TOPIC = VIEW.topics[0].topic


def _seen() -> ClusterStatus:
    """Node 1 lives and is synced from node 2, which is away."""
    replica = msgspec.structs.replace(
        STATUS.replicas[0],
        state=ReplicaState.SEALING,
        sync=SyncStatus(SyncState.IN_PROGRESS, NodeID(2), LLSN(51), LLSN(101)),
        damage=((LLSN(3), LLSN(7)), (LLSN(9), LLSN(10))),
        full=True,
        trouble="",
    )
    view = msgspec.structs.replace(
        VIEW,
        nodes=(StorageNode(NodeID(1), "n1:1", ("/a",)), StorageNode(NodeID(2), "n2:1", ("/b",))),
        streams=(
            LogStream(LS, TOPIC, (NodeID(1), NodeID(2)), StreamState.SEALED, Epoch(4), LLSN(101), True),
        ),
    )
    return ClusterStatus(
        view,
        (
            NodeHealth(NodeID(1), True, msgspec.structs.replace(STATUS, replicas=(replica,), units=())),
            NodeHealth(NodeID(2), False, None, 130.0),
        ),
        (TopicMark(TOPIC, GLSN(100), GLSN(0)),),
        (Event(EventKind.WAITING_FOR_NODE, 0, LogStreamID(LS), reason="storage node 2 does not answer"),),
        (Event(EventKind.SEAL_STREAM, 1_700_000_000_000_000, LogStreamID(LS), reason="it had to"),),
        (NodeID(1),),
    )


def _text(*found: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False)
    for part in found:
        console.print(part, markup=False)
    return out.getvalue()


def test_nodes_are_shown_alive_full_suspected_or_unreachable() -> None:
    output = _text(nodes_table(_seen()))
    assert "alive, disk full, suspected by a client" in output
    assert "unreachable 2 min" in output
    assert f"1 of {STATUS.streams_max}" in output


def test_streams_show_their_replicas_syncs_and_damage() -> None:
    seen = _seen()
    output = _text(streams_table(seen, seen.view.streams))
    assert "sealed by admin" in output
    assert "1:sealing (synced from 2, 50 %; 5 entries damaged; disk full)" in output
    assert "2:missing" in output


def test_waits_and_events_are_shown() -> None:
    output = _text(*parts(_seen()))
    assert "storage node 2 does not answer" in output
    assert "sealing the log stream: it had to" in output
    quiet = msgspec.structs.replace(_seen(), waits=(), events=())
    assert "manager" not in _text(*parts(quiet)).replace("manager at", "")


class _Admin:
    """Answers, fails once, answers, and is interrupted."""

    def __init__(self) -> None:
        self.asked = 0

    async def status(self) -> ClusterStatus:
        self.asked += 1
        if self.asked == 2:
            raise Unavailable("the manager gave no answer")
        if self.asked == 4:
            raise KeyboardInterrupt
        return _seen()


class _Target:
    def __init__(self) -> None:
        self.asked = _Admin()

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[_Admin]:
        yield self.asked


def _watch(monkeypatch: pytest.MonkeyPatch, *, json_: bool) -> None:
    monkeypatch.setattr(command, "WATCH_S", 0.0)
    monkeypatch.setattr(command, "target", lambda cluster, data: _Target())
    command.status(watch=True, cluster="", data=None, json_=json_)


def test_a_watch_prints_one_json_line_per_refresh_survives_failures_and_ends_cleanly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _watch(monkeypatch, json_=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [set(line) == {"error"} for line in lines] == [False, True, False]
    [wait] = lines[0]["waits"]
    assert (wait["kind"], wait["log_stream"]) == ("waiting_for_node", LS)


def test_a_watch_for_people_shows_the_tables_and_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _watch(monkeypatch, json_=False)
    output = capsys.readouterr().out
    assert output.count("unreachable 2 min") == 2
    assert "no answer: the manager gave no answer" in output


def test_a_watch_whose_first_refresh_fails_prints_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = _Target()
    where.asked.asked = 1
    monkeypatch.setattr(command, "target", lambda cluster, data: where)
    with pytest.raises(typer.Exit) as ended:
        command.status(watch=True, cluster="", data=None, json_=True)
    assert ended.value.exit_code == 1
    assert "the manager gave no answer" in capsys.readouterr().err


def test_what_an_operator_must_see_is_above_the_tables_and_in_the_json() -> None:
    found = _seen()
    status = found.nodes[0].status
    assert status is not None
    replica = msgspec.structs.replace(status.replicas[0], evidence="it knows 7", cluster_uuid="other")
    replicas = (replica,)
    node = msgspec.structs.replace(found.nodes[0], status=msgspec.structs.replace(status, replicas=replicas))
    topics = (msgspec.structs.replace(VIEW.topics[0], stopped="node 1 knows 7"), *VIEW.topics[1:])
    view = msgspec.structs.replace(found.view, topics=topics)
    changed = msgspec.structs.replace(
        found, view=view, nodes=(node, found.nodes[1]), complaints=("the journal has no mirror any more",)
    )
    shown = _text(*parts(changed))
    name = VIEW.topics[0].name
    assert f"STOPPED: topic {name}: node 1 knows 7; run `varlog topic adopt-order {name}`" in shown
    assert f"EVIDENCE: log stream {LS} on node 1 contradicts the metadata repository" in shown
    assert "REPOSITORY: the journal has no mirror any more" in shown
    assert "1 of another cluster" in shown
    output = status_json(changed)
    assert output["stopped"] == {name: "node 1 knows 7"}
    assert output["evidence"] == [{"log_stream": LS, "node": 1, "why": "it knows 7"}]
    assert output["foreign"] == {1: [LS]}
    assert output["slow"] == {}
