"""Events of the manager: typed on the wire, one sentence each for people."""

from __future__ import annotations

import msgspec
import pytest

from varlog.manager.repair_steps import NoStep, RebuildReplica, SyncReplica, step_event
from varlog.model.epoch import Epoch
from varlog.model.events import Event, EventKind, sentence
from varlog.model.ids import LogStreamID, NodeID


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_has_a_sentence(kind: EventKind) -> None:
    event = Event(kind, node=NodeID(7), nodes=(NodeID(1),), topic="orders", reason="the cause")
    assert " " in sentence(event) or kind is EventKind.RUNNING
    assert sentence(msgspec.structs.replace(event, failure="refused")).endswith(" failed: refused")


def test_a_sentence_names_nodes_and_cause() -> None:
    event = step_event(RebuildReplica(NodeID(2), Epoch(3), "it is frozen"), log_stream=LogStreamID(5))
    assert (event.kind, event.node, event.log_stream) == (EventKind.REBUILD_REPLICA, 2, 5)
    assert sentence(event) == "rebuilding the replica on node 2: it is frozen"
    sync = step_event(SyncReplica(NodeID(2), NodeID(1), Epoch(3)))
    assert sentence(sync) == "syncing the replica on node 2 from node 1"


def test_a_wait_has_a_reason_and_shows_if_one_copy_is_left() -> None:
    wait = step_event(NoStep(EventKind.WAITING_FOR_NODE, "storage node 2 does not answer", NodeID(2)))
    alone = msgspec.structs.replace(wait, one_copy=True)
    assert sentence(wait) == "storage node 2 does not answer"
    assert sentence(alone) == "NO REDUNDANCY, one copy is left: storage node 2 does not answer"


def test_an_event_of_a_newer_manager_stays_readable() -> None:
    sent = msgspec.msgpack.encode({"kind": "invented_later", "reason": "it rains"})
    event = msgspec.msgpack.decode(sent, type=Event)
    assert event.kind is EventKind.UNKNOWN and sentence(event) == "it rains"
