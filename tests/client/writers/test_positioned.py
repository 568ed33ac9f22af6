"""A copy keeps positions: each entry is at its LLSN or nowhere, and a restarted copy continues where it ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.client.fakes import environment, run, run_in_real_time, until
from tests.client.idempotent_cluster import ChainedCluster
from varlog import aio
from varlog.client.log import Log
from varlog.client.writers.positioned import OtherEntry, PositionedWriteResult
from varlog.embedded import EmbeddedCluster
from varlog.model.batch import Columns
from varlog.model.errors import InvalidRequest, OutcomeUnknown, PositionConflict, Sealed
from varlog.model.ids import LogStreamID
from varlog.model.lsn import LLSN

ONE = LogStreamID(1)
ROWS = [b"row %d" % n for n in range(12)]


async def copy(
    log: Log, *, begin: int = 1, end: int = 12, size: int = 3, timeout_s: float | None = None
) -> PositionedWriteResult:
    """Entries [begin, end] of the source, in batches of this size."""
    placed = log.positioned_writer(ONE, timeout_s=timeout_s)
    for llsn in range(begin, end + 1, size):
        await placed.append(llsn, ROWS[llsn - 1 : min(end, llsn - 1 + size)], time_us=llsn)
    return await placed.finish()


def test_entries_are_written_where_they_belong_with_the_time_they_had() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            assert await copy(log) == PositionedWriteResult(12, 0, LLSN(13))
            entries = [entry async for entry in log.subscribe(1, 13)]
        assert [(entry.llsn, entry.time_us, entry.data) for entry in entries[:4]] == [
            (1, 1, b"row 0"), (2, 1, b"row 1"), (3, 1, b"row 2"), (4, 4, b"row 3")
        ]  # fmt: skip
        assert cluster.rows == ROWS

    run(body())


@pytest.mark.parametrize(("begin", "size"), [(1, 3), (1, 5), (4, 2), (7, 3), (1, 12)])
def test_what_an_earlier_attempt_wrote_is_compared_and_the_rest_is_written(begin: int, size: int) -> None:
    """In other batches than those of the attempt before: one may be there in part."""

    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            await copy(log, end=7)
            end = await copy(log, begin=begin, size=size)
            assert (end.written + end.found, end.end) == (13 - begin, 13)
        assert cluster.rows == ROWS

    run(body())


def test_another_entry_at_a_position_is_an_error_that_names_it_and_nothing_is_written_over_it() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            await copy(log, end=4)
            placed = log.positioned_writer(ONE)
            await placed.append(3, [b"row 2", b"something else", b"more"], 1)
            with pytest.raises(OtherEntry, match="LLSN 4 of log stream 1"):
                await placed.finish()
        assert cluster.rows == ROWS[:4]

    run(body())


def test_a_copy_has_no_gaps() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            placed = log.positioned_writer(ONE)
            await placed.append(1, [b"a", b"b"], 1)
            for wrong in (1, 2, 4):
                with pytest.raises(InvalidRequest, match="LLSN 3 is next"):
                    await placed.append(wrong, [b"c"], 1)
            await placed.append(3, Columns(b"\0\0\0\0\1\0\0\0", b"c"), 1)
            assert await placed.finish() == PositionedWriteResult(3, 0, LLSN(4))
            with pytest.raises(OutcomeUnknown, match="continues at LLSN 4, and LLSN 9 is next here"):
                await copy(log, begin=9, timeout_s=0.1)
        assert cluster.rows == [b"a", b"b", b"c"]

    run(body())


def test_two_copies_at_once_write_each_entry_once() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect(seed=1) as one, await cluster.connect(seed=2) as two:
            ends = await asyncio.gather(copy(one, size=1), copy(two, size=5))
        assert sum(end.written for end in ends) == 12
        assert [end.written + end.found for end in ends] == [12, 12]
        assert cluster.rows == ROWS

    run(body())


@pytest.mark.parametrize("arrived", [0, 1, 4])
def test_over_a_lost_connection_and_a_seal_each_entry_is_written_once(arrived: int) -> None:
    async def body() -> None:
        cluster = ChainedCluster(nodes=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            copying = asyncio.create_task(copy(log))
            await until(lambda: len(cluster.held) == 4)
            for _ in range(arrived):
                cluster.take_held(answer=False)
            held, cluster.held = cluster.held, []
            cluster.hold_appends = False
            cluster.requests_held.clear()
            cluster.seal(ONE)
            for call, _, _ in held:
                call.fail(Sealed(ONE))
            await cluster.stop("node-1")
            cluster.unseal(ONE, 2, 1)
            end = await copying
            assert (end.written + end.found, end.end) == (12, 13)
        assert cluster.rows == ROWS

    run(body())


def test_what_was_in_the_way_and_was_cut_by_a_seal_is_not_waited_for() -> None:
    """Another copy's entries had the positions, were not ordered, and are gone: nobody will ever be able to read them."""

    async def body() -> None:
        cluster = ChainedCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            copying = asyncio.create_task(copy(log, end=3, timeout_s=20.0))
            await until(lambda: len(cluster.held) == 1)
            [(call, _, _)], cluster.held = cluster.held, []
            cluster.requests_held.clear()
            cluster.hold_appends = False
            call.fail(PositionConflict(ONE, LLSN(1), LLSN(9)))
            assert await copying == PositionedWriteResult(3, 0, LLSN(4))
        assert cluster.rows == ROWS[:3]

    run(body())


def test_a_copy_continues_after_a_restart_at_the_positions_of_its_source(tmp_path: Path) -> None:
    """R-USE-4: what a mirror writes with. Embedded, into a topic that begins where its source begins."""

    async def body() -> None:
        cluster = EmbeddedCluster(tmp_path / "log", environment())
        await cluster.start()
        await cluster.connect("another")  # the manager has met the node then
        await (await cluster.admin()).create_topic("copy", streams=1, first=1001)
        await cluster.stop()
        for end in (5, 9, 12):
            async with await aio.open(tmp_path / "log", topic="copy") as log:
                placed = log.positioned_writer(log.streams[0].log_stream)
                for llsn in range(1, end + 1, 2):
                    await placed.append(llsn, ROWS[llsn - 1 : min(end, llsn + 1)], llsn)
                assert (await placed.finish()).end == end + 1
                entries = [entry async for entry in log.subscribe(1001, await log.tail() + 1)]
            assert [(entry.glsn, entry.data) for entry in entries] == list(enumerate(ROWS[:end], 1001))

    run_in_real_time(body())
