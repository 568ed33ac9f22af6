"""ConnectionPool: one connection per address for all callers; a broken one is opened again."""

from __future__ import annotations

import asyncio

import pytest

from tests.rpc.helpers import DEADLINE_S, run, wait_until
from varlog.model.ids import LogStreamID
from varlog.rpc.memory import MemoryTransport
from varlog.rpc.messages import Append, Done, Message
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import Call, Connection, ConnectionLost, Handler


class SlowTransport(MemoryTransport):
    """Counts its dials and holds them up until `open_gate`."""

    def __init__(self) -> None:
        super().__init__()
        self.dials = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.accepted: list[Connection] = []

    async def connect(self, address: str, *, handler: Handler | None = None, timeout_s: float):  # type: ignore[no-untyped-def]
        self.dials += 1
        await self.gate.wait()
        return await super().connect(address, handler=handler, timeout_s=timeout_s)

    async def serve_done(self) -> None:
        def handle(call: Call | None, message: Message, payload: bytearray) -> None:
            assert call is not None
            call.reply(Done())

        def make(connection: Connection) -> Handler:
            self.accepted.append(connection)
            return handle

        await self.serve("node", make)


def test_concurrent_callers_share_one_connection() -> None:
    async def body() -> None:
        transport = SlowTransport()
        await transport.serve_done()
        transport.gate.clear()
        pool = ConnectionPool(transport)
        asked = [asyncio.create_task(pool.get("node", 5)) for _ in range(20)]
        await wait_until(lambda: transport.dials == 1)
        transport.gate.set()
        found = await asyncio.gather(*asked)
        assert all(connection is found[0] for connection in found)
        assert await pool.get("node", 5) is found[0]
        assert transport.dials == 1
        await pool.close()

    run(body())


def test_one_caller_that_gives_up_does_not_take_the_connection_from_the_others() -> None:
    async def body() -> None:
        transport = SlowTransport()
        await transport.serve_done()
        transport.gate.clear()
        pool = ConnectionPool(transport)
        first, second = (asyncio.create_task(pool.get("node", 5)) for _ in range(2))
        await wait_until(lambda: transport.dials == 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        transport.gate.set()
        assert not (await second).closed
        await pool.close()

    run(body())


def test_every_caller_has_its_own_deadline() -> None:
    async def body() -> None:
        transport = SlowTransport()
        await transport.serve_done()
        transport.gate.clear()
        pool = ConnectionPool(transport)
        patient = asyncio.create_task(pool.get("node", 30))
        await wait_until(lambda: transport.dials == 1)
        with pytest.raises(ConnectionLost) as lost:
            await pool.get("node", 0.01)
        assert not lost.value.sent
        transport.gate.set()
        assert not (await patient).closed
        await pool.close()

    run(body())


def test_a_broken_connection_is_made_again() -> None:
    async def body() -> None:
        transport = SlowTransport()
        await transport.serve_done()
        pool = ConnectionPool(transport)
        first = await pool.get("node", 5)
        transport.accepted[0].close()
        await wait_until(lambda: first.closed)
        second = await pool.get("node", 5)
        assert second is not first
        pool.drop("node")
        assert second.closed
        assert (await pool.call("node", Append(LogStreamID(1)), timeout_s=DEADLINE_S))[0] == Done()
        assert transport.dials == 3
        await pool.close()

    run(body())


def test_a_failed_dial_fails_its_waiters_and_the_next_caller_tries_again() -> None:
    async def body() -> None:
        transport = SlowTransport()
        pool = ConnectionPool(transport)
        outcomes = await asyncio.gather(*(pool.get("node", 5) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(one, ConnectionLost) and not one.sent for one in outcomes)
        assert transport.dials == 1
        await transport.serve_done()
        assert not (await pool.get("node", 5)).closed
        await pool.close()

    run(body())


def test_a_closed_pool_closes_its_connections_and_dials_no_more() -> None:
    async def body() -> None:
        transport = SlowTransport()
        await transport.serve_done()
        pool = ConnectionPool(transport)
        connection = await pool.get("node", 5)
        transport.gate.clear()
        waiting = asyncio.create_task(pool.get("elsewhere", 5))
        await wait_until(lambda: transport.dials == 2)
        await pool.close()
        assert connection.closed
        with pytest.raises(ConnectionLost, match="closed"):
            await waiting
        with pytest.raises(ConnectionLost, match="closed"):
            await pool.get("node", 5)

    run(body())
