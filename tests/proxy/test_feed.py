"""Claims about a feed: read once for all followers, in pages for late ones, right over trims, junk and large entries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.proxy.helpers import TEST_S
from varlog import aio
from varlog.client.log import Log
from varlog.model.errors import Trimmed, Unavailable
from varlog.proxy.feed import PAGE_ENTRIES, Feed


def with_log(
    path: Path, story: Callable[[Log], Awaitable[None]], *, ordering: str = "committed", streams: int = 1
) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(TEST_S),
            aio.open(path, "orders", sync=False, ordering=ordering, streams=streams) as log,
        ):
            await story(log)

    asyncio.run(run())


async def take(feed: Feed, position: int, end: int) -> list[int]:
    """The positions of all entries in [position, end), as one who follows gets them."""
    seen: list[int] = []
    while position < end:
        frames = feed.frames_at(position)
        if frames:
            seen += [entry.glsn for frame in frames for entry in frame.entries]
            position = frames[-1].end
        elif feed.failure is not None:
            raise feed.failure
        else:
            more = feed.more(position)
            await asyncio.wait([more])
            more.result()
    return seen


@pytest.mark.parametrize("ordering", ["committed", "sequenced"])
def test_a_lagging_and_a_current_consumer_get_the_same_entries(tmp_path: Path, ordering: str) -> None:
    """R-READ-3: no skip and no repeat, whichever way it is read."""

    async def story(log: Log) -> None:
        count = PAGE_ENTRIES + 500  # more than one page
        await log.append_batch([b"old"] * PAGE_ENTRIES)
        await log.append_batch([b"old"] * 500)
        feed = Feed(log, await log.tail() + 1)
        late = asyncio.create_task(take(feed, 1, count + 101))
        live = asyncio.create_task(take(feed, count + 1, count + 101))
        for _ in range(10):
            await log.append_batch([b"new"] * 10)
        assert await late == list(range(1, count + 101))
        assert await live == list(range(count + 1, count + 101))
        await feed.close()

    with_log(tmp_path, story, ordering=ordering, streams=2)


def test_entries_too_large_to_be_kept_together_arrive_all_the_same(tmp_path: Path) -> None:
    """The page that is read has more than the cache holds: what was asked for is not what goes."""

    async def story(log: Log) -> None:
        await log.append_batch([bytes(200_000)] * 5)
        feed = Feed(log, 6, cache_bytes=1)
        assert await take(feed, 1, 6) == [1, 2, 3, 4, 5]
        await feed.close()

    with_log(tmp_path, story)


def test_consumers_of_the_same_page_share_it(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await log.append_batch([b"x"] * 10)
        feed = Feed(log, 11)
        assert feed.more(3) is feed.more(3)
        assert feed.more(3) is not feed.more(4)
        assert await asyncio.gather(*(take(feed, 3, 11) for _ in range(50))) == [list(range(3, 11))] * 50
        await feed.close()

    with_log(tmp_path, story)


def test_a_trim_is_reported_to_the_consumers_that_want_it_and_to_no_other(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await log.append_batch([b"x"] * 10)
        await log.trim(5)
        feed = Feed(log, 11)
        with pytest.raises(Trimmed) as trimmed:
            await take(feed, 2, 11)
        assert (trimmed.value.position, trimmed.value.oldest) == (2, 6)
        assert await take(feed, 6, 11) == [6, 7, 8, 9, 10]
        await log.append(b"more")
        assert await take(feed, 11, 12) == [11]
        assert feed.failure is None
        await feed.close()

    with_log(tmp_path, story)


def test_a_feed_that_was_overtaken_by_a_trim_continues_behind_it(tmp_path: Path) -> None:
    """It may have been slow itself: the node that it read from was away, say."""

    async def story(log: Log) -> None:
        await log.append_batch([b"x"] * 10)
        await log.trim(8)
        feed = Feed(log, 3)
        await asyncio.wait([feed.news])
        assert feed.next >= 9
        assert await take(feed, 9, 11) == [9, 10]
        with pytest.raises(Trimmed):
            await take(feed, 3, 11)
        await feed.close()

    with_log(tmp_path, story)


def test_closing_a_feed_ends_its_waiters_with_that_error(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        feed = Feed(log, 1)
        waiting = asyncio.create_task(take(feed, 1, 2))
        await asyncio.sleep(0)
        await feed.close()
        with pytest.raises(Unavailable):
            await waiting

    with_log(tmp_path, story)
