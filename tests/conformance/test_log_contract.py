"""The contract of a log (varlog.client.log), kept alike by both orderings.

On one node or three, with one log stream or several. Promised: an acknowledged append is in the log, once, at the
returned position; positions grow with real time; every reader sees the same entries in the same order. Not promised:
that positions have no gaps (a sequenced topic fills some with junk).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

import varlog
from tests.conformance.clusters import KINDS, TIMEOUT_S, UNIT, Cluster, Tcp, Topics
from varlog.client.log import Log
from varlog.model.cluster import Ordering
from varlog.model.entry import Entry
from varlog.model.errors import ReaderBehind
from varlog.model.limits import ENTRY_BYTES_MAX
from varlog.runtime.loop_thread import LoopThread

TEST_S = 120.0

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="module")
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("contract")
    yield thread
    thread.close()


@pytest.fixture(scope="module", params=sorted(KINDS))
def cluster(
    request: pytest.FixtureRequest, thread: LoopThread, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Shared by all tests: each creates topics of its own."""
    made = KINDS[request.param](tmp_path_factory.mktemp("contract"))
    thread.run(made.start())
    yield made
    thread.run(made.stop())


@pytest.fixture(params=list(product(Ordering, (1, 3))), ids=lambda param: f"{param[0]}-{param[1]}")
def topics(request: pytest.FixtureRequest, cluster: Cluster) -> Topics:
    return Topics(cluster, *request.param)


@pytest.fixture
def run(thread: LoopThread) -> Run:
    async def within(body: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(TEST_S):
            await body

    return lambda body: thread.run(within(body))


async def everything(log: Log, begin: int | None = 1) -> list[Entry]:
    """What a reader sees up to the tail."""
    return [entry async for entry in log.subscribe(begin, await log.tail() + 1)]


# --- Appending and reading ------------------------------------------------------------------------------------------------


def test_a_subscriber_knows_up_to_which_position_it_has_seen_everything(topics: Topics, run: Run) -> None:
    """R-READ-3. In a sequenced topic there may be positions without an entry, also at the tail."""

    async def body() -> None:
        async with topics.log() as log:
            written = [(await log.append(b"%d" % number)).glsn for number in range(2 * UNIT)]
            following = log.connector.follow(written[2])
            tail = await log.tail()
            following.expect(tail)
            seen: list[int] = []
            async with aclosing(following.lists()) as lists:
                while following.position < tail:
                    seen += [entry.glsn for entry in await anext(lists)]
                    assert seen[-1] <= following.position
            assert (seen, log.closed) == (written[2:], False)
        assert log.closed

    run(body())


def test_an_entry_is_at_the_position_that_its_append_returned(topics: Topics, run: Run) -> None:
    """R-READ-1."""

    async def body() -> None:
        async with topics.log() as log:
            written = [(await log.append(b"%d" % number), b"%d" % number) for number in range(3 * UNIT)]
            assert [at.glsn for at, _ in written] == list(range(1, 3 * UNIT + 1))
            for at, data in written:
                entry = await log.read(at.glsn)
                assert (entry.position, entry.data) == (at, data)
                assert await log.read_stream(at.log_stream, at.llsn) == entry
            assert len({at.log_stream for at, _ in written}) == topics.streams or not topics.sequenced

    run(body())


def test_a_batch_is_consecutive_in_both_orders(topics: Topics, run: Run) -> None:
    """R-ORD-5: all or none, on one stream."""

    async def body() -> None:
        async with topics.log() as log:
            at = await log.append(b"before")
            runs = [
                await log.append_batch([b"%d.%d" % (size, i) for i in range(size)]) for size in (2, 5, UNIT)
            ]
            assert [len(one) for one in runs] == [2, 5, UNIT]
            assert all(
                one.first.glsn > before
                for one, before in zip(runs, [at.glsn, *(r.last.glsn for r in runs)], strict=False)
            )
            for one in runs:
                entries = [await log.read(position.glsn) for position in one]
                assert [entry.position for entry in entries] == list(one)
                assert [entry.data for entry in entries] == [
                    b"%d.%d" % (len(one), i) for i in range(len(one))
                ]

    run(body())


def test_entries_may_be_empty_or_as_large_as_allowed(topics: Topics, run: Run) -> None:
    async def body() -> None:
        large = bytes(range(256)) * (ENTRY_BYTES_MAX // 256)
        async with topics.log() as log:
            for data in (b"", large, bytearray(b"abc"), memoryview(b"def")):
                at = await log.append(data)
                assert (await log.read(at.glsn)).data == bytes(data)
            assert [len(entry.data) for entry in await everything(log)] == [0, len(large), 3, 3]

    run(body())


def test_a_position_that_is_not_written_yet_is_reported_so(topics: Topics, run: Run) -> None:
    """R-READ-1: a clear error, with the newest position."""

    async def body() -> None:
        async with topics.log() as log:
            with pytest.raises(varlog.NotWritten) as caught:
                await log.read(1)
            assert (caught.value.position, caught.value.newest) == (1, 0)
            at = await log.append(b"x")
            for far in (1, 2, 1000 * UNIT):
                with pytest.raises(varlog.NotWritten) as caught:
                    await log.read(at.glsn + far)
                assert (caught.value.position, caught.value.newest) == (at.glsn + far, at.glsn)
            with pytest.raises(varlog.NotWritten):
                await log.read_stream(at.log_stream, at.llsn + 100)

    run(body())


def test_the_tail_is_the_newest_acknowledged_position(topics: Topics, run: Run) -> None:
    async def body() -> None:
        async with topics.logs(2) as (log, other):
            assert (await log.tail(), await log.trimmed()) == (0, 0)
            for number in range(5):
                at = await log.append(b"%d" % number)
                assert await log.tail() == await other.tail() == at.glsn
            last = (await log.append_batch([b"a", b"b"])).last.glsn
            mark = await other.connector.mark()
            assert (mark.high_watermark, mark.trimmed) == (last, 0)

    run(body())


def test_a_topic_can_begin_later(topics: Topics, run: Run) -> None:
    """For a copy of a topic whose beginning is gone: positions before its first one count as trimmed."""

    async def body() -> None:
        async with topics.log(first=1000) as log:
            assert (await log.tail(), await log.trimmed()) == (999, 999)
            assert [(await log.append(b"%d" % number)).glsn for number in range(10)] == list(
                range(1000, 1010)
            )
            with pytest.raises(varlog.Trimmed) as caught:
                await log.read(999)
            assert caught.value.oldest == 1000
            assert [entry.data for entry in await everything(log, None)] == [
                b"%d" % number for number in range(10)
            ]

    run(body())


def test_a_bad_request_is_refused_and_nothing_is_lost(topics: Topics, run: Run) -> None:
    async def body() -> None:
        async with topics.log() as log:
            await log.append_batch([b"1", b"2"])
            with pytest.raises(varlog.EmptyBatch):
                await log.append_batch([])
            with pytest.raises(varlog.EntryTooLarge):
                await log.append(bytes(ENTRY_BYTES_MAX + 1))
            with pytest.raises(varlog.BatchTooLarge):
                await log.append_batch([bytes(4 * 1024 * 1024)] * 5)
            with pytest.raises(varlog.BatchTooLarge):
                await log.append_batch([b""] * 100_001)
            with pytest.raises(varlog.InvalidRequest):
                await log.read(0)
            with pytest.raises(varlog.InvalidRequest):
                await log.trim(0)
            with pytest.raises(varlog.UnknownLogStream):
                await log.read_stream(7_777_777, 1)
            with pytest.raises(varlog.UnknownLogStream):
                await log.append(b"x", log_stream=7_777_777)
            with pytest.raises(varlog.UnknownTopic):
                await topics.cluster.connect("nobody-made-this")
            assert [entry.data for entry in await everything(log)] == [b"1", b"2"]

    run(body())


def test_a_batch_is_never_divided(topics: Topics, run: Run) -> None:
    """R-ORD-5: a batch that does not fit on one stream in one piece is refused before anything is sent."""

    async def body() -> None:
        async with topics.log() as log:
            entries = [b"%d" % number for number in range(UNIT + 1)]
            if topics.sequenced and topics.streams > 1:
                with pytest.raises(varlog.BatchTooLarge) as caught:
                    await log.append_batch(entries)
                assert (caught.value.size, caught.value.limit) == (UNIT + 1, UNIT)
            else:
                run = await log.append_batch(entries)
                assert [entry.position for entry in await everything(log)] == list(run)

    run(body())


def test_a_stream_can_be_chosen_in_the_committed_ordering(topics: Topics, run: Run) -> None:
    """R-ORD-6. In a sequenced topic the position determines the stream: with several there is nothing to choose."""

    async def body() -> None:
        async with topics.log() as log:
            for stream in log.streams:
                if topics.sequenced and topics.streams > 1:
                    with pytest.raises(varlog.InvalidRequest):
                        await log.append(b"x", log_stream=stream.log_stream)
                else:
                    at = await log.append(b"x", log_stream=stream.log_stream)
                    assert at.log_stream == stream.log_stream

    run(body())


def test_an_added_stream_gets_its_share(topics: Topics, run: Run) -> None:
    """R-SEQ-3, R-READ-3: existing entries stay where they are; appends and subscriptions continue over it."""

    async def body() -> None:
        async with topics.logs(2) as (log, other):
            reading = asyncio.create_task(_until(other, b"the end"))
            written = [await log.append(b"%d" % number) for number in range(UNIT)]
            async with await topics.cluster.admin() as admin:
                added = (await admin.add_stream(log.topic.name)).log_stream
            async with await topics.cluster.connect(log.topic.name) as fresh:
                chosen = None if topics.sequenced else added
                written += [await fresh.append(b"new", log_stream=chosen) for _ in range(4 * UNIT)]
            written += [await log.append(b"%d" % number) for number in range(UNIT)]
            written += [await log.append(b"the end")]
            assert [entry.position for entry in await reading] == written
            assert [entry.position for entry in await everything(log)] == written
            assert added in {position.log_stream for position in written}

    run(body())


# --- Order ----------------------------------------------------------------------------------------------------------------


def test_positions_grow_with_real_time_over_clients_and_streams(topics: Topics, run: Run) -> None:
    """R-ORD-4, R-ORD-5: an append that was acknowledged before another one began has the smaller position."""

    async def body() -> None:
        done: list[tuple[float, float, int, int, bytes]] = []

        async def work(log: Log, name: int) -> None:
            for number in range(12):
                data = b"%d.%d" % (name, number)
                size = 1 + (name + number) % 3
                begun = asyncio.get_running_loop().time()
                run = await log.append_batch([data] * size) if size > 1 else [await log.append(data)]
                done.append((begun, asyncio.get_running_loop().time(), run[0].glsn, run[-1].glsn, data))

        async with topics.logs(3) as logs:
            await asyncio.gather(*(work(logs[name % 3], name) for name in range(12)))
            entries = await everything(logs[0])
        for begun, _, first, _, _ in done:
            assert all(last < first for _, ended, _, last, _ in done if ended < begun)
        returned = [(glsn, data) for _, _, first, last, data in done for glsn in range(first, last + 1)]
        assert [(entry.glsn, entry.data) for entry in entries] == sorted(returned)
        assert len({glsn for glsn, _ in returned}) == len(returned)

    run(body())


def test_all_readers_see_the_same_in_the_same_order(topics: Topics, run: Run) -> None:
    """R-READ-3: while it is written, as entries, as lists and as record batches."""

    async def body() -> None:
        async with topics.logs(2) as (writer, log):
            reading = asyncio.create_task(_until(log, b"the end"))
            for number in range(10):
                await asyncio.gather(*(writer.append(b"%d.%d" % (number, i)) for i in range(7)))
                await writer.append_batch([b"b%d.%d" % (number, i) for i in range(UNIT)])
            end = (await writer.append(b"the end")).glsn + 1
            entries = await reading
            assert len(entries) == 10 * (7 + UNIT) + 1
            assert all(one.glsn < two.glsn for one, two in pairwise(entries))
            assert await everything(log) == entries
            assert [entry async for several in log.subscribe_lists(1, end) for entry in several] == entries
            rows = [row async for batch in log.arrow(1, end) for row in batch.to_pylist()]
            assert [(row["glsn"], row["llsn"], row["log_stream"], row["data"]) for row in rows] == [
                (entry.glsn, entry.llsn, entry.log_stream, entry.data) for entry in entries
            ]

    run(body())


def test_each_stream_can_be_read_by_itself(topics: Topics, run: Run) -> None:
    """measure, chunks and range, which Spark uses. Together the streams are the log."""

    async def body() -> None:
        async with topics.log() as log:
            for number in range(4 * UNIT):
                await log.append(b"%d" % number)
            await log.append_batch([b"last"] * UNIT)
            entries = await everything(log)
            end = entries[-1].glsn + 1
            rows = []
            for stream in log.streams:
                measured = await log.connector.measure(stream.log_stream, 1, end)
                cuts = [
                    batch
                    async for batch in log.connector.range(stream.log_stream, measured.begin, measured.end)
                ]
                rows += [row for batch in cuts for row in batch.to_pylist()]
            rows.sort(key=lambda row: row["glsn"])
            assert [(row["glsn"], row["llsn"], row["data"]) for row in rows] == [
                (entry.glsn, entry.llsn, entry.data) for entry in entries
            ]

    run(body())


def test_time_is_found_in_each_stream(topics: Topics, run: Run) -> None:
    async def body() -> None:
        async with topics.log() as log:
            at = [await log.append(b"%d" % number) for number in range(3 * UNIT)]
            entries = await everything(log)
            for stream in {position.log_stream for position in at}:
                mine = [entry for entry in entries if entry.log_stream == stream]
                assert (await log.connector.find_time(stream, mine[0].time_us)).llsn == mine[0].llsn
                assert (await log.connector.find_time(stream, 0)).llsn == mine[0].llsn
                assert (await log.connector.find_time(stream, mine[-1].time_us + 1_000_000)).llsn == mine[
                    -1
                ].llsn + 1

    run(body())


# --- Subscriptions --------------------------------------------------------------------------------------------------------


def test_a_bounded_subscription_waits_for_its_end_and_ends_there(topics: Topics, run: Run) -> None:
    async def body() -> None:
        async with topics.log() as log:
            assert [entry async for entry in log.subscribe(1, 1)] == []
            await log.append(b"1")
            reading = asyncio.create_task(_data(log, 1, 4))
            await log.append(b"2")
            assert not reading.done()
            await log.append_batch([b"3", b"4"])
            assert await reading == [b"1", b"2", b"3"]
            assert await _data(log, 2, 4) == [b"2", b"3"]

    run(body())


def test_a_subscription_can_be_left_at_any_entry(topics: Topics, run: Run) -> None:
    async def body() -> None:
        async with topics.log() as log:
            await log.append_batch([b"1", b"2", b"3"])
            for wanted in (1, 2, 3):
                reading = log.subscribe()
                seen = [await anext(reading) for _ in range(wanted)]
                await reading.aclose()
                assert [entry.data for entry in seen] == [b"1", b"2", b"3"][:wanted]
            waiting = asyncio.create_task(_data(log, 1, None))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 0.05)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            assert (await log.append(b"still")).glsn == 4

    run(body())


async def _data(log: Log, begin: int, end: int | None) -> list[bytes]:
    return [entry.data async for entry in log.subscribe(begin, end)]


# --- Trims ----------------------------------------------------------------------------------------------------------------


def test_trimmed_entries_are_gone_and_reported_as_trimmed(topics: Topics, run: Run) -> None:
    """R-TRIM-1, R-READ-1: another error than NotWritten, for every client, immediately."""

    async def body() -> None:
        async with topics.logs(2) as (log, other):
            at = [await log.append(b"%d" % number) for number in range(2 * UNIT)]
            await log.trim(at[UNIT].glsn)
            await log.trim(at[2].glsn)  # below: moves nothing
            for client in (log, other):
                assert (await client.trimmed(), await client.tail()) == (at[UNIT].glsn, at[-1].glsn)
                for position in at[: UNIT + 1]:
                    with pytest.raises(varlog.Trimmed) as caught:
                        await client.read(position.glsn)
                    assert caught.value.oldest == at[UNIT].glsn + 1
                with pytest.raises(varlog.Trimmed):
                    await anext(client.subscribe(1))
                assert [entry.position for entry in await everything(client, None)] == at[UNIT + 1 :]
                assert (await client.read(at[UNIT + 1].glsn)).position == at[UNIT + 1]
            assert (await log.append(b"more")).glsn == at[-1].glsn + 1

    run(body())


def test_everything_can_be_trimmed_and_nothing_beyond(topics: Topics, run: Run) -> None:
    async def body() -> None:
        async with topics.log() as log:
            with pytest.raises(varlog.TrimBeyondTail):
                await log.trim(1)
            last = (await log.append_batch([b"1", b"2", b"3"])).last.glsn
            with pytest.raises(varlog.TrimBeyondTail) as caught:
                await log.trim(last + 1)
            assert (caught.value.position, caught.value.newest) == (last + 1, last)
            await log.trim(last)
            assert (await log.trimmed(), await log.tail()) == (last, last)
            with pytest.raises(varlog.NotWritten):
                await log.read(last + 1)
            at = await log.append(b"4")
            assert [entry.position for entry in await everything(log, None)] == [at]

    run(body())


def test_a_subscription_over_a_trim_reports_what_it_missed(topics: Topics, run: Run) -> None:
    async def body() -> None:
        async with topics.logs(2) as (log, other):
            last = (await log.append_batch([b"%d" % number for number in range(UNIT)])).last.glsn
            await other.trim(last)
            with pytest.raises(varlog.Trimmed) as caught:
                await _data(log, last, last + 2)
            assert (caught.value.position, caught.value.oldest) == (last, last + 1)

    run(body())


# --- Named readers --------------------------------------------------------------------------------------------------------


def test_named_readers_hold_a_trim_back(topics: Topics, run: Run) -> None:
    async def body() -> None:
        async with topics.logs(2) as (log, other):
            last = (await log.append_batch([b"1", b"2", b"3", b"4"])).last.glsn
            assert (await log.set_reader("slow", last - 2)).position == last - 2
            await log.set_reader("quick", last)
            assert {reader.name: reader.position for reader in await other.readers()} == {
                "slow": last - 2,
                "quick": last,
            }
            assert (await other.set_reader("slow", 1)).position == last - 2  # never back on its own
            with pytest.raises(ReaderBehind) as caught:
                await other.trim(last, respect_readers=True)
            assert (caught.value.reader, caught.value.position) == ("slow", last - 2)
            await other.trim(last - 2, respect_readers=True)
            await log.forget_reader("slow")
            await other.trim(last, respect_readers=True)
            assert [reader.name for reader in await log.readers()] == ["quick"]

    run(body())


# --- Without async ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("ordering", list(Ordering))
def test_the_blocking_client_keeps_the_contract_as_well(
    ordering: Ordering, streams: int, tmp_path: Path
) -> None:
    with varlog.open(tmp_path, "t", ordering=ordering, streams=streams, sync=False) as log:
        at = [log.append(b"1"), *log.append_batch([b"2", b"3"])]
        assert log.tail() == at[-1].glsn
        entries = list(log.subscribe(1, log.tail() + 1))
        assert [(entry.position, entry.data) for entry in entries] == [
            (at[0], b"1"),
            (at[1], b"2"),
            (at[2], b"3"),
        ]
        assert [
            row for batch in log.arrow(1, log.tail() + 1) for row in batch.column("glsn").to_pylist()
        ] == [entry.glsn for entry in entries]
        log.trim(at[0].glsn)
        with pytest.raises(varlog.Trimmed):
            log.read(at[0].glsn)
    with varlog.open(tmp_path, "t", sync=False) as log:
        assert [entry.data for entry in log.subscribe(None, log.tail() + 1)] == [b"2", b"3"]
        assert log.append(b"4").glsn > at[-1].glsn


# --- Ends -----------------------------------------------------------------------------------------------------------------


def test_a_closed_log_accepts_nothing_more(topics: Topics, run: Run) -> None:
    async def body() -> None:
        async with topics.logs(2) as (log, other):
            await log.append(b"1")
            await log.close()
            await log.close()
            with pytest.raises(varlog.Rejected):
                await log.append(b"2")
            with pytest.raises(varlog.VarlogError):
                await log.read(1, timeout_s=1.0)
            assert [entry.data for entry in await everything(other)] == [b"1"]

    run(body())


def test_a_cancelled_append_is_in_the_log_once_or_not_at_all(topics: Topics, run: Run) -> None:
    """A caller that gives up leaves no hole that others have to know of."""

    async def body() -> None:
        async with topics.logs(2) as (log, other):
            for number in range(5):
                leaving = [asyncio.create_task(log.append(b"gone %d.%d" % (number, i))) for i in range(4)]
                for _ in range(number * 3):
                    await asyncio.sleep(0)
                for task in leaving:
                    task.cancel()
                await asyncio.wait(leaving)
                await log.append(b"stays %d" % number)
            seen = [entry.data for entry in await everything(other)]
            assert [data for data in seen if data.startswith(b"stays")] == [b"stays %d" % n for n in range(5)]
            assert len(set(seen)) == len(seen)

    run(body())


# --- Over restarts, and without any server
# --------------------------------------------------------------------------------


@pytest.fixture(params=sorted(KINDS))
def own_cluster(request: pytest.FixtureRequest, thread: LoopThread, tmp_path: Path) -> Iterator[Cluster]:
    """One that a test may stop."""
    made = KINDS[request.param](tmp_path)
    thread.run(made.start())
    yield made
    thread.run(made.stop())


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("ordering", list(Ordering))
def test_everything_is_there_again_after_a_restart(
    own_cluster: Cluster, ordering: Ordering, streams: int, run: Run
) -> None:
    """R-SN-3, R-TRIM-1: entries, trims, named readers; and the log continues behind its tail."""

    async def body() -> None:
        topic = await Topics(own_cluster, ordering, streams).create()
        written: list[tuple[int, bytes]] = []
        for start in range(2):
            async with await own_cluster.connect(topic) as log:
                await log.connector.wait_running()
                for number in range(10):
                    written.append(
                        ((await log.append(b"%d.%d" % (start, number))).glsn, b"%d.%d" % (start, number))
                    )
                assert [(entry.glsn, entry.data) for entry in await everything(log, None)] == written
                await log.trim(written[1][0])
                await log.set_reader("me", written[4][0])
                written = written[2:]
            await own_cluster.restart()
        async with await own_cluster.connect(topic) as log:
            assert await log.tail() >= written[-1][0]
            assert await log.trimmed() == written[0][0] - 1
            assert [(entry.glsn, entry.data) for entry in await everything(log, None)] == written
            with pytest.raises(varlog.Trimmed):
                await log.read(1)
            assert [reader.name for reader in await log.readers()] == ["me"]

    run(body())


@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_log_continues_without_one_of_its_nodes(
    ordering: Ordering, index: int, tmp_path: Path, run: Run
) -> None:
    """R-FAIL-1, R-READ-3: whichever it is. What was acknowledged stays, nothing is skipped or repeated, and the node
    comes back."""

    async def body() -> None:
        tcp = Tcp(tmp_path)
        await tcp.start()
        try:
            topic = await Topics(tcp, ordering, 2).create()
            async with await tcp.connect(topic) as log, await tcp.connect(topic) as other:
                await log.connector.wait_running()
                written = [await log.append(b"%d" % number) for number in range(UNIT)]
                reading = asyncio.create_task(_until(other, b"the end"))
                await tcp.running.stop_node(index)
                if ordering is Ordering.SEQUENCED:
                    written += [await log.append(b"%d" % number) for number in range(UNIT, 2 * UNIT)]
                    assert [entry.position for entry in await everything(log)] == written
                await tcp.running.start_node(index)
                written += [await log.append(b"%d" % number) for number in range(len(written), 3 * UNIT)]
                written += [await log.append(b"the end")]
                seen = await reading
                assert [entry.position for entry in seen] == written
                assert [entry.data for entry in seen[:-1]] == [b"%d" % number for number in range(3 * UNIT)]
        finally:
            await tcp.stop()

    run(body())


async def _until(log: Log, last: bytes) -> list[Entry]:
    seen = []
    async for entry in log.subscribe():
        seen.append(entry)
        if entry.data == last:
            break
    return seen


@pytest.mark.parametrize("ordering", list(Ordering))
def test_every_call_ends_by_its_deadline(
    ordering: Ordering, tmp_path: Path, thread: LoopThread, run: Run
) -> None:
    """Without any server: what was not sent is Rejected, what was may be OutcomeUnknown; nothing hangs."""

    async def body() -> None:
        tcp = Tcp(tmp_path)
        await tcp.start()
        try:
            topic = await Topics(tcp, ordering, 1).create()
            async with await tcp.connect(topic) as log:
                await log.append(b"1")
                for index in range(3):
                    await tcp.running.stop_node(index)
                calls: list[Callable[[], Awaitable[object]]] = [
                    lambda: log.append(b"2", timeout_s=0.4),
                    lambda: log.append_batch([b"3", b"4"], timeout_s=0.4),
                    lambda: log.read(1, timeout_s=0.4),
                    lambda: log.read_stream(log.streams[0].log_stream, 1, timeout_s=0.4),
                ]
                for call in calls:
                    # Its own deadline, not that of the log, which is far longer, nor a random pause of the machine.
                    async with asyncio.timeout(TIMEOUT_S / 2):
                        with pytest.raises((varlog.Rejected, varlog.OutcomeUnknown, varlog.Unavailable)):
                            await call()
                for index in range(3):
                    await tcp.running.start_node(index)
                at = await log.append(b"5", timeout_s=TIMEOUT_S)
                seen = [entry.data for entry in await everything(log)]
                assert (seen[0], seen[-1], at.glsn) == (b"1", b"5", await log.tail())
                assert len(set(seen)) == len(seen)
        finally:
            await tcp.stop()

    run(body())
