"""Attack surface: the local sockets of servers.

Before, they had abstract names: every user of the machine could connect to every server, and send it any request.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.rpc.helpers import DEADLINE_S, run, wait_until
from varlog.model.ids import ClusterID, LogStreamID
from varlog.rpc import local
from varlog.rpc.messages import Append, Done, Message
from varlog.rpc.tcp import TcpServer, TcpTransport, split_address
from varlog.rpc.transport import Call, Connection, Handler

HERE = ClusterID(7)
APPEND = Append(LogStreamID(1))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the user of a peer")


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of sockets for each test; not under tmp_path, whose name may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="vl-") as short:
        path = Path(short, "run")
        monkeypatch.setenv("VARLOG_RUNTIME_DIR", str(path))
        yield path


@asynccontextmanager
async def served(came: list[Connection]) -> AsyncIterator[TcpServer]:
    def take(call: Call | None, message: Message, payload: bytearray) -> None:
        assert call is not None
        call.reply(Done())

    def make_handler(connection: Connection) -> Handler:
        came.append(connection)
        return take

    server = await TcpTransport(HERE).serve("127.0.0.1:0", make_handler)
    try:
        yield server
    finally:
        await server.close()


async def peer_seen(address: str, came: list[Connection]) -> str:
    client = await TcpTransport(HERE).connect(address, timeout_s=DEADLINE_S)
    assert (await client.call(APPEND, timeout_s=DEADLINE_S))[0] == Done()
    client.close()
    return came[-1].peer


def test_a_server_has_no_abstract_name_and_its_socket_is_private_to_its_user(directory: Path) -> None:
    async def body() -> None:
        async with served([]) as server:
            host, port = split_address(server.address)
            with (
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger,
                pytest.raises(ConnectionRefusedError),
            ):
                stranger.connect(f"\0varlog/{host}:{port}")
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            (only,) = directory.iterdir()
            assert stat.S_IMODE(only.stat().st_mode) == 0o600
            assert str(port) in only.name
        assert list(directory.iterdir()) == []

    run(body())


def test_a_process_of_another_user_is_turned_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The mode of the directory keeps it out; if that were changed, the server asks the kernel for its user."""

    async def body() -> None:
        came: list[Connection] = []
        async with served(came) as server:
            name = local.name_of(*split_address(server.address))
            assert name is not None
            monkeypatch.setattr(local, "credentials_of", lambda wire: (4711, os.geteuid() + 1, 0))
            reader, writer = await asyncio.open_unix_connection(name)
            assert await reader.read() == b""
            writer.close()
            assert came == []

    with caplog.at_level(logging.WARNING, "varlog.rpc"):
        run(body())
    assert "another user" in caplog.text


@pytest.mark.parametrize("harm", ["symlink", "file", "owner"])
def test_a_directory_that_may_belong_to_another_user_is_not_used(
    directory: Path,
    tmp_path: Path,
    harm: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if harm == "symlink":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to(tmp_path / "elsewhere")
    elif harm == "file":
        directory.write_bytes(b"")
    else:
        directory.mkdir(mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)

    async def body() -> None:
        came: list[Connection] = []
        async with served(came) as server:
            assert (await peer_seen(server.address, came)).startswith("127.0.0.1:")

    with caplog.at_level(logging.WARNING, "varlog.rpc"):
        run(body())
    assert "TCP alone" in caplog.text


def test_a_directory_with_a_wider_mode_is_tightened(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o777)
    assert local.name_of("127.0.0.1", 7100) is not None
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_the_directory_is_that_of_the_session_or_one_of_the_user(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VARLOG_RUNTIME_DIR")
    session = directory.parent / "session"
    session.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert (local.name_of("127.0.0.1", 7100) or "").startswith(str(session / "varlog"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory / "missing"))
    name = local.name_of("127.0.0.1", 7100)
    assert name is not None and f"{os.geteuid()}" in name


def test_two_network_namespaces_share_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have separate ports, and the file system in common."""
    ours = local.name_of("127.0.0.1", 7100)
    assert str(os.stat("/proc/self/ns/net").st_ino) in (ours or "")
    monkeypatch.setattr(local, "_namespace", lambda: 1)
    assert local.name_of("127.0.0.1", 7100) != ours


def test_with_too_long_a_directory_name_only_tcp_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    monkeypatch.setenv("VARLOG_RUNTIME_DIR", str(deep))
    assert local.name_of("127.0.0.1", 7100) is None

    async def body() -> None:
        came: list[Connection] = []
        async with served(came) as server:
            assert (await peer_seen(server.address, came)).startswith("127.0.0.1:")

    run(body())


KILLED = """
import os, signal, sys
from varlog.rpc import local
name = local.name_of("127.0.0.1", int(sys.argv[1]))
wire = local.listen(name, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_the_socket_of_a_killed_server_is_replaced_and_eventually_removed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for port in ("7101", "7102"):
        subprocess.run([sys.executable, "-c", KILLED, port], check=False)
    assert len(list(directory.iterdir())) == 2
    name = local.name_of("127.0.0.1", 7101)
    assert name is not None
    assert local.connect_local(name) is None
    wire = local.listen(name, 1)
    assert len(list(directory.iterdir())) == 2
    client = local.connect_local(name)
    assert client is not None
    client.close()
    monkeypatch.setattr(local, "STALE_AFTER_S", -1.0)
    other = local.name_of("127.0.0.1", 7103)
    assert other is not None
    local.listen(other, 1).close()
    # What the killed one left is gone, and the sockets in use are not.
    assert {path.name for path in directory.iterdir()} == {Path(name).name, Path(other).name}
    wire.close()


def test_a_name_in_use_is_not_taken_over() -> None:
    name = local.name_of("127.0.0.1", 7100)
    assert name is not None
    with local.listen(name, 1), pytest.raises(OSError) as refused:
        local.listen(name, 1)
    assert refused.value.errno == errno.EADDRINUSE


def test_a_client_that_comes_while_the_server_ends_finds_the_port_or_nothing() -> None:
    async def body() -> None:
        came: list[Connection] = []
        async with served(came) as server:
            assert "of this machine" in await peer_seen(server.address, came)
            name = local.name_of(*split_address(server.address))
            assert name is not None
            local.forget(name)
            assert (await peer_seen(server.address, came)).startswith("127.0.0.1:")
            await wait_until(lambda: all(one.closed for one in came))

    run(body())
