"""Local sockets: which peers get one, which credentials are trusted, and TCP as the fallback."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.rpc.helpers import DEADLINE_S, run
from varlog.localcluster.ports import free_ports
from varlog.model.errors import StartupError
from varlog.model.ids import ClusterID, LogStreamID
from varlog.rpc import local
from varlog.rpc.messages import Append, Done, Message
from varlog.rpc.tcp import TcpServer, TcpTransport, split_address
from varlog.rpc.transport import Call, Connection, Handler

HERE = ClusterID(7)
APPEND = Append(LogStreamID(1))

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel reports peer credentials on Linux"
)


def _take(call: Call | None, message: Message, payload: bytearray) -> None:
    assert call is not None
    call.reply(Done())


@asynccontextmanager
async def _served(came: list[Connection], address: str = "127.0.0.1:0") -> AsyncIterator[TcpServer]:
    def make_handler(connection: Connection) -> Handler:
        came.append(connection)
        return _take

    server = await TcpTransport(HERE).serve(address, make_handler)
    try:
        yield server
    finally:
        await server.close()


async def _peer_seen_by_server(address: str, came: list[Connection], *, short_cuts: bool = True) -> str:
    client = await TcpTransport(HERE, short_cuts=short_cuts).connect(address, timeout_s=DEADLINE_S)
    assert (await client.call(APPEND, timeout_s=DEADLINE_S))[0] == Done()
    assert client.peer == address
    client.close()
    return came[-1].peer


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "[::1]", "localhost"])
def test_a_loopback_address_has_a_name(host: str) -> None:
    assert local.name_of(*split_address(f"{host}:7100")) is not None


@pytest.mark.parametrize("host", ["192.0.2.1", "node-1.example", "[2001:db8::1]", "127.example"])
def test_an_address_that_others_can_reach_has_none(host: str) -> None:
    assert local.name_of(*split_address(f"{host}:7100")) is None


def test_two_addresses_share_no_name() -> None:
    addresses = [("127.0.0.1", 7100), ("127.0.0.1", 7101), ("127.0.0.2", 7100), ("::1", 7100)]
    assert len({local.name_of(*address) for address in addresses}) == len(addresses)


def test_processes_of_one_machine_meet_past_tcp() -> None:
    async def body() -> None:
        came: list[Connection] = []
        async with _served(came) as server:
            assert (
                await _peer_seen_by_server(server.address, came) == f"process {os.getpid()} of this machine"
            )
            seen = await _peer_seen_by_server(server.address, came, short_cuts=False)
            assert seen.startswith("127.0.0.1:")

    run(body())


def test_a_server_on_all_addresses_is_found_locally() -> None:
    async def body() -> None:
        came: list[Connection] = []
        async with _served(came, "0.0.0.0:0") as server:
            port = split_address(server.address)[1]
            assert "of this machine" in await _peer_seen_by_server(f"127.0.0.1:{port}", came)

    run(body())


def test_where_nobody_has_the_name_the_way_is_tcp() -> None:
    """A peer of an older version, or behind a forwarded port."""

    async def body() -> None:
        came: list[Connection] = []
        async with _served(came) as server:
            forward = await asyncio.start_server(_forward_to(server.address), "127.0.0.1", 0)
            address = "{}:{}".format(*forward.sockets[0].getsockname())
            assert (await _peer_seen_by_server(address, came)).startswith("127.0.0.1:")
            forward.close()

    run(body())


Forward = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _forward_to(address: str) -> Forward:
    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*split_address(address))
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    return forward


def test_a_name_of_another_user_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        came: list[Connection] = []
        async with _served(came) as server:
            monkeypatch.setattr(local, "credentials_of", lambda wire: (4711, os.geteuid() + 1, 0))
            assert (await _peer_seen_by_server(server.address, came)).startswith("127.0.0.1:")

    run(body())


def test_a_server_does_not_start_where_another_has_its_name() -> None:
    """Otherwise its clients would talk to the other server. The port is released."""

    async def body() -> None:
        port = free_ports(1)[0]
        name = local.name_of("127.0.0.1", port)
        assert name is not None
        with local.listen(name, 1), pytest.raises(StartupError, match="another process listens there"):
            await TcpTransport(HERE).serve(f"127.0.0.1:{port}", lambda _: _take)
        async with _served([], f"127.0.0.1:{port}"):
            pass

    run(body())


def test_the_name_goes_with_its_server() -> None:
    async def body() -> None:
        async with _served([]) as server:
            name = local.name_of(*split_address(server.address))
            assert name is not None
            wire = local.connect_local(name)
            assert wire is not None
            wire.close()
        assert local.connect_local(name) is None

    run(body())
