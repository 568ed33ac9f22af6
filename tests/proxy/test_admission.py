"""Claims about what a proxy lets in: bounded appends, bytes and subscriptions; one too many costs nothing and is told (R-USE-1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.proxy.helpers import Proxy, with_proxy
from varlog.proxy.admission import Admission
from varlog.proxy.errors import TooBusy
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.meters import ProxyMeters


def admission(**limits: int) -> Admission:
    return Admission(ProxyLimits(**limits), ProxyMeters())


def test_as_many_appends_as_allowed_are_under_way_and_no_more() -> None:
    door = admission(appends_max=2)
    with door.append(1), door.append(1), pytest.raises(TooBusy, match="appends"), door.append(1):
        pass
    with door.append(1), door.append(1):
        assert door.appends == 2
    assert (door.appends, door.append_bytes) == (0, 0)


def test_bytes_count_but_one_append_alone_is_never_too_large() -> None:
    """Else one that the limit of a body allows could never be made."""
    door = admission(append_bytes_max=100)
    with door.append(1_000), pytest.raises(TooBusy, match="bytes of appends"), door.append(1):
        pass
    with door.append(60), door.append(40), pytest.raises(TooBusy), door.append(1):
        pass
    assert (door.appends, door.append_bytes) == (0, 0)


def test_an_append_that_fails_is_not_under_way_any_more() -> None:
    door = admission()
    with pytest.raises(RuntimeError), door.append(7):
        raise RuntimeError
    assert (door.appends, door.append_bytes) == (0, 0)


def test_a_subscription_that_is_given_back_twice_counts_once() -> None:
    door = admission(subscriptions_max=2)
    leave, _ = door.subscribe("events"), door.subscribe("socket")
    with pytest.raises(TooBusy, match="subscriptions"):
        door.subscribe("events")
    leave()
    leave()
    assert door.subscriptions == 1


def test_appends_over_the_limit_are_refused_with_429_and_are_not_in_the_log(tmp_path: Path) -> None:
    """The body of the one that is let in does not end until the others were refused: no luck is needed."""

    async def story(proxy: Proxy) -> None:
        refused = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"first"
            await refused.wait()

        async def append_first() -> int:
            octets = {"Content-Type": "application/octet-stream"}
            return (
                await proxy.http.post("/v1/topics/orders/entries", content=body(), headers=octets)
            ).status_code

        first = asyncio.create_task(append_first())
        while proxy.app.state.admission.appends == 0:
            await asyncio.sleep(0)
        answers = [await proxy.http.post("/v1/topics/orders/entries", content=b"more") for _ in range(3)]
        refused.set()
        assert [answer.status_code for answer in answers] == [429] * 3
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers)
        assert {answer.json()["type"] for answer in answers} == {"urn:varlog:too-busy"}
        assert {answer.json()["outcome"] for answer in answers} == {"none"}
        assert await first == 201
        assert (await proxy.http.get("/v1/topics/orders/tail")).json()["newest"] == 1

    with_proxy(tmp_path, story, limits=ProxyLimits(appends_max=1))
