"""The manager over fakes: registration, topics, seal by hand, and streams that come back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.manager.fakes import CLUSTER, FakeCluster, FakeNode, FakeRepository
from varlog.manager.manager import Manager
from varlog.manager.repair_loop import ClusterWatcher
from varlog.manager.snapshot import Snapshot
from varlog.metarepo.membership.named_rules import set_reader
from varlog.metarepo.membership.rules import seal_stream
from varlog.model.cluster import StreamState
from varlog.model.errors import (
    InvalidRequest,
    NotInCluster,
    PreconditionFailed,
    StartupError,
    UnknownLogStream,
    UnknownTopic,
)
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState
from varlog.rpc import messages
from varlog.rpc.memory import MemoryTransport
from varlog.runtime.environment import system_environment

Story = Callable[[FakeCluster], Awaitable[None]]


def run(story: Story, *, nodes: int = 3, replicas: int = 3) -> None:
    async def whole() -> None:
        async with FakeCluster(nodes, replicas=replicas) as cluster:
            await story(cluster)

    asyncio.run(whole())


def test_named_nodes_are_identified_and_registered() -> None:
    """R-REG-1."""

    async def story(cluster: FakeCluster) -> None:
        assert [(node.node, node.address, node.volumes) for node in cluster.repository.view.nodes] == [
            (number, f"sn:{number}", ("/v",)) for number in (1, 2, 3)
        ]
        await cluster.wait(lambda: cluster.repository.view.manager_address == "vmc:1")
        assert cluster.repository.view.auto_create_topics

    run(story)


def test_a_named_node_that_comes_up_later_is_registered_then() -> None:
    async def story() -> None:
        cluster = FakeCluster(2)
        late = cluster.nodes[2]
        await cluster.repository.start()
        await cluster.nodes[1].start()
        await cluster.manager.start()
        await cluster.wait(lambda: len(cluster.repository.view.nodes) == 1)
        await late.start()
        await cluster.wait(lambda: len(cluster.repository.view.nodes) == 2)
        await cluster.__aexit__()
        assert [node.node for node in cluster.repository.view.nodes] == [1, 2]

    asyncio.run(story())


def test_a_topic_waits_for_a_named_node_that_is_still_coming_up() -> None:
    async def story() -> None:
        cluster = FakeCluster(1, replicas=1)
        await cluster.repository.start()
        await cluster.manager.start()
        making = asyncio.ensure_future(cluster.ask(messages.CreateTopic("orders")))
        await cluster.nodes[1].start()
        assert isinstance(await making, messages.TopicReply)
        assert cluster.all_running()
        await cluster.__aexit__()

    asyncio.run(story())


def test_a_topic_waits_for_a_node_that_has_just_fallen_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a node may be slow to answer once: that is no reason to refuse what would go a moment later."""
    monkeypatch.setattr("varlog.manager.registrar.NODES_TIMEOUT_S", 60.0)

    async def story(cluster: FakeCluster) -> None:
        rounds: list[int] = []
        look = ClusterWatcher.snapshot

        async def counted(watcher: ClusterWatcher) -> Snapshot:
            snapshot = await look(watcher)
            rounds.append(len(snapshot.nodes))
            return snapshot

        monkeypatch.setattr(ClusterWatcher, "snapshot", counted)
        await cluster.nodes[3].stop()
        making = asyncio.ensure_future(cluster.ask(messages.CreateTopic("orders")))
        await cluster.wait(lambda: 2 in rounds or making.done())
        await cluster.nodes[3].start()
        assert isinstance(await making, messages.TopicReply)
        assert cluster.all_running() and 2 in rounds

    run(story)


def test_a_node_of_another_cluster_is_refused() -> None:
    """R-REG-1."""

    async def story(cluster: FakeCluster) -> None:
        stranger = FakeNode(cluster.transport, NodeID(9), cluster=ClusterID(8))
        await stranger.start()
        with pytest.raises(NotInCluster):
            await cluster.ask(messages.AddNode(stranger.address))
        assert cluster.repository.view.node(NodeID(9)) is None
        await stranger.stop()

    run(story)


def test_a_repository_of_another_cluster_ends_the_start() -> None:
    async def story() -> None:
        transport = MemoryTransport()
        repository = FakeRepository(transport, ClusterID(CLUSTER + 1))
        await repository.start()
        manager = Manager(FakeCluster(0).config, system_environment(), transport)
        with pytest.raises(StartupError, match="belongs to cluster 8, not to 7"):
            await manager.start()
        await manager.stop()
        await repository.stop()

    asyncio.run(story())


def test_a_created_topic_has_its_streams_running_and_primaries_spread() -> None:
    """R-REG-2: replicas first, then the repository; answered when the streams run."""

    async def story(cluster: FakeCluster) -> None:
        answer = await cluster.ask(messages.CreateTopic("orders", streams=3))
        assert isinstance(answer, messages.TopicReply) and answer.topic.name == "orders"
        assert cluster.all_running()
        streams = cluster.repository.view.streams_of(answer.topic.topic)
        assert sorted(stream.primary for stream in streams) == [1, 2, 3]
        asked = cluster.repository.asked
        assert asked.index("NewLogStreamID") < asked.index("RegisterLogStream") < asked.index("UnsealStream")

    run(story)


def test_a_stream_is_made_on_all_its_nodes_before_it_is_registered() -> None:
    """R-REG-2: clients learn of it from the repository, so none reads or writes it before that."""

    async def story(cluster: FakeCluster) -> None:
        asked = cluster.repository.asked
        for node in cluster.nodes.values():
            node.asked = asked
        asked.clear()
        await cluster.ask(messages.CreateTopic("orders", streams=1))
        made = [name for name in asked if name in ("NewLogStreamID", "AddLogStream", "RegisterLogStream")]
        assert made == ["NewLogStreamID", *["AddLogStream"] * 3, "RegisterLogStream"]

    run(story)


def test_creating_a_topic_again_returns_the_existing_one() -> None:
    async def story(cluster: FakeCluster) -> None:
        both = await asyncio.gather(*(cluster.ask(messages.CreateTopic("orders")) for _ in range(4)))
        assert all(answer == both[0] for answer in both)
        assert [stream.log_stream for stream in cluster.repository.view.streams] == [1]
        # What an earlier call left half made is finished.
        await cluster.ask(messages.CreateTopic("orders", streams=2))
        assert [stream.log_stream for stream in cluster.repository.view.streams] == [1, 2]
        with pytest.raises(PreconditionFailed, match="already exists, with 2 log streams"):
            await cluster.ask(messages.CreateTopic("orders", streams=1))

    run(story)


def test_topics_that_are_made_at_once_are_spread_as_if_one_after_the_other() -> None:
    """They share their look at the cluster: what each of them places counts for the next."""

    async def story(cluster: FakeCluster) -> None:
        names = [f"topic-{number}" for number in range(12)]
        made = await asyncio.gather(*(cluster.ask(messages.CreateTopic(name)) for name in names))
        assert all(isinstance(answer, messages.TopicReply) for answer in made)
        assert cluster.all_running()
        streams = cluster.repository.view.streams
        assert len({stream.topic for stream in streams}) == len(streams) == len(names)
        assert sorted(Counter(stream.primary for stream in streams).values()) == [4, 4, 4]

    run(story)


def test_a_topic_that_is_deleted_while_it_is_created_again_exists_wholly_or_not_at_all() -> None:
    async def story(cluster: FakeCluster) -> None:
        await cluster.ask(messages.CreateTopic("orders"))
        await asyncio.gather(
            cluster.ask(messages.DeleteTopic("orders")), cluster.ask(messages.CreateTopic("orders"))
        )
        view = cluster.repository.view
        assert len(view.streams) == len(view.topics)
        await cluster.ask(messages.CreateTopic("orders"))
        assert cluster.all_running() and len(cluster.repository.view.streams) == 1

    run(story)


def test_a_topic_that_cannot_be_placed_is_refused_before_anything_is_made() -> None:
    async def story(cluster: FakeCluster) -> None:
        with pytest.raises(
            PreconditionFailed, match="3 replicas need 3 living storage nodes, and there are 2"
        ):
            await cluster.ask(messages.CreateTopic("orders"))
        with pytest.raises(InvalidRequest, match="not usable"):
            await cluster.ask(messages.CreateTopic("no/slash"))
        assert cluster.repository.view.topics == ()

    run(story, nodes=2)


def test_a_stream_that_a_node_refuses_leaves_nothing_on_the_others() -> None:
    async def story(cluster: FakeCluster) -> None:
        cluster.nodes[2].refuse[messages.AddLogStream] = None
        with pytest.raises(PreconditionFailed, match="configured to refuse"):
            await cluster.ask(messages.CreateTopic("orders"))
        assert cluster.repository.view.streams == ()
        assert all(node.replicas == {} for node in cluster.nodes.values())
        cluster.nodes[2].refuse.clear()
        await cluster.ask(messages.CreateTopic("orders"))
        assert cluster.all_running()

    run(story)


def test_a_stream_comes_back_after_a_node_restarted() -> None:
    """R-SEAL-2: the restarted replica is SEALING; a new epoch brings the stream back."""

    async def story(cluster: FakeCluster) -> None:
        await cluster.ask(messages.CreateTopic("orders", streams=2))
        before = cluster.repository.view.streams
        await cluster.nodes[3].stop()
        await cluster.wait(
            lambda: all(stream.state is StreamState.SEALED for stream in cluster.repository.view.streams)
        )
        await cluster.nodes[3].start()
        await cluster.wait(cluster.all_running)
        after = cluster.repository.view.streams
        assert [stream.epoch for stream in after] == [stream.epoch + 1 for stream in before]

    run(story)


def test_an_unseal_that_broke_off_is_finished_in_a_new_epoch() -> None:
    """The primary was opened and restarted before the repository knew: only a newer epoch can seal it."""

    async def story(cluster: FakeCluster) -> None:
        await cluster.ask(messages.CreateTopic("orders"))
        stream = cluster.repository.view.streams[0]
        _seal_behind_the_manager(cluster, stream.log_stream)
        await cluster.wait(cluster.all_running)
        assert cluster.repository.view.streams[0].epoch > stream.epoch

    run(story)


def _seal_behind_the_manager(cluster: FakeCluster, log_stream: LogStreamID) -> None:
    """What is left when a manager dies after the primary was opened, and the nodes restart."""
    cluster.repository.members, stream = seal_stream(cluster.repository.members, log_stream, LLSN(1))
    for node in cluster.nodes.values():
        replica = node.replicas[log_stream]
        replica.state, replica.epoch, replica.opened = ReplicaState.SEALING, stream.epoch, True


def test_a_stream_sealed_by_hand_stays_sealed_until_it_is_unsealed_by_hand() -> None:
    async def story(cluster: FakeCluster) -> None:
        await cluster.ask(messages.CreateTopic("orders"))
        stream = cluster.repository.view.streams[0].log_stream
        answer = await cluster.ask(messages.AdminSealStream(stream))
        assert isinstance(answer, messages.StreamReply) and answer.stream.state is StreamState.SEALED
        rounds = cluster.nodes[1].asked.count("UnsealReplica")
        for _ in range(5):
            await cluster.ask(messages.GetClusterStatus())
        assert cluster.repository.view.streams[0].state is StreamState.SEALED
        assert cluster.nodes[1].asked.count("UnsealReplica") == rounds
        answer = await cluster.ask(messages.AdminUnsealStream(stream))
        assert isinstance(answer, messages.StreamReply) and answer.stream.state is StreamState.RUNNING
        with pytest.raises(UnknownLogStream):
            await cluster.ask(messages.AdminSealStream(LogStreamID(99)))

    run(story)


def test_a_deleted_topic_leaves_the_view_and_the_nodes() -> None:
    async def story(cluster: FakeCluster) -> None:
        await cluster.ask(messages.CreateTopic("orders", streams=2))
        await cluster.ask(messages.DeleteTopic("orders"))
        assert (cluster.repository.view.topics, cluster.repository.view.streams) == ((), ())
        assert all(node.replicas == {} for node in cluster.nodes.values())
        with pytest.raises(UnknownTopic):
            await cluster.ask(messages.DeleteTopic("orders"))

    run(story)


def test_a_node_that_holds_replicas_cannot_be_removed_and_an_idle_one_can() -> None:
    async def story(cluster: FakeCluster) -> None:
        await cluster.ask(messages.CreateTopic("orders", replicas=3))
        idle = next(node for node in cluster.nodes.values() if not node.replicas)
        busy = next(node for node in cluster.nodes.values() if node.replicas)
        with pytest.raises(PreconditionFailed, match="has replicas"):
            await cluster.ask(messages.RemoveNode(busy.node))
        await cluster.ask(messages.RemoveNode(idle.node))
        assert cluster.repository.view.node(idle.node) is None
        with pytest.raises(InvalidRequest, match="no storage node"):
            await cluster.ask(messages.RemoveNode(idle.node))
        await cluster.ask(messages.AddNode(idle.address))
        assert cluster.repository.view.node(idle.node) is not None

    run(story, nodes=4)


def test_status_reports_liveness_of_nodes_and_states_of_replicas() -> None:
    async def story(cluster: FakeCluster) -> None:
        await cluster.ask(messages.CreateTopic("orders"))
        await cluster.nodes[2].stop()
        reply = await cluster.ask(messages.GetClusterStatus())
        assert isinstance(reply, messages.GetClusterStatusReply)
        status = reply.status
        assert [(node.node, node.alive) for node in status.nodes] == [(1, True), (2, False), (3, True)]
        assert status.nodes[0].status is not None and len(status.nodes[0].status.replicas) == 1
        assert [mark.high_watermark for mark in status.tails] == [0]
        await cluster.nodes[2].start()

    run(story)


def test_a_topic_is_made_once_with_one_first_position() -> None:
    async def story(cluster: FakeCluster) -> None:
        for _ in range(2):
            made = await cluster.ask(messages.CreateTopic("copy", first=GLSN(500)))
            assert isinstance(made, messages.TopicReply) and made.topic.first == 500
        with pytest.raises(PreconditionFailed, match="its first position is 500, not 1"):
            await cluster.ask(messages.CreateTopic("copy"))
        with pytest.raises(InvalidRequest, match="the first position of a topic"):
            await cluster.ask(messages.CreateTopic("other", first=GLSN(0)))
        assert [topic.name for topic in cluster.repository.view.topics] == ["copy"]

    run(story)


def test_status_reports_the_positions_of_named_readers() -> None:
    async def story(cluster: FakeCluster) -> None:
        await cluster.ask(messages.CreateTopic("orders"))
        members = cluster.repository.members
        cluster.repository.members, reader = set_reader(members, TopicID(1), "nightly", GLSN(0), GLSN(0))
        reply = await cluster.ask(messages.GetClusterStatus())
        assert isinstance(reply, messages.GetClusterStatusReply)
        status = reply.status
        assert status.readers == (reader,)

    run(story)


def test_a_manager_that_starts_before_the_repository_waits_for_it() -> None:
    async def story() -> None:
        cluster = FakeCluster(3)
        for node in cluster.nodes.values():
            await node.start()
        await cluster.manager.start()
        await cluster.repository.start()
        await cluster.wait(lambda: len(cluster.repository.view.nodes) == 3)
        await cluster.ask(messages.CreateTopic("orders"))
        assert cluster.all_running()
        await cluster.__aexit__()

    asyncio.run(story())


def test_a_new_manager_continues_where_the_old_one_was_interrupted() -> None:
    """Killed after any number of rounds, the manager leaves nothing that the next one cannot finish."""

    async def story(cluster: FakeCluster) -> None:
        await cluster.ask(messages.CreateTopic("orders", streams=2))
        for _ in range(4):
            await cluster.nodes[1].stop()
            await cluster.nodes[1].start()
            await cluster.manager.stop()
            cluster.manager = Manager(cluster.config, system_environment(), cluster.transport)
            await cluster.manager.start()
        await cluster.wait(cluster.all_running)
        assert cluster.all_running()

    run(story)


def test_two_managers_at_once_do_no_harm() -> None:
    """Each step may be done twice and from an older look: the streams come back, and then nothing moves any
    more."""

    async def story(cluster: FakeCluster) -> None:
        second = Manager(replace(cluster.config, listen="vmc:2"), system_environment(), cluster.transport)
        await second.start()
        await cluster.ask(messages.CreateTopic("orders", streams=3))
        for node in cluster.nodes.values():
            await node.stop()
            await node.start()
            await cluster.wait(cluster.all_running)
        epochs = [stream.epoch for stream in cluster.repository.view.streams]
        for _ in range(10):
            await cluster.ask(messages.GetClusterStatus())
        assert [stream.epoch for stream in cluster.repository.view.streams] == epochs
        await second.stop()

    run(story)
