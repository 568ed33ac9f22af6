"""A stream whose replicas change: which count for the order, whose rows are kept, and how a new one catches up."""

from __future__ import annotations

import logging

import pytest

from tests.metarepo.helpers import World, run, settle, until, world
from varlog.metarepo.ordering.reports import ReportTable
from varlog.model.cluster import LogStream
from varlog.model.commit import Report
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import LLSN
from varlog.model.status import ReplicaState
from varlog.rpc import messages as m

LS = LogStreamID(1)
ONE, TWO, THREE = NodeID(1), NodeID(2), NodeID(3)


async def _ordered(w: World, entries: int) -> None:
    """A stream on nodes 1 and 2 with this number of entries, sealed in epoch 2."""
    await w.add_stream(1, 2)
    for node in (1, 2):
        w.nodes[node].report(1, entries + 1, synced=1)
    await until(lambda: all(w.nodes[node].replica(1).committed_end == entries + 1 for node in (1, 2)))
    await w.ask(m.SealStream(LS), m.StreamReply)


def test_a_node_that_left_does_not_count_and_the_new_one_does() -> None:
    """R-REG-6, law 2: the replicas that the stream has now decide."""

    async def body() -> None:
        async with world(1, 2, 3) as w:
            await _ordered(w, 3)
            w.nodes[3].replica(1)
            await w.ask(m.SetReplicas(LS, Epoch(2), (TWO, THREE)), m.StreamReply)
            await w.ask(m.UnsealStream(LS, Epoch(3)), m.StreamReply)
            w.nodes[1].report(1, 9, epoch=3)
            w.nodes[2].report(1, 7, epoch=3)
            await settle()
            assert await w.tail() == 3  # the newcomer has not said anything yet
            w.nodes[3].replica(1).committed_end = LLSN(4)  # filled by a sync
            w.nodes[3].report(1, 6, epoch=3, synced=4)
            await until(lambda: w.nodes[3].replica(1).committed_end == 6)
            assert await w.tail() == 5
            assert w.nodes[1].replica(1).committed_end == 4

    run(body())


def test_a_newcomer_without_entries_is_no_error_and_gets_rows_once_it_is_filled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        async with world(1, 2, 3) as w:
            await _ordered(w, 3)
            caplog.set_level(logging.INFO, "varlog")
            w.nodes[3].replica(1)
            await w.ask(m.SetReplicas(LS, Epoch(2), (TWO, THREE)), m.StreamReply)
            await settle()
            assert w.nodes[3].replica(1).rows == [], "rows of entries that it does not have are of no use"
            assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    run(body())


def test_rows_are_kept_for_a_new_replica_and_not_for_a_removed_one() -> None:
    reports = ReportTable()
    for node in (ONE, TWO):
        reports.record(node, [Report(LS, Epoch(1), LLSN(9), LLSN(9))])
    stream = LogStream(LS, TopicID(1), (ONE, TWO), epoch=Epoch(2))
    assert reports.synced_end(stream) == 9
    moved = LogStream(LS, TopicID(1), (TWO, THREE), epoch=Epoch(3))
    reports.keep_only({LS: moved})
    assert reports.synced_end(moved) == 1
    reports.record(THREE, [Report(LS, Epoch(3), LLSN(9), LLSN(6))])
    assert reports.synced_end(moved) == 6


def test_reports_of_a_node_from_before_it_left_do_not_count_when_it_comes_back() -> None:
    """It may come back empty: rows that it lacks must not be forgotten for what its former replica had."""
    reports = ReportTable()
    for node in (ONE, TWO):
        reports.record(node, [Report(LS, Epoch(1), LLSN(9), LLSN(9))])
    reports.keep_only({LS: LogStream(LS, TopicID(1), (TWO, THREE), epoch=Epoch(2))})
    back = LogStream(LS, TopicID(1), (TWO, ONE), epoch=Epoch(3))
    reports.keep_only({LS: back})
    assert reports.synced_end(back) == 1
    assert list(reports.of(LS)) == [TWO]


def test_a_hold_and_other_replicas_survive_a_restart() -> None:
    async def body() -> None:
        async with world(1, 2, 3) as w:
            await _ordered(w, 1)
            await w.ask(m.SetSealedByAdmin(LS, True), m.StreamReply)
            await w.ask(m.SetReplicas(LS, Epoch(2), (TWO, THREE)), m.StreamReply)
            for node in w.nodes.values():
                node.replica(1).state = ReplicaState.SEALED
            await w.stop_repository()
            await w.start_repository()
            stream = (await w.view()).stream(LS)
            assert stream is not None
            assert (stream.sealed_by_admin, stream.replicas, stream.epoch) == (True, (TWO, THREE), 3)

    run(body())
