"""ReaderProcesses: the readers of a topic, in processes of their own: one process of Python could not show what a cluster gives.

Each is this module, run as a program. It is told what to do in lines, and answers in lines.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from array import array
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvloop

import varlog.aio
from varlog.bench.context import TIMEOUT_S
from varlog.client.log import Log
from varlog.model.lsn import FIRST_GLSN, GLSN

ROOT = Path(__file__).parents[2]
ANSWER_S_MAX = 120.0
# Every latency of every reader, in one line.
LINE_BYTES_MAX = 64 * 1024 * 1024


class ReaderProcesses:
    """`readers` readers in `processes` processes. Entered: they run; left: they have ended."""

    def __init__(self, address: str, processes: int, readers: int) -> None:
        self._address = address
        self._shares = [len(range(number, readers, processes)) for number in range(processes)]
        self._running: list[asyncio.subprocess.Process] = []

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._running)

    async def __aenter__(self) -> Self:
        for share in self._shares:
            command = (sys.executable, "-m", "benchmarks.growth.reader_processes", self._address, str(share))
            paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
            pipe = asyncio.subprocess.PIPE
            self._running.append(
                await asyncio.create_subprocess_exec(
                    *command, stdin=pipe, stdout=pipe, env=environment, cwd=ROOT, limit=LINE_BYTES_MAX
                )
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running:
            if process.stdin is not None:
                process.stdin.close()  # that is how they are told to end
        for process in self._running:
            try:
                await asyncio.wait_for(process.wait(), 10.0)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def prepare(self, read: str, live: str) -> None:
        """Connect every reader to both topics."""
        await self._all({"do": "prepare", "read": read, "live": live})

    async def read_from_start(self, seconds: float, tail: int) -> float:
        """Entries a second, of all readers together, each reading [1, tail] again and again."""
        return float(sum(await self._all({"do": "read", "seconds": seconds, "tail": tail})))

    async def follow(self, begin: int, entries: int) -> asyncio.Task[list[float]]:
        """Have every reader follow from `begin` on; returned once they do. The task has how long each entry took to each reader."""
        await self._all({"do": "follow", "begin": begin, "entries": entries})
        return asyncio.get_running_loop().create_task(self._latencies(), name="growth/latencies")

    async def _latencies(self) -> list[float]:
        return list(itertools.chain.from_iterable(await self._all({"do": "latencies"})))

    async def _all(self, what: dict[str, Any]) -> list[Any]:
        return await asyncio.wait_for(
            asyncio.gather(*(_ask(process, what) for process in self._running)), ANSWER_S_MAX
        )


async def _ask(process: asyncio.subprocess.Process, what: dict[str, Any]) -> Any:
    if process.stdin is None or process.stdout is None:
        raise ValueError("a reader process has lost its pipes")
    process.stdin.write(json.dumps(what).encode() + b"\n")
    line = await process.stdout.readline()
    if not line:
        raise OSError(f"reader process {process.pid} has ended: see its message above")
    return json.loads(line)


class Readers:
    """In the other process: `count` readers, each with logs of its own."""

    def __init__(self, stack: AsyncExitStack, address: str, count: int) -> None:
        self._stack = stack
        self._address = address
        self._count = count
        self._read: list[Log] = []
        self._live: list[Log] = []
        self._following: list[asyncio.Task[array[float]]] = []

    async def do(self, what: dict[str, Any]) -> Any:
        kind = what.pop("do")
        return await getattr(self, f"_do_{kind}")(**what)

    async def _do_prepare(self, read: str, live: str) -> None:
        for _ in range(self._count):
            for topic, logs in ((read, self._read), (live, self._live)):
                opening = varlog.aio.connect(self._address, topic, create=False, timeout_s=TIMEOUT_S)
                logs.append(await self._stack.enter_async_context(opening))

    async def _do_read(self, seconds: float, tail: int) -> float:
        counts = await asyncio.gather(*(_read_again(log, seconds, GLSN(tail + 1)) for log in self._read))
        return sum(counts)

    async def _do_follow(self, begin: int, entries: int) -> None:
        here = [asyncio.Event() for _ in self._live]
        for log, ready in zip(self._live, here, strict=True):
            following = _follow(log, GLSN(begin), entries, ready)
            self._following.append(asyncio.create_task(following, name="growth/follow"))
        await asyncio.gather(*(ready.wait() for ready in here))

    async def _do_latencies(self) -> list[float]:
        found = await asyncio.gather(*self._following)
        self._following.clear()
        return [latency for one in found for latency in one]


async def _read_again(log: Log, seconds: float, end: GLSN) -> float:
    """Entries a second, until the time is over."""
    count, began = 0, time.perf_counter()
    while True:
        async for entries in log.subscribe_lists(FIRST_GLSN, end):
            count += len(entries)
            if (now := time.perf_counter()) - began >= seconds:
                return count / (now - began)


async def _follow(log: Log, begin: GLSN, entries: int, ready: asyncio.Event) -> array[float]:
    """Seconds from the append's begin to the entry's arrival here, of each of so many entries."""
    latencies = array("d")
    subscription = log.subscribe(begin, GLSN(begin + entries))
    first = asyncio.ensure_future(anext(subscription))
    ready.set()
    entry = await first
    while True:
        latencies.append((time.monotonic_ns() - int.from_bytes(entry.data[:8], "little")) / 1e9)
        if len(latencies) == entries:
            return latencies
        entry = await anext(subscription)


async def serve(address: str, count: int) -> None:
    """Lines in, lines out, until there are no more."""
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with AsyncExitStack() as stack:
        readers = Readers(stack, address, count)
        while line := await lines.readline():
            answer = await readers.do(json.loads(line))
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1], int(sys.argv[2])))
