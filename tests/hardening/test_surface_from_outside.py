"""Attack surface, through processes, sockets and public names alone.

So each test can be run on any version. Before, 20 bytes on a connection made a server use a MiB, an error text of a
peer wrote lines of its own into the log, six bytes in a topic stopped every recipe on it permanently, and every user of
the machine could read the files of a log.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from varlog import aio
from varlog.embedded import open_log
from varlog.model.errors import PreconditionFailed
from varlog.model.ids import ClusterID
from varlog.model.limits import FRAME_BYTES_MAX, FRAME_META_BYTES_MAX, MIB
from varlog.recipes.core.counter import Counter
from varlog.recipes.errors import ReplicaStopped
from varlog.rpc.framing import HEADER_BYTES, PROTOCOL_VERSION
from varlog.rpc.messages import Message
from varlog.rpc.tcp import TcpTransport
from varlog.rpc.transport import Call
from varlog.testing.processes import PATIENCE_S, started

CONNECTIONS = 200


@pytest.mark.process
def test_surface_frames_headers_alone_fill_no_memory(tmp_path: Path) -> None:
    """Each of them claims the longest possible frame, and nothing follows."""
    head = struct.pack("<IBBHIII", FRAME_BYTES_MAX, PROTOCOL_VERSION, 1, 1, 1, 1, FRAME_META_BYTES_MAX).ljust(
        HEADER_BYTES, b"\0"
    )

    async def ask(address: str) -> None:
        async with asyncio.timeout(PATIENCE_S), aio.admin(address, timeout_s=PATIENCE_S) as admin:
            for _ in range(50):
                await admin.topics()

    arguments = [
        "vmr",
        "start",
        "--cluster-id=1",
        f"--store={tmp_path / 'metadata.db'}",
        "--listen=127.0.0.1:0",
    ]
    with started(arguments, "ready", module="varlog.cli.serve") as (process, ready), ExitStack() as stack:
        address = ready.split()[-1]
        host, _, port = address.rpartition(":")
        server = psutil.Process(process.pid)
        asyncio.run(ask(address))
        before = server.memory_info().rss
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection((host, int(port)))).sendall(head)
        asyncio.run(ask(address))  # by now all of it has arrived
        grown = server.memory_info().rss - before
    print(f"{CONNECTIONS * len(head)} bytes made the server hold {grown / MIB:.1f} MiB more")
    assert grown < CONNECTIONS * MIB // 8


@pytest.mark.process
def test_surface_log_lines_an_error_text_of_a_peer_writes_no_line_of_its_own() -> None:
    """A storage node that refuses the manager, with a message that looks like a line of the log and clears the
    screen."""
    forged = b"2026-11-18\t00:00:00,000\tINFO\tvarlog.manager\teverything\tis\tfine"

    def refuse(call: Call | None, message: Message, payload: bytearray) -> None:
        if call is not None:
            call.fail(PreconditionFailed(f"no\n{forged.decode()}\x1b[2J"))

    async def story() -> bytes:
        server = await TcpTransport(ClusterID(1)).serve("127.0.0.1:0", lambda connection: refuse)
        manager = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "varlog.cli.serve",
                "vmc",
                "start",
                "--cluster-id=1",
                f"--nodes={server.address}",
            ),
            *("--repository=127.0.0.1:1", "--listen=127.0.0.1:0"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        logged = b""
        try:
            while b"[2J" not in logged:
                assert manager.stderr is not None
                line = await manager.stderr.readline()
                assert line, logged
                logged += line
        finally:
            manager.kill()
            await manager.communicate()
            await server.close()
        return logged

    logged = asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    assert not [line for line in logged.split(b"\n") if line.startswith(forged)]
    assert b"\x1b" not in logged


def test_surface_foreign_entries_six_bytes_stop_no_recipe(tmp_path: Path) -> None:
    async def story() -> int | str:
        async with await open_log(tmp_path / "log", "orders") as log:
            await log.append(b"\xc1vlc\x02\x90")
            try:
                async with Counter.open(log) as counter:
                    return await counter.add(5)
            except ReplicaStopped as stopped:
                return str(stopped)

    counted = asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    assert counted == 5


def test_surface_file_modes_no_other_user_can_read_or_list_the_files_of_a_log(tmp_path: Path) -> None:
    async def story() -> dict[str, int]:
        async with await open_log(tmp_path / "log", "orders") as log:
            await log.append(b"secret")
            return {
                str(path.relative_to(tmp_path)): path.stat().st_mode & 0o077
                for path in (tmp_path / "log").rglob("*")
            }

    before = os.umask(0o022)
    try:
        modes = asyncio.run(story())
    finally:
        os.umask(before)
    assert modes and not {path: oct(mode) for path, mode in modes.items() if mode}
