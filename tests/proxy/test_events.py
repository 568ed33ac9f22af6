"""Claims about server-sent events: order, resume, trims, keep-alive, and how a stream ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.proxy.live_helpers import LiveProxy, wait_until, with_live_proxy
from varlog.proxy.limits import ProxyLimits


def test_existing_and_future_entries_arrive_in_order(tmp_path: Path) -> None:
    """R-READ-3 through the proxy."""

    async def story(proxy: LiveProxy) -> None:
        log = await proxy.log()
        await log.append_batch([b"a", b"\xff", b'{"n": 1}'])
        async with proxy.events("from=1") as events:
            assert await events.status() == 200
            name, place, entry = await events.next()
            assert (name, place, entry["glsn"], entry["data"], entry["encoding"]) == (
                "message",
                1,
                1,
                "a",
                "text",
            )
            assert (await events.next())[2]["data"] == "/w=="
            assert (await events.next())[2]["data"] == '{"n": 1}'
            await log.append(b"later")
            assert (await events.next())[2]["data"] == "later"

    with_live_proxy(tmp_path, story)


def test_a_client_that_returns_with_the_last_id_gets_each_entry_once(tmp_path: Path) -> None:
    """R-READ-3 through the proxy: over reconnects."""

    async def story(proxy: LiveProxy) -> None:
        log = await proxy.log()
        await log.append_batch([b"%d" % n for n in range(1000)])
        async with proxy.events("from=oldest") as events:
            await events.status()
            seen = await events.ids(137)
        await log.append_batch([b"more"] * 10)
        async with proxy.events("from=oldest", last_event_id=str(seen[-1])) as events:
            await events.status()
            seen += await events.ids(1010 - 137)
        assert seen == list(range(1, 1011))

    with_live_proxy(tmp_path, story)


@pytest.mark.parametrize(
    ("begin", "first"), [("7", 7), ("oldest", 1), ("next", 11), ("-3", 8), ("-99", 1), ("12", 12)]
)
def test_a_follower_begins_at_the_requested_position(tmp_path: Path, begin: str, first: int) -> None:
    async def story(proxy: LiveProxy) -> None:
        log = await proxy.log()
        await log.append_batch([b"x"] * 10)
        async with proxy.events(f"from={begin}") as events:
            assert await events.status() == 200
            await log.append_batch([b"y"] * 3)
            assert await events.ids(2) == [first, first + 1]

    with_live_proxy(tmp_path, story)


def test_a_follower_whose_start_is_trimmed_is_refused_before_the_stream_begins(tmp_path: Path) -> None:
    """A browser does not come back after a status like this one: it would ask for the same again."""

    async def story(proxy: LiveProxy) -> None:
        log = await proxy.log()
        await log.append_batch([b"x"] * 10)
        await log.trim(6)
        async with proxy.events(last_event_id="3") as events:
            assert await events.status() == 410
            problem = await events.body()
            assert problem["type"] == "urn:varlog:trimmed"
            assert problem["facts"] == {"position": 4, "oldest": 7}
        async with proxy.events("skip_trimmed=true", last_event_id="3") as events:
            assert await events.status() == 200
            name, place, problem = await events.next()
            assert (name, place, problem["facts"]["oldest"]) == ("trimmed", 6, 7)
            assert await events.ids(4) == [7, 8, 9, 10]

    with_live_proxy(tmp_path, story)


def test_a_stream_ends_before_until_and_a_browser_does_not_come_back(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        log = await proxy.log()
        await log.append_batch([b"x"] * 5)
        async with proxy.events("from=1&until=8") as events:
            await events.status()
            assert await events.ids(5) == [1, 2, 3, 4, 5]
            await log.append_batch([b"x"] * 5)
            assert await events.ids(2) == [6, 7]
            assert await events.next() == ("end", None, {})
            with pytest.raises(EOFError):
                await events.next()
        async with proxy.events("from=1&until=8", last_event_id="7") as events:
            assert await events.status() == 204

    with_live_proxy(tmp_path, story)


def test_a_stream_in_which_nothing_happens_is_kept_alive(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.events() as events:
            assert await events.status() == 200
            assert await events.comment() == b": nothing new"
            assert await events.comment() == b": nothing new"

    with_live_proxy(tmp_path, story, limits=ProxyLimits(keep_alive_s=0.01))


def test_one_subscription_too_many_is_refused_until_another_one_leaves(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.events() as events:
            assert await events.status() == 200
            async with proxy.events() as refused:
                assert await refused.status() == 429
                assert (await refused.body())["facts"]["limit"] == 1
            assert proxy.metric("varlog_proxy_requests_refused_total", what="subscriptions") == 1
        await wait_until(lambda: proxy.app.state.admission.subscriptions == 0)
        async with proxy.events() as events:
            assert await events.status() == 200

    with_live_proxy(tmp_path, story, limits=ProxyLimits(subscriptions_max=1))


def test_a_feed_ends_with_its_last_follower(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.events() as one, proxy.events() as two:
            assert (await one.status(), await two.status()) == (200, 200)
            assert proxy.followers.feeds == 1
            assert proxy.metric("varlog_proxy_subscriptions", kind="events") == 2
        await wait_until(lambda: proxy.followers.feeds == 0)
        await wait_until(lambda: proxy.metric("varlog_proxy_subscriptions", kind="events") == 0)

    with_live_proxy(tmp_path, story)


def test_deleting_a_topic_ends_its_followers_with_that_error(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.events() as events:
            await events.status()
            await (await proxy.gateway.admin()).delete_topic("orders")
            name, _, problem = await events.next()
            assert (name, problem["type"]) == ("end", "urn:varlog:unknown-topic")

    with_live_proxy(tmp_path, story)


def test_a_proxy_that_stops_notifies_its_followers_and_does_not_wait_for_them(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.events() as events:
            await events.status()
            proxy.server.should_exit = True
            name, _, problem = await events.next()
            assert (name, problem["type"]) == ("end", "urn:varlog:stopping")
            with pytest.raises((EOFError, asyncio.IncompleteReadError)):
                await events.next()

    with_live_proxy(tmp_path, story)


def test_a_subscription_lasts_as_long_as_the_proxy_allows(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.events() as events:
            await events.status()
            name, _, problem = await events.next()
            assert (name, problem["type"]) == ("end", "urn:varlog:subscription-over")

    with_live_proxy(tmp_path, story, limits=ProxyLimits(subscription_s=0.05, keep_alive_s=0.02))


@pytest.mark.parametrize(
    "query", ["from=0", "from=soon", "from=99999999999999999999", "until=0", "encoding=hex"]
)
def test_what_cannot_be_followed_is_refused_as_any_other_request(tmp_path: Path, query: str) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.events(query) as events:
            assert await events.status() == 422
            assert (await events.body())["type"] == "urn:varlog:bad-parameter"

    with_live_proxy(tmp_path, story)
