"""Deadlines of requests: named by a parameter or a header, and bounded by the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.proxy.helpers import TEST_S, Proxy, with_proxy
from varlog.proxy.errors import DeadlinePassed
from varlog.proxy.limits import Deadline, ProxyLimits, paced

ENTRIES = "/v1/topics/orders/entries"


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?timeout=0.1", {}),
        ("", {"Varlog-Timeout": "0.1"}),
        ("?timeout=0.1", {"Varlog-Timeout": "999"}),
        ("?timeout=999", {}),
    ],
    ids=["parameter", "header", "the parameter goes before", "no longer than the proxy allows"],
)
def test_an_append_that_nobody_takes_is_given_up_at_its_deadline(
    tmp_path: Path, query: str, headers: dict[str, str]
) -> None:
    """A sealed log stream accepts nothing: certainly not in the log, and the answer says so."""

    async def story(proxy: Proxy) -> None:
        await (await proxy.gateway.admin()).seal_stream(1)
        answer = await proxy.http.post(ENTRIES + query, content=b"x", headers=headers)
        assert answer.status_code == 503, answer.text
        assert answer.json()["outcome"] == "none" and "Retry-After" in answer.headers
        assert await (await proxy.gateway.log("orders")).tail() == 0

    with_proxy(tmp_path, story, limits=ProxyLimits(timeout_s=0.5, timeout_s_max=0.5))


def test_what_takes_too_long_fails_and_is_stopped() -> None:
    stopped = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def run() -> None:
        async with asyncio.timeout(TEST_S):
            deadline = Deadline(0.01)
            with pytest.raises(DeadlinePassed, match=r"0\.01 s"):
                await deadline.wait(endless())
            assert stopped.is_set() and deadline.remaining_s > 0

    asyncio.run(run())


def test_a_source_that_falls_silent_is_closed() -> None:
    closed = asyncio.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def run() -> None:
        async with asyncio.timeout(TEST_S):
            items = paced(source(), 0.01)
            assert await anext(items) == 1
            with pytest.raises(DeadlinePassed):
                await anext(items)
        assert closed.is_set()

    asyncio.run(run())
