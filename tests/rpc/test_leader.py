"""LeaderClient: finds the leader among several addresses within one deadline; sends nothing twice that may have been done."""

from __future__ import annotations

import asyncio

import pytest

from tests.rpc.helpers import DEADLINE_S, run
from varlog.model.errors import NotLeader, PreconditionFailed
from varlog.rpc.leader import LeaderClient, addresses_of
from varlog.rpc.memory import MemoryTransport
from varlog.rpc.messages import Done, GetView, Message
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import Call, CallTimeout, ConnectionLost, Server


class Group:
    """Repositories that know the leader, or not. `leader` None: there is none; `silent` ones never reply to a request."""

    def __init__(self, *names: str) -> None:
        self.transport = MemoryTransport()
        self.leader: str | None = None
        self.hint: str | None = None
        self.silent: set[str] = set()
        self.closing: set[str] = set()
        self.asked: list[str] = []
        self.servers: dict[str, Server] = {}
        self._names = names

    async def start(self) -> None:
        for name in self._names:
            await self.listen(name)

    async def listen(self, name: str) -> None:
        def handle(call: Call | None, message: Message, payload: bytearray) -> None:
            assert call is not None
            self.asked.append(name)
            if name in self.closing:
                call.connection.close()
            elif name not in self.silent:
                if name != self.leader:
                    raise NotLeader(self.hint if self.hint is not None else self.leader or "")
                call.reply(Done())

        self.servers[name] = await self.transport.serve(name, lambda _: handle)


async def group(leader: str | None, *names: str) -> Group:
    made = Group(*names)
    made.leader = leader
    await made.start()
    return made


def test_addresses_are_split_at_commas_each_once() -> None:
    assert addresses_of("a:1, b:2,,a:1") == ("a:1", "b:2")


def test_a_follower_names_the_leader_which_is_remembered() -> None:
    async def body() -> None:
        found = await group("c", "a", "b", "c")
        leader = LeaderClient(ConnectionPool(found.transport), "a,b")
        assert await leader.call(GetView(), timeout_s=DEADLINE_S) == Done()
        assert await leader.call(GetView(), timeout_s=DEADLINE_S) == Done()
        assert found.asked == ["a", "c", "c"]
        assert leader.address == "c" and leader.addresses == ("a", "b", "c") and str(leader) == "a,b"

    run(body())


def test_an_address_without_a_server_is_skipped() -> None:
    async def body() -> None:
        found = await group("b", "b")
        leader = LeaderClient(ConnectionPool(found.transport), "a,b")
        assert await leader.call(GetView(), timeout_s=DEADLINE_S) == Done()
        assert found.asked == ["b"]

    run(body())


def test_without_a_leader_every_address_is_tried_once_and_the_call_fails() -> None:
    async def body() -> None:
        found = await group(None, "a", "b", "c")
        leader = LeaderClient(ConnectionPool(found.transport), "a,b,c")
        with pytest.raises(NotLeader):
            await leader.call(GetView(), timeout_s=DEADLINE_S)
        assert sorted(found.asked) == ["a", "b", "c"]
        found.leader = "b"
        assert await leader.call(GetView(), timeout_s=DEADLINE_S) == Done()

    run(body())


def test_two_that_point_at_each_other_are_not_believed_forever() -> None:
    async def body() -> None:
        found = await group(None, "a", "b")
        leader = LeaderClient(ConnectionPool(found.transport), "a,b")
        found.hint = "a"
        with pytest.raises(NotLeader):
            await leader.call(GetView(), timeout_s=DEADLINE_S)
        assert len(found.asked) == 2

    run(body())


def test_a_request_that_may_have_been_done_is_not_sent_to_another() -> None:
    async def body() -> None:
        found = await group("b", "a", "b")
        found.closing = {"a"}
        leader = LeaderClient(ConnectionPool(found.transport), "a,b")
        with pytest.raises(ConnectionLost) as lost:
            await leader.call(GetView(), timeout_s=DEADLINE_S)
        assert lost.value.sent and found.asked == ["a"]
        assert await leader.call(GetView(), timeout_s=DEADLINE_S) == Done()
        assert found.asked == ["a", "b"]

    run(body())


def test_an_address_that_hangs_is_left_also_by_calls_that_still_wait_for_it() -> None:
    async def body() -> None:
        found = await group("b", "a", "b")
        found.silent = {"a"}
        leader = LeaderClient(ConnectionPool(found.transport), "a,b")
        patient = asyncio.create_task(leader.call(GetView(0, 20.0), timeout_s=DEADLINE_S))
        await asyncio.sleep(0)
        with pytest.raises(CallTimeout):
            await leader.call(GetView(), timeout_s=0.05)
        with pytest.raises(ConnectionLost):
            await patient
        assert await leader.call(GetView(), timeout_s=DEADLINE_S) == Done()
        assert found.asked[-1] == "b"

    run(body())


def test_a_refusal_is_the_answer() -> None:
    async def body() -> None:
        transport = MemoryTransport()

        def handle(call: Call | None, message: Message, payload: bytearray) -> None:
            raise PreconditionFailed("no")

        await transport.serve("a", lambda _: handle)
        with pytest.raises(PreconditionFailed):
            await LeaderClient(ConnectionPool(transport), "a,b").call(GetView(), timeout_s=DEADLINE_S)

    run(body())


def test_what_was_learned_is_replaced_and_what_was_given_stays() -> None:
    leader = LeaderClient(ConnectionPool(MemoryTransport()), "a,b")
    leader.learn(("b", "c"))
    assert leader.addresses == ("a", "b", "c")
    leader.learn(("d",))
    assert leader.addresses == ("a", "b", "d")
