"""Several metadata repositories over one store, in virtual time: one leads, the others say who, a term leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.metarepo.helpers import CLUSTER, ScriptedNode, seeded_environment
from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.memory import InMemoryReplicatedStore, MemoryMetadata
from varlog.model.errors import NotLeader, StartupError, Unavailable
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.rpc import messages as m
from varlog.rpc.memory import MemoryTransport
from varlog.testing.sim.core.loop import run_simulated

LEASE_S = 2.0
NAMES = ("mr1", "mr2", "mr3")


class Group:
    """Three repositories, one of which leads."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self.metadata = MemoryMetadata()
        self.repositories: dict[str, MetadataRepository] = {}

    async def start(self, name: str, cluster: ClusterID = CLUSTER) -> MetadataRepository:
        address = f"{name}:7100"
        store = InMemoryReplicatedStore(self.metadata, seeded_environment(), address, lease_s=LEASE_S)
        config = MetadataRepositoryConfig(cluster, address, node_retry_s=0.05)
        made = self.repositories[name] = MetadataRepository(
            config, store, seeded_environment(), self.transport
        )
        await made.start()
        return made

    async def start_all(self) -> None:
        for name in NAMES:
            await self.start(name)
            await asyncio.sleep(0.1)

    async def stop_all(self) -> None:
        for repository in self.repositories.values():
            await repository.stop()

    def leading(self) -> list[str]:
        return [name for name, repository in self.repositories.items() if repository.leads]

    async def leader(self) -> str:
        async with asyncio.timeout(30):
            while not self.leading():
                await asyncio.sleep(0.01)
        (name,) = self.leading()
        return name

    async def ask(self, name: str, request: m.Message) -> m.Message:
        connection = await self.transport.connect(f"{name}:7100", timeout_s=5)
        try:
            answer, _ = await connection.call(request, timeout_s=60)
            return answer
        finally:
            connection.close()

    def cut(self, name: str, until: float) -> None:
        self.metadata.held_until = lambda host: until if host == name else 0.0


def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


def test_the_first_leads_the_others_name_it_and_the_view_names_all() -> None:
    async def body() -> None:
        group = Group()
        await group.start_all()
        assert group.leading() == ["mr1"]
        for name in ("mr2", "mr3"):
            for request in (m.GetView(), m.GetTail(TopicID(1)), m.RegisterTopic("orders")):
                with pytest.raises(NotLeader) as error:
                    await group.ask(name, request)
                assert error.value.leader == "mr1:7100"
        await asyncio.sleep(LEASE_S)
        answer = await group.ask("mr1", m.GetView())
        assert isinstance(answer, m.GetViewReply)
        assert answer.view.repositories == ("mr1:7100", "mr2:7100", "mr3:7100")
        await group.stop_all()

    run_simulated(body())


def test_a_leader_that_stops_hands_over_at_once_and_the_next_one_knows_everything() -> None:
    async def body() -> None:
        group = Group()
        await group.start_all()
        node = ScriptedNode(group.transport, 1)
        await node.start()
        await group.ask("mr1", m.RegisterNode(node.node, node.address, ()))
        await group.ask("mr1", m.RegisterTopic("orders"))
        stopped_at = asyncio.get_running_loop().time()
        await group.repositories.pop("mr1").stop()
        heir = await group.leader()
        assert asyncio.get_running_loop().time() - stopped_at < LEASE_S / 4
        answer = await group.ask(heir, m.GetView())
        assert isinstance(answer, m.GetViewReply)
        assert answer.view.topic_named("orders") is not None and answer.view.node(NodeID(1)) is not None
        await asyncio.sleep(1)
        assert node.in_session and node.terms == sorted(set(node.terms)) and len(node.terms) == 2
        await group.stop_all()
        await node.stop()

    run_simulated(body())


def test_a_leader_that_is_cut_off_from_the_store_is_silent_before_another_answers() -> None:
    """Law 7. It answered until shortly before; then it says that it does not lead, and it comes back as one of those who wait."""

    async def body() -> None:
        group = Group()
        await group.start_all()
        loop = asyncio.get_running_loop()
        cut_at = loop.time()
        group.cut("mr1", cut_at + 30)
        both = 0
        while loop.time() < cut_at + 10:
            both += len(group.leading()) > 1
            await asyncio.sleep(0.003)
        assert both == 0 and len(group.leading()) == 1 and group.leading() != ["mr1"]
        with pytest.raises(NotLeader):
            await group.ask("mr1", m.GetTail(TopicID(1)))
        await asyncio.sleep(30)
        with pytest.raises(NotLeader) as error:
            await group.ask("mr1", m.GetView())
        assert error.value.leader == f"{group.leading()[0]}:7100"
        await group.stop_all()

    run_simulated(body())


def test_what_a_lost_term_had_in_progress_is_not_answered_as_done_or_as_refused() -> None:
    """Law 10: a change that was sent to the store may exist or not; one that still waited does not; both calls fail accordingly."""

    async def body() -> None:
        group = Group()
        await group.start_all()
        group.cut("mr1", asyncio.get_running_loop().time() + 30)
        asked = [spawn(group.ask("mr1", m.RegisterTopic(name))) for name in ("in-flight", "waits")]
        polling = spawn(group.ask("mr1", m.GetView(10**6, 20.0)))
        answers = await asyncio.gather(*asked, polling, return_exceptions=True)
        assert asyncio.get_running_loop().time() < 3 * LEASE_S
        assert "may or may not be done" in str(answers[0]) and "no longer leads" in str(answers[1])
        assert [type(answer) for answer in answers] == [Unavailable, Unavailable, NotLeader]
        heir = await group.leader()
        assert heir != "mr1"
        answer = await group.ask(heir, m.GetView())
        assert isinstance(answer, m.GetViewReply) and answer.view.topics == ()
        await group.stop_all()

    run_simulated(body())


def test_a_process_that_was_paused_for_longer_than_its_lease_answers_nothing_more() -> None:
    """Its timers have not run yet: only its clock shows the pause (law 7)."""

    async def body() -> None:
        group = Group()
        await group.start_all()
        loop = asyncio.get_running_loop()
        await group.ask("mr1", m.RegisterTopic("orders"))
        # Its renewals do not go out, as if it did not run; what it knows of its lease is only the time.
        lease = group.repositories["mr1"]._store._candidacy._lease  # type: ignore[attr-defined]
        assert lease is not None
        lease._until = loop.time()
        with pytest.raises(NotLeader):
            await group.ask("mr1", m.GetTail(TopicID(1)))
        assert await group.leader() in NAMES
        await group.stop_all()

    run_simulated(body())


def test_a_second_term_in_the_same_process_continues_the_order() -> None:
    """Nothing of the old term is left that could report, order or answer."""

    async def body() -> None:
        group = Group()
        only = await group.start("mr1")
        await group.leader()
        node = ScriptedNode(group.transport, 1)
        await node.start()
        await group.ask("mr1", m.RegisterNode(node.node, node.address, ()))
        await group.ask("mr1", m.RegisterTopic("orders"))
        log_stream = (await group.ask("mr1", m.NewLogStreamID())).log_stream  # type: ignore[attr-defined]
        node.replica(log_stream)
        await group.ask("mr1", m.RegisterLogStream(TopicID(1), log_stream, (node.node,)))
        await group.ask("mr1", m.UnsealStream(log_stream, node.replica(log_stream).epoch))
        await asyncio.sleep(1)
        node.report(log_stream, 4)
        await asyncio.sleep(1)
        for end in (7, 9):
            group.metadata.keys.depose()
            with pytest.raises(Unavailable):
                await group.ask("mr1", m.NewLogStreamID())
            await asyncio.sleep(1)
            assert only.leads
            node.report(log_stream, end)
            await asyncio.sleep(1)
            tail = await group.ask("mr1", m.GetTail(TopicID(1)))
            assert isinstance(tail, m.GetTailReply) and tail.high_watermark == end - 1
        assert node.gaps == 0 and len(node.terms) == 3
        assert node.replicas[LogStreamID(log_stream)].committed_end == 9
        await group.stop_all()
        await node.stop()

    run_simulated(body())


def test_metadata_of_another_cluster_end_the_process_with_a_word() -> None:
    async def body() -> None:
        group = Group()
        await group.start("mr1")
        await group.leader()
        await group.repositories.pop("mr1").stop()
        foreign = await group.start("mr2", ClusterID(99))
        failure = await foreign.wait_failed()
        assert isinstance(failure, StartupError) and "belongs to cluster" in str(failure)
        assert not foreign.leads
        await group.stop_all()

    run_simulated(body())
