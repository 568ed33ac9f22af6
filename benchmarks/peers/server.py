"""Server: one server process of a peer: started, watched, stopped. It dies with this process, even if this one is killed."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from varlog.localcluster.wait import wait_until

HOST = "127.0.0.1"
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
LOOK_S = 0.02

# The kernel kills the server when its parent is gone (PR_SET_PDEATHSIG is 1); then the same process becomes the server.
_LAUNCH = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
    "sys.exit() if os.getppid() != int(sys.argv[1]) else os.execv(sys.argv[2], sys.argv[2:])"
)


class ServerFailed(Exception):
    """A server did not start; the text has the last line it wrote."""


class Server:
    """`program` with its arguments, in a directory of its own."""

    def __init__(self, name: str, program: Path, arguments: Sequence[str], directory: Path) -> None:
        self.name = name
        self._command = [str(program), *arguments]
        self._directory = directory
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._popen.pid if self._popen is not None else 0

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        launch = [sys.executable, "-S", "-c", _LAUNCH, str(os.getpid()), *self._command]
        with self._log.open("ab") as log:
            self._popen = subprocess.Popen(
                launch, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory,
                start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        """Raises if it has ended by itself."""
        if self._popen is not None and (code := self._popen.poll()) is not None:
            raise ServerFailed(f"{self.name} ended with exit code {code}: {self._last_words()}")

    async def stop(self) -> None:
        """Politely, and then not."""
        popen, self._popen = self._popen, None
        if popen is None:
            return
        popen.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await wait_until(lambda: popen.poll() is not None)
        finally:
            if popen.poll() is None:
                popen.kill()
            popen.wait()

    @property
    def _log(self) -> Path:
        return self._directory / f"{self.name}.log"

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"


async def start_all(servers: Sequence[Server], ready: Callable[[], Awaitable[bool]]) -> None:
    """All at once, until `ready` is true; none is left running if one fails."""
    try:
        for server in servers:
            server.start()
        async with asyncio.timeout(READY_TIMEOUT_S):
            while not await ready():
                for server in servers:
                    server.check()
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        await stop_all(servers)
        names = ", ".join(server.name for server in servers)
        raise ServerFailed(f"{names} did not answer within {READY_TIMEOUT_S:g} s") from None
    except BaseException:
        await stop_all(servers)
        raise


async def stop_all(servers: Sequence[Server]) -> None:
    await asyncio.gather(*(server.stop() for server in servers), return_exceptions=True)


def listens(port: int) -> bool:
    """True if somebody takes connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
