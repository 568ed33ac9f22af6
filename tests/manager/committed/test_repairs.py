"""The manager over fakes repairs what is broken: lost, frozen, damaged replicas; nodes that stay away; zombies; full disks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.manager.fakes import FakeCluster, FakeReplica
from varlog.manager.manager import Manager
from varlog.model.cluster import LogStream, StreamState
from varlog.model.epoch import Epoch
from varlog.model.errors import InvalidRequest, PreconditionFailed
from varlog.model.events import Event, EventKind
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import LLSN
from varlog.model.status import ReplicaState, SyncState
from varlog.rpc import messages
from varlog.runtime.environment import system_environment

Story = Callable[[FakeCluster], Awaitable[None]]
LS = LogStreamID(1)


def run(story: Story, *, nodes: int = 3, replicas: int = 3, **settings: Any) -> None:
    async def whole() -> None:
        async with FakeCluster(nodes, replicas=replicas, **settings) as cluster:
            await cluster.ask(messages.CreateTopic("orders"))
            await story(cluster)

    asyncio.run(whole())


def stream_of(cluster: FakeCluster) -> LogStream:
    return cluster.repository.view.streams[0]


def fill(cluster: FakeCluster, entries: int) -> None:
    """Every replica of the stream has this number of ordered entries."""
    cluster.repository.ends[LS] = LLSN(entries + 1)
    for node in stream_of(cluster).replicas:
        cluster.nodes[node].replicas[LS].end = LLSN(entries + 1)


def test_a_deleted_directory_is_filled_again_from_the_others() -> None:
    async def story(cluster: FakeCluster) -> None:
        fill(cluster, 10)
        await cluster.nodes[2].stop()
        cluster.nodes[2].replicas.clear()
        await cluster.nodes[2].start()
        await cluster.wait(lambda: LS in cluster.nodes[2].replicas and cluster.all_running())
        assert cluster.nodes[2].replicas[LS].end == 11
        assert stream_of(cluster).replicas == (1, 2, 3)
        assert cluster.nodes[2].asked[-5:] == [
            "AddLogStream",
            "SealReplica",
            "SyncReplica",
            "SealReplica",
            "UnsealReplica",
        ]

    run(story)


def test_a_long_sync_is_followed_and_its_progress_reported() -> None:
    """R-SYNC-1."""

    async def story(cluster: FakeCluster) -> None:
        fill(cluster, 100)
        await cluster.nodes[3].stop()
        cluster.nodes[3].replicas[LS] = FakeReplica(TopicID(1), copies=0)
        await cluster.nodes[3].start()
        replica = cluster.nodes[3].replicas[LS]
        await cluster.wait(lambda: replica.sync is not None)
        replica.end = LLSN(51)
        waits: tuple[Event, ...] = ()
        while not waits or "50 % done" not in waits[0].reason:
            reply = await cluster.ask(messages.GetClusterStatus())
            assert isinstance(reply, messages.GetClusterStatusReply)
            status = reply.status
            waits = status.waits
        assert [(wait.kind, wait.log_stream, wait.node) for wait in waits] == [(EventKind.SYNCING, LS, 3)]
        assert cluster.nodes[3].asked.count("SyncReplica") == 1
        replica.copies = 100
        await cluster.wait(cluster.all_running)

    run(story)


def test_a_node_that_stays_away_is_replaced_and_what_it_has_goes_when_it_comes_back() -> None:
    """R-REG-6, R-REG-4."""

    async def story(cluster: FakeCluster) -> None:
        fill(cluster, 5)
        old = stream_of(cluster).primary
        await cluster.nodes[old].stop()
        await cluster.wait(lambda: old not in stream_of(cluster).replicas and cluster.all_running())
        new = stream_of(cluster).replicas[-1]
        assert cluster.nodes[new].replicas[LS].end == 6
        assert len(stream_of(cluster).replicas) == 3
        assert LS in cluster.nodes[old].replicas
        await cluster.nodes[old].start()
        await cluster.wait(lambda: LS not in cluster.nodes[old].replicas)
        assert cluster.all_running()

    run(story, nodes=4, replace_after_s=0.05, zombie_grace_s=0.05)


def test_a_node_that_is_away_for_a_moment_is_not_replaced() -> None:
    async def story(cluster: FakeCluster) -> None:
        replicas = stream_of(cluster).replicas
        await cluster.nodes[replicas[0]].stop()
        await cluster.wait(lambda: stream_of(cluster).state is StreamState.SEALED)
        for _ in range(5):
            await cluster.ask(messages.GetClusterStatus())
        await cluster.nodes[replicas[0]].start()
        await cluster.wait(cluster.all_running)
        assert stream_of(cluster).replicas == replicas

    run(story, nodes=4)


def test_a_replacement_respects_the_limit_of_a_node() -> None:
    """R-REG-3."""

    async def story(cluster: FakeCluster) -> None:
        idle = next(node for node in cluster.nodes.values() if not node.replicas)
        idle.streams_max = 0
        old = stream_of(cluster).replicas[1]
        await cluster.nodes[old].stop()

        async def wait_text() -> str:
            reply = await cluster.ask(messages.GetClusterStatus())
            assert isinstance(reply, messages.GetClusterStatusReply)
            status = reply.status
            return status.waits[0].reason if status.waits else ""

        while "no other node has room" not in await wait_text():
            pass
        assert old in stream_of(cluster).replicas and not idle.asked
        idle.streams_max = 1
        await cluster.wait(lambda: idle.node in stream_of(cluster).replicas and cluster.all_running())

    run(story, nodes=4, replace_after_s=0.05)


def test_what_was_left_on_a_spare_node_goes_before_a_replica_is_made_there() -> None:
    """A node makes no replica over data that is there already."""

    async def story(cluster: FakeCluster) -> None:
        fill(cluster, 5)
        spare = next(node for node in cluster.nodes.values() if not node.replicas)
        spare.replicas[LS] = FakeReplica(TopicID(1), epoch=Epoch(0), end=LLSN(3))
        spare.replicas[LS].epoch = Epoch(1)
        old = stream_of(cluster).replicas[2]
        await cluster.nodes[old].stop()
        await cluster.wait(lambda: spare.node in stream_of(cluster).replicas and cluster.all_running())
        assert spare.asked[:2] == ["RemoveLogStream", "AddLogStream"]
        assert spare.replicas[LS].end == 6

    run(story, nodes=4, replace_after_s=0.05)


def test_a_node_whose_disk_refuses_for_long_is_replaced_though_it_lives() -> None:
    """R-FAIL-1."""

    async def story(cluster: FakeCluster) -> None:
        fill(cluster, 5)
        bad = cluster.nodes[stream_of(cluster).replicas[1]]
        bad.refuse[messages.SealReplica] = None
        bad.replicas[LS].state = ReplicaState.SEALING
        await cluster.wait(lambda: bad.node not in stream_of(cluster).replicas and cluster.all_running())

    run(story, nodes=4, replace_after_s=0.05)


def test_a_frozen_replica_is_rebuilt() -> None:
    async def story(cluster: FakeCluster) -> None:
        fill(cluster, 5)
        cluster.nodes[3].replicas[LS].state = ReplicaState.FROZEN
        await cluster.wait(
            lambda: cluster.nodes[3].replicas[LS].state is ReplicaState.RUNNING and cluster.all_running()
        )
        assert cluster.nodes[3].replicas[LS].end == 6
        assert "RebuildReplica" in cluster.nodes[3].asked

    run(story)


def test_damage_is_repaired_while_the_stream_runs() -> None:
    async def story(cluster: FakeCluster) -> None:
        fill(cluster, 5)
        epoch = stream_of(cluster).epoch
        replica = cluster.nodes[2].replicas[LS]
        replica.damage = ((LLSN(2), LLSN(4)),)
        await cluster.wait(lambda: not replica.damage)
        assert (stream_of(cluster).epoch, stream_of(cluster).state) == (epoch, StreamState.RUNNING)

    run(story)


def test_a_full_disk_keeps_the_stream_sealed_until_there_is_room() -> None:
    async def story(cluster: FakeCluster) -> None:
        replica = cluster.nodes[2].replicas[LS]
        replica.full, replica.state = True, ReplicaState.SEALING
        await cluster.wait(lambda: replica.state is ReplicaState.SEALED)
        reply = await cluster.ask(messages.GetClusterStatus())
        assert isinstance(reply, messages.GetClusterStatusReply)
        status = reply.status
        assert (status.waits[0].kind, status.waits[0].node) == (EventKind.DISK_FULL, 2)
        assert cluster.nodes[2].asked[-1] == "SealReplica"
        replica.full = False
        await cluster.wait(cluster.all_running)

    run(story)


def test_what_a_deleted_topic_left_on_a_node_that_was_away_is_removed() -> None:
    async def story(cluster: FakeCluster) -> None:
        await cluster.nodes[2].stop()
        await cluster.ask(messages.DeleteTopic("orders"))
        await cluster.nodes[2].start()
        await cluster.wait(lambda: not cluster.nodes[2].replicas)
        assert cluster.nodes[2].asked[-1] == "RemoveLogStream"

    run(story, zombie_grace_s=0.05)


def test_a_half_made_stream_is_removed_after_the_grace_time() -> None:
    """R-REG-4: left by a manager that died between the nodes and the repository."""

    async def story(cluster: FakeCluster) -> None:
        for node in cluster.nodes.values():
            node.replicas[LogStreamID(9)] = FakeReplica(TopicID(1))
        await cluster.wait(lambda: all(list(node.replicas) == [LS] for node in cluster.nodes.values()))
        assert cluster.all_running()

    run(story, zombie_grace_s=0.05)


def test_data_of_a_stream_unknown_to_the_repository_is_kept_and_reported() -> None:
    """A repository that lost its metadata must not have everything deleted."""

    async def story(cluster: FakeCluster) -> None:
        held = FakeReplica(TopicID(1), epoch=Epoch(4), end=LLSN(7))
        cluster.nodes[1].replicas[LogStreamID(9)] = held
        cluster.nodes[2].replicas[LogStreamID(9)] = FakeReplica(TopicID(1))
        await cluster.wait(lambda: LogStreamID(9) not in cluster.nodes[2].replicas)
        reply = await cluster.ask(messages.GetClusterStatus())
        assert isinstance(reply, messages.GetClusterStatusReply)
        status = reply.status
        assert cluster.nodes[1].replicas[LogStreamID(9)] is held
        assert sum(event.kind is EventKind.FOREIGN_REPLICA_KEPT for event in status.events) == 1

    run(story, zombie_grace_s=0.05)


def test_a_half_made_stream_is_left_alone_within_the_grace_time() -> None:
    async def story(cluster: FakeCluster) -> None:
        cluster.nodes[1].replicas[LogStreamID(9)] = FakeReplica(TopicID(1))
        for _ in range(20):
            await cluster.ask(messages.GetClusterStatus())
        assert LogStreamID(9) in cluster.nodes[1].replicas

    run(story)


# --- by hand ----------------------------------------------------------------------------------------------------


def test_a_replica_is_moved_by_hand() -> None:
    async def story(cluster: FakeCluster) -> None:
        fill(cluster, 5)
        old = stream_of(cluster).primary
        idle = next(node for node in cluster.nodes.values() if not node.replicas)
        answer = await cluster.ask(messages.AdminReplaceReplica(LS, old))
        assert isinstance(answer, messages.StreamReply)
        assert old not in answer.stream.replicas and idle.node in answer.stream.replicas
        await cluster.wait(cluster.all_running)
        assert idle.replicas[LS].end == 6
        # Again: it is done already.
        again = await cluster.ask(messages.AdminReplaceReplica(LS, old, idle.node))
        assert isinstance(again, messages.StreamReply) and again.stream.replicas == answer.stream.replicas

    run(story, nodes=4)


def test_the_only_replica_is_moved_by_hand_and_is_never_the_last_copy_to_go() -> None:
    async def story(cluster: FakeCluster) -> None:
        fill(cluster, 5)
        old = stream_of(cluster).primary
        new = NodeID(3 - old)
        await cluster.ask(messages.AdminReplaceReplica(LS, old, new))
        await cluster.wait(cluster.all_running)
        assert stream_of(cluster).replicas == (new,)
        assert cluster.nodes[new].replicas[LS].end == 6

    run(story, nodes=2, replicas=1)


def test_a_move_that_makes_no_sense_is_refused() -> None:
    async def story(cluster: FakeCluster) -> None:
        with pytest.raises(InvalidRequest, match="no replica on node 9"):
            await cluster.ask(messages.AdminReplaceReplica(LS, NodeID(9), NodeID(8)))
        with pytest.raises(PreconditionFailed, match="not registered, or does not answer"):
            await cluster.ask(messages.AdminReplaceReplica(LS, NodeID(1), NodeID(9)))
        with pytest.raises(InvalidRequest, match="already has a replica on node 2"):
            await cluster.ask(messages.AdminReplaceReplica(LS, NodeID(1), NodeID(2)))
        with pytest.raises(PreconditionFailed, match="no other storage node is alive and has room"):
            await cluster.ask(messages.AdminReplaceReplica(LS, NodeID(1)))
        assert cluster.all_running()

    run(story)


def test_a_manual_sync_reports_its_progress() -> None:
    async def story(cluster: FakeCluster) -> None:
        fill(cluster, 10)
        done = await cluster.ask(messages.AdminSyncReplica(LS, NodeID(2)))
        assert isinstance(done, messages.SyncReply) and done.sync.state is SyncState.COMPLETE
        with pytest.raises(InvalidRequest, match="no replica on node 9"):
            await cluster.ask(messages.AdminSyncReplica(LS, NodeID(9)))
        await cluster.nodes[3].stop()
        cluster.nodes[3].replicas[LS] = FakeReplica(TopicID(1), copies=0)
        with pytest.raises(PreconditionFailed, match="cannot be synced now"):
            await cluster.ask(messages.AdminSyncReplica(LS, NodeID(3)))
        await cluster.nodes[3].start()
        await cluster.wait(lambda: cluster.nodes[3].replicas[LS].sync is not None)
        going = await cluster.ask(messages.AdminSyncReplica(LS, NodeID(3)))
        assert isinstance(going, messages.SyncReply) and going.sync.state is SyncState.IN_PROGRESS
        assert going.sync.target_end == 11

    run(story)


def test_a_hold_by_hand_outlives_the_manager() -> None:
    async def story(cluster: FakeCluster) -> None:
        await cluster.ask(messages.AdminSealStream(LS))
        await cluster.manager.stop()
        cluster.manager = Manager(cluster.config, system_environment(), cluster.transport)
        await cluster.manager.start()
        for _ in range(5):
            await cluster.ask(messages.GetClusterStatus())
        assert stream_of(cluster).state is StreamState.SEALED and stream_of(cluster).sealed_by_admin
        await cluster.ask(messages.AdminUnsealStream(LS))
        assert cluster.all_running()

    run(story)


# --- detection --------------------------------------------------------------------------------------------------


def test_a_suspicion_wakes_the_manager_at_once() -> None:
    """It does not wait for its heartbeat."""

    async def story(cluster: FakeCluster) -> None:
        cluster.nodes[2].replicas[LS].state = ReplicaState.SEALING  # nobody says so
        cluster.repository.suspect(NodeID(2))
        await cluster.wait(cluster.all_running, timeout_s=5)
        reply = await cluster.ask(messages.GetClusterStatus())
        assert isinstance(reply, messages.GetClusterStatusReply)
        status = reply.status
        assert status.suspects == (2,)

    run(story, heartbeat_s=30.0)


def test_a_broken_connection_wakes_the_manager_at_once_and_a_silent_node_holds_nobody_up() -> None:
    async def story(cluster: FakeCluster) -> None:
        await cluster.nodes[2].stop()
        await cluster.wait(lambda: stream_of(cluster).state is StreamState.SEALED, timeout_s=5)
        reply = await cluster.ask(messages.GetClusterStatus())
        assert isinstance(reply, messages.GetClusterStatusReply)
        status = reply.status
        assert [(node.alive, node.unreachable_s > 0) for node in status.nodes] == [
            (True, False),
            (False, True),
            (True, False),
        ]
        assert any((event.kind, event.node) == (EventKind.NODE_UNREACHABLE, 2) for event in status.events)
        await cluster.nodes[2].start()

    run(story, heartbeat_s=30.0)


def test_two_managers_that_make_the_same_topic_make_no_stream_too_many() -> None:
    async def story(cluster: FakeCluster) -> None:
        second = Manager(replace(cluster.config, listen="vmc:2"), system_environment(), cluster.transport)
        await second.start()
        connections = [await cluster.transport.connect(f"vmc:{n}", timeout_s=5) for n in (1, 2)]
        asks = [
            connection.call(messages.CreateTopic("both", streams=3), timeout_s=20)
            for connection in connections
        ]
        answers = [answer for answer, _ in await asyncio.gather(*asks)]
        assert answers[0] == answers[1] and isinstance(answers[0], messages.TopicReply)
        streams = cluster.repository.view.streams_of(answers[0].topic.topic)
        assert len(streams) == 3 and cluster.all_running()
        for connection in connections:
            connection.close()
        await second.stop()
        registered = {stream.log_stream for stream in cluster.repository.view.streams}
        assert all(registered >= set(node.replicas) for node in cluster.nodes.values())

    run(story)
