"""NATS JetStream: one server or three, synced always or by its default; by nats-py, or by the bare protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError

from benchmarks.peers.contract import Journal, Keep
from benchmarks.peers.nats_wire import NatsWire, WireError
from benchmarks.peers.programs import nats_program
from benchmarks.peers.server import HOST, Server, listens, start_all, stop_all
from varlog.localcluster.ports import free_ports

FETCH = 5000
CALL_S = 30.0
ASYNC_PENDING_MAX = 20_000
_NOBODY_THERE = b"NATS/1.0 503"


class JetStream:
    """`copies` servers, each stream on all of them. `bare` systems use NatsWire, the others nats-py."""

    def __init__(self, directory: Path, *, copies: int, always: bool) -> None:
        self._copies = copies
        self._always = always
        self._clients, routes = free_ports(copies), free_ports(copies)
        program = nats_program()
        self._servers = [
            Server(
                f"nats-{number + 1}",
                program,
                ["-c", str(self._configured(directory, number, routes, always))],
                directory,
            )
            for number in range(copies)
        ]

    async def start(self) -> None:
        await start_all(self._servers, self._ready)

    async def stop(self) -> None:
        await stop_all(self._servers)

    def pids(self) -> list[int]:
        return [server.pid for server in self._servers]

    @asynccontextmanager
    async def journal(self, system: str, topic: str, *, streams: int, callers: int) -> AsyncIterator[Journal]:
        names = [f"{topic}-{number}" for number in range(streams)]
        admin = await nats.connect([f"nats://{HOST}:{port}" for port in self._clients])
        try:
            js = admin.jetstream(timeout=CALL_S)
            leaders = [await self._made(js, name) for name in names]
            journal: BareJournal | ClientJournal
            if "bare" in system:
                # A lone server syncs one message after the other: thousands in flight wait for each other, an atomic batch is one.
                ways = ("atomic",) if self._always and self._copies == 1 else ("in-flight", "atomic")
                journal = BareJournal(names, leaders, ways)
            else:
                journal = ClientJournal(names, leaders)
            await journal.open()
            try:
                yield journal
            finally:
                await journal.close()
                for name in names:
                    await js.delete_stream(name)
        finally:
            await admin.close()

    async def _made(self, js: JetStreamContext, name: str) -> int:
        """The port of the server that leads a new stream: clients that connect there save a hop."""
        config = StreamConfig(
            name=name, subjects=[name], num_replicas=self._copies, allow_atomic=True, allow_direct=True
        )
        info = await js.add_stream(config)
        while self._copies > 1 and (info.cluster is None or not info.cluster.leader):
            info = await js.stream_info(name)
        leader = info.cluster.leader if info.cluster is not None and info.cluster.leader else "nats-1"
        return self._clients[int(leader.removeprefix("nats-")) - 1]

    async def _ready(self) -> bool:
        """All listen, and JetStream has found its own leader: it makes a stream with all copies."""
        if not all(listens(port) for port in self._clients):
            return False
        client = await nats.connect(f"nats://{HOST}:{self._clients[0]}")
        try:
            js = client.jetstream(timeout=1.0)
            await js.add_stream(name="ready", subjects=["ready"], num_replicas=self._copies)
            await js.delete_stream("ready")
        except (nats.errors.Error, APIError):
            return False
        finally:
            await client.close()
        return True

    def _configured(self, directory: Path, number: int, routes: tuple[int, ...], always: bool) -> Path:
        name, others = f"nats-{number + 1}", ", ".join(f"nats-route://{HOST}:{port}" for port in routes)
        sync = "sync_interval: always, " if always else ""
        lines = [
            f"server_name: {name}",
            f"listen: {HOST}:{self._clients[number]}",
            f'jetstream {{ store_dir: "{directory / name}", {sync}max_file_store: 100G }}',
        ]
        if len(routes) > 1:
            lines.append(f"cluster {{ name: peers, listen: {HOST}:{routes[number]}, routes: [{others}] }}")
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{name}.conf"
        path.write_text("\n".join(lines) + "\n", "utf-8")
        return path


class ClientJournal:
    """By nats-py, as its documentation says: publish waits for the acknowledgement; batches are published asynchronously."""

    batch_ways = ("in-flight",)
    read_ways = ("entries",)

    def __init__(self, names: Sequence[str], leaders: Sequence[int]) -> None:
        self._names, self._leaders = names, leaders
        self._clients: dict[int, Client] = {}
        self._contexts: list[JetStreamContext] = []

    async def open(self) -> None:
        for port in set(self._leaders):
            self._clients[port] = await nats.connect(f"nats://{HOST}:{port}")
        contexts = {
            port: client.jetstream(timeout=CALL_S, publish_async_max_pending=ASYNC_PENDING_MAX)
            for port, client in self._clients.items()
        }
        self._contexts = [contexts[port] for port in self._leaders]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def append(self, caller: int, payload: bytes) -> Awaitable[object]:
        stream = caller % len(self._names)
        return self._contexts[stream].publish(self._names[stream], payload)

    async def append_batch(self, caller: int, payloads: Sequence[bytes], way: str) -> None:
        stream = caller % len(self._names)
        js, name = self._contexts[stream], self._names[stream]
        await asyncio.gather(*[await js.publish_async(name, payload) for payload in payloads])

    async def read(self, count: int, way: str, keep: Keep | None = None) -> int:
        """A pull consumer that need not acknowledge, many entries a fetch."""
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True, num_replicas=1)
        name, got = self._names[0], 0
        subscription = await self._contexts[0].pull_subscribe(name, stream=name, config=config)
        while got < count:
            messages = await subscription.fetch(min(FETCH, count - got), timeout=CALL_S)
            got += len(messages)
            if keep is not None:
                keep([message.data for message in messages])
        await subscription.unsubscribe()
        return got


class BareJournal:
    """By the bare protocol. A batch has its connection for itself; single appends share one connection a stream."""

    read_ways = ("entries",)
    connections_max = 8

    def __init__(self, names: Sequence[str], leaders: Sequence[int], batch_ways: tuple[str, ...]) -> None:
        self.batch_ways = batch_ways
        self._names, self._leaders = [name.encode() for name in names], leaders
        self._wires: list[list[NatsWire]] = []

    async def open(self) -> None:
        for port in self._leaders:
            self._wires.append([await NatsWire.connected(HOST, port)])

    async def close(self) -> None:
        for wires in self._wires:
            for wire in wires:
                await wire.close()

    def append(self, caller: int, payload: bytes) -> Awaitable[object]:
        stream = caller % len(self._names)
        return self._wires[stream][0].publish(self._names[stream], payload)

    async def append_batch(self, caller: int, payloads: Sequence[bytes], way: str) -> None:
        stream = caller % len(self._names)
        wires = self._wires[stream]
        while len(wires) <= caller < self.connections_max:
            wires.append(await NatsWire.connected(HOST, self._leaders[stream]))
        wire = wires[caller % len(wires)]
        if way == "atomic":
            await wire.publish_atomic(self._names[stream], payloads)
        else:
            await wire.publish_many(self._names[stream], payloads)

    async def read(self, count: int, way: str, keep: Keep | None = None) -> int:
        """A pull consumer that need not acknowledge, asked once for everything."""
        wire, name = self._wires[0][0], self._names[0].decode()
        config: dict[str, Any] = {
            "deliver_policy": "all",
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
        }
        asked = msgspec.json.encode({"stream_name": name, "config": config})
        consumer = msgspec.json.decode(await wire.request(f"$JS.API.CONSUMER.CREATE.{name}", asked))["name"]
        reading = _Reading(count, keep)
        inbox = f"_INBOX.read.{id(reading):x}"
        subscription = wire.subscribe(inbox.encode(), reading.message)
        async with asyncio.timeout(CALL_S):
            while not reading.complete:
                wire.send(
                    f"$JS.API.CONSUMER.MSG.NEXT.{name}.{consumer}",
                    inbox,
                    msgspec.json.encode({"batch": count}),
                )
                await reading.wait()
        wire.unsubscribe(subscription)
        await wire.request(f"$JS.API.CONSUMER.DELETE.{name}.{consumer}")
        return reading.got


class _Reading:
    """Counts what comes."""

    def __init__(self, count: int, keep: Keep | None) -> None:
        self.got = 0
        self._count = count
        self._keep = keep
        self._ended = asyncio.Event()
        self._refused = b""

    @property
    def complete(self) -> bool:
        return self.got == self._count

    async def wait(self) -> None:
        """Until all have come, or until it has to be asked for again."""
        await self._ended.wait()
        self._ended.clear()
        # A consumer made a moment ago on another server may not be heard of here yet.
        if self._refused and not (self._refused.startswith(_NOBODY_THERE) and self.got == 0):
            raise WireError(f"the reading ended after {self.got} entries: {self._refused!r}")
        self._refused = b""

    def message(self, reply: bytes, headers: bytes, payload: bytes) -> None:
        if headers and not payload:  # a word from the server, no entry: it will send no more
            self._refused = headers
            self._ended.set()
            return
        self.got += 1
        if self._keep is not None:
            self._keep([payload])
        if self.got == self._count:
            self._ended.set()
