"""Attack surface: frames of a peer outside of the cluster.

Before, 20 bytes on a connection made the receiver fill a MiB, nothing bounded the connections or ended a frame that
never completed, and a frame that was altered in transit was accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tests.manager.sim_cluster import REPOSITORY, SimCluster
from tests.rpc.helpers import DEADLINE_S, run, wait_until
from varlog.client.connect import connect_admin
from varlog.model.batch import Buffer, pack
from varlog.model.ids import ClusterID, LogStreamID, ProducerID
from varlog.model.limits import FRAME_BYTES_MAX, FRAME_META_BYTES_MAX, KIB, MIB, UNKNOWN_PEER_FRAME_BYTES_MAX
from varlog.model.status import ClusterStatus
from varlog.proxy.metrics import ClusterCollector
from varlog.rpc.codec import encode, number_of
from varlog.rpc.connection_limits import ConnectionGuard, ConnectionLimits
from varlog.rpc.framing import (
    FIRST_BYTES,
    GROWTH,
    HEADER_BYTES,
    HELLO,
    PROTOCOL_VERSION,
    REQUEST,
    CorruptFrame,
    FrameReader,
    MalformedFrame,
    frame_head,
)
from varlog.rpc.messages import Append, Done, Message
from varlog.rpc.tcp import TcpServer, TcpTransport, split_address
from varlog.rpc.transport import Call, Connection, Handler
from varlog.runtime.logging import LineLimit
from varlog.testing.sim.core.loop import run_simulated as run_in_virtual_time
from varlog.testing.sim.core.network import SimTransport

HERE = ClusterID(7)
APPEND = Append(LogStreamID(1))
SOON = ConnectionLimits(hello_timeout_s=0.05, frame_timeout_s=0.05)

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("varlog.rpc.tcp.SWEEP_S", 0.01)
    runner = asyncio.run if request.param == "asyncio" else uvloop.run
    return lambda body: run(body, runner=runner)


class Service:
    """Answers every request, and records its connections and the sizes of the payloads."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.transport = TcpTransport(HERE, limits=limits)
        self.connections: list[Connection] = []
        self.came: list[int] = []

    def make_handler(self, connection: Connection) -> Handler:
        self.connections.append(connection)
        return self._handle

    def _handle(self, call: Call | None, message: Message, payload: bytearray) -> None:
        self.came.append(len(payload))
        if call is not None:
            call.reply(Done())

    @asynccontextmanager
    async def served(self) -> AsyncIterator[TcpServer]:
        server = await self.transport.serve("127.0.0.1:0", self.make_handler)
        try:
            yield server
        finally:
            await server.close()


def claim(meta_bytes: int, payload_bytes: int) -> bytes:
    """Only the header of a frame, which claims that this much follows."""
    length = HEADER_BYTES - 4 + meta_bytes + payload_bytes
    head = struct.pack("<IBBHIII", length, PROTOCOL_VERSION, REQUEST, 1, 1, HERE, meta_bytes)
    return head + bytes(HEADER_BYTES - len(head))


HELLO_FRAME = frame_head(HELLO, 0, 0, HERE, b"")


def framed(payload: bytes) -> bytes:
    return frame_head(REQUEST, number_of[Append], 1, HERE, encode(APPEND), payload) + payload


async def dialled(server: TcpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*split_address(server.address))


async def wait_ended(reader: asyncio.StreamReader) -> None:
    """Wait until the server has closed the connection, in any way."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(4096):
            pass


# --- Memory grows with what arrives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [b"", HELLO_FRAME], ids=["unknown", "known"])
def test_a_header_alone_makes_the_receiver_allocate_next_to_nothing(run_on: Run, after: bytes) -> None:
    async def body() -> None:
        service = Service()
        async with service.served() as server:
            known = await service.transport.connect(server.address, timeout_s=DEADLINE_S)
            await known.call(APPEND, timeout_s=DEADLINE_S)
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            writers = []
            for _ in range(200):
                _, writer = await dialled(server)
                writer.write(after + claim(FRAME_META_BYTES_MAX, FRAME_BYTES_MAX - FRAME_META_BYTES_MAX - 20))
                writers.append(writer)
            await wait_until(lambda: len(service.connections) == 201)
            for _ in range(50):  # all of it has arrived
                await known.call(APPEND, timeout_s=DEADLINE_S)
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert grown < 200 * 64 * KIB
            for writer in writers:
                writer.transport.abort()
            known.close()

    run_on(body())


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(claim, st.integers(0, FRAME_META_BYTES_MAX), st.integers(0, 15 * MIB)),
            st.builds(framed, st.binary(max_size=300)),
            st.integers(1, 40 * KIB).map(bytes),
        ),
        max_size=8,
    ),
    st.lists(st.integers(1, 10_000), max_size=40),
)
def test_no_bytes_make_a_reader_allocate_more_than_a_multiple_of_what_arrived(
    parts: list[bytes], pieces: list[int]
) -> None:
    reader = FrameReader(memoryview(bytearray(8 * KIB)), lambda *frame: None)
    data, at, sizes = b"".join(parts), 0, iter(pieces)
    with contextlib.suppress(MalformedFrame):
        while at < len(data):
            buffer = reader.buffer()
            piece = data[at : at + min(len(buffer), next(sizes, len(buffer)))]
            buffer[: len(piece)] = piece
            reader.received(len(piece))
            at += len(piece)
            assert reader.held_bytes <= 2 * FIRST_BYTES + GROWTH * at


def test_a_large_payload_has_its_place_at_once_and_is_never_copied() -> None:
    places: list[bytearray] = []

    def take(kind: int, number: int, request: int, cluster: int, meta: Buffer, payload: bytearray) -> None:
        places.append(payload)

    reader = FrameReader(memoryview(bytearray(256 * KIB)), take)
    data = framed(bytes(MIB))
    buffer = reader.buffer()
    buffer[:] = data[: len(buffer)]
    reader.received(len(buffer))
    rest = reader.buffer()
    place = rest.obj
    assert len(rest) == len(data) - len(buffer)
    rest[:] = data[len(buffer) :]
    reader.received(len(rest))
    assert places[0] is place


# --- Small frames until a peer is known -----------------------------------------------------------------------------


def test_a_large_frame_before_the_hello_ends_the_connection(
    run_on: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        service = Service()
        async with service.served() as server:
            reader, writer = await dialled(server)
            writer.write(framed(bytes(UNKNOWN_PEER_FRAME_BYTES_MAX)))
            await wait_ended(reader)
            writer.close()
            assert service.came == []

    with caplog.at_level(logging.WARNING, "varlog.rpc"):
        run_on(body())
    assert "not known yet" in caplog.text


def test_the_first_request_of_a_peer_of_the_cluster_may_be_large(run_on: Run) -> None:
    async def body() -> None:
        service = Service()
        async with service.served() as server:
            client = await service.transport.connect(server.address, timeout_s=DEADLINE_S)
            await client.call(APPEND, bytes(MIB), timeout_s=DEADLINE_S)
            assert service.came == [MIB]
            client.close()

    run_on(body())


def test_a_hello_of_another_cluster_identifies_no_peer(run_on: Run) -> None:
    async def body() -> None:
        service = Service()
        async with service.served() as server:
            reader, writer = await dialled(server)
            writer.write(frame_head(HELLO, 0, 0, HERE + 1, b"") + framed(bytes(MIB)))
            await wait_ended(reader)
            writer.close()
            assert service.came == []

    run_on(body())


# --- Deadlines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", claim(100, 0)[:10], claim(100, 0)], ids=["nothing", "part", "header"])
def test_a_connection_that_never_sends_hello_is_closed(
    run_on: Run, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with Service(SOON).served() as server:
            reader, writer = await dialled(server)
            writer.write(said)
            await wait_ended(reader)
            writer.close()

    with caplog.at_level(logging.WARNING, "varlog.rpc"):
        run_on(body())
    assert "did not say hello within 0.05 s" in caplog.text
    assert "peer=127.0.0.1:" in caplog.text


def test_a_frame_that_never_completes_ends_its_connection(
    run_on: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with Service(SOON).served() as server:
            reader, writer = await dialled(server)
            writer.write(HELLO_FRAME + framed(bytes(MIB))[:-1])
            await wait_ended(reader)
            writer.close()

    with caplog.at_level(logging.WARNING, "varlog.rpc"):
        run_on(body())
    assert "its frame was not whole after 0.05 s" in caplog.text


def test_a_known_peer_may_be_silent(run_on: Run) -> None:
    async def body() -> None:
        service = Service(SOON)
        async with service.served() as server:
            silent = await service.transport.connect(server.address, timeout_s=DEADLINE_S)
            reader, writer = await dialled(server)
            await wait_ended(reader)  # long enough for one that is not known
            writer.close()
            await silent.call(APPEND, timeout_s=DEADLINE_S)
            silent.close()

    run_on(body())


class Peer:
    """What a guard requires of a connection."""

    def __init__(self, *, known: bool = True, reading_paused: bool = False) -> None:
        self.known = known
        self.reading_paused = reading_paused


def test_the_time_in_which_we_do_not_read_is_not_counted() -> None:
    guard: ConnectionGuard[Peer] = ConnectionGuard(ConnectionLimits(frame_timeout_s=10.0))
    peer = Peer(reading_paused=True)
    guard.admit(peer, "192.0.2.1", 0.0)
    guard.set_held(peer, 100, 0.0)
    assert guard.overdue(100.0) == []
    peer.reading_paused = False
    assert guard.overdue(109.0) == []
    assert [found for found, _ in guard.overdue(111.0)] == [peer]


# --- Bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "reported"),
    [
        (ConnectionLimits(connections_max=3), "this server has 3 connections"),
        (ConnectionLimits(connections_per_host_max=3), "127.0.0.1 has 3 connections here"),
    ],
)
def test_a_connection_beyond_the_bound_is_closed_and_the_others_continue(
    run_on: Run, caplog: pytest.LogCaptureFixture, limits: ConnectionLimits, reported: str
) -> None:
    async def body() -> None:
        service = Service(limits)
        near = TcpTransport(HERE, short_cuts=False)
        async with service.served() as server:
            good = [await near.connect(server.address, timeout_s=DEADLINE_S) for _ in range(3)]
            for one in good:
                await one.call(APPEND, timeout_s=DEADLINE_S)
            reader, writer = await dialled(server)
            await wait_ended(reader)
            writer.close()
            for one in good:
                await one.call(APPEND, timeout_s=DEADLINE_S)
            good.pop().close()
            await wait_until(lambda: sum(not one.closed for one in service.connections) == 2)
            again = await near.connect(server.address, timeout_s=DEADLINE_S)
            await again.call(APPEND, timeout_s=DEADLINE_S)
            for one in (*good, again):
                one.close()

    with caplog.at_level(logging.WARNING, "varlog.rpc"):
        run_on(body())
    assert reported in caplog.text
    assert "peer=127.0.0.1:" in caplog.text


def test_hundreds_of_processes_of_one_machine_are_served(run_on: Run) -> None:
    async def body() -> None:
        service = Service()
        async with service.served() as server:
            clients = [
                await service.transport.connect(server.address, timeout_s=DEADLINE_S) for _ in range(400)
            ]
            await asyncio.gather(*(client.call(APPEND, timeout_s=DEADLINE_S) for client in clients))
            for client in clients:
                client.close()

    run_on(body())


def test_beyond_the_bound_on_unread_bytes_the_oldest_unfinished_frame_goes(
    run_on: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        service = Service(ConnectionLimits(unread_bytes_max=2 * MIB))
        async with service.served() as server:
            ends = []
            for _ in range(6):
                reader, writer = await dialled(server)
                writer.write(HELLO_FRAME + framed(bytes(MIB))[: 700 * KIB])
                ends.append((reader, writer))
            await wait_ended(ends[0][0])
            await wait_until(lambda: sum(not one.closed for one in service.connections) <= 2)
            client = await service.transport.connect(server.address, timeout_s=DEADLINE_S)
            for _ in range(5):
                await client.call(APPEND, bytes(MIB), timeout_s=DEADLINE_S)
            client.close()
            for _, writer in ends:
                writer.transport.abort()

    with caplog.at_level(logging.WARNING, "varlog.rpc"):
        run_on(body())
    assert "hold more than 2097152 bytes" in caplog.text


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=60))
def test_the_guard_counts_what_is_buffered_whatever_happens(steps: list[tuple[int, int]]) -> None:
    guard: ConnectionGuard[Peer] = ConnectionGuard(ConnectionLimits(unread_bytes_max=100))
    peers = [Peer() for _ in range(6)]
    for number, (which, held_bytes) in enumerate(steps):
        peer = peers[which]
        if peer not in guard.admitted:
            guard.admit(peer, f"host {which % 2}", float(number))
        while (oldest := guard.set_held(peer, held_bytes, float(number))) is not None:
            guard.leave(oldest)
            if oldest is peer:
                break
        assert guard.unread_bytes == sum(frame.held_bytes for frame in guard.unfinished.values()) <= 100
        assert sum(guard.per_host.values()) == len(guard.admitted)
    for peer in peers:
        guard.leave(peer)
    assert (guard.unread_bytes, guard.per_host) == (0, {})


def test_the_log_reports_a_flood_in_few_lines() -> None:
    lines = LineLimit(lines=3, per_s=10.0)
    assert sum(lines.allows("refused", number / 1000) for number in range(1000)) == 3
    assert lines.left_out("refused") == 997
    assert lines.allows("deadline", 0.5)
    assert lines.allows("refused", 10.0)


# --- The checksum ---------------------------------------------------------------------------------------------------


def taken_of(data: bytes) -> list[bytes]:
    frames: list[bytes] = []

    def take(kind: int, number: int, request: int, cluster: int, meta: Buffer, payload: bytearray) -> None:
        frames.append(bytes(payload))

    reader = FrameReader(memoryview(bytearray(len(data) + 64)), take)
    reader.buffer()[: len(data)] = data
    reader.received(len(data))
    return frames


BATCH = bytes(pack([b"an entry"], producer=ProducerID(1), sequence=2, time_us=3))


@given(st.integers(0, 8 * (len(framed(BATCH)) - len(BATCH) + 64) - 1))
def test_no_flipped_bit_of_a_control_message_is_accepted(bit: int) -> None:
    """Nor one of the header of a batch, which is not signed before the primary has placed it."""
    changed = bytearray(framed(BATCH))
    assert taken_of(bytes(changed)) == [BATCH]
    changed[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(MalformedFrame):
        assert taken_of(bytes(changed)) == []


def test_a_frame_in_many_pieces_is_checked_before_its_payload_is_complete() -> None:
    data = bytearray(framed(BATCH + bytes(MIB)))
    data[HEADER_BYTES] ^= 1
    reader = FrameReader(memoryview(bytearray(4096)), lambda *frame: None)
    reader.buffer()[:] = data[:4096]
    with pytest.raises(CorruptFrame, match="checksum"):
        reader.received(4096)


def test_a_corrupt_frame_ends_its_connection_and_is_counted_and_logged(
    run_on: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        service = Service()
        async with service.served() as server:
            reader, writer = await dialled(server)
            changed = bytearray(framed(BATCH))
            changed[HEADER_BYTES + 1] ^= 4
            writer.write(HELLO_FRAME + changed)
            await wait_ended(reader)
            writer.close()
            assert service.came == []
            assert service.transport.corrupt_frames == 1

    with caplog.at_level(logging.WARNING, "varlog.rpc"):
        run_on(body())
    assert "checksum is wrong" in caplog.text


def test_corrupt_frames_of_nodes_repository_and_manager_are_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {"sn1": 1, "sn2": 2, "mr": 3, "mc": 4}
    monkeypatch.setattr(
        SimTransport, "corrupt_frames", property(lambda self: counted.get(self._process.host, 0))
    )

    async def story() -> ClusterStatus:
        cluster = SimCluster(nodes=2, replicas=2)
        cluster.start()
        log = await cluster.log(create=True)
        await log.close()
        await cluster.wait_whole()
        async with await connect_admin(
            cluster.transport, cluster.environment, REPOSITORY, timeout_s=30.0
        ) as admin:
            return await admin.status()

    found = {
        sample.labels["process"]: sample.value
        for metric in ClusterCollector(run_in_virtual_time(story()), 0).collect()
        for sample in metric.samples
        if sample.name == "varlog_corrupt_frames_total"
    }
    assert found == {"node 1": 1, "node 2": 2, "repository": 3, "manager": 4}


def test_a_client_does_not_accept_a_corrupt_reply(run_on: Run) -> None:
    async def body() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(HELLO_FRAME) + len(framed(b"")))
            changed = bytearray(frame_head(2, number_of[Done], 1, HERE, encode(Done())))
            changed[8] ^= 2  # the reply to another request
            writer.write(changed)
            await wait_ended(reader)
            writer.close()
            await writer.wait_closed()
            answered.set()

        answered = asyncio.Event()
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        transport = TcpTransport(HERE)
        client = await transport.connect(
            "{}:{}".format(*server.sockets[0].getsockname()), timeout_s=DEADLINE_S
        )
        with pytest.raises(Exception, match="checksum is wrong"):
            await client.call(APPEND, timeout_s=DEADLINE_S)
        assert transport.counts.corrupt_frames == 1
        await answered.wait()
        server.close()
        await server.wait_closed()

    run_on(body())
