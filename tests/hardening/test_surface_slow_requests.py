"""Attack surface: requests that are slow or never end.

390 bytes kept a proxy's appends at 429 for a minute: a head that announces a large body reserved the space of all of
it, and neither heads nor bodies that never end were ended. One client could also occupy every connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.proxy.live_helpers import LiveProxy, wait_until, with_live_proxy
from varlog.model.limits import MIB
from varlog.proxy.limits import ProxyLimits
from varlog.testing.processes import PATIENCE_S, started

HEAD = b"POST /v1/topics/orders/entries?timeout=60 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"


def quick() -> ProxyLimits:
    """Times short enough for a test to wait for; the claim is that requests end, not when."""
    return ProxyLimits(head_s=0.2, body_window_s=0.2, slow_s=0.3)


@asynccontextmanager
async def connected(
    port: int, sent: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        yield reader, writer
    finally:
        writer.close()


async def trickle(writer: asyncio.StreamWriter, piece: bytes, every_s: float) -> None:
    """Wait until it is cut off."""
    with contextlib.suppress(OSError):
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(every_s)


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, object]]:
    """The status and problem with which a connection is ended."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return int(head.split()[1]), json.loads(await reader.readexactly(int(length.split()[1])))


async def append(port: int, body: bytes = b"x") -> int:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
        headers = {"Content-Type": "application/octet-stream"}
        return (await http.post("/v1/topics/orders/entries", content=body, headers=headers)).status_code


# --- Room ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_390_bytes_do_not_keep_others_from_appending(tmp_path: Path) -> None:
    """Three heads that announce 64 MiB together, to a proxy with its default limits: others append, and the three are
    ended."""

    async def story(port: int) -> None:
        async with contextlib.AsyncExitStack() as stack:
            slow = [
                await stack.enter_async_context(connected(port, HEAD + b"Content-Length: %d\r\n\r\n" % size))
                for size in (24 * MIB, 24 * MIB, 16 * MIB)
            ]
            many = [
                await stack.enter_async_context(connected(port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n"))
                for _ in range(1_100)
            ]
            idle = await stack.enter_async_context(connected(port))
            head = await stack.enter_async_context(connected(port, b"GET / HTTP/1.1\r\nHost: "))
            statuses = [await append(port, b"y" * MIB) for _ in range(20)]
            assert statuses == [201] * 20
            for reader, _ in (*slow, *many[:20], idle, head):
                status, problem = await answer(reader)
                assert status == 408 and problem["outcome"] == "none"

    with started(["proxy", "--data", str(tmp_path), "--listen", "127.0.0.1:0"], "ready") as (_, ready):
        port = int(ready.split()[1].rpartition(":")[2])
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            assert http.post("/v1/topics", json={"name": "orders"}).status_code == 201
        asyncio.run(asyncio.wait_for(story(port), PATIENCE_S))


def test_bytes_that_arrived_count_until_their_request_is_over(tmp_path: Path) -> None:
    """Memory stays bounded: bytes that really arrived reserve space, and no place until the body is complete."""

    async def story(proxy: LiveProxy) -> None:
        admission = proxy.app.state.admission
        async with connected(proxy.port, HEAD + b"Content-Length: 300000\r\n\r\n" + b"x" * 200_000) as (
            _,
            writer,
        ):
            await wait_until(lambda: admission.append_bytes == 200_000)
            assert admission.appends == 0
            assert await append(proxy.port, b"y" * 200_000) == 429
            assert await append(proxy.port, b"y" * 10) == 201
            writer.write(b"x" * 100_000)
            await wait_until(lambda: admission.append_bytes == 0)
        assert await (await proxy.log()).tail() == 2

    with_live_proxy(tmp_path, story, limits=ProxyLimits(append_bytes_max=300_000))


# --- Time ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "piece", "kind"),
    [
        (b"", b"", "slow-head"),
        (b"", b"\r\n", "slow-head"),
        (b"GET /v1/topics HTTP/1.1\r\n", b"X: y\r\n", "slow-head"),
        (b"GET /v1/topics HTTP/1.1\r\nX: ", b"y", "slow-head"),
        (HEAD + b"Content-Length: 1000000\r\n\r\n", b"", "slow-body"),
        (HEAD + b"Content-Length: 1000000\r\n\r\n", b"x", "slow-body"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", "slow-body"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"extension", "slow-body"),
    ],
)
def test_a_request_that_trickles_is_ended(tmp_path: Path, begin: bytes, piece: bytes, kind: str) -> None:
    """Also as the second request of a connection."""

    async def story(proxy: LiveProxy) -> None:
        whole = HEAD + b"Content-Length: 1\r\n\r\nx"
        for first in (b"", whole):
            async with connected(proxy.port, first) as (reader, writer), asyncio.TaskGroup() as tasks:
                if first:
                    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 201")
                writer.write(begin)
                trickling = tasks.create_task(trickle(writer, piece, 0.02))
                if first and kind == "slow-head" and not begin and not piece:
                    assert await reader.read() == b"", "idle after an answer: closed, as ever"
                else:
                    status, problem = await answer(reader)
                    assert (status, problem["type"]) == (408, f"urn:varlog:{kind}")
                trickling.cancel()
        await wait_until(lambda: proxy.app.state.admission.connections == 0)
        assert proxy.app.state.admission.append_bytes == 0
        assert await (await proxy.log()).tail() == 1

    with_live_proxy(tmp_path, story, limits=quick())


def test_a_body_that_is_slow_and_steady_is_accepted(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with connected(proxy.port, HEAD + b"Content-Length: 20\r\n\r\n") as (reader, writer):
            for _ in range(20):
                writer.write(b"x")
                await asyncio.sleep(0.05)
            assert (await reader.readline()).split()[1] == b"201"

    with_live_proxy(tmp_path, story, limits=ProxyLimits(body_window_s=0.4, body_bytes_s_min=5))


def test_a_body_after_its_response_is_not_read_for_long(tmp_path: Path) -> None:
    """The response was sent before the body had ended: the rest of it is read for a moment, and then the connection is
    cut."""

    async def story(proxy: LiveProxy) -> None:
        head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with connected(proxy.port, head) as (reader, writer), asyncio.TaskGroup() as tasks:
            assert (await reader.readline()).split()[1] == b"404"
            trickling = tasks.create_task(trickle(writer, b"400\r\n" + b"x" * 1024 + b"\r\n", 0.005))
            await wait_until(lambda: proxy.app.state.admission.connections == 0)
            trickling.cancel()

    with_live_proxy(tmp_path, story, limits=quick())


def test_a_response_that_is_not_read_is_dropped(tmp_path: Path) -> None:
    """A page of the log is in memory until it is read: a client that requests many, and reads none, is cut off."""

    async def story(proxy: LiveProxy) -> None:
        await (await proxy.log()).append_batch([b"x" * MIB] * 6)
        ask = b"GET /v1/topics/orders/entries HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with contextlib.AsyncExitStack() as stack:
            for last in (b"", b"GET / HTTP/1.0\r\n\r\n"):
                reader, writer = await stack.enter_async_context(connected(proxy.port))
                reader._transport.pause_reading()  # type: ignore[attr-defined]  # nothing is taken but by the kernel
                writer.write(ask * 3 + last)
            await wait_until(lambda: proxy.app.state.admission.connections == 2)
            await wait_until(lambda: proxy.app.state.admission.connections == 0)
        assert await append(proxy.port) == 201

    with_live_proxy(tmp_path, story, limits=quick())


# --- Size and number ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/topics?" + b"q" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/topics?" + b"q" * 1_000_000,
        b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 1_000_000,
        b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX: "
        + b"y" * 70_000
        + b"\r\n\r\n",
    ],
    ids=["query", "endless query", "many", "endless header", "upgrade"],
)
def test_a_head_has_a_bound(tmp_path: Path, head: bytes) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with connected(proxy.port) as (reader, writer):
            for begin in range(0, len(head), 50_000):
                with contextlib.suppress(ConnectionError):
                    writer.write(head[begin : begin + 50_000])
                    await writer.drain()
            with contextlib.suppress(ConnectionResetError):
                assert (await reader.readline()).split()[1] == b"431"
        await wait_until(lambda: proxy.app.state.admission.connections == 0)
        assert await append(proxy.port) == 201

    with_live_proxy(tmp_path, story)


def test_one_client_cannot_occupy_every_connection(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(6):
                await stack.enter_async_context(connected(proxy.port))
            await wait_until(lambda: proxy.app.state.admission.connections == 6)
            reader, _ = await stack.enter_async_context(connected(proxy.port))
            status, problem = await answer(reader)
            assert (status, problem["type"]) == (429, "urn:varlog:too-busy")
            other = await asyncio.open_connection("127.0.0.1", proxy.port, local_addr=("127.0.0.2", 0))
            other[1].write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await other[0].readline()).split()[1] == b"200"
            other[1].close()
        await wait_until(lambda: proxy.app.state.admission.connections == 0)
        assert await append(proxy.port) == 201

    with_live_proxy(tmp_path, story, limits=ProxyLimits(connections_max=8))


# --- WebSockets -----------------------------------------------------------------------------------------------------------------


def frame(opcode: int, length: int, payload: bytes, *, fin: bool) -> bytes:
    """A frame of a client that announces `length` bytes."""
    return bytes([(fin << 7) | opcode, 0x80 | 127]) + struct.pack("!Q", length) + bytes(4) + payload


Begin = Callable[[asyncio.Transport], Awaitable[None]]


async def _one_frame_that_never_ends(transport: asyncio.Transport) -> None:
    transport.write(frame(1, 10_000_000, b"x" * 1000, fin=True))


async def _fragments_that_never_end(transport: asyncio.Transport) -> None:
    transport.write(frame(1, 1, b"x", fin=False))
    while not transport.is_closing():
        transport.write(frame(0, 1, b"x", fin=False))
        await asyncio.sleep(0.02)


async def _empty_fragments(transport: asyncio.Transport) -> None:
    transport.write(frame(1, 0, b"", fin=False) + frame(0, 0, b"", fin=False) * 2000)


@pytest.mark.parametrize("begin", [_one_frame_that_never_ends, _fragments_that_never_end, _empty_fragments])
def test_a_message_that_is_not_finished_is_ended(tmp_path: Path, begin: Begin) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.socket("follow=false") as socket:
            sending = asyncio.ensure_future(begin(socket.transport))
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4408
            sending.cancel()
        await wait_until(lambda: proxy.app.state.admission.connections == 0)
        assert proxy.app.state.admission.append_bytes == 0

    with_live_proxy(tmp_path, story, limits=quick())


def test_an_unfinished_message_reserves_space_and_a_finished_one_releases_it(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        admission = proxy.app.state.admission
        async with proxy.socket("follow=false") as socket:
            text = b'{"append": [{"text": "' + b"x" * 100_000 + b'"}]}'
            whole = frame(1, len(text), text, fin=True)
            socket.transport.write(whole[:60_000])
            await wait_until(lambda: admission.append_bytes > 50_000)
            socket.transport.write(whole[60_000:])
            assert json.loads(await socket.recv())["appended"]["glsn"] == 1
            await wait_until(lambda: admission.append_bytes == 0)
            await asyncio.wait_for(await socket.ping(), PATIENCE_S)

    with_live_proxy(tmp_path, story)


def test_pings_of_a_client_that_reads_nothing_do_not_pile_up(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.socket("follow=false", close_timeout=0.1) as socket:
            socket.transport.pause_reading()
            [connection] = proxy.server.server_state.connections
            before = 0
            for _ in range(400):
                socket.transport.write(_ping() * 500)
                await asyncio.sleep(0)
                before = max(before, connection.transport.get_write_buffer_size())
            await wait_until(lambda: proxy.app.state.admission.connections == 0)
            assert before < 2 * MIB

    with_live_proxy(tmp_path, story, limits=quick())


def _ping() -> bytes:
    return bytes([0x89, 0x80 | 125]) + bytes(4) + b"p" * 125
