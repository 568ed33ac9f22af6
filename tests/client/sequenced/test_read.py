"""Reads of a sequenced topic: from the tail, one call; holes are waited for, copied down or filled; junk is passed over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

import pytest

from tests.client.fakes import run, until
from tests.client.sequenced.fakes import SequencedCluster
from varlog.client.log import Log
from varlog.model.batch import junk, pack, place_batch
from varlog.model.cluster import changed
from varlog.model.entry import Entry
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    JunkPosition,
    NotWritten,
    PreconditionFailed,
    TrimBeyondTail,
    Trimmed,
    UnknownLogStream,
)
from varlog.model.ids import LogStreamID, NodeID, ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Range, Stripe
from varlog.rpc.messages import CheckEntries, FetchUnit, FillUnit, Message, ReadUnit, WriteUnit

T = TypeVar("T")
STREAM = LogStreamID(1)


def batch_at(llsn: int, *entries: bytes) -> bytearray:
    batch = pack(entries, producer=ProducerID(9), sequence=llsn, time_us=1)
    place_batch(batch, Epoch(1), LLSN(llsn))
    return batch


async def all_of(source: AsyncGenerator[T, None]) -> list[T]:
    return [item async for item in source]


async def bytes_of(log: Log, begin: int, end: int) -> list[tuple[int, bytes]]:
    return [(entry.glsn, entry.data) for entry in await all_of(log.subscribe(begin, end))]


def test_a_read_is_one_call_to_the_tail() -> None:
    """R-SEQ-6, R-READ-4."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect() as log:
            at = await log.append(b"a")
            cluster.requests.clear()
            assert (await log.read(at.glsn)).data == b"a"
            assert cluster.asked() == [("node-3", "ReadUnit")]
            assert (await log.read_stream(1, 1)).glsn == 1
            assert await log.tail() == 1

    run(scenario())


def test_what_was_given_to_nobody_is_not_written() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            assert await log.tail() == 0
            await log.append(b"a")
            for error in (log.read(2), log.read_stream(1, 2)):
                with pytest.raises(NotWritten) as missing:
                    await error
                assert (missing.value.position, missing.value.newest) == (2, 1)
            with pytest.raises(UnknownLogStream):
                await log.read_stream(9, 1)
            with pytest.raises(TrimBeyondTail):
                await log.trim(2)

    run(scenario())


def test_what_the_head_has_is_copied_down_the_chain_by_a_reader() -> None:
    """R-SEQ-8: tail empty, head has it."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        cluster.next["seq-1", 1] = GLSN(3)
        cluster.units[NodeID(1), STREAM].write(STREAM, batch_at(1, b"a", b"b"))
        async with await cluster.connect() as log:
            assert (await log.read(2)).data == b"b"
            assert cluster.stored(1) == cluster.stored(2) == cluster.stored(3)
            assert not cluster.asked(FillUnit)

    run(scenario())


def test_what_nobody_wrote_is_filled_after_a_short_wait_with_its_neighbours() -> None:
    """R-SEQ-7, R-SEQ-8: head empty too."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        cluster.next["seq-1", 1] = GLSN(6)
        for node in (1, 2, 3):
            cluster.units[NodeID(node), STREAM].write(STREAM, batch_at(4, b"d"))
        async with await cluster.connect() as log:
            with pytest.raises(JunkPosition):
                await log.read(2)
            assert [page[:2] for page in cluster.stored(3)] == [(2, 2), (4, 1)]
            assert cluster.stored(1) == cluster.stored(3)
            assert await bytes_of(log, 1, 6) == [(4, b"d")]
            assert await log.append(b"f") == (await log.read(6)).position

    run(scenario())


def test_a_slow_appender_gets_its_position_and_the_reader_waits_for_it() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=1)
        await cluster.start()
        cluster.next["seq-1", 1] = GLSN(2)
        async with await cluster.connect() as log:
            reading = asyncio.ensure_future(log.read(1))
            await until(lambda: cluster.asked(FetchUnit))
            cluster.units[NodeID(1), STREAM].write(STREAM, batch_at(1, b"late"))
            cluster.wake()
            assert (await reading).data == b"late"
            assert not cluster.asked(FillUnit)

    run(scenario())


def test_two_clients_that_fill_different_pieces_of_a_hole_agree() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        cluster.next["seq-1", 1] = GLSN(5)
        other = True

        def meddle(address: str, message: Message) -> None:
            nonlocal other
            if isinstance(message, FillUnit) and other:
                other = False
                cluster.units[NodeID(1), STREAM].write(STREAM, junk(LLSN(1), 3))

        cluster.meddle = meddle
        async with await cluster.connect() as log:
            with pytest.raises(JunkPosition):
                await log.read(1)
            assert [page[:2] for page in cluster.stored(2)] == [(1, 3)]

    run(scenario())


def test_a_trimmed_position_is_reported_as_trimmed() -> None:
    """Law 9."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2, streams=2, stripe_size=2)
        await cluster.start()
        async with await cluster.connect() as log:
            for n in range(1, 9):
                await log.append(b"%d" % n)
            await log.trim(5)
            with pytest.raises(Trimmed) as trimmed:
                await log.read(5)
            assert trimmed.value.oldest == 6
            assert (await log.read(6)).data == b"6"
            assert await log.trimmed() == 5
            with pytest.raises(Trimmed):
                await anext(log.subscribe(3))
            assert [entry.glsn for entry in await all_of(log.subscribe(None, 9))] == [6, 7, 8]

    run(scenario())


def test_a_subscription_merges_the_stripes_and_waits_for_more() -> None:
    """R-READ-3."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3, streams=3, stripe_size=2, rotated=True)
        await cluster.start()
        async with await cluster.connect() as log:
            got: list[Entry] = []

            async def subscribe() -> None:
                async for entry in log.subscribe(1, 41):
                    got.append(entry)

            reading = asyncio.ensure_future(subscribe())
            for n in range(1, 41):
                await log.append(b"%d" % n)
            await reading
            assert [(entry.glsn, entry.data) for entry in got] == [(n, b"%d" % n) for n in range(1, 41)]
            assert [entry.log_stream for entry in got[:6]] == [1, 1, 2, 2, 3, 3]

    run(scenario())


def test_a_subscription_fills_what_was_never_written_and_continues_behind_it() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2, streams=2, stripe_size=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"1")
            cluster.next["seq-1", 1] = GLSN(4)
            await log.append(b"4")
            assert await bytes_of(log, 1, 5) == [(1, b"1"), (4, b"4")]
            cluster.next["seq-1", 1] = GLSN(7)
            assert await bytes_of(log, 4, 7) == [
                (4, b"4")
            ]  # nothing is behind it: the sequencer says that it was given

    run(scenario())


def test_a_subscription_continues_when_the_tail_dies() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect() as log, await cluster.connect(seed=2) as other:
            await other.append(b"1")
            reading = log.subscribe(1)
            assert (await anext(reading)).glsn == 1
            await until(lambda: cluster.asked(FetchUnit)[-1:] == [("node-3", "FetchUnit")])
            await cluster.stop("node-3")
            await other.append(b"2")
            assert (await anext(reading)).data == b"2"
            assert cluster.projection.chains[0].nodes == (1, 2)
            await reading.aclose()

    run(scenario())


def test_a_reader_alone_does_without_a_dead_tail() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"1")
            await cluster.stop("node-3")
            assert (await log.read(1)).data == b"1"
            assert cluster.projection.chains[0].nodes == (1, 2)

    run(scenario())


def test_a_stream_that_is_added_takes_turns_from_then_on() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=1, streams=2, stripe_size=2)
        whole = cluster.projection
        alone = changed(whole, ranges=(Range(GLSN(1), (Stripe(STREAM),), 2),), chains=whole.chains[:1])
        cluster.change_view(projections=(alone,))
        await cluster.start()
        async with await cluster.connect() as log:
            reading = log.subscribe(1)
            for n in (1, 2, 3):
                await log.append(b"%d" % n)
            for n in (1, 2, 3):
                assert (await anext(reading)).glsn == n
            both = Range(GLSN(4), (Stripe(STREAM, LLSN(4)), Stripe(LogStreamID(2))), 2)
            cluster.reconfigure(ranges=(*alone.ranges, both), chains=whole.chains, begin=GLSN(4))
            cluster.wake()
            for n in range(4, 10):
                await log.append(b"%d" % n)
            entries = [await anext(reading) for _ in range(6)]
            assert [entry.glsn for entry in entries] == [4, 5, 6, 7, 8, 9]
            assert [entry.log_stream for entry in entries] == [1, 1, 2, 2, 1, 1]
            await reading.aclose()

    run(scenario())


def test_damage_at_the_tail_is_reported_and_read_from_another_node() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"whole")
            await log.append(b"sound")
            page = cluster.units[NodeID(2), STREAM].pages[0][2]
            page[-1] ^= 1
            page[-8] ^= 1
            assert [data for _, data in await bytes_of(log, 1, 3)] == [b"whole", b"sound"]
            await until(lambda: cluster.asked(CheckEntries) == [("node-2", "CheckEntries")])

    run(scenario())


def test_ranges_of_a_stream_come_without_the_junk_in_them() -> None:
    """What Spark reads."""
    pa = pytest.importorskip("pyarrow")

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2, streams=2, stripe_size=2)
        await cluster.start()
        async with await cluster.connect() as log:
            for n in (1, 2, 3):
                await log.append(b"%d" % n)
            cluster.next["seq-1", 1] = GLSN(6)  # 4 and 5 are given to one who dies
            for n in range(6, 13):
                await log.append(b"%d" % n)
            found = await log.connector.measure(1, 1, 13)
            assert (found.begin, found.end) == (1, 7)
            tables = await all_of(log.connector.range(1, found.begin, found.end))
            rows = pa.Table.from_batches(tables).to_pydict()
            assert list(zip(rows["glsn"], rows["llsn"], rows["data"], strict=True)) == [
                (1, 1, b"1"), (2, 2, b"2"), (6, 4, b"6"), (9, 5, b"9"), (10, 6, b"10"),
            ]  # fmt: skip
            batches = await all_of(log.arrow(1, 13))
            assert pa.Table.from_batches(batches)["glsn"].to_pylist() == [1, 2, 3, *range(6, 13)]
            with pytest.raises(NotWritten):
                await all_of(log.connector.chunks(1, 7, 8))
            late = await log.connector.find_time(1, 1 << 60)
            assert (late.llsn, late.glsn) == (7, 13)
            assert (await log.connector.find_time(1, 1)).glsn == 1

    run(scenario())


def test_what_needs_a_primary_is_refused_and_the_remedy_is_named() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=1)
        await cluster.start()
        async with await cluster.connect() as log:
            with pytest.raises(PreconditionFailed, match="--ordering committed"):
                log.idempotent_writer(1, 5, 0)
            with pytest.raises(PreconditionFailed, match="sequenced"):
                log.positioned_writer(1)
            with pytest.raises(PreconditionFailed, match="sequenced"):
                await log.connector.begin_write("job", 1)

    run(scenario())


def test_a_read_under_an_old_projection_finds_the_new_one() -> None:
    """R-SEQ-11."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"1")
            cluster.reconfigure(begin=GLSN(2))
            cluster.requests.clear()
            assert (await log.read(1)).data == b"1"
            assert len(cluster.asked(ReadUnit)) == 2 and not cluster.asked(WriteUnit)

    run(scenario())
