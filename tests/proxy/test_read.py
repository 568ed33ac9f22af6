"""Reading through the proxy: a position, a range as pages or as a stream, the tail, and trimming."""

from __future__ import annotations

import json
from pathlib import Path
from struct import unpack_from
from typing import Any

import pyarrow as pa
import pytest

from tests.proxy.helpers import Proxy, with_proxy
from varlog.proxy.limits import ProxyLimits

ENTRIES = "/v1/topics/orders/entries"
ARROW = "application/vnd.apache.arrow.stream"


async def _append(proxy: Proxy, *data: bytes, topic: str = "orders") -> None:
    await (await proxy.gateway.log(topic)).append_batch(data)


async def _get(proxy: Proxy, path: str, accept: str = "application/json", status: int = 200) -> Any:
    answer = await proxy.http.get(path, headers={"Accept": accept})
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("data", "encoding", "rendered", "how"),
    [
        (b"text", "auto", "text", "text"),
        (b"\xff", "auto", "/w==", "base64"),
        (b'{"a":1}', "auto", '{"a":1}', "text"),
        (b"text", "base64", "dGV4dA==", "base64"),
        (b"\xff", "text", "/w==", "base64"),
        (b'{"a":\n1}', "json", {"a": 1}, "json"),
        (b"12", "json", 12, "json"),
        (b"not json", "json", "not json", "text"),
        (b'"\xff"', "json", "Iv8i", "base64"),
        (b"", "json", "", "text"),
        (b"[" * 9999, "json", "[" * 9999, "text"),
    ],
)
def test_an_entry_is_encoded_as_requested_or_names_its_encoding(
    tmp_path: Path, data: bytes, encoding: str, rendered: object, how: str
) -> None:
    async def story(proxy: Proxy) -> None:
        await _append(proxy, data)
        entry = await _get(proxy, f"{ENTRIES}/1?encoding={encoding}")
        assert (entry["data"], entry["encoding"]) == (rendered, how)
        assert entry["timestamp"].endswith("Z") and (entry["glsn"], entry["llsn"]) == (1, 1)

    with_proxy(tmp_path, story)


def test_bytes_come_as_they_are_with_their_positions_in_headers(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        await _append(proxy, b"one", b"\x00\xff\n")
        answer = await proxy.http.get(f"{ENTRIES}/2", headers={"Accept": "application/octet-stream"})
        assert (answer.status_code, answer.content) == (200, b"\x00\xff\n")
        assert (answer.headers["Varlog-GLSN"], answer.headers["Varlog-LLSN"]) == ("2", "2")

    with_proxy(tmp_path, story)


def test_positions_without_an_entry_have_a_reason(tmp_path: Path) -> None:
    """R-READ-1"""

    async def story(proxy: Proxy) -> None:
        await _append(proxy, b"one", b"two")
        await (await proxy.gateway.log("orders")).trim(1)
        gone = await _get(proxy, f"{ENTRIES}/1", status=410)
        assert (gone["type"], gone["facts"]) == ("urn:varlog:trimmed", {"position": 1, "oldest": 2})
        unwritten = await _get(proxy, f"{ENTRIES}/3", status=404)
        assert (unwritten["type"], unwritten["facts"]) == (
            "urn:varlog:not-written",
            {"position": 3, "newest": 2},
        )
        for no_position in ("0", "-1", "x", str(2**63)):
            assert (await _get(proxy, f"{ENTRIES}/{no_position}", status=422))[
                "type"
            ] == "urn:varlog:bad-parameter"

    with_proxy(tmp_path, story)


@pytest.mark.parametrize("ordering", ["committed", "sequenced"])
def test_pages_follow_each_other_without_a_gap(tmp_path: Path, ordering: str) -> None:
    async def story(proxy: Proxy) -> None:
        await proxy.create_topic("pages", streams=2, ordering=ordering)
        for number in range(10):
            await _append(proxy, str(number).encode(), topic="pages")
        found: list[str] = []
        place, tail = 1, 0
        for _ in range(4):
            page = await _get(proxy, f"/v1/topics/pages/entries?from={place}&limit=3")
            found += [entry["data"] for entry in page["entries"]]
            place, tail = page["next"], page["tail"]
        assert found == [str(number) for number in range(10)]
        assert (place, tail) == (11, 10)
        assert (await _get(proxy, f"/v1/topics/pages/entries?from={place}"))["entries"] == []

    with_proxy(tmp_path, story)


def test_a_page_ends_where_its_bytes_do_but_has_one_entry_at_least(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        await _append(proxy, b"x" * 60, b"y" * 40, b"z" * 200, b"!")
        pages = []
        place = 1
        while place <= 4:
            page = await _get(proxy, f"{ENTRIES}?from={place}")
            pages.append([entry["data"][0] for entry in page["entries"]])
            place = page["next"]
        assert pages == [["x", "y"], ["z"], ["!"]]

    with_proxy(tmp_path, story, limits=ProxyLimits(page_bytes_max=100))


def test_a_range_begins_at_the_oldest_and_ends_before_until(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        await _append(proxy, *(str(number).encode() for number in range(1, 8)))
        await (await proxy.gateway.log("orders")).trim(2)
        whole = await _get(proxy, ENTRIES)
        assert [entry["glsn"] for entry in whole["entries"]] == [3, 4, 5, 6, 7]
        part = await _get(proxy, f"{ENTRIES}?from=4&until=6")
        assert ([entry["glsn"] for entry in part["entries"]], part["next"]) == ([4, 5], 6)
        assert await _get(proxy, f"{ENTRIES}?from=99") == {"entries": [], "next": 99, "tail": 7}
        assert (await _get(proxy, f"{ENTRIES}?from=6&until=4"))["next"] == 6
        assert (await _get(proxy, f"{ENTRIES}?from=2", status=410))["facts"] == {"position": 2, "oldest": 3}

    with_proxy(tmp_path, story)


def test_streams_of_a_range_hold_the_same_entries(tmp_path: Path) -> None:
    data = [b"one", b"", b'{"a":\n 1}', b"\xff", "grün".encode()]

    async def story(proxy: Proxy) -> None:
        await _append(proxy, *data)

        async def stream(accept: str, query: str = "") -> bytes:
            answer = await proxy.http.get(f"{ENTRIES}{query}", headers={"Accept": accept})
            assert answer.status_code == 200, answer.text
            assert answer.headers["Content-Type"].partition(";")[0] == accept
            assert answer.headers["Varlog-Tail"] == "5"
            return answer.content

        lines = (await stream("application/x-ndjson", "?encoding=json")).splitlines()
        assert [json.loads(line)["data"] for line in lines] == ["one", "", {"a": 1}, "/w==", "grün"]
        assert await stream("text/plain") == b"".join(one + b"\n" for one in data)
        assert _framed(await stream("application/octet-stream", "?from=2&limit=3")) == data[1:4]
        table = pa.ipc.open_stream(await stream(ARROW, "?until=4")).read_all()
        assert table.column("data").to_pylist() == data[:3]
        assert table.column("glsn").to_pylist() == [1, 2, 3]
        assert pa.ipc.open_stream(await stream(ARROW, "?from=6")).read_all().num_rows == 0

    with_proxy(tmp_path, story)


def _framed(stream: bytes) -> list[bytes]:
    entries, at = [], 0
    while at < len(stream):
        (size,) = unpack_from(">I", stream, at)
        entries.append(stream[at + 4 : at + 4 + size])
        at += 4 + size
    return entries


def test_a_stream_is_not_bound_to_a_page(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        await _append(proxy, *(str(number).encode() for number in range(50)))
        answer = await proxy.http.get(ENTRIES, headers={"Accept": "text/plain"})
        assert answer.text.split() == [str(number) for number in range(50)]
        assert len((await _get(proxy, f"{ENTRIES}?limit=50"))["entries"]) == 5

    with_proxy(tmp_path, story, limits=ProxyLimits(page_entries=5, page_entries_max=5))


def test_what_cannot_be_streamed_is_answered_as_a_problem(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        await _append(proxy, b"one", b"two")
        await (await proxy.gateway.log("orders")).trim(1)
        for accept in ("application/x-ndjson", ARROW):
            assert (await _get(proxy, f"{ENTRIES}?from=1", accept, 410))["type"] == "urn:varlog:trimmed"
        problem = await _get(proxy, ENTRIES, "image/png", 406)
        assert problem["type"] == "urn:varlog:not-acceptable" and ARROW in problem["remedy"]

    with_proxy(tmp_path, story)


def test_streams_of_ranges_count_as_subscriptions_and_give_their_place_back(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        await _append(proxy, b"one")
        for _ in range(3):  # each has given back the one place that there is
            answer = await proxy.http.get(ENTRIES, headers={"Accept": "text/plain"})
            assert answer.text == "one\n"
        held = proxy.app.state.admission.subscribe("range", "a")
        problem = await _get(proxy, ENTRIES, "text/plain", 429)
        assert (problem["type"], problem["facts"]["limit"]) == ("urn:varlog:too-busy", 1)
        held()
        assert (await proxy.http.get(ENTRIES, headers={"Accept": "text/plain"})).status_code == 200

    with_proxy(tmp_path, story, limits=ProxyLimits(subscriptions_max=1))


def test_the_tail_and_the_oldest_position_are_returned(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        assert await _get(proxy, "/v1/topics/orders/tail") == {"topic": "orders", "newest": 0, "oldest": 1}
        await _append(proxy, b"one", b"two")
        assert (await _get(proxy, "/v1/topics/orders/tail"))["newest"] == 2

    with_proxy(tmp_path, story)


def test_a_trim_spares_what_a_named_reader_has_not_read_unless_it_is_forced(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        await _append(proxy, b"one", b"two", b"three")
        await (await proxy.gateway.log("orders")).set_reader("billing", 1)
        trim = "/v1/topics/orders/trim"
        refused = await proxy.http.post(trim, json={"until": 2})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:varlog:reader-behind")
        assert refused.json()["facts"] == {"reader": "billing", "position": 1, "asked": 2}
        assert (await proxy.http.post(trim, json={"until": 1})).json()["oldest"] == 2
        assert (await proxy.http.post(trim, json={"until": 2, "force": True})).json()["oldest"] == 3
        beyond = await proxy.http.post(trim, json={"until": 9, "force": True})
        assert (beyond.status_code, beyond.json()["type"]) == (409, "urn:varlog:trim-beyond-tail")

    with_proxy(tmp_path, story)
