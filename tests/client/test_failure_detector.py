"""Which nodes a client uses last, by its own failures and by those others reported; last, but never not at all."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tests.client.fakes import FakeCluster, run, until
from varlog.client import routing as routing_module
from varlog.client.committed import sender as batch_sender_module
from varlog.client.failure_detector import FailureDetector
from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID, NodeID
from varlog.rpc.messages import Append, Fetch, GetView, ReadAt, Suspect

ONE, TWO = LogStreamID(1), LogStreamID(2)


def suspicions(cluster: FakeCluster) -> list[Suspect]:
    return [message for _, message in cluster.requests if isinstance(message, Suspect)]


def asked(cluster: FakeCluster, kind: type) -> list[str]:
    return [address for address, message in cluster.requests if isinstance(message, kind)]


def test_a_primary_that_refuses_connections_is_suspected_once_and_its_streams_come_last() -> None:
    """R-FAIL-2: the client avoids the node, and reports its suspicion to the repository."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        await cluster.start("repository", cluster.primary_of(TWO))
        async with await cluster.connect() as log:
            assert {(await log.append(b"x")).log_stream for _ in range(20)} == {TWO}
            await until(lambda: suspicions(cluster))
            assert [one.node for one in suspicions(cluster)] == [NodeID(1)]

    run(body())


def test_a_primary_that_does_not_answer_is_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sender_module, "SLOW_S", 0.01)

    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(log.append(b"x"))
            await until(lambda: suspicions(cluster))
            assert suspicions(cluster)[0].node == 1
            cluster.release()
            await task

    run(body())


def test_an_impatient_caller_makes_nobody_suspect() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            with pytest.raises(Exception, match="not known"):
                await log.append(b"x", timeout_s=0.05)
            assert (
                not log._routing.failure_detector.has_suspects or not log._routing.failure_detector.avoided()
            )
            assert suspicions(cluster) == []

    run(body())


def test_what_others_suspect_comes_last_and_is_used_when_nothing_else_is_left() -> None:
    """R-FAIL-2: suspicions of others count."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"before")
            cluster.suspects = (NodeID(1),)
            await log.connector.view()
            assert {(await log.append(b"x")).log_stream for _ in range(6)} == {TWO}
            assert (await log.append(b"x", log_stream=ONE)).log_stream == ONE
            cluster.requests.clear()
            for glsn in range(1, 5):
                await log.read(glsn)
            assert set(asked(cluster, ReadAt)) == {"node-2"}
            cluster.suspects = (NodeID(1), NodeID(2))
            await log.connector.view()
            assert {(await log.append(b"x")).log_stream for _ in range(6)} == {ONE, TWO}

    run(body())


def test_a_stream_that_runs_again_clears_its_nodes() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        await cluster.start("repository", cluster.primary_of(TWO))
        async with await cluster.connect() as log:
            for _ in range(4):
                await log.append(b"x")
            assert list(log._routing.failure_detector.avoided()) == [NodeID(1)]
            await cluster.start("node-1")
            cluster.seal(ONE)
            await log.connector.view()
            cluster.unseal(ONE)
            await log.connector.view()
            assert log._routing.failure_detector.avoided() == {}
            assert {(await log.append(b"x")).log_stream for _ in range(6)} == {ONE, TWO}

    run(body())


def test_a_view_in_use_is_refreshed_now_and_then_and_an_idle_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-FAIL-2: the view is refreshed by time."""
    monkeypatch.setattr(routing_module, "REFRESH_S", 0.02)

    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            cluster.requests.clear()
            while len(asked(cluster, GetView)) < 3:
                await log.append(b"x")
                # The virtual clock stops while any task is runnable.
                await asyncio.sleep(0.005)
            await until(lambda: log._routing._keeping_fresh is None)  # nothing is left that would wake it

    run(body())


def test_a_waiting_fetch_leaves_a_suspected_node_and_one_that_left_its_stream(seed: int) -> None:
    """A replica that hangs, or was replaced, looks exactly like the end of the log."""

    async def body() -> None:
        cluster = FakeCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect(seed=seed) as log, aclosing(log.subscribe(1)) as entries:
            first = asyncio.create_task(anext(entries))
            await until(lambda: len(asked(cluster, Fetch)) == 1)
            hanging = asked(cluster, Fetch)[0]
            cluster.suspects = (NodeID(int(hanging[-1])),)
            cluster.change_view()
            await until(lambda: len(asked(cluster, Fetch)) == 2)
            second = asked(cluster, Fetch)[1]
            assert second != hanging
            (third,) = {"node-1", "node-2", "node-3"} - {hanging, second}
            cluster.suspects = ()
            cluster.seal(ONE)
            cluster.unseal(ONE, int(third[-1]))
            await until(lambda: asked(cluster, Fetch)[-1] == third)
            await log.append(b"1")
            assert (await first).data == b"1"

    run(body())


def test_an_error_that_was_answered_makes_a_node_come_last_but_not_suspect() -> None:
    async def body() -> None:
        reported: list[NodeID] = []
        failure_detector = FailureDetector(lambda node, why: reported.append(node))
        for _ in range(2):
            failure_detector.node_erred(NodeID(1))
        assert list(failure_detector.avoided()) == [1]
        for _ in range(5):
            failure_detector.node_failed(NodeID(2), str(Unavailable("it broke")))
        assert reported == [2]
        failure_detector.node_answered(NodeID(2))
        assert list(failure_detector.avoided()) == [1]

    run(body())


def test_appends_carry_the_epoch_they_are_for() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.seal(ONE)
        cluster.unseal(ONE)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"x")
            cluster.seal(ONE)
            cluster.unseal(ONE)  # the client does not know of it: refused, refreshed, accepted
            await log.append(b"y")
        epochs = [message.epoch for _, message in cluster.requests if isinstance(message, Append)]
        assert epochs == [2, 2, 3]

    run(body())
