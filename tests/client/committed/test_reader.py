"""Point reads: the entry, or exactly why not; damaged or silent replicas are passed over (law 9)."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.fakes import FakeCluster, run, until
from varlog.client.log import Log
from varlog.model.errors import (
    InvalidRequest,
    NotWritten,
    TrimBeyondTail,
    Trimmed,
    Unavailable,
    UnknownLogStream,
)
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LSN_MAX
from varlog.rpc.messages import Message, ReadAt, ReadAtReply
from varlog.rpc.transport import Call


async def filled(cluster: FakeCluster) -> Log:
    """A log with entries 1 to 6, in batches of 1, 2 and 3 over the streams there are."""
    await cluster.start()
    log = await cluster.connect()
    await log.append_batch([b"1"])
    await log.append_batch([b"2", b"3"])
    await log.append_batch([b"4", b"5", b"6"])
    return log


def reads(cluster: FakeCluster) -> list[str]:
    return [address for address, message in cluster.requests if isinstance(message, ReadAt)]


def test_every_position_is_read_by_glsn_and_by_stream_and_llsn() -> None:
    """R-READ-1: the entry of each position."""

    async def body() -> None:
        cluster = FakeCluster(nodes=3, streams=2)
        async with await filled(cluster) as log:
            for glsn in range(1, 7):
                entry = await log.read(glsn)
                assert (entry.glsn, entry.data) == (glsn, b"%d" % glsn)
                assert await log.read_stream(entry.log_stream, entry.llsn) == entry

    run(body())


@pytest.mark.parametrize("position", [0, -1, LSN_MAX + 1])
def test_a_position_that_cannot_be_is_an_invalid_request(position: int) -> None:
    async def body() -> None:
        cluster = FakeCluster()
        async with await filled(cluster) as log:
            for call in (log.read(position), log.read_stream(1, position)):
                with pytest.raises(InvalidRequest, match="positions are 1, 2, 3"):
                    await call
        assert reads(cluster) == []

    run(body())


def test_a_future_position_is_not_written_and_the_error_has_the_newest() -> None:
    """R-READ-1: a position that is not written yet is an error of its own."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster) as log:
            with pytest.raises(NotWritten) as failure:
                await log.read(7)
            assert (failure.value.position, failure.value.newest) == (7, 6)
            with pytest.raises(NotWritten):
                await log.read_stream(1, 7)
            with pytest.raises(UnknownLogStream):
                await log.read_stream(5, 1)

    run(body())


def test_what_is_trimmed_is_reported_as_trimmed() -> None:
    """R-READ-1, law 9: another error than that of a position that is not written yet."""

    async def body() -> None:
        cluster = FakeCluster()
        async with await filled(cluster) as log:
            await log.trim(4)
            assert await log.trimmed() == 4
            for glsn in (1, 4):
                with pytest.raises(Trimmed) as failure:
                    await log.read(glsn)
                assert (failure.value.position, failure.value.oldest) == (glsn, 5)
            with pytest.raises(Trimmed):
                await log.read_stream(1, 4)
            assert (await log.read(5)).data == b"5"
            with pytest.raises(TrimBeyondTail):
                await log.trim(7)

    run(body())


def test_a_node_that_lags_is_asked_again_when_the_repository_knows_better() -> None:
    """An acknowledged append is readable at once, whichever replica is asked."""

    async def body() -> None:
        cluster = FakeCluster(nodes=1)
        cluster.fail["node-1"] = [None, None, None, NotWritten(6, 5)]
        async with await filled(cluster) as log:
            assert (await log.read(6)).data == b"6"
        waits = [message.wait_s for _, message in cluster.requests if isinstance(message, ReadAt)]
        assert waits[0] == 0 and waits[1] > 0

    run(body())


def test_a_deposed_primary_does_not_decide_that_a_position_of_a_stream_is_not_written() -> None:
    """It was deposed while it was cut off, and does not know what the new one acknowledged."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster) as log:
            cluster.fail_always["node-1"] = NotWritten(6, 5)
            cluster.seal(LogStreamID(1))
            cluster.unseal(LogStreamID(1), 2, 1)
            log._routing.turn = 0  # the old primary is asked first
            assert (await log.read_stream(1, 6)).data == b"6"

    run(body())


def test_a_node_that_cannot_serve_is_passed_over() -> None:
    trouble = Unavailable("it has just started")

    async def body() -> None:
        cluster = FakeCluster(nodes=3)
        async with await filled(cluster) as log:
            await log.read(1)
            first = reads(cluster)[0]
            cluster.fail_always[first] = trouble
            assert (await log.read(2)).data == b"2"
            assert (await log.read_stream(1, 3)).data == b"3"
            failed = reads(cluster)[1:]
            assert failed.count(first) == 2, "once is no more than bad luck"
            assert (await log.read(4)).data == b"4"
            assert (await log.read_stream(1, 5)).data == b"5"
        assert first not in reads(cluster)[1 + len(failed) :]

    run(body())


def test_damaged_bytes_are_never_returned() -> None:
    """Every batch is checked end to end: what a replica or the network flips is read elsewhere."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster) as log:
            await log.read(1)
            cluster.spoil[reads(cluster)[0]] = 99
            assert [(await log.read(glsn)).data for glsn in (2, 3)] == [b"2", b"3"]
            assert (await log.read_stream(1, 5)).data == b"5"

    run(body())


def test_a_node_that_is_away_is_passed_over_and_used_again_when_it_is_the_only_one() -> None:
    """R-READ-4: each replica serves, so another one is asked."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster) as log:
            await cluster.stop("node-1")
            assert (await log.read(6)).data == b"6"
            await cluster.stop("node-2")
            with pytest.raises(Unavailable, match="position 6 could not be read"):
                await log.read(6, timeout_s=0.05)
            waiting = asyncio.create_task(log.read(6))
            await cluster.start("node-1")
            assert (await waiting).data == b"6"

    run(body())


def test_everyone_points_elsewhere_until_the_view_knows_the_new_stream() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=1)
        async with await filled(cluster) as log:
            handle = cluster._handle
            denied = 0

            def deny(address: str, call: Call, message: Message, payload: bytearray) -> None:
                nonlocal denied
                if isinstance(message, ReadAt) and len(log.streams) == 1:
                    denied += 1
                    call.reply(ReadAtReply(found=False))
                else:
                    handle(address, call, message, payload)

            cluster._handle = deny  # type: ignore[method-assign]
            reading = asyncio.create_task(log.read(6))
            await until(lambda: denied)
            cluster.add_stream()
            assert (await reading).data == b"6"

    run(body())


def test_the_tail_is_the_repository_s_word() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            assert await log.tail() == GLSN(0)
            await log.append(b"x")
            assert await log.tail() == GLSN(1)
            await cluster.stop("repository")
            with pytest.raises(Unavailable, match="the metadata repository at repository did not answer"):
                await log.tail(timeout_s=0.05)
            waiting = asyncio.create_task(log.tail())
            await cluster.start("repository")
            assert await waiting == GLSN(1)

    run(body())


def test_a_backup_alone_cannot_decide_that_a_position_of_a_stream_is_not_written() -> None:
    """It may lag behind what the primary acknowledged."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster) as log:
            primary, backup = cluster.primary_of(LogStreamID(1)), "node-2"
            cluster.fail_always[backup] = NotWritten(6, 5)
            assert (await log.read_stream(1, 6)).data == b"6"
            await cluster.stop(primary)
            with pytest.raises(Unavailable):
                await log.read_stream(1, 6, timeout_s=0.05)

    run(body())
