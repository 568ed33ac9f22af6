"""TcpTransport where it differs from the others: clusters, ports, sockets that misbehave. The contract is in conformance/."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from tests.rpc.helpers import DEADLINE_S, run, wait_until
from tests.rpc.samples import MESSAGES
from varlog.model.epoch import Epoch
from varlog.model.errors import InvalidRequest, NotInCluster, StartupError, Unavailable
from varlog.model.ids import ANY_CLUSTER, ClusterID, LogStreamID
from varlog.model.limits import FRAME_BYTES_MAX, MIB
from varlog.model.lsn import LLSN
from varlog.rpc.codec import encode, number_of
from varlog.rpc.framing import HEADER_BYTES, ONEWAY, REPLY, REQUEST, frame_head
from varlog.rpc.messages import Append, Done, Fetch, Message, Replicate
from varlog.rpc.tcp import TcpServer, TcpTransport, join_address, split_address
from varlog.rpc.transport import Call, Connection, ConnectionLost, Handler

APPEND = Append(LogStreamID(1))
HERE = ClusterID(7)


class Service:
    """Answers everything; remembers its connections and what came."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.came: list[Message] = []
        self.answer = b""

    def make_handler(self, connection: Connection) -> Handler:
        self.connections.append(connection)
        return self.handle

    def handle(self, call: Call | None, message: Message, payload: bytearray) -> None:
        self.came.append(message)
        if call is not None:
            call.reply(Done(), self.answer)


@asynccontextmanager
async def served(service: Service) -> AsyncIterator[TcpServer]:
    server = await TcpTransport(HERE).serve("127.0.0.1:0", service.make_handler)
    try:
        yield server
    finally:
        await server.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run_on(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    runner = asyncio.run if request.param == "asyncio" else uvloop.run
    return lambda body: run(body, runner=runner)


Run = Callable[[Coroutine[Any, Any, None]], None]


def frame(
    message: Message, payload: bytes = b"", *, kind: int = REQUEST, request: int = 1, cluster: int = HERE
) -> bytes:
    meta = encode(message)
    return frame_head(kind, number_of[type(message)], request, cluster, meta, payload) + payload


async def sent_raw(address: str, data: bytes) -> bytes:
    """Send bytes, say that there are no more, and read until the server closes."""
    reader, writer = await asyncio.open_connection(*split_address(address))
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read(-1)
    except ConnectionError:  # the server closed while there was still something to send
        return b""
    finally:
        writer.close()


# --- Clusters -------------------------------------------------------------------------------------------------------


def test_a_request_of_another_cluster_is_refused_and_names_both(run_on: Run) -> None:
    async def body() -> None:
        async with served(Service()) as server:
            client = await TcpTransport(ClusterID(8)).connect(server.address, timeout_s=DEADLINE_S)
            with pytest.raises(NotInCluster) as refused:
                await client.call(APPEND, timeout_s=DEADLINE_S)
            assert (refused.value.asked, refused.value.here) == (8, 7)
            assert not client.closed
            client.close()

    run_on(body())


def test_a_one_way_message_of_another_cluster_ends_the_connection(run_on: Run) -> None:
    async def body() -> None:
        service = Service()
        async with served(service) as server:
            client = await TcpTransport(ClusterID(8)).connect(server.address, timeout_s=DEADLINE_S)
            client.send(Replicate(LogStreamID(1), Epoch(1)))
            await wait_until(lambda: client.closed)
            assert service.came == []

    run_on(body())


def test_a_peer_without_a_cluster_id_is_accepted_by_any(run_on: Run) -> None:
    async def body() -> None:
        async with served(Service()) as server:
            client = await TcpTransport(ANY_CLUSTER).connect(server.address, timeout_s=DEADLINE_S)
            assert (await client.call(APPEND, timeout_s=DEADLINE_S))[0] == Done()
            client.close()

    run_on(body())


# --- Addresses ------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_named_with_the_remedy(run_on: Run) -> None:
    async def body() -> None:
        async with served(Service()) as server:
            with pytest.raises(StartupError) as refused:
                await TcpTransport(HERE).serve(server.address, Service().make_handler)
            assert str(refused.value) == (
                f"cannot listen at {server.address}: another process listens there. "
                "Stop that process, or choose another port (0 takes any free one)"
            )

    run_on(body())


def test_an_address_that_is_not_ours_is_named(run_on: Run) -> None:
    async def body() -> None:
        with pytest.raises(StartupError, match=r"192\.0\.2\.1:7100.*address of this machine"):
            await TcpTransport(HERE).serve("192.0.2.1:7100", Service().make_handler)

    run_on(body())


@pytest.mark.parametrize(
    "address", ["", "7100", ":7100", "host", "host:", "host:seven", "host:70000", "host:-1", "h:²"]
)
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    async def body() -> None:
        with pytest.raises(StartupError, match=r"127\.0\.0\.1:7100"):
            await TcpTransport(HERE).serve(address, Service().make_handler)
        with pytest.raises(InvalidRequest, match=r"127\.0\.0\.1:7100"):
            await TcpTransport(HERE).connect(address, timeout_s=DEADLINE_S)

    run(body())


@pytest.mark.parametrize("address", ["127.0.0.1:7100", "[::1]:7100", "node-1.example:0"])
def test_an_address_is_taken_apart_and_put_together_again(address: str) -> None:
    assert join_address(*split_address(address)) == address


def test_a_peer_that_never_takes_the_connection_is_given_up_in_time() -> None:
    async def body() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(0)
            address = join_address(*silent.getsockname())
            with socket.create_connection(silent.getsockname()):  # fills the queue of the listener
                outcomes = await asyncio.gather(
                    *(TcpTransport(HERE).connect(address, timeout_s=0.05) for _ in range(3)),
                    return_exceptions=True,
                )
                for outcome in outcomes:
                    if not isinstance(outcome, BaseException):
                        outcome.close()
                lost = [one for one in outcomes if isinstance(one, ConnectionLost)]
                assert lost and not lost[0].sent
                assert "within 0.05 s" in str(lost[0])

    run(body())


# --- Peers that misbehave -------------------------------------------------------------------------------------------


def malformed(rng: random.Random) -> bytes:
    """Bytes that a broken or hostile peer might send."""
    good = b"".join(
        frame(
            rng.choice(MESSAGES), rng.randbytes(rng.randrange(200)), kind=rng.choice([REQUEST, REPLY, ONEWAY])
        )
        for _ in range(rng.randrange(1, 4))
    )
    match rng.randrange(6):
        case 0:
            return rng.randbytes(rng.randrange(1, 400))
        case 1:
            return good[: rng.randrange(len(good))]
        case 2:
            changed = bytearray(good)
            for _ in range(rng.randrange(1, 6)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            return bytes(changed)
        case 3:  # huge, or announced as huge
            return (
                rng.choice([FRAME_BYTES_MAX + 1, FRAME_BYTES_MAX, 2**32 - 1]).to_bytes(4, "little") + good[4:]
            )
        case 4:  # a message of another kind than its number says
            number = rng.randrange(200).to_bytes(2, "little")
            return good[:6] + number + good[8:]
        case _:  # MessagePack nested without end
            nested = b"\x91" * rng.randrange(5000)
            return frame_head(REQUEST, 33, 1, HERE, nested)


def test_no_bytes_harm_the_server_or_its_other_connections(run_on: Run, seed: int) -> None:
    async def body() -> None:
        rng = random.Random(seed)
        service = Service()
        async with served(service) as server:
            healthy = await TcpTransport(HERE).connect(server.address, timeout_s=DEADLINE_S)
            for _ in range(300):
                await sent_raw(server.address, malformed(rng))
                assert (await healthy.call(APPEND, timeout_s=DEADLINE_S))[0] == Done()
            await wait_until(lambda: sum(not one.closed for one in service.connections) == 1)
            healthy.close()

    run_on(body())


def test_no_bytes_from_a_server_harm_its_client(run_on: Run, seed: int) -> None:
    async def body() -> None:
        rng = random.Random(seed)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(HEADER_BYTES)
            writer.write(malformed(rng))
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = join_address(*server.sockets[0].getsockname())
        outcomes = {"answered": 0, "failed": 0}
        for _ in range(200):
            client = await TcpTransport(HERE).connect(address, timeout_s=DEADLINE_S)
            try:
                await client.call(APPEND, timeout_s=DEADLINE_S)
                outcomes["answered"] += 1
            except (Unavailable, InvalidRequest):
                outcomes["failed"] += 1
            client.close()
        server.close()
        await server.wait_closed()
        assert outcomes["failed"] > 100

    run_on(body())


def test_a_malformed_frame_ends_its_connection_after_the_good_ones_and_is_logged_with_its_reason(
    run_on: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        service = Service()
        async with served(service) as server:
            got = await sent_raw(server.address, frame(APPEND) + b"GET / HTTP/1.1\r\n\r\n" * 3)
            assert got == frame(Done(), kind=REPLY)
            assert service.came == [APPEND]

    with caplog.at_level(logging.WARNING, "varlog.rpc"):
        run_on(body())
    assert "not a varlog process" in caplog.text


def test_a_message_that_cannot_be_read_costs_its_request_and_not_the_connection(run_on: Run) -> None:
    async def body() -> None:
        async with served(Service()) as server:
            unreadable = frame_head(REQUEST, number_of[Append], 1, HERE, b"\xc1")
            unknown = frame_head(REQUEST, 65000, 2, HERE, b"\x90")
            got = await sent_raw(server.address, unreadable + unknown + frame(APPEND, request=3))
            assert b"not a valid Append" in got
            assert b"message 65000 is not known here" in got
            assert got.endswith(frame(Done(), kind=REPLY, request=3))

    run_on(body())


@pytest.mark.parametrize("cut", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 100])
def test_a_client_that_disconnects_inside_a_frame_leaves_nothing_behind(run_on: Run, cut: int) -> None:
    async def body() -> None:
        service = Service()
        async with served(service) as server:
            _, writer = await asyncio.open_connection(*split_address(server.address))
            writer.write(frame(APPEND, bytes(MIB))[:cut])
            await wait_until(lambda: bool(service.connections))
            writer.transport.abort()
            await wait_until(lambda: service.connections[0].closed)
            assert service.came == []

    run_on(body())


def test_replies_to_a_client_that_never_reads_are_bounded(run_on: Run) -> None:
    """A stalled subscriber holds a bounded amount of memory here: its requests are not read until it takes its answers."""

    async def body() -> None:
        service = Service()
        service.answer = bytes(MIB)
        async with served(service) as server:
            fetches = b"".join(frame(Fetch(LogStreamID(1), LLSN(1)), request=n) for n in range(1, 1001))
            reader, writer = await asyncio.open_connection(*split_address(server.address), limit=1)
            writer.write(fetches)
            await wait_until(lambda: bool(service.came))
            healthy = await TcpTransport(HERE).connect(server.address, timeout_s=DEADLINE_S)
            for _ in range(100):  # every chance to read on
                await healthy.call(APPEND, timeout_s=DEADLINE_S)
            asked = len(service.came) - 100
            assert asked < 100  # the write limit, and what the kernel's own buffers hold
            stalled = service.connections[0]
            assert not stalled.closed
            answer_bytes = len(frame(Done(), service.answer))
            for _ in range(1000):  # once it reads, it gets all of them
                assert len(await reader.readexactly(answer_bytes)) == answer_bytes
            healthy.close()
            writer.close()
            await wait_until(lambda: stalled.closed)

    run_on(body())


def test_closing_does_not_wait_forever_for_a_peer_that_takes_nothing(
    run_on: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("varlog.rpc.tcp.CLOSE_FLUSH_S", 0.05)

    async def body() -> None:
        service = Service()
        server = await TcpTransport(HERE).serve("127.0.0.1:0", service.make_handler)
        _, writer = await asyncio.open_connection(*split_address(server.address), limit=1)
        await wait_until(lambda: bool(service.connections))
        for _ in range(64):
            service.connections[0].send(Replicate(LogStreamID(1), Epoch(1)), bytes(MIB))
        await server.close()
        assert service.connections[0].closed
        writer.transport.abort()

    run_on(body())


def test_a_service_that_fails_to_make_a_handler_loses_that_connection_only(run_on: Run) -> None:
    async def body() -> None:
        service = Service()
        failing = iter([True, False])

        def make_handler(connection: Connection) -> Handler:
            if next(failing):
                raise KeyError("our own bug")
            return service.make_handler(connection)

        server = await TcpTransport(HERE).serve("127.0.0.1:0", make_handler)
        first = await TcpTransport(HERE).connect(server.address, timeout_s=DEADLINE_S)
        await wait_until(lambda: first.closed)
        second = await TcpTransport(HERE).connect(server.address, timeout_s=DEADLINE_S)
        assert (await second.call(APPEND, timeout_s=DEADLINE_S))[0] == Done()
        second.close()
        await server.close()

    run_on(body())
