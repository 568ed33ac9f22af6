"""A scripted cluster over the memory transport: it orders immediately, holds replies back, and fails on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import msgspec

from varlog.client.connect import connect_log
from varlog.client.log import Log
from varlog.model.batch import entries_of, parse_header, place_batch, single, walk
from varlog.model.cluster import ClusterView, LogStream, StorageNode, StreamState, Topic
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    NotWritten,
    Sealed,
    StaleEpoch,
    TrimBeyondTail,
    Trimmed,
    Unavailable,
    UnknownLogStream,
)
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.memory import MemoryServer, MemoryTransport
from varlog.rpc.messages import (
    Append,
    AppendReply,
    CheckEntries,
    CreateTopic,
    Done,
    Fetch,
    FetchReply,
    FindAppend,
    FindAppendReply,
    GetTail,
    GetTailReply,
    GetView,
    GetViewReply,
    Message,
    ReadAt,
    ReadAtReply,
    Suspect,
    TopicReply,
    TrimTopic,
)
from varlog.rpc.transport import Call, Connection, Handler
from varlog.runtime.disk import OsDisk
from varlog.runtime.environment import Environment, SystemClock
from varlog.runtime.worker import ThreadWorker
from varlog.testing.sim.core.loop import run_simulated as run_in_virtual_time

T = TypeVar("T")
# Only so that nothing hangs: a busy machine may stall for seconds.
WAIT_S = 60.0
UNLIMITED_S = 100_000.0
TOPIC = Topic(TopicID(1), "orders")
Row = tuple[LLSN, GLSN, int]
Held = tuple[Call, LogStreamID, bytearray]


def environment(seed: int = 1) -> Environment:
    return Environment(SystemClock(), Random(seed), OsDisk(), ThreadWorker)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine in virtual time: deadlines pass when nothing else can happen, however busy the machine is. One that
    hangs is a failure, not a hanging test."""
    return run_in_virtual_time(asyncio.wait_for(work, UNLIMITED_S))


def run_in_real_time(work: Coroutine[Any, Any, T]) -> T:
    """The same, for what has sockets or threads."""
    return asyncio.run(asyncio.wait_for(work, 2 * WAIT_S))


async def until(holds: Callable[[], object]) -> None:
    """Wait for a condition, a turn of the loop at a time."""
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.001)


class FakeStream:
    """One log stream, ordered."""

    def __init__(self) -> None:
        self.batches = bytearray()
        self.rows: list[Row] = []
        self.keys: dict[tuple[int, int], AppendReply] = {}  # producer and sequence of each batch
        self.end = LLSN(1)
        self.low = LLSN(1)


class FakeCluster:
    """Nodes 1..n at "node-1" …, the repository at "repository", the manager at "manager"; every node holds every stream."""

    def __init__(self, *, nodes: int = 1, streams: int = 1) -> None:
        self.transport = MemoryTransport()
        self.tail = GLSN(0)
        self.trimmed = GLSN(0)
        self.streams: dict[LogStreamID, FakeStream] = {}
        self.fail: dict[
            str, list[BaseException | None]
        ] = {}  # by address: errors for the next appends or reads
        self.fail_always: dict[str, BaseException] = {}
        self.hold_appends = False
        self.held: list[Held] = []
        self.undecided = False  # replicas cannot say yet what became of an append
        self.suspects: tuple[NodeID, ...] = ()
        self.requests: list[tuple[str, Message]] = []
        self.batches_seen: list[list[bytes]] = []
        self.fetch_bytes_most = 1 << 20
        self.spoil: dict[str, int] = {}  # by address: how many more payloads get a flipped bit
        self._waiting: list[tuple[str, Call, Fetch]] = []
        self._views_waiting: list[tuple[Call, int]] = []
        self._servers: dict[str, MemoryServer] = {}
        members = tuple(StorageNode(NodeID(n), f"node-{n}") for n in range(1, nodes + 1))
        self.view = ClusterView(ClusterID(7), 1, members, (TOPIC,), (), "manager")
        for _ in range(streams):
            self.add_stream()

    # --- The world ------------------------------------------------------------------------------------------------------

    def add_stream(self, primary: int = 0) -> LogStreamID:
        log_stream = LogStreamID(len(self.streams) + 1)
        ids = [node.node for node in self.view.nodes]
        start = primary or log_stream - 1
        replicas = tuple(ids[(start + n) % len(ids)] for n in range(len(ids)))
        self.streams[log_stream] = FakeStream()
        stream = LogStream(log_stream, TOPIC.topic, replicas, StreamState.RUNNING)
        self.change_view(streams=(*self.view.streams, stream))
        return log_stream

    def set_state(self, log_stream: LogStreamID, state: StreamState) -> None:
        self._change_stream(log_stream, state=state)

    def seal(self, log_stream: LogStreamID) -> None:
        """Nothing more is ordered in this epoch, as the repository reports it."""
        stream = self._stream(log_stream)
        sealed_end = self.streams[log_stream].end
        self._change_stream(
            log_stream, state=StreamState.SEALED, epoch=Epoch(stream.epoch + 1), sealed_end=sealed_end
        )

    def unseal(self, log_stream: LogStreamID, *replicas: int) -> None:
        """It runs again, with other replicas if they are named."""
        nodes = tuple(map(NodeID, replicas)) or self._stream(log_stream).replicas
        self._change_stream(log_stream, state=StreamState.RUNNING, replicas=nodes)

    def delete(self, log_stream: LogStreamID) -> None:
        self.change_view(streams=tuple(s for s in self.view.streams if s.log_stream != log_stream))

    def _stream(self, log_stream: LogStreamID) -> LogStream:
        return next(stream for stream in self.view.streams if stream.log_stream == log_stream)

    def _change_stream(self, log_stream: LogStreamID, **changes: Any) -> None:
        changed = msgspec.structs.replace(self._stream(log_stream), **changes)
        self.change_view(
            streams=tuple(changed if s.log_stream == log_stream else s for s in self.view.streams)
        )

    def change_view(self, **changes: Any) -> None:
        fields = {name: getattr(self.view, name) for name in self.view.__struct_fields__} | changes
        fields["revision"] = self.view.revision + 1
        self.view = ClusterView(**fields)
        waiting, self._views_waiting = self._views_waiting, []
        for call, _ in waiting:
            call.reply(GetViewReply(self.view, self.suspects))

    def primary_of(self, log_stream: LogStreamID) -> str:
        stream = self.view.stream(log_stream)
        return f"node-{stream.primary}" if stream else ""

    async def start(self, *addresses: str) -> None:
        for address in addresses or ("repository", "manager", *(node.address for node in self.view.nodes)):
            self._servers[address] = await self.transport.serve(address, self._make(address))

    async def stop(self, *addresses: str) -> None:
        for address in addresses or list(self._servers):
            await self._servers.pop(address).close()

    async def connect(
        self, *, seed: int = 1, timeout_s: float = WAIT_S, topic: str = "orders", **more: Any
    ) -> Log:
        return await connect_log(
            self.transport, environment(seed), "repository", topic=topic, timeout_s=timeout_s, **more
        )

    def order(self, log_stream: LogStreamID, payload: bytearray) -> AppendReply:
        """Take a packed batch, and order it at once."""
        stream = self.streams[log_stream]
        header = parse_header(payload, signed=False)
        place_batch(payload, Epoch(1), stream.end)
        self.batches_seen.append(entries_of(payload, header))
        stream.batches += payload
        first = AppendReply(GLSN(self.tail + 1), stream.end)
        stream.keys[header.producer, header.sequence] = first
        stream.rows.append((stream.end, first.glsn, header.count))
        stream.end = LLSN(stream.end + header.count)
        self.tail = GLSN(self.tail + header.count)
        self.wake()
        return first

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for address, call, request in waiting:
            self._fetch(address, call, request)

    def expire_fetches(self) -> None:
        """The waits of all fetches are over."""
        waiting, self._waiting = self._waiting, []
        for address, call, request in waiting:
            self._fetch(
                address, call, Fetch(request.log_stream, request.llsn, request.glsn, request.bytes_max)
            )

    def release(self, count: int = 1) -> None:
        """Answer the oldest held appends."""
        for _ in range(count):
            call, log_stream, payload = self.held.pop(0)
            call.reply(self.order(log_stream, payload))

    # --- Services -------------------------------------------------------------------------------------------------------

    def _make(self, address: str) -> Callable[[Connection], Handler]:
        def handle(call: Call | None, message: Message, payload: bytearray) -> None:
            if call is not None:
                self.requests.append((address, message))
                self._handle(address, call, message, payload)

        return lambda connection: handle

    def _handle(self, address: str, call: Call, message: Message, payload: bytearray) -> None:
        if isinstance(message, CheckEntries):
            call.reply(Done())
            return
        if address.startswith("node") and (error := self._failure(address)) is not None:
            raise error
        if isinstance(message, Append):
            self._append(call, message, payload)
        elif isinstance(message, FindAppend):
            if self.undecided or self._stream(message.log_stream).epoch <= message.epoch:
                raise Unavailable("not decided yet")
            known = self.streams[message.log_stream].keys.get((message.producer, message.sequence))
            call.reply(FindAppendReply(True, known.glsn, known.llsn) if known else FindAppendReply(False))
        elif isinstance(message, Suspect):
            call.reply(Done())
        elif isinstance(message, Fetch):
            if int(address.removeprefix("node-")) not in self._stream(message.log_stream).replicas:
                raise UnknownLogStream(message.log_stream)
            self._fetch(address, call, message)
        elif isinstance(message, ReadAt):
            self._read(address, call, message)
        elif isinstance(message, GetView):
            if message.newer_than >= self.view.revision and message.wait_s:
                self._views_waiting.append((call, message.newer_than))
            else:
                call.reply(GetViewReply(self.view, self.suspects))
        elif isinstance(message, GetTail):
            call.reply(GetTailReply(self.tail, self.trimmed))
        elif isinstance(message, TrimTopic):
            self._trim(call, message.glsn)
        elif isinstance(message, CreateTopic):
            made = Topic(TopicID(2), message.name)
            self.change_view(topics=(*self.view.topics, made))
            call.reply(TopicReply(made))

    def _append(self, call: Call, message: Append, payload: bytearray) -> None:
        stream = self._stream(message.log_stream)
        if stream.state is not StreamState.RUNNING:
            raise Sealed(message.log_stream)
        if message.epoch != stream.epoch:
            raise StaleEpoch(message.log_stream, message.epoch, stream.epoch)
        header = parse_header(payload, signed=False)
        known = self.streams[message.log_stream].keys.get((header.producer, header.sequence))
        if message.is_retry and known is not None:
            call.reply(known)
        elif self.hold_appends:
            self.held.append((call, message.log_stream, payload))
        else:
            call.reply(self.order(message.log_stream, payload))

    def _failure(self, address: str) -> BaseException | None:
        if address in self.fail_always:
            return self.fail_always[address]
        script = self.fail.get(address)
        return script.pop(0) if script else None

    def _trim(self, call: Call, glsn: GLSN) -> None:
        if glsn > self.tail:
            raise TrimBeyondTail(glsn, self.tail)
        self.trimmed = max(self.trimmed, glsn)
        for stream in self.streams.values():
            for llsn, first, count in stream.rows:
                if first <= self.trimmed:
                    stream.low = LLSN(llsn + min(count, self.trimmed - first + 1))
        call.reply(Done())

    def _fetch(self, address: str, call: Call, request: Fetch) -> None:
        stream = self.streams[request.log_stream]
        llsn = request.llsn or self._llsn_from(stream, request.glsn)
        if llsn < stream.low or 0 < request.glsn <= self.trimmed:
            call.fail(Trimmed(request.glsn or llsn, self.trimmed + 1))
            return
        data, end = bytearray(), llsn
        room = min(request.bytes_max, self.fetch_bytes_most)
        for at, header in walk(stream.batches):
            if header.end_llsn > llsn:
                if data and len(data) + header.size > room:
                    break
                data += stream.batches[at : at + header.size]
                end = header.end_llsn
        if not data and request.wait_s:
            self._waiting.append((address, call, request))
            return
        call.reply(
            FetchReply(_rows(stream, llsn, end), end, stream.end, self.tail, self.trimmed),
            self._corrupted(address, data),
        )

    def _llsn_from(self, stream: FakeStream, glsn: GLSN) -> LLSN:
        for llsn, first, count in stream.rows:
            if first + count > glsn:
                return LLSN(llsn + max(0, glsn - first))
        return stream.end

    def _read(self, address: str, call: Call, request: ReadAt) -> None:
        if request.glsn and request.glsn <= self.trimmed:
            raise Trimmed(request.glsn, self.trimmed + 1)
        if request.glsn > self.tail:
            raise NotWritten(request.glsn, self.tail)
        if request.log_stream and request.log_stream not in self.streams:
            raise UnknownLogStream(request.log_stream)
        for log_stream, stream in self.streams.items():
            for llsn, first, count in stream.rows:
                if request.log_stream:
                    if request.log_stream != log_stream or not llsn <= request.llsn < llsn + count:
                        continue
                    index = request.llsn - llsn
                elif first <= request.glsn < first + count:
                    index = request.glsn - first
                else:
                    continue
                at = LLSN(llsn + index)
                if at < stream.low:
                    raise Trimmed(at, stream.low)
                call.reply(
                    ReadAtReply(True, log_stream, GLSN(first + index)),
                    self._corrupted(address, _one(stream, at)),
                )
                return
        raise NotWritten(request.llsn, self.streams[request.log_stream].end - 1)

    def _corrupted(self, address: str, data: bytearray) -> bytearray:
        if data and self.spoil.get(address, 0) > 0:
            self.spoil[address] -= 1
            data[-9] ^= 1
        return data


def _one(stream: FakeStream, llsn: LLSN) -> bytearray:
    for at, header in walk(stream.batches):
        if header.first_llsn <= llsn < header.end_llsn:
            return single(stream.batches, header, llsn - header.first_llsn, at)
    raise AssertionError(f"no LLSN {llsn}")


def _rows(stream: FakeStream, begin: LLSN, end: LLSN) -> tuple[Row, ...]:
    cut = []
    for llsn, glsn, count in stream.rows:
        low, high = max(llsn, begin), min(llsn + count, end)
        if low < high:
            cut.append((LLSN(low), GLSN(glsn + low - llsn), high - low))
    return tuple(cut)
