"""What the proxy costs: the same work over HTTP and by the client library, by turns in one run, on one cluster of real processes.

    python benchmarks/proxy.py [--seconds 3] [--nodes 3] [--json]

Prints for each workload both rates and their ratio; latencies are those of whole calls. The HTTP client is a few lines on sockets,
because a real one takes longer for a request than the proxy. On few cores client, proxy and cluster share them.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from varlog import aio
from varlog.bench.figures import format_count, format_ms, percentile
from varlog.client.log import Log
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.ports import HOST, free_ports
from varlog.localcluster.supervisor import Supervisor

ENTRY = b"x" * 1024
BATCH = 100
# What is read: long enough that the start does not count, short enough to be read several times in a few seconds.
READ_ENTRIES = 20_000
FOLLOWERS = 100
TOPIC = "bench"
PATH = f"/v1/topics/{TOPIC}"


@dataclass
class Rate:
    """Entries in a time, and the latencies of the calls that brought them."""

    entries: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        return self.entries / self.seconds

    def figures(self) -> dict[str, float]:
        figures = {"entries_per_s": self.per_s}
        if self.latencies:
            figures |= {"p50_s": percentile(self.latencies, 50), "p99_s": percentile(self.latencies, 99)}
        return figures


class Http:
    """One connection, one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> Http:
        return cls(*await asyncio.open_connection(HOST, port, limit=2**24))

    async def post(self, path: str, content_type: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        return await self._answer()

    async def get(self, path: str, accept: str = "application/json") -> bytes:
        self.ask(path, accept)
        return await self._answer()

    def ask(self, path: str, accept: str) -> None:
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())

    async def _answer(self) -> bytes:
        length = await self.head()
        if length is not None:
            return await self._reader.readexactly(length)
        pieces = []
        while piece := await self.chunk():
            pieces.append(piece)
        return b"".join(pieces)

    async def head(self) -> int | None:
        """The length of the body; None: it comes in chunks."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 20"):
            raise SystemExit(f"the proxy answered: {head.decode()}")
        _, found, rest = head.partition(b"content-length: ")
        return int(rest.partition(b"\r\n")[0]) if found else None

    async def chunk(self) -> bytes:
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    def close(self) -> None:
        self._writer.close()


class Bench:
    """Every workload, once by the library and once over HTTP."""

    def __init__(self, log: Log, port: int, seconds: float) -> None:
        self._log = log
        self._port = port
        self._seconds = seconds
        self.rows: list[dict[str, Any]] = []

    async def run(self) -> None:
        lines = b"".join([ENTRY + b"\n"] * BATCH)
        given = json.dumps({"entries": [{"base64": base64.b64encode(ENTRY).decode()}] * BATCH}).encode()
        octets, ndjson, in_json = "application/octet-stream", "application/x-ndjson", "application/json"
        for clients in (1, 64):
            await self._compare(
                f"append, {clients} client{'s' if clients > 1 else ''}",
                partial(self._append, clients, 1, self._library_append),
                partial(self._append_http, clients, 1, octets, ENTRY),
            )
        for name, kind, body in (("lines", ndjson, lines), ("JSON", in_json, given)):
            await self._compare(
                f"append {BATCH} as {name}, 4 clients",
                partial(self._append, 4, BATCH, self._library_batch),
                partial(self._append_http, 4, BATCH, kind, body),
            )
        await self._fill()
        page = f"{PATH}/entries?from=1&until={READ_ENTRIES + 1}"
        for name, accept in (("lines of JSON", ndjson), ("bytes", octets)):
            await self._compare(
                f"range as {name}", self._library_read, partial(self._read_http, page, accept)
            )
        await self._compare("range as JSON, in pages", self._library_read, self._read_pages)
        await self._compare(
            "range as Arrow",
            self._library_arrow,
            partial(self._read_http, page, "application/vnd.apache.arrow.stream"),
        )
        await self._compare(
            "server-sent events",
            self._library_read,
            partial(self._read_http, f"{PATH}/events?from=1&until={READ_ENTRIES + 1}", "text/event-stream"),
        )
        await self._compare("WebSocket", self._library_read, self._read_socket)
        await self._compare(f"live, {FOLLOWERS} followers", self._library_follow, self._follow_http)

    async def _compare(
        self, name: str, library: Callable[[], Awaitable[Rate]], http: Callable[[], Awaitable[Rate]]
    ) -> None:
        by_library, by_http = await library(), await http()
        row: dict[str, Any] = {"workload": name, "library": by_library.figures(), "http": by_http.figures()}
        row["ratio"] = by_http.per_s / by_library.per_s
        self.rows.append(row)

    # --- Appends --------------------------------------------------------------------------------------------------------

    async def _library_append(self) -> None:
        await self._log.append(ENTRY)

    async def _library_batch(self) -> None:
        await self._log.append_batch([ENTRY] * BATCH)

    async def _append(self, clients: int, entries: int, call: Callable[[], Awaitable[object]]) -> Rate:
        return await self._timed([call] * clients, entries)

    async def _append_http(self, clients: int, entries: int, content_type: str, body: bytes) -> Rate:
        connections = [await Http.connect(self._port) for _ in range(clients)]
        calls = [partial(one.post, f"{PATH}/entries", content_type, body) for one in connections]
        try:
            return await self._timed(calls, entries)
        finally:
            for one in connections:
                one.close()

    async def _timed(self, calls: Sequence[Callable[[], Awaitable[object]]], entries: int) -> Rate:
        """Each of them again and again; those calls count that end within the time, after a warm-up."""
        rate = Rate(seconds=self._seconds)
        begin = time.perf_counter() + min(0.5, self._seconds / 4)
        end = begin + self._seconds

        async def repeat(call: Callable[[], Awaitable[object]]) -> None:
            while (started := time.perf_counter()) < end:
                await call()
                if begin <= (ended := time.perf_counter()) < end:
                    rate.entries += entries
                    rate.latencies.append(ended - started)

        await asyncio.gather(*(repeat(call) for call in calls))
        return rate

    # --- Reads ----------------------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        while (missing := READ_ENTRIES - await self._log.tail()) > 0:
            await self._log.append_batch([ENTRY] * min(missing, 1000))

    async def _repeated(self, read: Callable[[], Awaitable[None]]) -> Rate:
        """The whole range, until the time is over; the first reading warms the caches and does not count."""
        await read()
        rate, begin = Rate(), time.perf_counter()
        while not rate.entries or rate.seconds < self._seconds:
            await read()
            rate.entries += READ_ENTRIES
            rate.seconds = time.perf_counter() - begin
        return rate

    async def _library_read(self) -> Rate:
        async def read() -> None:
            seen = 0
            async for entries in self._log.subscribe_lists(1, READ_ENTRIES + 1):
                seen += len(entries)
            _check(seen, READ_ENTRIES)

        return await self._repeated(read)

    async def _library_arrow(self) -> Rate:
        async def read() -> None:
            seen = 0
            async for batch in self._log.arrow(1, READ_ENTRIES + 1):
                seen += batch.num_rows
            _check(seen, READ_ENTRIES)

        return await self._repeated(read)

    async def _read_http(self, path: str, accept: str) -> Rate:
        connection = await Http.connect(self._port)

        async def read() -> None:
            _check(len(await connection.get(path, accept)), READ_ENTRIES * len(ENTRY))

        try:
            return await self._repeated(read)
        finally:
            connection.close()

    async def _read_pages(self) -> Rate:
        connection = await Http.connect(self._port)

        async def read() -> None:
            position = 1
            while position <= READ_ENTRIES:
                page = await connection.get(
                    f"{PATH}/entries?from={position}&until={READ_ENTRIES + 1}&limit=1000"
                )
                # The fields behind the entries: parsing them all would measure this client.
                position = int(page.rpartition(b'"next":')[2].partition(b",")[0])

        try:
            return await self._repeated(read)
        finally:
            connection.close()

    async def _read_socket(self) -> Rate:
        async def read() -> None:
            reader, writer = await asyncio.open_connection(HOST, self._port, limit=2**24)
            key = base64.b64encode(os.urandom(16)).decode()
            writer.write(
                f"GET {PATH}/socket?from=1&until={READ_ENTRIES + 1} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
            )
            await reader.readuntil(b"\r\n\r\n")
            size = 0
            while (got := await _message(reader)) is not None:
                size += got
            _check(size, READ_ENTRIES * len(ENTRY))
            writer.close()

        return await self._repeated(read)

    # --- Many who follow ------------------------------------------------------------------------------------------------

    async def _library_follow(self) -> Rate:
        """As many subscriptions in this process: what each gets, all together."""

        async def follow(begin: int, end: int) -> None:
            async with aclosing(self._log.subscribe_lists(begin, end)) as lists:
                async for _ in lists:
                    pass

        return await self._followed(follow)

    async def _follow_http(self) -> Rate:
        async def follow(begin: int, end: int) -> None:
            connection = await Http.connect(self._port)
            connection.ask(f"{PATH}/events?from={begin}&until={end}", "text/event-stream")
            await connection.head()
            while await connection.chunk():
                pass
            connection.close()

        return await self._followed(follow)

    async def _followed(self, follow: Callable[[int, int], Coroutine[Any, Any, None]]) -> Rate:
        count = 1000
        begin = await self._log.tail() + 1
        following = [asyncio.create_task(follow(begin, begin + count)) for _ in range(FOLLOWERS)]
        await asyncio.sleep(1.0)  # until all of them are there
        started = time.perf_counter()
        for _ in range(count // 10):
            await self._log.append_batch([ENTRY] * 10)
        await asyncio.gather(*following)
        return Rate(count * FOLLOWERS, time.perf_counter() - started)


def _check(got: int, least: int) -> None:
    """A figure of something that is not there would be a good one."""
    if got < least:
        raise SystemExit(f"{got} came where at least {least} were expected")


async def _message(reader: asyncio.StreamReader) -> int | None:
    """The size of the next message that a server sends; None: it closes."""
    first, second = await reader.readexactly(2)
    size = second & 127
    if size == 126:
        (size,) = struct.unpack(">H", await reader.readexactly(2))
    elif size == 127:
        (size,) = struct.unpack(">Q", await reader.readexactly(8))
    await reader.readexactly(size)
    return None if first & 15 == 8 else size


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="varlog-bench-") as directory:
        port, *ports = free_ports(options.nodes + 3)
        plan = ClusterPlan(
            data=Path(directory),
            ports=tuple(ports),
            replicas=options.nodes,
            streams=2,
            proxy_port=port,
        )
        supervisor = Supervisor(plan)
        await supervisor.start()
        try:
            async with aio.connect(supervisor.address, TOPIC, create=True, streams=2, timeout_s=60.0) as log:
                bench = Bench(log, port, options.seconds)
                await bench.run()
        finally:
            await supervisor.stop()
    return bench.rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| workload | library, entries/s | HTTP, entries/s | ratio | library p50, p99 ms | HTTP p50, p99 ms |"
    ]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for row in rows:
        cells = [row["workload"]]
        cells += [format_count(row[side]["entries_per_s"]) for side in ("library", "http")]
        cells.append(f"{row['ratio']:.2f}")
        for side in ("library", "http"):
            figures = row[side]
            cells.append(
                f"{format_ms(figures['p50_s'])}, {format_ms(figures['p99_s'])}" if "p50_s" in figures else ""
            )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each side of each workload")
    parser.add_argument("--nodes", type=int, default=3, help="storage nodes, each with every entry")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(measure(options))
    sys.stdout.write((json.dumps(rows, indent=2) if options.json else table(rows)) + "\n")


if __name__ == "__main__":
    main()
