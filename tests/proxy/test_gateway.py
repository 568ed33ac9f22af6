"""Gateway: one log a topic for everybody, none made by asking, and what is left behind when callers go or topics do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.proxy.helpers import TEST_S, running_proxy
from varlog.client.admin import Admin
from varlog.client.log import Log
from varlog.model.errors import InvalidRequest, StartupError, Unavailable, UnknownTopic
from varlog.proxy.gateway import ClusterBackend, EmbeddedBackend, Gateway


class CountingOpener:
    """An embedded log whose openings are counted, may be held back, and may fail."""

    def __init__(self, path: Path) -> None:
        self.embedded = EmbeddedBackend(path, sync=False)
        self.admins = 0
        self.logs = 0
        self.gate: asyncio.Event | None = None
        self.failures: list[Exception] = []

    async def start(self) -> None:
        await self.embedded.start()

    async def admin(self) -> Admin:
        self.admins += 1
        if self.failures:
            raise self.failures.pop()
        return await self.embedded.admin()

    async def log(self, topic: str) -> Log:
        self.logs += 1
        if self.gate is not None:
            await self.gate.wait()
        return await self.embedded.log(topic)

    async def close(self) -> None:
        await self.embedded.close()


def _with_gateway(path: Path, story: Callable[[Gateway, CountingOpener], Awaitable[None]]) -> None:
    async def run() -> None:
        opener = CountingOpener(path)
        async with (
            asyncio.timeout(TEST_S),
            running_proxy(path, topic="", opener=opener) as proxy,
        ):
            await story(proxy.gateway, opener)

    asyncio.run(run())


def test_a_topic_is_opened_once_for_all_callers(tmp_path: Path) -> None:
    async def story(gateway: Gateway, opener: CountingOpener) -> None:
        await (await gateway.admin()).create_topic("orders")
        logs = await asyncio.gather(*(gateway.log("orders") for _ in range(10)))
        assert {id(log) for log in logs} == {id(await gateway.log("orders"))}
        assert (opener.logs, opener.admins) == (1, 1)

    _with_gateway(tmp_path, story)


def test_a_cancelled_caller_does_not_cancel_the_others(tmp_path: Path) -> None:
    async def story(gateway: Gateway, opener: CountingOpener) -> None:
        await (await gateway.admin()).create_topic("orders")
        opener.gate = asyncio.Event()
        first = asyncio.create_task(gateway.log("orders"))
        second = asyncio.create_task(gateway.log("orders"))
        while opener.logs == 0:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        opener.gate.set()
        assert (await second).topic.name == "orders" and opener.logs == 1

    _with_gateway(tmp_path, story)


def test_a_missing_topic_is_neither_created_nor_cached(tmp_path: Path) -> None:
    async def story(gateway: Gateway, opener: CountingOpener) -> None:
        for _ in range(2):
            with pytest.raises(UnknownTopic):
                await gateway.log("orders")
        assert opener.logs == 0 and await (await gateway.admin()).topics() == ()
        await (await gateway.admin()).create_topic("orders")
        assert (await gateway.log("orders")).topic.name == "orders"
        with pytest.raises(InvalidRequest):
            await gateway.log("../orders")

    _with_gateway(tmp_path, story)


def test_a_recreated_topic_is_opened_again(tmp_path: Path) -> None:
    """It may be of the other ordering: what was opened before is of no use for it."""

    async def story(gateway: Gateway, opener: CountingOpener) -> None:
        admin = await gateway.admin()
        await admin.create_topic("orders")
        before = await gateway.log("orders")
        await before.append(b"old")
        await admin.delete_topic("orders")
        await admin.create_topic("orders", ordering="sequenced")
        await before.connector.view()  # refreshes the view; otherwise it would take seconds
        after = await gateway.log("orders")
        assert after is not before and after.topic.sequenced and before.closed
        assert await after.connector.wait_running() and (await after.append(b"new")).glsn == 1

    _with_gateway(tmp_path, story)


def test_a_cluster_that_was_away_is_tried_again(tmp_path: Path) -> None:
    async def story(gateway: Gateway, opener: CountingOpener) -> None:
        opener.failures = [Unavailable("away")]
        with pytest.raises(Unavailable):
            await gateway.status()
        assert (await gateway.status()).view.topics == ()

    _with_gateway(tmp_path, story)


def test_concurrent_callers_share_one_status_request(tmp_path: Path) -> None:
    async def story(gateway: Gateway, opener: CountingOpener) -> None:
        admin, asked = await gateway.admin(), 0
        ask = admin.status

        async def counted() -> object:
            nonlocal asked
            asked += 1
            return await ask()

        admin.status = counted  # type: ignore[method-assign,assignment]
        seen = await asyncio.gather(*(gateway.status() for _ in range(100)))
        assert asked == 1 and all(one is seen[0] for one in seen)

    _with_gateway(tmp_path, story)


def test_a_proxy_starts_before_its_cluster_does() -> None:
    async def story() -> None:
        gateway = Gateway(ClusterBackend("127.0.0.1:1"))
        await gateway.start()
        waiting = asyncio.create_task(gateway.log("orders"))
        await asyncio.sleep(0)
        await gateway.close()  # and stops while it still looks for it
        assert (await asyncio.gather(waiting, return_exceptions=True))[0] is not None

    async def run() -> None:
        async with asyncio.timeout(TEST_S):
            await story()

    asyncio.run(run())


def test_a_directory_that_is_open_elsewhere_is_refused(tmp_path: Path) -> None:
    async def story(gateway: Gateway, opener: CountingOpener) -> None:
        second = Gateway(EmbeddedBackend(tmp_path, sync=False))
        with pytest.raises(StartupError, match="open already"):
            await second.start()

    _with_gateway(tmp_path, story)
