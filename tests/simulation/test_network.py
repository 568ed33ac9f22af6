"""The simulated network: in order or not at all, copied, and an end that is noticed on both sides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from varlog.model.errors import StartupError, UnknownTopic
from varlog.model.ids import LogStreamID
from varlog.rpc.messages import AddNode, Done, GetView, Message, RemoveNode, SealStream
from varlog.rpc.transport import Call, CallTimeout, Connection, ConnectionLost, Handler
from varlog.testing.sim.core import loop
from varlog.testing.sim.core.loop import Process
from varlog.testing.sim.core.network import KEEP_ALIVE_S, SimNetwork
from varlog.testing.sim.faults.fault_actions import DuplicateDelivery

ADDRESS = "b:1"


class Pair:
    """A client process and a server process that keeps what it got."""

    def __init__(self, seed: int = 1) -> None:
        self.network = SimNetwork(random.Random(seed))
        self.client, self.server = Process("a"), Process("b")
        self.got: list[tuple[Message, bytes]] = []
        self.calls: list[Call] = []
        self.answers = True

    def make_handler(self, connection: Connection) -> Handler:
        def handle(call: Call | None, message: Message, payload: bytearray) -> None:
            self.got.append((message, bytes(payload)))
            if call is not None and self.answers:
                if isinstance(message, AddNode):
                    call.fail(UnknownTopic("planted"))
                else:
                    call.reply(Done(), payload)
            elif call is not None:
                self.calls.append(call)

        return handle

    async def connect(self) -> Connection:
        await self.server.spawn(
            "serve", self.network.transport(self.server).serve(ADDRESS, self.make_handler)
        )
        transport = self.network.transport(self.client)
        return await self.client.spawn("connect", transport.connect(ADDRESS, timeout_s=5))

    async def as_client(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self.client.spawn("work", work)


def test_frames_arrive_in_order_and_a_call_is_answered_behind_them() -> None:
    async def work() -> list[int]:
        pair = Pair()
        connection = await pair.connect()
        for number in range(50):
            connection.send(RemoveNode(number), b"x")  # type: ignore[arg-type]
        answer, payload = await pair.as_client(connection.call(GetView(), b"body", timeout_s=5))
        assert (answer, payload) == (Done(), b"body")
        return [message.node for message, _ in pair.got if isinstance(message, RemoveNode)]

    assert loop.run_simulated(work()) == list(range(50))


def test_an_error_of_the_tree_is_raised_again_at_the_caller() -> None:
    async def work() -> None:
        pair = Pair()
        connection = await pair.connect()
        with pytest.raises(UnknownTopic, match="planted"):
            await pair.as_client(connection.call(AddNode("x"), timeout_s=5))

    loop.run_simulated(work())


def test_a_call_nobody_answers_ends_by_its_deadline() -> None:
    async def work() -> float:
        pair = Pair()
        pair.answers = False
        connection = await pair.connect()
        with pytest.raises(CallTimeout):
            await pair.as_client(connection.call(GetView(), timeout_s=2.0))
        pair.calls[0].reply(Done())  # too late: nobody minds
        await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    assert 3.0 < loop.run_simulated(work()) < 4.0


def test_a_crash_breaks_the_connection_and_the_other_side_notices() -> None:
    async def work() -> list[str]:
        pair = Pair()
        pair.answers = False
        connection = await pair.connect()
        closed: list[str] = []
        connection.on_close(lambda: closed.append("closed"))
        waiting = pair.client.spawn("call", connection.call(GetView(), timeout_s=60))
        await asyncio.sleep(0.2)
        pair.server.die()
        with pytest.raises(ConnectionLost) as lost:
            await waiting
        await asyncio.sleep(0)
        assert lost.value.sent and connection.closed
        with pytest.raises(ConnectionLost):
            connection.send(Done())
        connection.on_close(lambda: closed.append("at once"))
        await asyncio.sleep(0)
        return closed

    assert loop.run_simulated(work()) == ["closed", "at once"]


def test_what_was_in_flight_when_the_sender_died_arrives_as_a_prefix() -> None:
    lengths = set()
    for seed in range(40):

        async def work(seed: int = seed) -> int:
            pair = Pair(seed)
            connection = await pair.connect()
            for number in range(10):
                connection.send(RemoveNode(number))  # type: ignore[arg-type]
            pair.client.die()
            await asyncio.sleep(10)
            got = [message.node for message, _ in pair.got if isinstance(message, RemoveNode)]
            assert got == list(range(len(got)))
            return len(got)

        lengths.add(loop.run_simulated(work()))
    assert {0, 10} <= lengths and len(lengths) > 4


def test_a_connection_without_a_listener_is_reported_as_never_sent() -> None:
    async def work() -> bool:
        network = SimNetwork(random.Random(1))
        process = Process("a")
        with pytest.raises(ConnectionLost) as lost:
            await process.spawn("c", network.transport(process).connect("nowhere:1", timeout_s=5))
        return lost.value.sent

    assert loop.run_simulated(work()) is False


def test_an_address_is_listened_at_once_and_free_again_after_a_crash() -> None:
    async def work() -> str:
        pair = Pair()
        await pair.connect()
        heir = Process("b", 2)
        transport = pair.network.transport(heir)
        with pytest.raises(StartupError, match=ADDRESS):
            await heir.spawn("serve", transport.serve(ADDRESS, pair.make_handler))
        pair.server.die()
        server = await heir.spawn("serve", transport.serve(ADDRESS, pair.make_handler))
        return server.address

    assert loop.run_simulated(work()) == ADDRESS


def test_a_payload_that_is_modified_after_it_was_sent_is_reported() -> None:
    """Real transports may still hold the sender's buffer, so the simulator must show who reuses it."""

    async def work() -> list[str]:
        pair = Pair()
        connection = await pair.connect()
        payload = bytearray(b"before")
        connection.send(Done(), payload)
        payload[:] = b"after!"
        await asyncio.sleep(1)
        assert pair.got[0][1] == b"before"
        return pair.network.complaints

    assert len(loop.run_simulated(work())) == 1


@pytest.mark.parametrize("whom", ["", "a"])
def test_what_is_sent_to_a_host_that_is_cut_off_arrives_late_and_in_order(whom: str) -> None:
    async def work() -> list[float]:
        pair = Pair()
        connection = await pair.connect()
        pair.network.cut_off("b", whom, until=3.0)
        arrived: list[float] = []
        for number in range(3):
            await pair.as_client(connection.call(RemoveNode(number), timeout_s=5))  # type: ignore[arg-type]
            arrived.append(asyncio.get_running_loop().time())
        assert [message.node for message, _ in pair.got if isinstance(message, RemoveNode)] == [0, 1, 2]
        return arrived

    first, *_, last = loop.run_simulated(work())
    assert 3.0 <= first <= last < 3.5


def test_what_a_host_sends_into_a_one_way_cut_is_late_and_what_it_receives_is_not() -> None:
    async def work() -> tuple[float, float]:
        pair = Pair()
        connection = await pair.connect()
        arrived: list[float] = []

        def observe(call: Call | None, message: Message, payload: bytearray) -> None:
            arrived.append(asyncio.get_running_loop().time())

        connection.serve_with(observe)  # type: ignore[attr-defined]
        pair.network.cut_off("a", "b", until=3.0, one_way=True)
        connection.other.send(Done())  # type: ignore[attr-defined]
        await pair.as_client(connection.call(GetView(), timeout_s=5))
        return arrived[0], asyncio.get_running_loop().time()

    observe, answered = loop.run_simulated(work())
    assert observe < 1.0 and 3.0 <= answered < 3.5


@pytest.mark.parametrize("one_way", [True, False])
def test_what_is_lost_never_arrives_and_both_ends_learn_of_it_late(one_way: bool) -> None:
    async def work() -> tuple[int, float]:
        pair = Pair()
        connection = await pair.connect()
        assert pair.network.lose("a", "b", until=1.0, one_way=one_way) == 1
        with pytest.raises(CallTimeout):
            await pair.as_client(connection.call(GetView(), timeout_s=1.0))
        began = asyncio.get_running_loop().time()
        while not connection.closed:
            await asyncio.sleep(0.1)
        await asyncio.sleep(KEEP_ALIVE_S)
        assert connection.other.closed  # type: ignore[attr-defined]
        again = await pair.client.spawn(
            "c", pair.network.transport(pair.client).connect(ADDRESS, timeout_s=5)
        )
        await pair.as_client(again.call(GetView(), timeout_s=1.0))
        return len(pair.got), began

    got, noticed = loop.run_simulated(work())
    assert got == 1 and noticed < KEEP_ALIVE_S


def test_a_request_that_straggles_is_taken_behind_the_one_that_was_sent_again() -> None:
    async def work() -> list[int]:
        pair = Pair()
        connection = await pair.connect()
        first = pair.client.spawn("first", connection.call(RemoveNode(1), timeout_s=5))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        connection.straggle(2.0)  # type: ignore[attr-defined]
        with pytest.raises(ConnectionLost):
            await first
        again = await pair.client.spawn(
            "c", pair.network.transport(pair.client).connect(ADDRESS, timeout_s=5)
        )
        await pair.as_client(again.call(RemoveNode(2), timeout_s=1.0))  # type: ignore[arg-type]
        await asyncio.sleep(3.0)
        return [message.node for message, _ in pair.got if isinstance(message, RemoveNode)]

    assert loop.run_simulated(work()) == [2, 1]


def test_an_echo_of_a_control_request_comes_later_over_another_connection() -> None:
    async def work() -> list[str]:
        pair = Pair()
        connection = await pair.connect()
        duplicates = DuplicateDelivery(pair.network, random.Random(1))
        duplicates.wanted = 1
        request = SealStream(LogStreamID(1))
        assert duplicates.observe(connection, GetView()) is None  # type: ignore[arg-type]
        assert duplicates.observe(connection, request) is not None  # type: ignore[arg-type]
        await pair.as_client(connection.call(request, timeout_s=1.0))
        pair.client.die()
        await asyncio.sleep(6.0)
        return [type(message).__name__ for message, _ in pair.got]

    assert loop.run_simulated(work()) == ["SealStream", "SealStream"]


def test_a_connection_that_snaps_ends_on_both_sides() -> None:
    async def work() -> tuple[bool, int]:
        pair = Pair()
        connection = await pair.connect()
        assert pair.network.cut_one() != ""
        await asyncio.sleep(5)
        assert pair.network.cut_one() == ""
        with pytest.raises(ConnectionLost):
            await pair.as_client(connection.call(GetView(), timeout_s=1))
        return connection.closed, len(pair.got)

    assert loop.run_simulated(work()) == (True, 0)


def test_a_server_that_closes_ends_its_connections() -> None:
    async def work() -> bool:
        pair = Pair()
        server = await pair.server.spawn(
            "serve", pair.network.transport(pair.server).serve("b:0", pair.make_handler)
        )
        transport = pair.network.transport(pair.client)
        connection = await pair.client.spawn("connect", transport.connect(server.address, timeout_s=5))
        await pair.server.spawn("close", server.close())
        await asyncio.sleep(5)
        return connection.closed

    assert loop.run_simulated(work()) is True
