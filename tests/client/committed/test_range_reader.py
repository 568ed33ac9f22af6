"""log.chunks and log.range return an exact range of one stream, over failovers and damage; a missing part raises its own error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest

from tests.client.fakes import FakeCluster, run, until
from varlog.client.arrow import schema
from varlog.client.chunk import Chunk, FetchPoint, Part
from varlog.client.log import Log
from varlog.client.range_pieces import CHUNKS_AHEAD, PIECES_AHEAD
from varlog.model.cluster import StreamState
from varlog.model.entry import Entry
from varlog.model.errors import CorruptBatch, NotWritten, Trimmed, Unavailable, UnknownLogStream
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import CheckEntries, Fetch, FetchReply
from varlog.rpc.transport import Call

ONE, TWO = LogStreamID(1), LogStreamID(2)


async def filled(cluster: FakeCluster, random: Random, entries: int, sizes: list[int]) -> Log:
    """Batches of the given sizes, in turn to all streams by chance."""
    cluster.fetch_bytes_most = 20_000
    await cluster.start()
    log = await cluster.connect()
    while cluster.tail < entries:
        data = [random.randbytes(random.choice([0, 1, 30])) for _ in range(random.choice(sizes))]
        await log.append_batch(data, log_stream=random.choice(list(cluster.streams)))
    return log


async def entries_of(log: Log, begin: int, end: int, cuts: list[FetchPoint] | None = None) -> list[Entry]:
    """What `chunks` gives, checked to be whole on the way."""
    entries: list[Entry] = []
    next_llsn = begin
    async for rows, chunk in log.connector.chunks(ONE, begin, end, cuts=cuts or ()):
        for llsn, glsn, count in rows:
            assert llsn == next_llsn
            entries += chunk.entries(ONE, glsn, llsn, count)
            next_llsn += count
    assert next_llsn == end
    return entries


async def subscribed(log: Log, begin: int, end: int) -> list[Entry]:
    tail = await log.tail()
    return [
        entry
        async for entry in log.subscribe(1, tail + 1)
        if entry.log_stream == ONE and begin <= entry.llsn < end
    ]


@pytest.mark.parametrize("sizes", [[1], [1, 2, 10], [600], [1, 40, 700]])
def test_a_range_is_what_a_subscriber_gets_however_it_is_cut(sizes: list[int], seed: int) -> None:
    async def body() -> None:
        random = Random(seed)
        cluster = FakeCluster(nodes=3, streams=2)
        async with await filled(cluster, random, 3000, sizes) as log:
            end = int(cluster.streams[ONE].end)
            everything = await subscribed(log, 1, end)
            starts = [(int(row[0]), 3000) for row in cluster.streams[ONE].rows]
            for _ in range(10):
                low, high = sorted(random.sample(range(1, end + 1), 2))
                cuts = sorted(random.sample(starts, random.randint(0, len(starts))))
                assert await entries_of(log, low, high, cuts) == everything[low - 1 : high - 1]
            assert await entries_of(log, 5, 5) == []

    run(body())


@pytest.mark.parametrize("sizes", [[1], [1, 2, 10], [600], [1, 40, 700]])
def test_record_batches_of_a_range_have_every_column_right(sizes: list[int], seed: int) -> None:
    async def body() -> None:
        random = Random(seed)
        cluster = FakeCluster(nodes=2, streams=2)
        async with await filled(cluster, random, 4000, sizes) as log:
            end = int(cluster.streams[ONE].end)
            for low, high in ((1, end), (7, end - 9), (3, 4)):
                found: list[Entry] = []
                async for batch in log.connector.range(ONE, low, high):
                    batch.validate(full=True)
                    assert batch.schema == schema()
                    names = ("glsn", "llsn", "log_stream")
                    columns = [batch.column(name) for name in names]
                    columns += [batch.column("timestamp").cast(pa.int64()), batch.column("data")]
                    found += [Entry(*row) for row in zip(*map(pa.Array.to_pylist, columns), strict=True)]
                assert found == await subscribed(log, low, high)

    run(body())


def test_small_batches_are_joined_and_large_ones_wrapped_where_they_lie() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            for number in range(100):
                await log.append_batch([b"%d" % number])
            await log.append_batch([bytes(1000)] * 1000)
            before = pa.total_allocated_bytes()
            batches = [batch async for batch in log.connector.range(ONE, 1, 1101)]
            assert [batch.num_rows for batch in batches] == [100, 1000]
            assert pa.total_allocated_bytes() - before < 100_000

    run(body())


def test_a_replica_that_fails_is_left_for_the_next() -> None:
    async def body() -> None:
        random = Random(1)
        cluster = FakeCluster(nodes=3)
        async with await filled(cluster, random, 2000, [50]) as log:
            everything = await subscribed(log, 1, 2001)
            cluster.fail = {"node-1": [Unavailable("no"), Unavailable("no")], "node-2": [Unavailable("no")]}
            assert await entries_of(log, 1, 2001) == everything
            reading = log.connector.chunks(ONE, 1, 2001)
            first = [await anext(reading)]
            await cluster.stop("node-1", "node-3")
            got = first + [part async for part in reading]
            assert sum(count for rows, _ in got for _, _, count in rows) == 2000

    run(body())


def test_damage_is_reported_and_read_from_another_replica() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=3)
        async with await filled(cluster, Random(1), 2000, [50]) as log:
            everything = await subscribed(log, 1, 2001)
            cluster.spoil = {"node-1": 3, "node-2": 3}
            assert await entries_of(log, 1, 2001) == everything
            await until(lambda: any(isinstance(message, CheckEntries) for _, message in cluster.requests))

    run(body())


def test_a_node_client_reads_one_node_alone_and_returns_its_replies_unchanged() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=3)
        async with await filled(cluster, Random(1), 500, [50]) as log:
            cluster.requests.clear()
            one = log.connector.on_node(2)
            fetched = await one.fetch(ONE, 1, bytes_max=1)
            assert (fetched.rows[0][0], Chunk(fetched.payload).first_llsn) == (1, 1)
            cluster.spoil = {"node-2": 1}
            damaged = await one.fetch(ONE, 1, bytes_max=1)
            with pytest.raises(CorruptBatch):
                Chunk(damaged.payload)
            cluster.fail = {"node-2": [Unavailable("frozen")]}
            with pytest.raises(Unavailable, match="frozen"):
                await one.fetch(ONE, 1)
            assert {at for at, message in cluster.requests if isinstance(message, Fetch)} == {"node-2"}

    run(body())


async def behind_the_end(cluster: FakeCluster, reading: AsyncGenerator[Part, None]) -> None:
    """Read what is not written: the node waits for it, and then replies that there is nothing."""
    asked = asyncio.ensure_future(anext(reading))
    while not asked.done():
        cluster.expire_fetches()
        await asyncio.sleep(0)
    await asked


def test_a_range_that_is_trimmed_meanwhile_or_not_written_is_reported() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster, Random(1), 3000, [50]) as log:
            cluster.fetch_bytes_most = 1
            reading = log.connector.chunks(ONE, 1, 3001)
            await anext(reading)
            await log.trim(2000)
            with pytest.raises(Trimmed) as trimmed:
                async for _ in reading:
                    pass
            assert trimmed.value.oldest == 2001
            with pytest.raises(UnknownLogStream):
                await anext(log.connector.chunks(9, 1, 2))

    run(body())


def test_what_the_primary_does_not_have_is_not_written() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster, Random(1), 100, [50]) as log:
            reading = log.connector.chunks(ONE, 1, 5000)
            got = await anext(reading)
            assert got[1].end_llsn == cluster.streams[ONE].end
            with pytest.raises(NotWritten) as missing:
                await behind_the_end(cluster, reading)
            assert missing.value.newest == 100

    run(body())


def test_without_any_answer_the_error_at_the_deadline_has_the_reason() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster, Random(1), 100, [50]) as log:
            await cluster.stop("node-1", "node-2")
            with pytest.raises(
                Unavailable, match=r"LLSN 1 of log stream 1 could not be read within 0.2 s: .*node-"
            ):
                await anext(log.connector.chunks(ONE, 1, 101, timeout_s=0.2))

    run(body())


def test_an_answer_with_a_gap_is_not_used() -> None:
    async def body() -> None:
        cluster = _Lying(nodes=2)
        async with await filled(cluster, Random(1), 1000, [50]) as log:
            everything = await subscribed(log, 1, 1001)
            cluster.lies = True
            assert await entries_of(log, 1, 1001) == everything
            assert cluster.lied == 6

    run(body())


class _Lying(FakeCluster):
    """For a few answers it leaves out a row or an entry, or gives a position twice."""

    lies = False
    lied = 0

    def _fetch(self, address: str, call: Call, request: Fetch) -> None:
        bent = _Bent(call, self) if self.lies and self.lied < 6 else call
        super()._fetch(address, bent, request)  # type: ignore[arg-type]


class _Bent:
    def __init__(self, call: Call, cluster: _Lying) -> None:
        self._call = call
        self._cluster = cluster

    def reply(self, message: FetchReply, payload: bytearray) -> None:
        self._cluster.lied += 1
        (llsn, glsn, count), *_ = message.rows
        rows = [
            ((LLSN(llsn), glsn, count - 1), (LLSN(llsn + count), GLSN(glsn + count), 1)),
            ((LLSN(llsn), glsn, count), (LLSN(llsn + count), glsn, 1)),
            ((LLSN(llsn), glsn, count - 1),),
        ][self._cluster.lied % 3]
        self._call.reply(
            FetchReply(
                rows, message.next_llsn, message.committed_end, message.high_watermark, message.low_watermark
            ),
            payload,
        )


def test_a_slow_reader_holds_a_bounded_number_of_chunks() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster, Random(1), 5000, [10]) as log:
            cluster.fetch_bytes_most = 1
            cluster.requests.clear()
            cuts = [(int(row[0]), 100) for row in cluster.streams[ONE].rows[::20]]
            reading = log.connector.chunks(ONE, 1, 5001, cuts=cuts)
            await anext(reading)
            asked = -1
            while asked != (asked := sum(isinstance(message, Fetch) for _, message in cluster.requests)):
                await until(lambda: True)
            assert asked <= PIECES_AHEAD * (CHUNKS_AHEAD + 1) + 1
            await reading.aclose()
            assert cluster.view.streams[0].state is StreamState.RUNNING

    run(body())


def test_cuts_are_fetched_at_once_and_given_in_order() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=1)
        async with await filled(cluster, Random(1), 1000, [10]) as log:
            cuts = [(int(row[0]), 2000) for row in cluster.streams[ONE].rows[::10]]
            cluster.requests.clear()
            reading = log.connector.chunks(ONE, 1, 1001, cuts=cuts)
            first = await anext(reading)
            begun = [message.llsn for _, message in cluster.requests if isinstance(message, Fetch)]
            assert begun[:PIECES_AHEAD] == [cut[0] for cut in cuts[:PIECES_AHEAD]]
            parts = [first] + [part async for part in reading]
            firsts = [rows[0][0] for rows, _ in parts]
            assert all(low < high for low, high in pairwise(firsts))

    run(body())
