"""LoadClient: a client process that works on a topic and records its calls.

It ends when its stdin ends.

python -m varlog.testing.load_client LOAD     # LOAD: a `ClientLoad` as JSON
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from varlog import aio
from varlog.client.log import Log
from varlog.model.errors import VarlogError
from varlog.testing.history_file import HistoryFile, HistoryWriter, RealHistory
from varlog.testing.workload import Client, Mix
from varlog.verify.history import ClientCall, TrimCall

CONNECT_TIMEOUT_S = 5.0
# Longer than any operation: a client that is stopped finishes what it has begun.
STOP_TIMEOUT_S = 60.0
_FOREVER = 10**12


class ClientLoad(msgspec.Struct, frozen=True):
    """What one client process does. Trims are left out unless asked for: what is trimmed cannot be missed any more."""

    name: str
    cluster: str
    topic: str
    history: str
    seed: int
    loops: int = 4
    think_s: float = 0.01
    timeout_s: float = 10.0
    trims: bool = False
    entry_bytes_max: int = 300

    def mix(self) -> Mix:
        mix = Mix(think_s=self.think_s, timeout_s=self.timeout_s, entry_bytes_max=self.entry_bytes_max)
        mix.weights["trim"] = 1 if self.trims else 0
        return mix


class LoadClient:
    """The parent's side: start, look at what it wrote, stop."""

    def __init__(self, load: ClientLoad, *, prefix: tuple[str, ...] = ()) -> None:
        """`prefix` is put before the command: whatever moves it to another place."""
        self.load = load
        self.written = HistoryFile(Path(load.history))
        self._prefix = prefix
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """It ends when this process does, however that ends: its stdin is a pipe from here."""
        arguments = [*self._prefix, sys.executable, "-m", "varlog.testing.load_client"]
        self._popen = subprocess.Popen(
            [*arguments, msgspec.json.encode(self.load).decode()],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def ask_to_stop(self) -> None:
        if self._popen is not None and self._popen.stdin is not None:
            self._popen.stdin.close()

    def wait(self, timeout_s: float) -> int:
        """Its exit code. One that does not end in time is killed, and that is its exit code."""
        if self._popen is None:
            return 0
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            code = self._popen.wait()
        self._popen = None
        return code

    def kill(self) -> None:
        """kill -9: what it has in flight stays open, and its outcome remains unknown."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
            self.ask_to_stop()
            self._popen = None

    def ended(self) -> bool:
        return self._popen is None or self._popen.poll() is not None


async def work(load: ClientLoad, stopping: Callable[[], bool]) -> None:
    """Connect, then run the loops of operations until it is time to stop."""
    history = RealHistory()
    with HistoryWriter(Path(load.history)) as writer:
        log = await _connect(load, stopping)
        if log is None:
            return

        def ended(operation: ClientCall) -> None:
            if isinstance(operation, TrimCall):
                operation.binding = False  # it is not known here which nodes received it
            writer.write(operation)
            while history.complaints:
                writer.complain(history.complaints.pop())
            history.operations.remove(operation)

        async with log, asyncio.TaskGroup() as group:
            for number in range(load.loops):
                rng = random.Random(load.seed * 1_000 + number)
                name = f"{load.name}.{number}"
                client = Client(name, load.topic, log, history, rng, load.mix(), writer.write, ended)
                group.create_task(client.run(_FOREVER, stopping), name=name)


async def _connect(load: ClientLoad, stopping: Callable[[], bool]) -> Log | None:
    while not stopping():
        try:
            return await aio.connect(load.cluster, load.topic, create=False, timeout_s=CONNECT_TIMEOUT_S)
        except VarlogError:
            continue  # the server that was asked has just been killed
    return None


async def _main(load: ClientLoad) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), stop.set)
    try:
        await work(load, stop.is_set)
    finally:
        loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    uvloop.run(_main(msgspec.json.decode(sys.argv[1], type=ClientLoad)))
