"""Connecting: a topic that is there, made, or refused; the right cluster; a repository that comes late."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.fakes import FakeCluster, environment, run
from varlog.client.connect import connect_admin
from varlog.model.cluster import StreamState
from varlog.model.errors import InvalidRequest, NotAccepted, NotInCluster, Unavailable, UnknownTopic
from varlog.model.ids import ClusterID, LogStreamID
from varlog.rpc.messages import CreateTopic, GetView


def test_a_missing_topic_is_refused_unless_it_may_be_made() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        for create in (None, False):
            with pytest.raises(UnknownTopic, match="varlog topic create new"):
                await cluster.connect(topic="new", create=create)
        async with await cluster.connect(topic="new", create=True, streams=3) as log:
            assert log.topic.name == "new"
        made = [message for _, message in cluster.requests if isinstance(message, CreateTopic)]
        assert made == [CreateTopic("new", 3, within_ms=made[0].within_ms)]
        assert made[0].within_ms > 0

    run(body())


def test_a_cluster_may_allow_that_topics_make_themselves() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.change_view(auto_create_topics=True)
        await cluster.start()
        with pytest.raises(UnknownTopic):
            await cluster.connect(topic="new", create=False)
        async with await cluster.connect(topic="new") as log:
            assert log.topic.name == "new"

    run(body())


def test_a_name_that_no_topic_can_have_is_refused() -> None:
    async def body() -> None:
        with pytest.raises(InvalidRequest, match="is not usable"):
            await FakeCluster().connect(topic="no/slashes")

    run(body())


def test_another_cluster_s_repository_is_refused() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        with pytest.raises(NotInCluster):
            await cluster.connect(cluster=ClusterID(8))
        async with await cluster.connect(cluster=ClusterID(7)) as log:
            assert log.topic.name == "orders"

    run(body())


def test_a_repository_that_comes_late_is_waited_for_and_one_that_never_comes_is_unavailable() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        with pytest.raises(Unavailable, match="the metadata repository at repository did not answer"):
            await cluster.connect(timeout_s=0.05)
        connecting = asyncio.create_task(cluster.connect())
        await asyncio.sleep(0)
        await cluster.start()
        await (await connecting).close()

    run(body())


def test_concurrent_refreshes_of_the_view_share_one_request() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            cluster.requests.clear()
            await asyncio.gather(*(log.connector.view() for _ in range(20)))
        assert [message for _, message in cluster.requests] == [GetView()]

    run(body())


def test_waiting_for_the_streams_to_run_ends_when_they_do_or_at_the_deadline() -> None:
    async def body() -> None:
        cluster = FakeCluster(streams=2)
        cluster.set_state(LogStreamID(2), StreamState.SEALED)
        await cluster.start()
        async with await cluster.connect() as log:
            assert not await log.connector.wait_running(timeout_s=0.02)
            waiting = asyncio.create_task(log.connector.wait_running())
            await asyncio.sleep(0)
            cluster.set_state(LogStreamID(2), StreamState.RUNNING)
            assert await waiting

    run(body())


def test_administration_without_a_manager_fails_with_that_reason() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start("repository")
        async with await connect_admin(
            cluster.transport, environment(), "repository", timeout_s=0.1
        ) as admin:
            assert [topic.name for topic in await admin.topics()] == ["orders"]
            assert len(await admin.streams("orders")) == 1
            with pytest.raises(UnknownTopic):
                await admin.streams("nothing")
            with pytest.raises(Unavailable, match="the manager at manager did not answer"):
                await admin.create_topic("new")
            cluster.change_view(manager_address="")
            with pytest.raises(Unavailable, match="has no manager"):
                await admin.create_topic("new")

    run(body())


def test_a_closed_log_fails_immediately_and_ends_calls_in_flight() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        log = await cluster.connect(timeout_s=50)
        await log.append(b"1")
        await cluster.stop("node-1")
        reading = asyncio.create_task(log.read(1))
        await asyncio.sleep(0.05)
        await log.close()
        with pytest.raises(Unavailable, match="the log was closed"):
            await reading
        for call in (
            log.read(1),
            log.read_stream(1, 1),
            log.tail(),
            log.trim(1),
            log.connector.view(),
            anext(log.subscribe(1)),
        ):
            with pytest.raises(Unavailable, match="the log was closed"):
                await call
        for append in (log.append(b"x"), log.append(b"x", log_stream=1), log.append_batch([b"x"])):
            with pytest.raises(NotAccepted, match="the log was closed"):
                await append

    run(body())
