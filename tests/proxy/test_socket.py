"""Claims about WebSockets: entries in order, appends on the same connection, how it is refused and closed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.proxy.live_helpers import LiveProxy, wait_until, with_live_proxy
from varlog.proxy.limits import ProxyLimits


async def received(socket: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(await socket.recv())
    return message


async def entries(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    """The next entries, in however many messages they come."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += (await received(socket))["entries"]
    assert len(found) == count
    return found


def test_entries_arrive_in_order_from_any_position_on(tmp_path: Path) -> None:
    """R-READ-3 through the proxy."""

    async def story(proxy: LiveProxy) -> None:
        log = await proxy.log()
        await log.append_batch([b"%d" % n for n in range(1, 3001)])
        async with proxy.socket("from=5") as socket:
            found = await entries(socket, 2996)
            assert [entry["glsn"] for entry in found] == list(range(5, 3001))
            assert [entry["data"] for entry in found] == [str(n) for n in range(5, 3001)]
            await log.append(b"later")
            assert (await entries(socket, 1))[0]["data"] == "later"

    with_live_proxy(tmp_path, story)


def test_appends_of_a_socket_are_made_in_the_order_of_its_messages(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.socket("follow=false") as socket:
            for n in range(40):
                await socket.send(json.dumps({"append": [{"text": f"{n}a"}, {"json": n}], "ref": {"n": n}}))
            answers = [await received(socket) for _ in range(40)]
        assert [answer["ref"] for answer in answers] == [{"n": n} for n in range(40)]
        assert [answer["appended"]["glsn"] for answer in answers] == list(range(1, 81, 2))
        assert answers[0]["appended"] == {
            "topic": "orders",
            "log_stream": 1,
            "glsn": 1,
            "llsn": 1,
            "count": 2,
        }
        assert (await (await proxy.log()).read(4)).data == b"1"
        assert proxy.metric("varlog_proxy_appended_entries_total") == 80

    with_live_proxy(tmp_path, story)


@pytest.mark.parametrize(
    ("message", "problem", "ref"),
    [
        ("{", "bad-body", None),
        ('{"append": []}', "empty-batch", None),
        ('{"append": [{"text": "x", "json": 1}], "ref": 1}', "bad-body", 1),
        ('{"append": [{"text": "x"}], "ref": "r", "log_stream": 99}', "unknown-log-stream", "r"),
        ('{"append": [{"text": "x"}], "timeout": 0}', "bad-body", None),
        ('{"read": 7}', "bad-body", None),
    ],
)
def test_a_message_that_is_refused_is_answered_and_the_socket_stays_open(
    tmp_path: Path, message: str, problem: str, ref: object
) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.socket("follow=false") as socket:
            await socket.send(message)
            answer = await received(socket)
            assert answer["problem"]["type"] == f"urn:varlog:{problem}"
            assert answer["problem"]["outcome"] == "none"
            assert answer.get("ref") == ref
            await socket.send('{"append": [{"text": "x"}]}')
            assert (await received(socket))["appended"]["glsn"] == 1

    with_live_proxy(tmp_path, story)


def test_appends_over_the_limit_are_refused_with_their_ref_and_nothing_else_is(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        release = proxy.app.state.admission.begin_append(1, "another")
        async with proxy.socket("follow=false") as socket:
            await socket.send('{"append": [{"text": "x"}], "ref": 7}')
            answer = await received(socket)
            assert (answer["problem"]["type"], answer["ref"]) == ("urn:varlog:too-busy", 7)
            release()
            await socket.send('{"append": [{"text": "x"}], "ref": 8}')
            assert (await received(socket))["ref"] == 8
        await wait_until(lambda: proxy.app.state.admission.appends == 0)

    with_live_proxy(tmp_path, story, limits=ProxyLimits(appends_max=1))


def test_a_socket_is_closed_normally_when_everything_was_sent(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        await (await proxy.log()).append_batch([b"x"] * 9)
        async with proxy.socket("from=3&until=6") as socket:
            assert [entry["glsn"] for entry in await entries(socket, 3)] == [3, 4, 5]
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000

    with_live_proxy(tmp_path, story)


def test_a_socket_whose_topic_is_deleted_is_closed_with_the_reason(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.socket() as socket:
            await (await proxy.gateway.admin()).delete_topic("orders")
            assert (await received(socket))["problem"]["type"] == "urn:varlog:unknown-topic"
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4404
            assert "orders" in closed.value.rcvd.reason
        await wait_until(
            lambda: (
                proxy.metric(
                    "varlog_proxy_subscriptions_dropped_total", kind="socket", reason="unknown-topic"
                )
                == 1
            )
        )

    with_live_proxy(tmp_path, story)


def test_what_was_trimmed_is_reported_and_skipped_on_request(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        log = await proxy.log()
        await log.append_batch([b"x"] * 10)
        await log.trim(6)
        async with proxy.socket("from=2&skip_trimmed=true") as socket:
            assert (await received(socket))["problem"]["facts"]["oldest"] == 7
            assert [entry["glsn"] for entry in await entries(socket, 4)] == [7, 8, 9, 10]

    with_live_proxy(tmp_path, story)


@pytest.mark.parametrize(
    ("query", "headers", "status", "problem"),
    [
        ("from=0", {}, 422, "bad-parameter"),
        ("until=x", {}, 422, "bad-parameter"),
        ("from=1", {}, 410, "trimmed"),
        ("", {"Origin": "http://elsewhere.example"}, 403, "foreign-origin"),
    ],
)
def test_a_socket_that_cannot_be_is_refused_by_an_answer_like_any_other(
    tmp_path: Path, query: str, headers: dict[str, str], status: int, problem: str
) -> None:
    async def story(proxy: LiveProxy) -> None:
        log = await proxy.log()
        await log.append_batch([b"x"] * 3)
        await log.trim(2)
        with pytest.raises(InvalidStatus) as refused:
            async with proxy.socket(query, additional_headers=headers):
                pass
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body)["type"] == f"urn:varlog:{problem}"
        await wait_until(lambda: proxy.metric("varlog_proxy_subscriptions", kind="socket") == 0)

    with_live_proxy(tmp_path, story)


def test_a_page_of_the_proxy_itself_may_open_a_socket(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.socket(additional_headers={"Origin": f"http://127.0.0.1:{proxy.port}"}) as socket:
            await (await proxy.log()).append(b"x")
            assert len(await entries(socket, 1)) == 1

    with_live_proxy(tmp_path, story)


def test_a_socket_that_leaves_gives_back_what_it_held(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.socket() as following, proxy.socket("follow=false") as appending:
            await appending.send('{"append": [{"text": "x"}]}')
            await received(following)
            assert proxy.metric("varlog_proxy_subscriptions", kind="socket") == 2
        await wait_until(lambda: proxy.metric("varlog_proxy_subscriptions", kind="socket") == 0)
        await wait_until(lambda: proxy.followers.feeds == 0 and proxy.app.state.admission.appends == 0)

    with_live_proxy(tmp_path, story)


def test_a_proxy_that_stops_closes_its_sockets_as_one_that_restarts(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with proxy.socket() as socket:
            proxy.server.should_exit = True
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012

    with_live_proxy(tmp_path, story)
