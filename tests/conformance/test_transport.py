"""The contract of Transport (varlog.rpc.transport), kept alike by every one.

Order, replies, errors, ends, back-pressure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.conformance.transports import WORLDS, World
from tests.rpc.helpers import DEADLINE_S, wait_until
from tests.rpc.samples import ERROR_SAMPLES
from varlog.model.epoch import Epoch
from varlog.model.errors import InvalidRequest, StartupError, Unavailable
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.invariant import InvariantBroken
from varlog.model.limits import (
    BATCH_BODY_BYTES_MAX,
    CONNECTION_REQUEST_BYTES_MAX,
    FRAME_BYTES_MAX,
    KIB,
    MIB,
)
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import (
    AdminSealStream,
    Append,
    AppendReply,
    Done,
    GetTail,
    GetTailReply,
    Message,
    Replicate,
)
from varlog.rpc.transport import (
    Call,
    CallTimeout,
    Connection,
    ConnectionLost,
    Handler,
    Server,
    Transport,
)

APPEND = Append(LogStreamID(1))
REPLICATE = Replicate(LogStreamID(1), Epoch(1))
DONE = Done()
ADDRESS = "127.0.0.1:0"


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]


class Service:
    """A server that records what came, and answers with `answer`, or keeps the call pending if there is none."""

    def __init__(self, answer: Callable[[Call, Message, bytearray], None] | None = None) -> None:
        self.came: list[tuple[Message, bytes]] = []
        self.kept: list[Call] = []
        self.kept_bytes = 0
        self.connections: list[Connection] = []
        self.closes = 0
        self._answer = answer

    def make_handler(self, connection: Connection) -> Handler:
        self.connections.append(connection)
        connection.on_close(self._on_close)
        return self.handle

    def handle(self, call: Call | None, message: Message, payload: bytearray) -> None:
        assert type(payload) is bytearray
        self.came.append((message, bytes(payload[:16])))
        if call is None:
            return
        if self._answer is not None:
            self._answer(call, message, payload)
        else:
            self.kept.append(call)
            self.kept_bytes += len(payload)

    def _on_close(self) -> None:
        self.closes += 1


def echo(call: Call, message: Message, payload: bytearray) -> None:
    call.reply(message, payload)


@asynccontextmanager
async def served(
    service: Service, there: Transport, here: Transport, handler: Handler | None = None
) -> AsyncIterator[tuple[Connection, Server]]:
    server = await there.serve(ADDRESS, service.make_handler)
    client = await here.connect(server.address, handler=handler, timeout_s=DEADLINE_S)
    try:
        yield client, server
    finally:
        client.close()
        await server.close()


def test_frames_arrive_in_the_order_they_were_sent(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service(echo)
        async with served(service, there, here) as (client, _):
            sent: list[tuple[Message, bytes]] = []
            calls = []
            for number in range(300):
                message: Message = GetTail(TopicID(number))
                payload = bytes([number % 256]) * (number * number % 20_000)
                if number % 3 == 0:
                    calls.append(asyncio.create_task(client.call(message, payload, timeout_s=DEADLINE_S)))
                    await asyncio.sleep(0)  # a call is sent when its task runs
                else:
                    client.send(message, payload)
                sent.append((message, payload[:16]))
            await asyncio.gather(*calls)
            await client.call(APPEND, timeout_s=DEADLINE_S)
            assert service.came == [*sent, (APPEND, b"")]

    world(body)


def test_many_calls_at_once_each_get_their_own_answer_in_any_order(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, _):
            asked = [
                asyncio.create_task(client.call(GetTail(TopicID(n)), b"%d" % n, timeout_s=DEADLINE_S))
                for n in range(500)
            ]
            await wait_until(lambda: len(service.kept) == 500)
            for call, (message, payload) in reversed(list(zip(service.kept, service.came, strict=True))):
                call.reply(message, payload * 2)
            answers = await asyncio.gather(*asked)
            assert answers == [(GetTail(TopicID(n)), bytearray(b"%d" % n) * 2) for n in range(500)]

    world(body)


@pytest.mark.parametrize("size", [0, 1, 4 * KIB, 64 * KIB + 1, 1 * MIB, BATCH_BODY_BYTES_MAX + 64])
def test_payloads_of_any_size_go_both_ways_unharmed(world: World, size: int) -> None:
    async def body(there: Transport, here: Transport) -> None:
        async with served(Service(echo), there, here) as (client, _):
            payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
            for kind in (bytes, bytearray, memoryview):
                message, echoed = await client.call(APPEND, kind(payload), timeout_s=DEADLINE_S)
                assert message == APPEND
                assert type(echoed) is bytearray
                assert echoed == payload

    world(body)


def test_a_payload_belongs_to_its_receiver(world: World) -> None:
    def scribble(call: Call, message: Message, payload: bytearray) -> None:
        answer = bytes(payload)
        payload[:] = b"x" * len(payload)
        call.reply(DONE, answer)

    async def body(there: Transport, here: Transport) -> None:
        async with served(Service(scribble), there, here) as (client, _):
            ours = bytearray(b"mine")
            _, answer = await client.call(APPEND, ours, timeout_s=DEADLINE_S)
            assert (ours, answer) == (bytearray(b"mine"), bytearray(b"mine"))
            answer += b" to change"
            _, again = await client.call(APPEND, ours, timeout_s=DEADLINE_S)
            assert again == b"mine"

    world(body)


def test_errors_of_the_tree_arrive_as_the_same_class_with_the_same_facts(world: World) -> None:
    errors = iter(ERROR_SAMPLES)

    def refuse(call: Call, message: Message, payload: bytearray) -> None:
        call.fail(next(errors))

    async def body(there: Transport, here: Transport) -> None:
        async with served(Service(refuse), there, here) as (client, _):
            for error in ERROR_SAMPLES:
                with pytest.raises(type(error)) as caught:
                    await client.call(APPEND, timeout_s=DEADLINE_S)
                assert type(caught.value) is type(error)
                assert caught.value.args == error.args

    world(body)


def test_what_a_handler_raises_fails_that_call_and_nothing_else(world: World) -> None:
    def answer(call: Call, message: Message, payload: bytearray) -> None:
        if payload:
            raise KeyError("our own bug")
        call.reply(DONE)

    async def body(there: Transport, here: Transport) -> None:
        async with served(Service(answer), there, here) as (client, _):
            with pytest.raises(Unavailable, match="KeyError"):
                await client.call(APPEND, b"x", timeout_s=DEADLINE_S)
            assert (await client.call(APPEND, timeout_s=DEADLINE_S))[0] == DONE

    world(body)


def test_one_way_messages_and_calls_go_in_both_directions(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service(echo)
        ours = Service(echo)
        async with served(service, there, here, ours.handle) as (client, _):
            client.send(REPLICATE, b"there")
            await wait_until(lambda: bool(service.came))
            back = service.connections[0]
            back.send(AdminSealStream(LogStreamID(2)), b"and back")
            assert await back.call(APPEND, b"asked", timeout_s=DEADLINE_S) == (APPEND, bytearray(b"asked"))
            assert service.came == [(REPLICATE, b"there")]
            assert ours.came == [(AdminSealStream(LogStreamID(2)), b"and back"), (APPEND, b"asked")]

    world(body)


def test_a_side_that_serves_nothing_refuses_calls(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service(echo)
        async with served(service, there, here) as (client, _):
            await client.call(APPEND, timeout_s=DEADLINE_S)
            with pytest.raises(Unavailable, match="not served"):
                await service.connections[0].call(APPEND, timeout_s=DEADLINE_S)
            service.connections[0].send(REPLICATE)
            await wait_until(lambda: client.closed)

    world(body)


def test_a_one_way_message_that_fails_ends_its_connection_and_no_other(world: World) -> None:
    class Broken(Service):
        def handle(self, call: Call | None, message: Message, payload: bytearray) -> None:
            if call is None:
                raise KeyError("our own bug")
            call.reply(DONE)

    async def body(there: Transport, here: Transport) -> None:
        async with served(Broken(), there, here) as (client, server):
            other = await here.connect(server.address, timeout_s=DEADLINE_S)
            client.send(REPLICATE)
            await wait_until(lambda: client.closed)
            assert (await other.call(APPEND, timeout_s=DEADLINE_S))[0] == DONE
            other.close()

    world(body)


def test_closing_ends_the_calls_in_flight_and_is_signalled_once_on_both_sides(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, _):
            closed_by: list[str] = []
            client.on_close(lambda: closed_by.append("client"))
            asked = [asyncio.create_task(client.call(APPEND, timeout_s=DEADLINE_S)) for _ in range(5)]
            await wait_until(lambda: len(service.kept) == 5)
            client.close()
            assert client.closed
            for outcome in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(outcome, ConnectionLost) and outcome.sent
            with pytest.raises(ConnectionLost) as lost:
                client.send(REPLICATE)
            assert not lost.value.sent
            with pytest.raises(ConnectionLost) as lost:
                await client.call(APPEND, timeout_s=DEADLINE_S)
            assert not lost.value.sent
            with pytest.raises(ConnectionLost):
                await client.wait_writable()
            await wait_until(lambda: service.closes == 1 and bool(closed_by))
            client.close()
            client.on_close(lambda: closed_by.append("late"))
            await wait_until(lambda: len(closed_by) == 2)
            assert closed_by == ["client", "late"]
            assert service.connections[0].closed
            assert service.closes == 1

    world(body)


def test_a_connection_closed_by_the_server_ends_the_calls_of_the_client(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, _):
            closed_by: list[str] = []
            client.on_close(lambda: closed_by.append("client"))
            asked = asyncio.create_task(client.call(APPEND, timeout_s=DEADLINE_S))
            await wait_until(lambda: bool(service.kept))
            service.connections[0].close()
            with pytest.raises(ConnectionLost) as lost:
                await asked
            assert lost.value.sent
            await wait_until(lambda: bool(closed_by))
            assert (closed_by, client.closed) == (["client"], True)

    world(body)


def test_what_was_sent_before_a_close_still_arrives(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, _):
            for _ in range(100):
                client.send(REPLICATE, bytes(10_000))
            client.close()
            await wait_until(lambda: service.closes == 1)
            assert len(service.came) == 100

    world(body)


def test_a_closed_server_closes_its_connections_and_frees_its_address(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service(echo)
        async with served(service, there, here) as (client, server):
            await client.call(APPEND, timeout_s=DEADLINE_S)
            await server.close()
            await wait_until(lambda: client.closed)
            with pytest.raises(ConnectionLost):
                await here.connect(server.address, timeout_s=DEADLINE_S)
            again = await there.serve(server.address, service.make_handler)
            assert again.address == server.address
            second = await here.connect(again.address, timeout_s=DEADLINE_S)
            assert (await second.call(APPEND, timeout_s=DEADLINE_S))[0] == APPEND
            second.close()
            await again.close()

    world(body)


def test_without_a_listener_a_call_was_certainly_not_sent(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        server = await there.serve(ADDRESS, Service().make_handler)
        await server.close()
        with pytest.raises(ConnectionLost, match=server.address) as lost:
            await here.connect(server.address, timeout_s=DEADLINE_S)
        assert not lost.value.sent

    world(body)


def test_an_address_in_use_is_named_with_its_remedy(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        server = await there.serve(ADDRESS, Service().make_handler)
        with pytest.raises(StartupError, match=f"{server.address}.*another") as refused:
            await there.serve(server.address, Service().make_handler)
        assert "choose another" in str(refused.value)
        await server.close()

    world(body)


def test_a_call_that_is_not_answered_in_time_fails_alone_and_its_late_answer_is_dropped(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, _):
            with pytest.raises(CallTimeout, match=r"Append within 0\.05 s"):
                await client.call(APPEND, b"slow", timeout_s=0.05)
            await wait_until(lambda: len(service.kept) == 1)
            second = asyncio.create_task(client.call(APPEND, timeout_s=DEADLINE_S))
            await wait_until(lambda: len(service.kept) == 2)
            service.kept[0].reply(GetTailReply(GLSN(1), GLSN(0)))
            service.kept[1].reply(AppendReply(GLSN(2), LLSN(2)))
            assert (await second)[0] == AppendReply(GLSN(2), LLSN(2))

    world(body)


def test_a_caller_that_is_cancelled_leaves_the_connection_in_order(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, _):
            first, second = (asyncio.create_task(client.call(APPEND, timeout_s=DEADLINE_S)) for _ in range(2))
            await wait_until(lambda: len(service.kept) == 2)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            for call in service.kept:
                call.reply(DONE)
            assert (await second)[0] == DONE

    world(body)


def test_a_reply_after_the_caller_left_is_harmless(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, server):
            other = await here.connect(server.address, timeout_s=DEADLINE_S)
            asked = [
                asyncio.create_task(client.call(APPEND, bytes(MIB), timeout_s=DEADLINE_S)) for _ in range(3)
            ]
            await wait_until(lambda: len(service.kept) == 3)
            client.close()
            await asyncio.gather(*asked, return_exceptions=True)
            service.kept[0].reply(DONE, bytes(MIB))  # the server may not know yet
            await wait_until(lambda: service.connections[0].closed)
            service.kept[1].reply(DONE, bytes(MIB))
            service.kept[2].fail(Unavailable("too late"))
            asking = asyncio.create_task(other.call(APPEND, timeout_s=DEADLINE_S))
            await wait_until(lambda: len(service.kept) == 4)
            service.kept[3].reply(DONE)
            assert (await asking)[0] == DONE
            other.close()

    world(body)


def test_a_call_is_answered_once(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, _):
            asked = asyncio.create_task(client.call(APPEND, timeout_s=DEADLINE_S))
            await wait_until(lambda: bool(service.kept))
            service.kept[0].reply(DONE)
            with pytest.raises(InvariantBroken, match="answered once"):
                service.kept[0].reply(DONE)
            with pytest.raises(InvariantBroken, match="answered once"):
                service.kept[0].fail(Unavailable("twice"))
            assert (await asked)[0] == DONE

    world(body)


def test_a_message_over_the_limit_is_refused_by_its_sender(world: World) -> None:
    def answer(call: Call, message: Message, payload: bytearray) -> None:
        call.reply(DONE, bytes(FRAME_BYTES_MAX + 1) if payload else b"")

    async def body(there: Transport, here: Transport) -> None:
        async with served(Service(answer), there, here) as (client, _):
            with pytest.raises(InvalidRequest, match="limit"):
                await client.call(APPEND, bytes(FRAME_BYTES_MAX + 1), timeout_s=DEADLINE_S)
            with pytest.raises(InvalidRequest, match="limit"):
                client.send(REPLICATE, bytes(FRAME_BYTES_MAX + 1))
            with pytest.raises(InvalidRequest, match="limit"):  # the answer is
                await client.call(APPEND, b"x", timeout_s=DEADLINE_S)
            assert (await client.call(APPEND, timeout_s=DEADLINE_S))[0] == DONE

    world(body)


def test_a_server_that_does_not_answer_stops_its_callers(world: World) -> None:
    """What one connection can make a server buffer is bounded, and nothing is lost: the rest waits at the sender."""

    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, server):
            payload = bytes(MIB)
            asked = [
                asyncio.create_task(client.call(APPEND, payload, timeout_s=DEADLINE_S)) for _ in range(120)
            ]
            await wait_until(lambda: service.kept_bytes >= CONNECTION_REQUEST_BYTES_MAX)
            # Another connection is not blocked; its calls give the first one every opportunity to continue.
            other = await here.connect(server.address, timeout_s=DEADLINE_S)
            for _ in range(50):
                asking = asyncio.create_task(other.call(APPEND, timeout_s=DEADLINE_S))
                await wait_until(lambda: service.came[-1] == (APPEND, b""))
                service.kept.pop().reply(DONE)
                service.came.pop()
                await asking
            assert service.kept_bytes <= CONNECTION_REQUEST_BYTES_MAX + MIB
            with pytest.raises(CallTimeout) as full:
                await client.call(APPEND, timeout_s=0.05)
            assert not full.value.sent
            done = 0
            while done < len(asked):
                await wait_until(lambda: len(service.kept) > 0)
                service.kept.pop().reply(DONE)
                done += 1
            assert [message for message, _ in await asyncio.gather(*asked)] == [DONE] * 120
            other.close()

    world(body)


def test_a_blocked_receiver_stops_a_stream_of_one_way_messages(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, _):
            asked = [
                asyncio.create_task(client.call(APPEND, bytes(MIB), timeout_s=DEADLINE_S)) for _ in range(33)
            ]
            await wait_until(lambda: len(service.kept) >= 32)
            sent = 0

            async def stream() -> None:
                nonlocal sent
                for _ in range(200):
                    await client.wait_writable()
                    client.send(REPLICATE, bytes(MIB))
                    sent += 1

            streaming = asyncio.create_task(stream())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await asyncio.shield(streaming)
            assert sent < 100  # the rest is what the kernel's own buffers hold
            while not streaming.done():
                await wait_until(lambda: bool(service.kept) or streaming.done())
                for call in service.kept:
                    call.reply(DONE)
                service.kept.clear()
            await asyncio.gather(*asked)
            await wait_until(lambda: len(service.came) == 233)

    world(body)


def test_waiting_to_write_ends_when_the_connection_does(world: World) -> None:
    async def body(there: Transport, here: Transport) -> None:
        service = Service()
        async with served(service, there, here) as (client, _):
            asked = [
                asyncio.create_task(client.call(APPEND, bytes(MIB), timeout_s=DEADLINE_S)) for _ in range(120)
            ]
            await wait_until(lambda: service.kept_bytes >= CONNECTION_REQUEST_BYTES_MAX)
            waiting = asyncio.create_task(client.wait_writable())
            await asyncio.sleep(0)
            while waiting.done():  # the kernel still accepts some
                waiting = asyncio.create_task(client.wait_writable())
                await asyncio.sleep(0)
            client.close()
            with pytest.raises(ConnectionLost):
                await waiting
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(outcome, ConnectionLost) for outcome in outcomes)
            assert {outcome.sent for outcome in outcomes if isinstance(outcome, ConnectionLost)} == {
                True,
                False,
            }

    world(body)
