"""Subscriptions: the exact total order over many streams, restarts, trims and new streams."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random

import pytest

from tests.client.fakes import FakeCluster, run, until
from varlog.client.log import Log
from varlog.model.entry import Entry
from varlog.model.errors import InvalidRequest, Trimmed, Unavailable, UnknownTopic
from varlog.model.ids import LogStreamID, NodeID
from varlog.rpc.messages import Fetch


async def fill(log: Log, count: int, random: Random, start: int = 1) -> None:
    """Entries b"1", b"2" …: an entry's bytes are its position."""
    at = start
    while at < start + count:
        size = min(random.randint(1, 5), start + count - at)
        stream = random.choice(log.streams).log_stream
        await log.append_batch([b"%d" % (at + i) for i in range(size)], log_stream=stream)
        at += size


def expected(begin: int, end: int) -> list[tuple[int, bytes]]:
    return [(glsn, b"%d" % glsn) for glsn in range(begin, end)]


def seen(entries: list[Entry]) -> list[tuple[int, bytes]]:
    return [(entry.glsn, entry.data) for entry in entries]


@pytest.mark.parametrize(("begin", "end"), [(1, 101), (1, 1), (37, 38), (40, 90), (90, 40), (101, 101)])
def test_a_bounded_subscription_gives_exactly_its_range(begin: int, end: int, seed: int) -> None:
    """R-READ-3: from a position to a position, in the total order over all streams."""

    async def body() -> None:
        cluster = FakeCluster(nodes=3, streams=4)
        cluster.fetch_bytes_most = 300
        await cluster.start()
        async with await cluster.connect(seed=seed) as log:
            await fill(log, 100, Random(seed))
            assert seen([entry async for entry in log.subscribe(begin, end)]) == expected(begin, end)

    run(body())


def test_an_unbounded_subscription_waits_for_more_and_a_future_begin_waits_too(seed: int) -> None:
    async def body() -> None:
        cluster = FakeCluster(streams=2)
        await cluster.start()
        async with await cluster.connect() as log:
            now: list[Entry] = []
            later: list[Entry] = []

            async def follow(into: list[Entry], begin: int) -> None:
                async for entry in log.subscribe(begin):
                    into.append(entry)

            tasks = [asyncio.create_task(follow(now, 1)), asyncio.create_task(follow(later, 15))]
            await fill(log, 10, Random(seed))
            await until(lambda: len(now) == 10)
            await fill(log, 10, Random(seed), start=11)
            await until(lambda: len(now) == 20 and len(later) == 6)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert seen(now) == expected(1, 21)
            assert seen(later) == expected(15, 21)

    run(body())


def test_lists_hold_the_same_entries(seed: int) -> None:
    async def body() -> None:
        cluster = FakeCluster(streams=3)
        await cluster.start()
        async with await cluster.connect() as log:
            await fill(log, 60, Random(seed))
            lists = [entries async for entries in log.subscribe_lists(1, 61)]
            assert seen([entry for entries in lists for entry in entries]) == expected(1, 61)
            assert len(lists) < 60

    run(body())


def test_nothing_is_skipped_or_repeated_over_restarts_of_nodes_and_repository(seed: int) -> None:
    """R-READ-3: over reconnects."""

    async def body() -> None:
        cluster = FakeCluster(nodes=3, streams=3)
        cluster.fetch_bytes_most = 400
        await cluster.start()
        random = Random(seed)
        async with await cluster.connect() as log, await cluster.connect(seed=2) as writer:
            got: list[Entry] = []
            async with aclosing(log.subscribe(1)) as entries:
                for step in range(12):
                    await fill(writer, 20, random, start=1 + 20 * step)
                    while len(got) < 20 * step + random.randint(1, 20):
                        got.append(await anext(entries))
                    victims = random.sample(
                        ["node-1", "node-2", "node-3", "repository"], random.randint(1, 4)
                    )
                    await cluster.stop(*victims)
                    await asyncio.sleep(0)
                    await cluster.start(*victims)
                while len(got) < 240:
                    got.append(await anext(entries))
            assert seen(got) == expected(1, 241)

    run(body())


def test_nothing_is_skipped_or_repeated_over_failovers_seals_new_streams_and_replaced_nodes(
    seed: int,
) -> None:
    """R-READ-3: whatever the view makes of a stream between two entries."""

    async def body() -> None:
        cluster = FakeCluster(nodes=4, streams=2)
        cluster.fetch_bytes_most = 400
        await cluster.start()
        random = Random(seed)

        def trouble() -> None:
            stream = random.choice(cluster.view.streams)
            what = random.choice(("failover", "replace", "seal", "suspect", "new stream"))
            if what == "suspect":
                cluster.suspects = tuple(
                    random.sample([NodeID(n) for n in range(1, 5)], random.randint(0, 4))
                )
                cluster.change_view()
            elif what == "new stream" and len(cluster.streams) < 5:
                cluster.add_stream()
            else:
                cluster.seal(stream.log_stream)
            if what in ("failover", "replace"):
                count = len(stream.replicas) if what == "failover" else random.randint(1, 3)
                pool = stream.replicas if what == "failover" else range(1, 5)
                cluster.unseal(stream.log_stream, *random.sample(list(pool), count))

        async with await cluster.connect() as log, await cluster.connect(seed=2) as writer:
            got: list[Entry] = []
            async with aclosing(log.subscribe(1)) as entries:
                for step in range(25):
                    for stream in cluster.view.streams:
                        cluster.unseal(stream.log_stream)
                    await writer.connector.view()
                    await fill(writer, 10, random, start=1 + 10 * step)
                    while len(got) < 10 * step + random.randint(0, 10):
                        got.append(await anext(entries))
                    trouble()
                while len(got) < 250:
                    got.append(await anext(entries))
            assert seen(got) == expected(1, 251)

    run(body())


def test_a_damaged_chunk_is_fetched_from_another_replica(seed: int) -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.fetch_bytes_most = 300
        await cluster.start()
        async with await cluster.connect() as log:
            await fill(log, 50, Random(seed))
            cluster.spoil = {"node-1": 5, "node-2": 5}
            assert seen([entry async for entry in log.subscribe(1, 51)]) == expected(1, 51)
            assert cluster.spoil == {"node-1": 0, "node-2": 0} or sum(cluster.spoil.values()) < 10

    run(body())


def test_a_stream_that_is_made_later_is_picked_up(seed: int) -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=1)
        await cluster.start()
        async with await cluster.connect() as log, await cluster.connect(seed=2) as writer:
            async with aclosing(log.subscribe(1)) as entries:
                await fill(writer, 5, Random(seed))
                got = [await anext(entries) for _ in range(5)]
                new = cluster.add_stream()
                await writer.connector.view()
                await writer.append(b"6", log_stream=new)
                await writer.append(b"7", log_stream=LogStreamID(1))
                got += [await anext(entries) for _ in range(2)]
            assert seen(got) == expected(1, 8)

    run(body())


def test_a_replica_that_has_nothing_new_is_left_for_another_one() -> None:
    """A replica that is cut off from the repository looks exactly like the end of the log."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log, aclosing(log.subscribe(1)) as entries:
            first = asyncio.create_task(anext(entries))

            def asked() -> list[str]:
                return [address for address, message in cluster.requests if isinstance(message, Fetch)]

            await until(lambda: len(asked()) == 1)
            cluster.expire_fetches()
            await until(lambda: len(asked()) == 2)
            assert set(asked()) == {"node-1", "node-2"}
            await log.append(b"1")
            assert (await first).data == b"1"

    run(body())


def test_a_trimmed_begin_is_reported_with_the_oldest_readable_position(seed: int) -> None:
    """Law 9. With no begin, the subscription starts there."""

    async def body() -> None:
        cluster = FakeCluster(streams=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await fill(log, 20, Random(seed))
            await log.trim(8)
            with pytest.raises(Trimmed) as failure:
                await anext(log.subscribe(1))
            assert (failure.value.position, failure.value.oldest) == (1, 9)
            assert seen([entry async for entry in log.subscribe(None, 21)]) == expected(9, 21)
            assert seen([entry async for entry in log.subscribe(9, 21)]) == expected(9, 21)

    run(body())


def test_a_trim_under_a_slow_subscriber_is_reported_and_never_skipped_over(seed: int) -> None:
    async def body() -> None:
        cluster = FakeCluster(streams=2)
        cluster.fetch_bytes_most = 200
        await cluster.start()
        async with await cluster.connect() as log, aclosing(log.subscribe(1)) as entries:
            await fill(log, 200, Random(seed))
            got = [await anext(entries)]
            await log.trim(150)

            async def take_all() -> None:
                async for entry in entries:
                    got.append(entry)

            with pytest.raises(Trimmed) as failure:
                await take_all()
            assert seen(got) == expected(1, len(got) + 1)  # what was here already comes first
            assert (failure.value.position, failure.value.oldest) == (len(got) + 1, 151)

    run(body())


def test_memory_is_bounded_by_two_chunks_a_stream(seed: int) -> None:
    async def body() -> None:
        cluster = FakeCluster(streams=2)
        cluster.fetch_bytes_most = 200
        await cluster.start()
        async with await cluster.connect() as log, aclosing(log.subscribe(1)) as entries:
            await fill(log, 300, Random(seed))
            await anext(entries)
            for _ in range(50):  # turns in which a pump without a bound would fetch on
                await asyncio.sleep(0)
            fetches = [message for _, message in cluster.requests if isinstance(message, Fetch)]
            assert len(fetches) <= 2 * 3  # a chunk taken, and two more, for each stream

    run(body())


@pytest.mark.parametrize(("begin", "end"), [(0, None), (-5, None), (1, 0), (1, -1)])
def test_positions_that_cannot_be_are_refused_at_once(begin: int, end: int | None) -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            for start in (log.subscribe, log.subscribe_lists, log.arrow):
                with pytest.raises(InvalidRequest):
                    start(begin, end)

    run(body())


def test_a_subscription_ends_when_its_topic_or_its_log_does() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        log = await cluster.connect()
        waiting = asyncio.create_task(anext(log.subscribe(1)))
        await until(lambda: any(isinstance(message, Fetch) for _, message in cluster.requests))
        cluster.change_view(topics=())
        with pytest.raises(UnknownTopic):
            await waiting
        other = await cluster.connect(topic="made", create=True)
        waiting = asyncio.create_task(anext(other.subscribe(1)))
        await asyncio.sleep(0.01)
        await other.close()
        with pytest.raises(Unavailable, match="closed"):
            await waiting
        await log.close()

    run(body())


def test_an_abandoned_subscription_leaves_no_task_behind(seed: int) -> None:
    async def body() -> None:
        cluster = FakeCluster(streams=3)
        await cluster.start()
        async with await cluster.connect() as log:
            await fill(log, 20, Random(seed))
            before = len(asyncio.all_tasks())
            async with aclosing(log.subscribe(1)) as entries:
                async for entry in entries:
                    if entry.glsn == 5:
                        break
            await until(lambda: len(asyncio.all_tasks()) <= before)
            assert len(asyncio.all_tasks()) <= before

    run(body())
