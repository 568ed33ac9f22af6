"""Claims about consumers that do not take what is sent: dropped with a reason, harmless to others, nothing is held for them."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import uvloop
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.proxy.helpers import TEST_S
from tests.proxy.live_helpers import LiveProxy, wait_until, with_live_proxy
from varlog.proxy import connection, sse
from varlog.proxy.backpressure_sender import BackpressureSender
from varlog.proxy.errors import TooSlow
from varlog.proxy.limits import ProxyLimits
from varlog.runtime.process import allow_open_files

# Far more than the kernel and the server hold between them for one connection.
ENTRY = b"x" * 100_000
ENTRIES = 200
IMPATIENT = ProxyLimits(slow_s=0.2)


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dropped consumer still finds is there until a test has checked, however slow a busy machine is."""
    monkeypatch.setattr(connection, "LINGER_S", TEST_S)


# The loop that the proxy is run on, and the one that Python brings: their transports are not the same.
on_both_loops = pytest.mark.parametrize("loop", [uvloop.new_event_loop, None], ids=["uvloop", "asyncio"])


async def fill(proxy: LiveProxy) -> None:
    log = await proxy.log()
    for _ in range(ENTRIES // 100):
        await log.append_batch([ENTRY] * 100)


async def read_all(socket: ClientConnection) -> None:
    while True:
        json.loads(await socket.recv())


def dropped(proxy: LiveProxy, kind: str) -> float:
    return proxy.metric("varlog_proxy_subscriptions_dropped_total", kind=kind, reason="too-slow")


@on_both_loops
def test_a_consumer_of_events_that_takes_nothing_is_dropped_and_finds_the_reason_at_the_end(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    seen: list[int | None] = []

    async def story(proxy: LiveProxy) -> None:
        await fill(proxy)
        async with proxy.events("from=1", receive_bytes=4096) as events:
            assert await events.status() == 200
            await wait_until(lambda: dropped(proxy, "events"))
            while (taken := await events.next())[0] == "message":
                seen.append(taken[1])
            assert seen == list(range(1, len(seen) + 1)) and len(seen) < ENTRIES
            assert taken[0] == "dropped"
            assert taken[2]["type"] == "urn:varlog:too-slow"
            with pytest.raises(EOFError):
                await events.next()

    async def rest(proxy: LiveProxy) -> None:
        """It has lost nothing: it resumes after the last one that arrived."""
        async with proxy.events(last_event_id=str(seen[-1])) as events:
            await events.status()
            assert await events.ids(ENTRIES - len(seen)) == list(range(len(seen) + 1, ENTRIES + 1))

    with_live_proxy(tmp_path, story, limits=IMPATIENT, loop=loop)
    with_live_proxy(tmp_path, rest, loop=loop)


@on_both_loops
def test_a_socket_that_takes_nothing_is_closed_with_the_reason(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    async def story(proxy: LiveProxy) -> None:
        await fill(proxy)
        # One message waits at the client, which then reads no more.
        async with proxy.socket("from=1", max_queue=1, max_size=None) as socket:
            await wait_until(lambda: dropped(proxy, "socket"))
            with pytest.raises(ConnectionClosed) as closed:
                await read_all(socket)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4408
            assert "read nothing" in closed.value.rcvd.reason

    with_live_proxy(tmp_path, story, limits=IMPATIENT, loop=loop)


def test_a_range_that_is_not_taken_is_cut_off_and_does_not_look_complete(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        await fill(proxy)
        connection = sockets.socket()
        connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", proxy.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
        writer.write(
            b"GET /v1/topics/orders/entries HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n"
        )
        assert b"transfer-encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
        await wait_until(lambda: dropped(proxy, "range"))
        taken = await reader.read()
        writer.close()
        assert 0 < len(taken) < ENTRIES * len(ENTRY)
        assert not taken.endswith(b"0\r\n\r\n")

    with_live_proxy(tmp_path, story, limits=IMPATIENT)


@on_both_loops
def test_the_connection_of_one_that_never_takes_anything_is_cut(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing would wait until the peer has read everything: forever."""
    monkeypatch.setattr(connection, "LINGER_S", 0.1)

    async def story(proxy: LiveProxy) -> None:
        await fill(proxy)
        async with proxy.events("from=1", receive_bytes=4096) as events:
            await events.status()
            assert len(proxy.server.server_state.connections) == 1
            await wait_until(lambda: not proxy.server.server_state.connections)
            await wait_until(lambda: not proxy.server.server_state.tasks)
            assert proxy.app.state.admission.subscriptions == 0

    with_live_proxy(tmp_path, story, limits=IMPATIENT, loop=loop)


def test_one_that_takes_nothing_does_not_hold_up_another(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.events("from=1", receive_bytes=4096) as stuck, proxy.events("from=1") as fast:
            assert (await stuck.status(), await fast.status()) == (200, 200)
            await fill(proxy)
            assert await fast.ids(ENTRIES) == list(range(1, ENTRIES + 1))
            await (await proxy.log()).append(b"live")
            assert (await fast.next())[2]["data"] == "live"
            assert dropped(proxy, "events") == 0

    with_live_proxy(tmp_path, story, limits=ProxyLimits(slow_s=TEST_S))


def test_a_trim_under_a_slow_consumer_is_reported_to_it(tmp_path: Path) -> None:
    """What was sent before arrives; then the position that is gone, and the oldest there is."""

    async def story(proxy: LiveProxy) -> None:
        await fill(proxy)
        async with proxy.events("from=1", receive_bytes=4096) as slow:
            await slow.status()
            first = (await slow.next())[1]
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{proxy.port}/v1", timeout=TEST_S
            ) as http:
                trimmed = await http.post("/topics/orders/trim", json={"until": ENTRIES - 1})
            assert trimmed.json()["oldest"] == ENTRIES
            seen = [first]
            while (taken := await slow.next())[0] == "message":
                seen.append(taken[1])
            assert seen == list(range(1, len(seen) + 1))
            assert (taken[0], taken[2]["facts"]) == (
                "trimmed",
                {"position": len(seen) + 1, "oldest": ENTRIES},
            )
        async with proxy.events(last_event_id=str(seen[-1])) as again:
            assert await again.status() == 410

    with_live_proxy(tmp_path, story, limits=ProxyLimits(slow_s=TEST_S))


class _Peer:
    """A connection to a peer that takes some bytes between one look and the next, for a while."""

    lost = False

    def __init__(self, looks: list[int]) -> None:
        self._looks = looks

    @property
    def waiting_bytes(self) -> int:
        return self._looks.pop(0)


def test_a_consumer_that_makes_some_progress_is_not_too_slow() -> None:
    """However little: what is dropped is who takes nothing."""
    looks = [100, 99, 99, 98, 98, 98]  # before and after each try: taken, taken, not taken
    tries = 0

    async def send(_: object) -> None:
        nonlocal tries
        tries += 1
        await asyncio.Event().wait()

    async def story() -> None:
        sender = BackpressureSender({"extensions": {connection.KEY: _Peer(looks)}}, send, slow_s=0.001)
        with pytest.raises(TooSlow):
            await sender.send({"type": "http.response.body"})

    asyncio.run(story())
    assert (tries, looks) == (3, [])


def test_a_thousand_idle_followers_cost_one_subscription_of_the_log(tmp_path: Path) -> None:
    """What is read for one is read for all, and what waits is a position: 1000 of them are as many small tasks."""
    count = 1000

    async def story(proxy: LiveProxy) -> None:
        log = await proxy.log()
        subscriptions = 0
        subscribe = log.subscribe_lists

        def counted(begin: int, end: int | None = None):  # type: ignore[no-untyped-def]
            nonlocal subscriptions
            subscriptions += 1
            return subscribe(begin, end)

        log.subscribe_lists = counted  # type: ignore[method-assign, assignment]
        readers = []
        try:
            for _ in range(count):
                connection = sockets.socket()
                connection.setblocking(False)
                await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", proxy.port))
                reader, writer = await asyncio.open_connection(sock=connection)
                writer.write(b"GET /v1/topics/orders/events?from=next HTTP/1.1\r\nHost: localhost\r\n\r\n")
                readers.append((reader, writer))
            for reader, _ in readers:
                assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
                assert sse.RETRY in await reader.readuntil(sse.RETRY)
            await log.append(b"for all of you")
            for reader, _ in readers:
                assert b"id: 1\n" in await reader.readuntil(b"for all of you")
            assert proxy.metric("varlog_proxy_read_entries_total") == count
            assert proxy.followers.feeds == 1
            assert subscriptions == 1
        finally:
            for _, writer in readers:
                writer.close()
        await wait_until(lambda: proxy.app.state.admission.subscriptions == 0)

    allow_open_files()
    with_live_proxy(tmp_path, story, loop=uvloop.new_event_loop)
