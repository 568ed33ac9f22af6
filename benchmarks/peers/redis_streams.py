"""Redis Streams: one server with an append-only file, synced always or every second; by redis-py, or by the bare protocol.

Clients come by its Unix socket, as processes of one machine do with varlog: it is the faster way there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from benchmarks.peers.contract import Journal, Keep
from benchmarks.peers.programs import redis_program
from benchmarks.peers.redis_wire import RedisWire
from benchmarks.peers.server import HOST, Server, listens, start_all, stop_all
from varlog.localcluster.ports import free_ports

# Entries an answer of XRANGE: more are no faster.
RANGE = 10_000
FIELD = b"d"
# The server reads a little from each connection, then syncs once for all: several connections share one sync.
CONNECTIONS_MAX = 16


class RedisStreams:
    """One server. Snapshots and rewrites of the file are off: they would only cost."""

    def __init__(self, directory: Path, *, always: bool) -> None:
        self._port = free_ports(1)[0]
        # Not in `directory`: a socket's name may have no more than 107 bytes.
        self._nest = Path(tempfile.mkdtemp(prefix="varlog-redis-"))
        self._socket = self._nest / "socket"
        arguments = [
            *("--port", str(self._port), "--bind", HOST, "--unixsocket", str(self._socket)),
            *("--dir", str(directory)),
            *("--appendonly", "yes", "--appendfsync", "always" if always else "everysec"),
            *("--save", "", "--auto-aof-rewrite-percentage", "0"),
        ]
        self._server = Server("redis", redis_program(), arguments, directory)

    async def start(self) -> None:
        await start_all([self._server], self._ready)

    async def stop(self) -> None:
        await stop_all([self._server])
        shutil.rmtree(self._nest, ignore_errors=True)

    def pids(self) -> list[int]:
        return [self._server.pid]

    @asynccontextmanager
    async def journal(self, system: str, topic: str, *, streams: int, callers: int) -> AsyncIterator[Journal]:
        keys = [f"{topic}-{number}".encode() for number in range(streams)]
        journal: BareJournal | ClientJournal
        journal = BareJournal(self._socket, keys) if "bare" in system else ClientJournal(self._socket, keys)
        await journal.open(callers)
        try:
            yield journal
        finally:
            await journal.close()
            with redis.Redis(unix_socket_path=str(self._socket)) as admin:
                admin.unlink(*keys)

    async def _ready(self) -> bool:
        return listens(self._port)


class ClientJournal:
    """By redis-py with hiredis, as its documentation says: one caller blocks, many have a pool, batches are pipelines."""

    batch_ways = ("pipeline",)
    read_ways = ("entries",)

    def __init__(self, place: Path, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._place = str(place)
        self._blocking = redis.Redis(unix_socket_path=self._place)
        self._clients: list[redis.asyncio.Redis] = []

    async def open(self, callers: int) -> None:
        if callers == 1:
            return
        # A connection a caller, as a pool would give it, without the pool's lock.
        for _ in range(callers):
            client = redis.asyncio.Redis(unix_socket_path=self._place, single_connection_client=True)
            await client.ping()
            self._clients.append(client)

    async def close(self) -> None:
        self._blocking.close()
        for client in self._clients:
            await client.aclose()

    async def append(self, caller: int, payload: bytes) -> None:
        key = self._keys[caller % len(self._keys)]
        if self._clients:
            await self._clients[caller].xadd(key, {FIELD: payload})
        else:
            self._blocking.xadd(key, {FIELD: payload})

    async def append_batch(self, caller: int, payloads: Sequence[bytes], way: str) -> None:
        client: Any = self._clients[caller] if self._clients else self._blocking
        pipeline = client.pipeline(transaction=False)
        key = self._keys[caller % len(self._keys)]
        for payload in payloads:
            pipeline.xadd(key, {FIELD: payload})
        if self._clients:
            await pipeline.execute()
        else:
            pipeline.execute()

    async def read(self, count: int, way: str, keep: Keep | None = None) -> int:
        """XRANGE, thousands at a time, into redis-py's own shape: an id and a dict for each entry."""
        got, begin = 0, b"-"
        while got < count:
            entries: Any = self._blocking.xrange(self._keys[0], begin, b"+", min(RANGE, count - got))
            got += len(entries)
            begin = b"(" + entries[-1][0]
            if keep is not None:
                keep([fields[FIELD] for _, fields in entries])
        return got


class BareJournal:
    """By the bare protocol, callers spread over a few connections; a read takes hiredis' own lists as they come."""

    batch_ways = ("pipeline",)
    read_ways = ("entries",)

    def __init__(self, place: Path, keys: Sequence[bytes]) -> None:
        self._place, self._keys = str(place), keys
        self._wires: list[RedisWire] = []
        self._blocking = redis.Redis(unix_socket_path=self._place)
        self._blocking.response_callbacks.pop("XRANGE")

    async def open(self, callers: int) -> None:
        for _ in range(min(callers, CONNECTIONS_MAX)):
            self._wires.append(await RedisWire.connected(self._place))

    async def close(self) -> None:
        self._blocking.close()
        for wire in self._wires:
            await wire.close()

    def append(self, caller: int, payload: bytes) -> Awaitable[object]:
        key = self._keys[caller % len(self._keys)]
        return self._wires[caller % len(self._wires)].xadd(key, payload)

    def append_batch(self, caller: int, payloads: Sequence[bytes], way: str) -> Awaitable[object]:
        key = self._keys[caller % len(self._keys)]
        return self._wires[caller % len(self._wires)].xadd_many(key, payloads)

    async def read(self, count: int, way: str, keep: Keep | None = None) -> int:
        got, begin = 0, b"-"
        while got < count:
            entries: Any = self._blocking.xrange(self._keys[0], begin, b"+", min(RANGE, count - got))
            got += len(entries)
            begin = b"(" + entries[-1][0]
            if keep is not None:
                keep([fields[1] for _, fields in entries])
        return got
