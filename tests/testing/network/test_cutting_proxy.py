"""A cutting proxy carries bytes whole and in order; a cut holds, swallows or breaks one way of one pair and no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.rpc.helpers import wait_until
from varlog.model.limits import KIB, MIB
from varlog.testing.network.cuttable_network import CutWays, Loss
from varlog.testing.network.proxied_network import Address, CuttingProxy

TIMEOUT_S = 60.0
SERVER = "server"
ANY_PORT = "127.0.0.1:0"


@dataclass
class Talk:
    """One connection through the proxy, as its dialler sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def echoed(self, data: bytes) -> bytes:
        self.writer.write(data)
        return await self.reader.readexactly(len(data))


@dataclass
class World:
    """An echo server behind a proxy; what it has received and how that ended, by connection; and the diallers by address."""

    proxy: CuttingProxy
    ways: CutWays
    received: list[bytearray] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    places: dict[Address, str] = field(default_factory=dict)
    talks: list[Talk] = field(default_factory=list)

    async def dial(self, place: str) -> Talk:
        talk = Talk(*await asyncio.open_connection(*self.proxy.address))
        self.places[talk.writer.get_extra_info("sockname")] = place
        self.talks.append(talk)
        return talk


@asynccontextmanager
async def world(*, listens: bool = True) -> AsyncIterator[World]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = bytearray()
        found.received.append(mine)
        try:
            while data := await reader.read(MIB):
                mine += data
                writer.write(data)
            found.ended.append("end")
        except ConnectionResetError:
            found.ended.append("reset")
        writer.close()

    async def who(near: Address, far: Address) -> str | None:
        assert far == proxy.address
        await wait_until(lambda: near in found.places)
        return found.places[near] or None

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    ways = CutWays()
    proxy = CuttingProxy(SERVER, ANY_PORT, f"{host}:{port}", ways, who)
    found = World(proxy, ways)
    await proxy.start()
    if not listens:
        server.close()
    try:
        yield found
    finally:
        await proxy.stop()
        server.close()
        for talk in found.talks:
            talk.writer.close()
        async with asyncio.timeout(TIMEOUT_S):
            await wait_until(lambda: len(found.ended) == len(found.received))


def run(story: Callable[[World], Awaitable[None]], *, listens: bool = True) -> None:
    async def whole() -> None:
        async with asyncio.timeout(TIMEOUT_S), world(listens=listens) as found:
            await story(found)

    asyncio.run(whole())


async def check_passes(found: World, place: str) -> None:
    """Bytes of another connection make a round trip: had anything else been let through, it would have arrived by now."""
    assert await (await found.dial(place)).echoed(b"does it pass?") == b"does it pass?"


def test_what_is_open_is_carried_whole_both_ways_and_ends_with_its_end() -> None:
    async def story(found: World) -> None:
        talk = await found.dial("one")
        sent = bytes(range(256)) * 16 * KIB  # more than any buffer on the way has room for
        assert await talk.echoed(sent) == sent
        talk.writer.write_eof()
        assert await talk.reader.read() == b""
        assert found.ended == ["end"]

    run(story)


def test_held_bytes_arrive_after_the_heal_and_in_order() -> None:
    async def story(found: World) -> None:
        talk = await found.dial("one")
        assert await talk.echoed(b"before ") == b"before "
        found.ways.cut("one", SERVER, Loss.HELD)
        talk.writer.write(b"during ")
        await check_passes(found, "another")
        assert found.received[0] == b"before "
        talk.writer.write(b"after")
        found.ways.heal()
        assert await talk.reader.readexactly(12) == b"during after"

    run(story)


def test_a_cut_of_one_way_leaves_the_other_open() -> None:
    async def story(found: World) -> None:
        talk = await found.dial("one")
        assert await talk.echoed(b"before ") == b"before "
        found.ways.cut(SERVER, "one", Loss.HELD)
        talk.writer.write(b"during")
        await wait_until(lambda: found.received[0] == b"before during")
        answer = asyncio.ensure_future(talk.reader.read(100))
        await check_passes(found, "another")
        assert not answer.done()
        found.ways.heal()
        assert await answer == b"during"

    run(story)


def test_an_end_is_held_as_bytes_are() -> None:
    async def story(found: World) -> None:
        talk = await found.dial("one")
        assert await talk.echoed(b"x") == b"x"
        found.ways.cut("one", SERVER, Loss.HELD)
        talk.writer.close()
        await check_passes(found, "another")
        assert found.ended == []
        found.ways.heal()
        await wait_until(lambda: bool(found.ended))

    run(story)


def test_a_connection_dialled_during_a_cut_is_not_seen_before_the_heal() -> None:
    async def story(found: World) -> None:
        found.ways.cut("one", SERVER, Loss.HELD)
        talk = await found.dial("one")
        talk.writer.write(b"hello")
        await check_passes(found, "another")
        assert len(found.received) == 1
        found.ways.heal()
        assert await talk.reader.readexactly(5) == b"hello"

    run(story)


def test_swallowed_bytes_never_arrive_and_the_heal_breaks_what_has_a_gap() -> None:
    async def story(found: World) -> None:
        hurt = await found.dial("one")
        assert await hurt.echoed(b"before") == b"before"
        idle = await found.dial("one")
        assert await idle.echoed(b"before") == b"before"
        found.ways.cut("one", SERVER, Loss.SWALLOWED)
        hurt.writer.write(b"during")
        await check_passes(found, "another")
        found.proxy.reset_gaps()
        found.ways.heal()
        with pytest.raises(ConnectionResetError):
            await hurt.reader.read(100)
        assert await idle.echoed(b"after") == b"after"
        assert found.received[:2] == [b"before", b"beforeafter"]

    run(story)


def test_a_broken_connection_is_reset_for_both_and_the_others_stay() -> None:
    async def story(found: World) -> None:
        talk = await found.dial("one")
        other = await found.dial("another")
        assert await talk.echoed(b"x") == b"x"
        assert await other.echoed(b"x") == b"x"
        found.proxy.reset_between(SERVER, "one")
        with pytest.raises(ConnectionResetError):
            await talk.reader.read(100)
        await wait_until(lambda: found.ended == ["reset"])
        assert await other.echoed(b"y") == b"y"

    run(story)


@pytest.mark.parametrize(
    ("place", "listens"), [("", True), ("one", False)], ids=["unknown", "nobody listens"]
)
def test_a_connection_that_cannot_be_forwarded_is_reset(place: str, listens: bool) -> None:
    async def story(found: World) -> None:
        talk = await found.dial(place)
        with pytest.raises(ConnectionResetError):
            await talk.reader.read(100)
        assert found.received == []

    run(story, listens=listens)


def test_a_stopped_proxy_leaves_nothing_open() -> None:
    """Neither what it carries, nor what waits for a heal that never comes."""

    async def story(found: World) -> None:
        carried = await found.dial("one")
        assert await carried.echoed(b"x") == b"x"
        found.ways.cut("one", SERVER, Loss.HELD)
        waiting = await found.dial("one")
        await check_passes(found, "another")
        await found.proxy.stop()
        for talk in (carried, waiting):
            with pytest.raises(ConnectionResetError):
                await talk.reader.read(100)
        await wait_until(lambda: len(asyncio.all_tasks()) == 1)

    run(story)
