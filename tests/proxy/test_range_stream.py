"""Ranges as streams over a real socket: one that is not taken is cut off and looks cut off, and who leaves is let go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.proxy.helpers import TEST_S
from tests.proxy.live_helpers import LiveProxy, wait_until, with_live_proxy
from varlog.model.errors import Unavailable
from varlog.proxy import connection, read
from varlog.proxy.limits import ProxyLimits

# Far more than the kernel and the server hold between them for one connection.
ENTRY = b"x" * 100_000
ENTRIES = 200


async def _fill(proxy: LiveProxy) -> None:
    log = await proxy.log()
    for _ in range(ENTRIES // 100):
        await log.append_batch([ENTRY] * 100)


@asynccontextmanager
async def _range(proxy: LiveProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """All of the topic as lines, asked for over a connection that holds little for us."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", proxy.port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=4096)
    writer.write(b"GET /v1/topics/orders/entries HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n")
    try:
        yield reader, writer
    finally:
        writer.close()


def test_a_stream_that_is_not_taken_is_cut_off_and_looks_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.1)

    async def story(proxy: LiveProxy) -> None:
        await _fill(proxy)
        async with _range(proxy) as (reader, _):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await wait_until(
                lambda: proxy.metric(
                    "varlog_proxy_subscriptions_dropped_total", kind="range", reason="too-slow"
                )
            )
            await wait_until(lambda: proxy.app.state.admission.subscriptions == 0)
            body = b""
            try:
                while piece := await reader.read(2**20):
                    body += piece
            except ConnectionResetError:
                pass  # also a way to see that it is not complete
            assert len(body) < ENTRIES * len(ENTRY) and not body.endswith(b"0\r\n\r\n")

    with_live_proxy(tmp_path, story, limits=ProxyLimits(slow_s=0.2))


def test_a_client_that_leaves_in_the_middle_releases_its_slot(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        await _fill(proxy)
        async with _range(proxy) as (reader, writer):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await wait_until(lambda: proxy.app.state.admission.subscriptions == 1)
            writer.transport.abort()
            await wait_until(lambda: proxy.app.state.admission.subscriptions == 0)

    with_live_proxy(tmp_path, story)


def test_a_range_far_larger_than_a_page_arrives_whole(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        await _fill(proxy)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy.port}", timeout=TEST_S) as http:
            answer = await http.get("/v1/topics/orders/entries", headers={"Accept": "text/plain"})
        assert answer.content == (ENTRY + b"\n") * ENTRIES

    with_live_proxy(tmp_path, story)


def test_an_error_in_the_middle_cuts_the_stream_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is long sent: that the body is not complete is all that can still be said."""

    async def failing(*_: object) -> AsyncGenerator[bytes, None]:
        yield b"one\n"
        raise Unavailable("no replica answers")

    monkeypatch.setattr(read, "streamed", failing)

    async def story(proxy: LiveProxy) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy.port}", timeout=TEST_S) as http:
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                await http.get("/v1/topics/orders/entries", headers={"Accept": "text/plain"})
        await wait_until(
            lambda: (
                proxy.metric("varlog_proxy_subscriptions_dropped_total", kind="range", reason="unavailable")
                == 1
            )
        )
        await wait_until(lambda: proxy.app.state.admission.subscriptions == 0)

    with_live_proxy(tmp_path, story)
