"""Dispatcher: each message to its handler, each exception to its caller, no task left behind."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.rpc.helpers import DEADLINE_S, run, wait_until
from varlog.model.epoch import Epoch
from varlog.model.errors import Sealed, Unavailable
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.memory import MemoryTransport
from varlog.rpc.messages import AdminSealStream, Append, AppendReply, Done, GetTail, GetTailReply, Replicate
from varlog.rpc.transport import Call, Connection

APPEND = Append(LogStreamID(1))
TAIL = GetTail(TopicID(1))
ANSWER = GetTailReply(GLSN(9), GLSN(0))


async def connected(dispatcher: Dispatcher) -> Connection:
    transport = MemoryTransport()
    await transport.serve("node", lambda connection: dispatcher.handle)
    return await transport.connect("node", timeout_s=DEADLINE_S)


def test_a_handler_answers_its_call_and_a_coroutine_returns_the_answer() -> None:
    def append(call: Call | None, message: Append, payload: bytearray) -> None:
        assert call is not None
        call.reply(AppendReply(GLSN(1), LLSN(1)), payload)

    async def tail(message: GetTail, payload: bytearray) -> GetTailReply:
        await asyncio.sleep(0)
        return ANSWER

    async def seal(message: AdminSealStream, payload: bytearray) -> tuple[Done, bytes]:
        return Done(), b"sealed"

    async def body() -> None:
        dispatcher = Dispatcher("a node")
        dispatcher.on(Append, append)
        dispatcher.on_async(GetTail, tail)
        dispatcher.on_async(AdminSealStream, seal)
        client = await connected(dispatcher)
        assert await client.call(APPEND, b"x", timeout_s=DEADLINE_S) == (
            AppendReply(GLSN(1), LLSN(1)),
            bytearray(b"x"),
        )
        assert await client.call(TAIL, timeout_s=DEADLINE_S) == (ANSWER, bytearray())
        assert await client.call(AdminSealStream(LogStreamID(1)), timeout_s=DEADLINE_S) == (
            Done(),
            bytearray(b"sealed"),
        )
        await dispatcher.close()

    run(body())


def test_what_a_handler_raises_is_the_answer() -> None:
    def append(call: Call | None, message: Append, payload: bytearray) -> None:
        raise Sealed(message.log_stream)

    async def tail(message: GetTail, payload: bytearray) -> GetTailReply:
        raise Unavailable("not yet")

    async def body() -> None:
        dispatcher = Dispatcher("a node")
        dispatcher.on(Append, append)
        dispatcher.on_async(GetTail, tail)
        client = await connected(dispatcher)
        with pytest.raises(Sealed) as sealed:
            await client.call(APPEND, timeout_s=DEADLINE_S)
        assert sealed.value.log_stream == 1
        with pytest.raises(Unavailable, match="not yet"):
            await client.call(TAIL, timeout_s=DEADLINE_S)

    run(body())


def test_a_message_that_is_not_served_is_unavailable_and_names_both() -> None:
    async def body() -> None:
        client = await connected(Dispatcher("the repository"))
        with pytest.raises(Unavailable, match="Append is not served by the repository"):
            await client.call(APPEND, timeout_s=DEADLINE_S)

    run(body())


def test_a_one_way_message_that_is_not_served_ends_the_connection() -> None:
    async def body() -> None:
        client = await connected(Dispatcher("the repository"))
        client.send(Replicate(LogStreamID(1), Epoch(1)))
        await wait_until(lambda: client.closed)

    run(body())


def test_closing_cancels_running_handlers_and_fails_their_calls() -> None:
    started: list[GetTail] = []

    async def tail(message: GetTail, payload: bytearray) -> GetTailReply:
        started.append(message)
        await asyncio.Event().wait()
        raise AssertionError

    async def body() -> None:
        dispatcher = Dispatcher("a node")
        dispatcher.on_async(GetTail, tail)
        client = await connected(dispatcher)
        calls = [asyncio.create_task(client.call(TAIL, timeout_s=DEADLINE_S)) for _ in range(3)]
        await wait_until(lambda: len(started) == 3)
        await dispatcher.close()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, Unavailable) and "stopping" in str(outcome)
        with pytest.raises(Unavailable, match="stopping"):
            await client.call(TAIL, timeout_s=DEADLINE_S)

    run(body())


def test_a_task_cancelled_before_its_first_step_also_answers_its_caller() -> None:
    async def tail(message: GetTail, payload: bytearray) -> GetTailReply:
        raise AssertionError

    async def body() -> None:
        dispatcher = Dispatcher("a node")
        dispatcher.on_async(GetTail, tail)
        raised: list[BaseException] = []

        class Asked:
            connection: Connection

            def reply(self, message: object, payload: object = b"") -> None:
                raise AssertionError

            def fail(self, error: BaseException) -> None:
                raised.append(error)

        dispatcher.handle(Asked(), TAIL, bytearray())
        await dispatcher.close()
        await wait_until(lambda: bool(raised))
        assert "stopping" in str(raised[0])

    run(body())


def test_a_one_way_coroutine_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def tail(message: GetTail, payload: bytearray) -> GetTailReply:
        raise KeyError("x")

    async def body() -> None:
        dispatcher = Dispatcher("a node")
        dispatcher.on_async(GetTail, tail)
        client = await connected(dispatcher)
        client.send(TAIL)
        await wait_until(lambda: bool(caplog.records))
        assert not client.closed

    with caplog.at_level(logging.ERROR, "varlog.rpc"):
        run(body())
    assert "a node/GetTail" in caplog.records[0].getMessage()
