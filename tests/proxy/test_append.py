"""Appending through the proxy: every kind of body, as one atomic batch, and what is refused."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.proxy.helpers import Proxy, with_proxy
from varlog.proxy.limits import ProxyLimits

ENTRIES = "/v1/topics/orders/entries"
LINES = {"Content-Type": "text/plain"}
JSON_LINES = {"Content-Type": "application/x-ndjson"}
BYTES = {"Content-Type": "application/octet-stream"}


async def _data(proxy: Proxy, topic: str = "orders") -> list[bytes]:
    """What is in the log, as the client library reads it."""
    log = await proxy.gateway.log(topic)
    return [entry.data async for entry in log.subscribe(1, await log.tail() + 1)]


@pytest.mark.parametrize("ordering", ["committed", "sequenced"])
def test_json_entries_are_one_batch_at_consecutive_positions(tmp_path: Path, ordering: str) -> None:
    """R-USE-1, R-ORD-5: appended over HTTP, read with the client library."""

    async def story(proxy: Proxy) -> None:
        await proxy.create_topic("ledger", ordering=ordering)
        entries = [
            {"text": "grün"},
            {"base64": base64.b64encode(b"\x00\xff").decode()},
            {"json": {"a": [1, 2.50]}},
        ]
        answer = await proxy.http.post("/v1/topics/ledger/entries", json={"entries": entries})
        assert answer.status_code == 201, answer.text
        appended = answer.json()
        assert {**appended, "log_stream": 0} == {
            "topic": "ledger",
            "log_stream": 0,
            "glsn": 1,
            "llsn": 1,
            "count": 3,
        }
        assert answer.headers["Location"] == "/v1/topics/ledger/entries/1"
        assert await _data(proxy, "ledger") == ["grün".encode(), b"\x00\xff", b'{"a":[1,2.5]}']

    with_proxy(tmp_path, story)


def test_a_json_value_is_stored_as_it_was_written(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        body = b'{"entries": [{"json": {"n": 12345678901234567890123.50,  "e": 1e2}}, {"json": null}]}'
        answer = await proxy.http.post(
            ENTRIES, content=body, headers={"Content-Type": "application/json; charset=utf-8"}
        )
        assert answer.status_code == 201, answer.text
        assert await _data(proxy) == [b'{"n": 12345678901234567890123.50,  "e": 1e2}', b"null"]

    with_proxy(tmp_path, story)


@pytest.mark.parametrize(
    ("headers", "body", "entries"),
    [
        (LINES, b"one\ntwo\n", [b"one", b"two"]),
        (LINES, b"one\n\ntwo", [b"one", b"", b"two"]),
        (LINES, b"\n", [b""]),
        (LINES, b"a\r\n\xff", [b"a\r", b"\xff"]),
        (JSON_LINES, b'{"a":1}\n\n{"a":2}\n', [b'{"a":1}', b'{"a":2}']),
        (BYTES, b"one\ntwo\n", [b"one\ntwo\n"]),
        (BYTES, b"", [b""]),
        ({}, b"\x00", [b"\x00"]),
    ],
    ids=[
        "lines",
        "empty lines are entries",
        "one empty line",
        "bytes stay",
        "json lines",
        "bytes",
        "no bytes",
        "no type",
    ],
)
def test_a_body_is_entries_by_its_media_type(
    tmp_path: Path, headers: dict[str, str], body: bytes, entries: list[bytes]
) -> None:
    async def story(proxy: Proxy) -> None:
        answer = await proxy.http.post(ENTRIES, content=body, headers=headers)
        assert answer.status_code == 201, answer.text
        assert answer.json()["count"] == len(entries)
        assert await _data(proxy) == entries

    with_proxy(tmp_path, story)


@pytest.mark.parametrize(
    ("headers", "body", "status", "name"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"a=b", 415, "unsupported-media"),
        ({"Content-Type": "application/json"}, b'{"entries": []}', 422, "empty-batch"),
        ({"Content-Type": "application/json"}, b'{"entries": [{}]}', 422, "bad-body"),
        ({"Content-Type": "application/json"}, b'{"entries": [{"text": "a", "json": 1}]}', 422, "bad-body"),
        ({"Content-Type": "application/json"}, b'{"entries": [{"base64": "*"}]}', 422, "bad-body"),
        ({"Content-Type": "application/json"}, b'{"entries": [{"text": "a"}], "more": 1}', 422, "bad-body"),
        ({"Content-Type": "application/json"}, b'{"entries": [{"json": "\xff"}]}', 422, "bad-body"),
        ({"Content-Type": "application/json"}, b'{"entries": [{"json": ' + b"[" * 9999, 422, "bad-body"),
        ({"Content-Type": "application/json"}, b'{"entries": ', 422, "bad-body"),
        ({"Content-Type": "application/json"}, b"", 422, "bad-body"),
        ({}, b"", 422, "bad-body"),
        (LINES, b"", 422, "empty-batch"),
        (JSON_LINES, b"\n \n", 422, "empty-batch"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_and_nothing_is_appended(
    tmp_path: Path, headers: dict[str, str], body: bytes, status: int, name: str
) -> None:
    async def story(proxy: Proxy) -> None:
        answer = await proxy.http.post(ENTRIES, content=body, headers=headers)
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (status, f"urn:varlog:{name}")
        assert problem["outcome"] == "none" and problem["remedy"]
        assert await _data(proxy) == []

    with_proxy(tmp_path, story)


def test_a_log_stream_can_be_named_and_one_of_another_topic_cannot(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        await proxy.create_topic("wide", streams=3)
        streams = [stream.log_stream for stream in (await proxy.gateway.log("wide")).streams]
        for stream in streams:
            answer = await proxy.http.post(f"/v1/topics/wide/entries?log_stream={stream}", content=b"x")
            assert (answer.status_code, answer.json()["log_stream"]) == (201, stream)
        answer = await proxy.http.post(f"{ENTRIES}?log_stream={streams[0]}", content=b"x")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:varlog:unknown-log-stream")

    with_proxy(tmp_path, story)


def test_no_topic_is_made_by_appending_to_it(tmp_path: Path) -> None:
    """The embedded cluster itself would make it: an address that is mistyped must not."""

    async def story(proxy: Proxy) -> None:
        answer = await proxy.http.post("/v1/topics/oders/entries", content=b"x")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:varlog:unknown-topic")
        assert answer.json()["facts"] == {"name": "oders"}
        assert [topic.name for topic in await (await proxy.gateway.admin()).topics()] == ["orders"]

    with_proxy(tmp_path, story)


@pytest.mark.parametrize("said", [True, False], ids=["with a length", "without"])
def test_a_body_over_the_limit_is_refused(tmp_path: Path, said: bool) -> None:
    async def story(proxy: Proxy) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(11):
                yield b"x" * 100

        for path in (ENTRIES, "/v1/topics/orders/trim"):
            answer = await proxy.http.post(path, content=b"x" * 1001 if said else pieces())
            problem = answer.json()
            assert (answer.status_code, problem["type"]) == (413, "urn:varlog:body-too-large")
            assert problem["facts"] == {"limit": 1000}
        assert (await proxy.http.post(ENTRIES, content=b"x" * 1000)).status_code == 201

    with_proxy(tmp_path, story, limits=ProxyLimits(body_bytes_max=1000))


def test_an_entry_over_the_limit_of_the_log_is_refused_with_its_size(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        size = 8 * 1024 * 1024 + 1
        answer = await proxy.http.post(ENTRIES, content=bytes(size))
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:varlog:entry-too-large")
        assert answer.json()["facts"] == {"size": size, "limit": size - 1}

    with_proxy(tmp_path, story)


def test_many_callers_at_once_each_get_a_position_of_their_own(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        answers = await asyncio.gather(
            *(proxy.http.post(ENTRIES, content=str(number).encode()) for number in range(100))
        )
        by_position = {answer.json()["glsn"]: str(number).encode() for number, answer in enumerate(answers)}
        assert [by_position[position] for position in range(1, 101)] == await _data(proxy)

    with_proxy(tmp_path, story)


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://localhost", 201), ("http://elsewhere.example", 403), ("null", 403), ("http://[", 403)],
)
def test_a_page_of_another_server_cannot_append_through_a_browser(
    tmp_path: Path, origin: str, status: int
) -> None:
    """A browser sends a plain POST of any page without asking; it says where the page is from."""

    async def story(proxy: Proxy) -> None:
        answer = await proxy.http.post(ENTRIES, content=b"x", headers={**LINES, "Origin": origin})
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["type"] == "urn:varlog:foreign-origin"
            assert await _data(proxy) == []
        read = await proxy.http.get("/v1/topics/orders/tail", headers={"Origin": origin})
        assert read.status_code == (200 if status == 201 else 403)

    with_proxy(tmp_path, story)
