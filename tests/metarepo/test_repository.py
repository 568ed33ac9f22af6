"""The repository end to end, with scripted storage nodes: registration, order, resending, seals, trims, silence, failure."""

from __future__ import annotations

import asyncio

import pytest

from tests.metarepo.helpers import (
    CLUSTER,
    MR,
    WAIT_S,
    ScriptedNode,
    World,
    run,
    seeded_environment,
    settle,
    until,
    world,
)
from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.ordering import outbox
from varlog.metarepo.ordering.sessions import MESSAGES_BEFORE_PAUSE
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.cluster import StreamState
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    PreconditionFailed,
    StaleEpoch,
    StartupError,
    TrimBeyondTail,
    Unavailable,
    UnknownTopic,
)
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState
from varlog.rpc import messages as m
from varlog.rpc.memory import MemoryConnection, MemoryTransport

TOPIC = TopicID(1)
LS = LogStreamID(1)


def row(
    version: int, glsn: int, llsn: int, count: int, *, hwm: int, before: int, epoch: int = 1
) -> CommitRow:
    return CommitRow(version, GLSN(hwm), GLSN(before), GLSN(glsn), LLSN(llsn), count, Epoch(epoch))


# --- Registration -----------------------------------------------------------------------------------


def test_what_is_registered_is_in_the_view_and_survives_a_restart() -> None:
    """R-REG-1, R-REG-2: clients see it from its registration on."""

    async def body() -> None:
        async with world(1, 2) as w:
            stream = await w.add_stream(1, 2)
            await w.ask(m.SetManager("manager:1", True), m.Done)
            view = await w.view()
            assert view.cluster == CLUSTER and view.streams == (stream,)
            assert [found.node for found in view.nodes] == [1, 2]
            assert [found.name for found in view.topics] == ["orders"]
            await w.stop_repository()
            await w.start_repository()
            assert await w.view() == view

    run(body())


def test_asking_again_changes_nothing_and_writes_nothing() -> None:
    """A manager that lost an answer asks again."""

    async def body() -> None:
        async with world(1) as w:
            stream = await w.add_stream(1)
            before, commits = await w.view(), w.commits
            await w.ask(m.RegisterNode(NodeID(1), "node-1", ("/data",)), m.Done)
            await w.ask(m.RegisterTopic("orders"), m.TopicReply)
            await w.ask(m.RegisterLogStream(TOPIC, stream.log_stream, stream.replicas), m.StreamReply)
            await w.ask(m.UnsealStream(stream.log_stream, stream.epoch), m.StreamReply)
            assert (await w.view(), w.commits) == (before, commits)

    run(body())


def test_reports_of_a_node_that_is_not_registered_for_the_stream_order_nothing() -> None:
    """R-ORD-2, law 2: only the replicas of the stream count."""

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1)
            w.nodes[2].report(1, 9)
            await settle()
            assert await w.tail() == 0

    run(body())


def test_another_node_behind_a_registered_address_gets_no_session() -> None:
    async def body() -> None:
        async with world() as w:
            stranger = ScriptedNode(w.transport, 7, address="node-1")
            await stranger.start()
            await w.ask(m.RegisterNode(NodeID(1), "node-1", ()), m.Done)
            await until(lambda: len(stranger.terms) >= 3)  # it is tried again
            assert stranger.commits == []
            await stranger.stop()

    run(body())


def test_a_living_node_keeps_its_id_and_a_dead_one_may_move() -> None:
    async def body() -> None:
        async with world(1) as w:
            with pytest.raises(PreconditionFailed, match="is alive at node-1"):
                await w.ask(m.RegisterNode(NodeID(1), "elsewhere", ()), m.Done)
            await w.nodes[1].stop()
            await settle()
            moved = ScriptedNode(w.transport, 1, address="elsewhere")
            await moved.start()
            await w.ask(m.RegisterNode(NodeID(1), "elsewhere", ()), m.Done)
            await until(lambda: len(moved.commits) == 1)
            await moved.stop()

    run(body())


def test_an_unregistered_node_loses_its_session() -> None:
    """R-REG-1: reports come over the session, and only a registered node has one."""

    async def body() -> None:
        async with world(1) as w:
            assert w.nodes[1].in_session
            await w.ask(m.UnregisterNode(NodeID(1)), m.Done)
            await until(lambda: not w.nodes[1].in_session)
            assert (await w.view()).nodes == ()

    run(body())


# --- Order --------------------------------------------------------------------------------------------


def test_what_every_replica_reported_is_ordered_and_pushed_to_each() -> None:
    """R-ORD-2, R-ORD-3: what one replica lacks is not ordered; what is ordered is one row with consecutive
    GLSNs for all."""

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1, 2)
            w.nodes[1].report(1, 4)
            await settle()
            assert await w.tail() == 0, "law 2: one replica does not have it"
            w.nodes[2].report(1, 3)
            await until(lambda: w.nodes[1].replica(1).committed_end == 3)
            expected = [row(1, 1, 1, 2, hwm=2, before=0)]
            await until(lambda: w.nodes[2].replica(1).committed_end == 3)
            assert w.nodes[1].replica(1).rows == w.nodes[2].replica(1).rows == expected
            assert w.nodes[1].marks[TOPIC].high_watermark == 2
            assert await w.tail() == 2

    run(body())


def test_every_node_of_a_topic_learns_its_high_watermark() -> None:
    """A bounded read of a stream with nothing new must know when it is complete."""

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1)
            await w.add_stream(2)
            w.nodes[1].report(1, 6)
            await until(lambda: w.nodes[2].marks[TOPIC].high_watermark == 5)
            assert w.nodes[2].replica(2).rows == []
            w.nodes[2].report(2, 3)
            await until(lambda: w.nodes[1].marks[TOPIC].high_watermark == 7)
            assert w.nodes[2].replica(2).rows == [row(2, 6, 1, 2, hwm=7, before=5)]

    run(body())


def test_a_cut_is_durable_before_it_is_sent() -> None:
    """R-ORD-2: nothing is pushed, answered or visible in the tail while the store has not returned; what comes meanwhile is one
    next cut."""

    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            node = w.nodes[1]
            pushed, gate = len(node.commits), asyncio.Event()

            async def held() -> None:
                await gate.wait()

            w.hold = held
            commits = w.commits
            node.report(1, 3)
            await until(lambda: w.commits == commits + 1)
            node.report(1, 5)
            node.report(1, 8)
            await settle()
            assert (len(node.commits), await w.tail(), w.commits) == (pushed, 0, commits + 1)
            gate.set()
            await until(lambda: node.replica(1).committed_end == 8)
            assert node.replica(1).rows == [
                row(1, 1, 1, 2, hwm=2, before=0),
                row(2, 3, 3, 5, hwm=7, before=2),
            ]
            assert w.commits == commits + 2

    run(body())


def test_an_idle_repository_is_silent() -> None:
    """No commit, no message, no timer when nothing happens."""

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1, 2)
            for node in w.nodes.values():
                node.report(1, 5)
            await until(lambda: w.nodes[2].replica(1).committed_end == 5)
            for node in w.nodes.values():
                node.report(1, 5, synced=5)  # nothing new to order
            await settle()
            loop = asyncio.get_running_loop()

            def timers() -> list[asyncio.TimerHandle]:
                return [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]

            # Copies of the view are paced: the last one goes out a little later. No `until`: it has a timer of its own. A timer
            # that has just fired is not in the list and may lead to another one: no timer must be there twice in a row.
            patience, without = loop.time() + WAIT_S, 0
            while without < 2 and loop.time() < patience:
                await settle()
                without = 0 if timers() else without + 1
            commits = w.commits
            messages = [len(node.commits) for node in w.nodes.values()]
            await settle()
            assert timers() == []
            assert (w.commits, [len(node.commits) for node in w.nodes.values()]) == (commits, messages)

    run(body())


def test_many_cuts_become_a_base_and_a_restart_knows_them_all() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            node = w.nodes[1]
            for end in range(2, 1300):
                node.report(1, end, synced=node.replica(1).committed_end)
                await until(lambda end=end: node.replica(1).committed_end == end)  # type: ignore[misc]
            cuts = [key for key in w.metadata.items if key.startswith("cut/")]
            assert "base" in w.metadata.items and len(cuts) <= 513
            assert node.gaps == 0
            await w.stop_repository()
            await w.start_repository()
            assert await w.tail() == 1298
            await until(lambda: len(node.commits) == 1)
            node.report(1, 1300)
            await until(lambda: node.replica(1).committed_end == 1300)
            assert node.replica(1).rows[-1] == row(1299, 1299, 1299, 1, hwm=1299, before=1298)

    run(body())


# --- Sessions come and go ------------------------------------------------------------------------------------------------


async def _ordered(w: World, end: int) -> None:
    for node in w.nodes.values():
        node.report(1, end)
    for node in w.nodes.values():
        await until(lambda node=node: node.replica(1).committed_end == end)  # type: ignore[misc]


@pytest.mark.parametrize("restart_repository", [False, True])
def test_rows_that_a_node_lost_are_sent_again(restart_repository: bool) -> None:
    """After a power loss the node stands where its rows were synced; the repository has the rest, also after its own
    restart, merged."""

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1, 2)
            for end in (3, 4, 9):
                await _ordered(w, end)
            node = w.nodes[1]
            node.report(1, 9, synced=4)
            await settle()
            await node.stop()
            node.lose_unsynced_rows()
            node.replica(1).rows.clear()
            if restart_repository:
                await w.stop_repository()
                await w.start_repository()
            await node.start()
            await until(lambda: node.replica(1).committed_end == 9)
            assert node.replica(1).rows == [row(3, 4, 4, 5, hwm=8, before=3)]
            assert (node.gaps, len(node.commits)) == (0, 1)
            assert node.marks[TOPIC].high_watermark == 8
            if restart_repository:
                assert node.terms[-1] > node.terms[0], "law 7: a new repository has a larger term"

    run(body())


def test_a_node_that_lost_only_its_session_gets_nothing_twice() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            await _ordered(w, 5)
            node = w.nodes[1]
            node.drop_session()
            await until(lambda: len(node.terms) == 2 and len(node.commits) == 1)
            (first,) = node.commits
            assert (first.serial, first.rows) == (1, ())
            assert [(mark.high_watermark, mark.trimmed) for mark in first.marks] == [(4, 0)]
            await _ordered(w, 6)
            assert node.gaps == 0

    run(body())


def test_what_was_reported_before_a_session_was_lost_still_counts() -> None:
    """Law 1: durable stays durable, in its epoch."""

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1, 2)
            w.nodes[1].report(1, 4)
            await settle()
            await w.nodes[1].stop()
            w.nodes[2].report(1, 6)
            await until(lambda: w.nodes[2].replica(1).committed_end == 4)
            await w.nodes[1].start()
            await until(lambda: w.nodes[1].replica(1).committed_end == 4)

    run(body())


@pytest.mark.parametrize(
    ("state", "ordered"), [(ReplicaState.RUNNING, 6), (ReplicaState.SEALING, 1), (ReplicaState.SEALED, 1)]
)
def test_only_a_running_replicas_point_claims_entries(state: ReplicaState, ordered: int) -> None:
    """A restarted repository has no reports. The tail of a replica that does not run may be cut by the seal to come (law 6)."""

    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            await w.stop_repository()
            replica = w.nodes[1].replica(1)
            replica.state, replica.durable_end = state, LLSN(6)
            await w.start_repository()
            await until(lambda: len(w.nodes[1].commits) >= 1)
            await until(lambda: replica.committed_end == ordered)
            await settle()
            assert await w.tail() == ordered - 1

    run(body())


def test_a_report_that_overtakes_the_opening_is_not_forgotten() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            node = w.nodes[1]
            opened = node._open

            def open_and_report(call: object, message: m.OpenSession) -> None:
                opened(call, message)  # type: ignore[arg-type]
                node.report(1, 7)

            node._open = open_and_report  # type: ignore[method-assign]
            node.drop_session()
            await until(lambda: node.replica(1).committed_end == 7)
            assert await w.tail() == 6

    run(body())


def test_a_replica_that_knows_more_than_the_repository_stops_its_topic() -> None:
    """Law 3: a store that went back in time must not give positions twice."""

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1, 2)
            old = dict(w.metadata.items)
            await _ordered(w, 5)
            await w.stop_repository()
            w.metadata.items = old
            await w.start_repository()
            await until(lambda: all(node.in_session and len(node.commits) == 1 for node in w.nodes.values()))
            for node in w.nodes.values():
                node.report(1, 9)
            await settle()
            assert await w.tail() == 0
            assert all(node.replica(1).committed_end == 5 for node in w.nodes.values())

    run(body())


def test_rows_that_are_forgotten_are_not_half_sent() -> None:
    """A replica that came back empty needs a sync; sending what comes after the gap would only make it ask forever."""

    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            node = w.nodes[1]
            for end in range(2, 600):
                node.report(1, end, synced=node.replica(1).committed_end)
                await until(lambda end=end: node.replica(1).committed_end == end)  # type: ignore[misc]
            await node.stop()
            node.replicas[LS] = type(node.replica(1))()
            node.replica(1).state = ReplicaState.SEALING
            await node.start()
            await until(lambda: len(node.commits) == 1)
            await settle()
            assert (node.commits[0].rows, node.gaps, len(node.terms)) == ((), 0, 2)
            # Once it reports that it has the rows (from another replica), it gets the rest.
            node.replica(1).committed_end = LLSN(599)
            node.report(1, 600, synced=599)
            await until(lambda: node.replica(1).committed_end == 600)

    run(body())


def test_a_node_that_reads_slowly_gets_what_it_missed_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing queues for it without bound: its position is kept, not its messages."""
    gate = asyncio.Event()
    gate.set()
    wait_writable = MemoryConnection.wait_writable

    async def held(connection: MemoryConnection) -> None:
        await gate.wait()
        await wait_writable(connection)

    monkeypatch.setattr(MemoryConnection, "wait_writable", held)

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1, 2)
            gate.clear()
            for end in range(2, 402):
                for node in w.nodes.values():
                    node.report(1, end)
                await settle()
            assert await w.tail() == 400, "the order continues without it"
            node = w.nodes[1]
            sent = len(node.commits)
            assert sent <= MESSAGES_BEFORE_PAUSE + 1
            gate.set()
            await until(lambda: node.replica(1).committed_end == 401)
            assert (len(node.commits), node.gaps) == (sent + 1, 0)

    run(body())


def test_more_rows_than_one_message_holds_arrive_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "ROWS_PER_MESSAGE_MAX", 4)

    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            await w.add_stream(1)
            node = w.nodes[1]
            for end in range(2, 22):
                node.report(1, end)
                node.report(2, end)
                await until(lambda end=end: node.replica(2).committed_end == end)  # type: ignore[misc]
            await node.stop()
            node.lose_unsynced_rows()
            await node.start()
            await until(lambda: node.replica(1).committed_end == node.replica(2).committed_end == 21)
            assert len(node.commits) > 5 and node.gaps == 0
            assert [mark.high_watermark for mark in node.commits[0].marks] == [0]
            await until(lambda: node.marks[TOPIC].high_watermark == 40)

    run(body())


# --- Seals (laws 6 and 7) ----------------------------------------------------------------------------------------


def test_a_seal_orders_what_was_reported_and_nothing_later() -> None:
    """R-SEAL-3, laws 6 and 7: the answer is the last ordered position, also when it is asked again."""

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1, 2)
            gate = asyncio.Event()

            async def held() -> None:
                await gate.wait()

            w.hold = held
            busy = asyncio.create_task(w.ask(m.SetManager("x", False), m.Done))  # keeps the store busy
            await settle()
            w.nodes[1].report(1, 5)
            w.nodes[2].report(1, 4)
            await settle()
            seal = asyncio.create_task(w.ask(m.SealStream(LS), m.StreamReply))
            await settle()
            commits = w.commits
            gate.set()
            sealed = (await seal).stream
            await busy
            assert w.commits == commits + 1, "the last cut and the seal are one commit"
            assert (sealed.state, sealed.epoch, sealed.sealed_end) == (StreamState.SEALED, 2, 4)
            w.nodes[2].report(1, 5)  # epoch 1: late
            await settle()
            assert await w.tail() == 3
            assert (await w.ask(m.SealStream(LS), m.StreamReply)).stream == sealed

    run(body())


def test_after_an_unseal_only_reports_of_its_epoch_count() -> None:
    """R-UNSEAL-1, law 7: reports of the new epoch that came before the repository's own unseal wait for it."""

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1, 2)
            await _ordered(w, 4)
            await w.ask(m.SealStream(LS), m.StreamReply)
            w.nodes[1].report(1, 6, epoch=2)
            w.nodes[2].report(1, 9, epoch=1)
            await settle()
            with pytest.raises(StaleEpoch):
                await w.ask(m.UnsealStream(LS, Epoch(1)), m.StreamReply)
            await w.ask(m.UnsealStream(LS, Epoch(2)), m.StreamReply)
            await settle()
            assert await w.tail() == 3
            await w.ask(m.SealStream(LS), m.StreamReply)
            for number in (1, 2):
                w.nodes[number].report(1, 6, epoch=3)
            await settle()
            assert await w.tail() == 3
            await w.ask(m.UnsealStream(LS, Epoch(3)), m.StreamReply)
            await until(lambda: w.nodes[1].replica(1).committed_end == 6)
            assert w.nodes[1].replica(1).rows[-1] == row(2, 4, 4, 2, hwm=5, before=3, epoch=3)

    run(body())


def test_an_unseal_and_a_seal_at_once_order_what_was_reported_between() -> None:
    """R-SEAL-3 holds although both wait for the same commit."""

    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1, run=False)
            w.nodes[1].report(1, 3, epoch=1)
            await settle()
            unseal = asyncio.create_task(w.ask(m.UnsealStream(LS, Epoch(1)), m.StreamReply))
            seal = asyncio.create_task(w.ask(m.SealStream(LS), m.StreamReply))
            assert (await unseal).stream.state is StreamState.RUNNING
            assert (await seal).stream.sealed_end == 3

    run(body())


# --- Topics and trims --------------------------------------------------------------------------------------------------------


def test_a_trim_is_answered_when_every_node_in_session_has_applied_it() -> None:
    """R-TRIM-1."""

    async def body() -> None:
        async with world(1, 2, 3) as w:
            await w.add_stream(1, 2)
            w.nodes[1].report(1, 9)
            w.nodes[2].report(1, 9)
            await until(lambda: w.nodes[2].replica(1).committed_end == 9)
            w.nodes[2].confirms = False
            trim = asyncio.create_task(w.ask(m.TrimTopic(TOPIC, GLSN(5)), m.Done))
            await until(lambda: w.nodes[2].marks[TOPIC].trimmed == 5)
            w.nodes[2].send(m.Reports((), len(w.nodes[2].commits) - 1))  # that of the message before
            await settle()
            assert not trim.done()
            w.nodes[2].confirm()
            await trim
            assert (await w.ask(m.GetTail(TOPIC), m.GetTailReply)).trimmed == 5
            assert TOPIC not in w.nodes[3].marks, "a node gets its own topics only"
            w.nodes[1].confirms = w.nodes[2].confirms = False
            await w.ask(m.TrimTopic(TOPIC, GLSN(3)), m.Done)  # applied long ago

    run(body())


def test_a_trim_does_not_wait_for_a_node_that_left_and_the_node_learns_it_when_it_returns() -> None:
    """R-TRIM-1: it reaches a node that was away."""

    async def body() -> None:
        async with world(1, 2) as w:
            await w.add_stream(1, 2)
            await _ordered(w, 9)
            w.nodes[2].confirms = False
            trim = asyncio.create_task(w.ask(m.TrimTopic(TOPIC, GLSN(8)), m.Done))
            await until(lambda: w.nodes[2].marks[TOPIC].trimmed == 8)
            await w.nodes[2].stop()
            await trim
            w.nodes[2].marks.clear()
            await w.nodes[2].start()
            await until(lambda: TOPIC in w.nodes[2].marks)
            assert w.nodes[2].marks[TOPIC].trimmed == 8

    run(body())


def test_a_trim_survives_a_restart_and_is_never_undone() -> None:
    """R-TRIM-1, law 9."""

    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            await _ordered(w, 9)
            await w.ask(m.TrimTopic(TOPIC, GLSN(6)), m.Done)
            await w.ask(m.TrimTopic(TOPIC, GLSN(2)), m.Done)
            await w.stop_repository()
            await w.start_repository()
            tail = await w.ask(m.GetTail(TOPIC), m.GetTailReply)
            assert (tail.high_watermark, tail.trimmed) == (8, 6)

    run(body())


def test_only_what_is_in_the_log_can_be_trimmed() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            await _ordered(w, 3)
            with pytest.raises(TrimBeyondTail, match="cannot trim up to 3: the newest position is 2"):
                await w.ask(m.TrimTopic(TOPIC, GLSN(3)), m.Done)
            with pytest.raises(UnknownTopic):
                await w.ask(m.TrimTopic(TopicID(9), GLSN(1)), m.Done)
            with pytest.raises(UnknownTopic):
                await w.tail(9)

    run(body())


def test_a_deleted_topic_is_gone_and_one_of_its_name_starts_again() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            await _ordered(w, 3)
            await w.ask(m.UnregisterTopic(TOPIC), m.Done)
            w.nodes[1].report(1, 9)
            await settle()
            with pytest.raises(UnknownTopic):
                await w.tail()
            stream = await w.add_stream(1)
            assert (stream.topic, stream.log_stream) == (2, 2)
            w.nodes[1].report(2, 4)
            await until(lambda: w.nodes[1].replica(2).committed_end == 4)
            assert w.nodes[1].replica(2).rows[0].glsn_begin == 1
            await w.stop_repository()
            await w.start_repository()
            assert await w.tail(2) == 3

    run(body())


# --- The view ------------------------------------------------------------------------------------------------------------------


def test_a_waiting_client_gets_the_next_view() -> None:
    async def body() -> None:
        async with world() as w:
            now = (await w.view()).revision
            waiting = asyncio.create_task(w.ask(m.GetView(now, 30), m.GetViewReply))
            at_once = await w.ask(m.GetView(now - 1, 30), m.GetViewReply)
            assert at_once.view.revision == now and not waiting.done()
            await w.ask(m.RegisterTopic("orders"), m.TopicReply)
            assert (await waiting).view.topic_named("orders") is not None

    run(body())


def test_a_client_that_waits_too_long_gets_the_view_as_it_is() -> None:
    async def body() -> None:
        async with world() as w:
            now = await w.view()
            assert (await w.ask(m.GetView(now.revision, 0.01), m.GetViewReply)).view == now

    run(body())


# --- Failure and start -----------------------------------------------------------------------------------------------------------


def test_a_store_that_fails_stops_the_repository_loudly() -> None:
    """Law 10: what is durable is not known any more, so nothing is answered as if it were."""

    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            repository = w.repository
            assert repository is not None
            waiting = asyncio.create_task(w.ask(m.GetView((await w.view()).revision, 30), m.GetViewReply))
            await settle()

            async def broken() -> None:
                raise OSError(5, "Input/output error")

            w.hold = broken
            with pytest.raises(Unavailable, match="may or may not be done"):
                await w.ask(m.RegisterTopic("more"), m.TopicReply)
            assert isinstance(await repository.wait_failed(), OSError)
            w.hold = None
            for request in (m.RegisterTopic("even more"), m.GetView(), m.GetTail(TOPIC)):
                with pytest.raises(Unavailable, match="has stopped"):
                    await w.ask(request, m.Message)
            with pytest.raises(Unavailable, match="has stopped"):
                await waiting
            await until(lambda: not w.nodes[1].in_session)

    run(body())


def test_a_repository_whose_store_was_taken_over_stops() -> None:
    """Law 7: the one that opened the store later is the only one that orders."""

    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            deposed = w.repository
            assert deposed is not None
            await MemoryStore(w.metadata).open()
            items = dict(w.metadata.items)
            w.nodes[1].report(1, 5)
            assert "opened again" in str(await deposed.wait_failed())
            assert (w.metadata.items, w.nodes[1].replica(1).committed_end) == (items, 1)

    run(body())


def test_metadata_of_another_cluster_are_refused() -> None:
    async def body() -> None:
        metadata, transport = MemoryMetadata(), MemoryTransport()
        config = MetadataRepositoryConfig(CLUSTER, MR)
        first = MetadataRepository(config, MemoryStore(metadata), seeded_environment(), transport)
        await first.start()
        assert first.address == MR
        await first.stop()
        other = MetadataRepositoryConfig(ClusterID(2), MR, advertise="mr.example:7100")
        second = MetadataRepository(
            other, MemoryStore(metadata, place="here"), seeded_environment(), transport
        )
        with pytest.raises(StartupError, match="here belongs to cluster 1, not to cluster 2"):
            await second.start()

    run(body())


def test_an_address_in_use_is_named_and_the_store_is_let_go() -> None:
    async def body() -> None:
        async with world() as w:
            config = MetadataRepositoryConfig(CLUSTER, MR)
            other = MetadataRepository(
                config, MemoryStore(MemoryMetadata()), seeded_environment(), w.transport
            )
            with pytest.raises(StartupError, match="cannot listen at mr"):
                await other.start()

    run(body())


def test_damaged_metadata_are_refused_and_kept() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            await _ordered(w, 3)
            await _ordered(w, 4)
            await w.stop_repository()
            del w.metadata.items["cut/00000000000000000001"]
            before = dict(w.metadata.items)
            with pytest.raises(StartupError, match="memory is damaged"):
                await w.start_repository()
            assert w.metadata.items == before

    run(body())
