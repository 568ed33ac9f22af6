"""Link: one connection to a cluster for a Python process of Spark, kept between the tasks that it runs.

Spark's Python workers run task after task; a new connection for each would cost more than many a micro-batch.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, TypeVar

from varlog import aio
from varlog.client.admin import Admin
from varlog.client.log import Log
from varlog.runtime.loop_thread import LoopThread
from varlog.spark.options import Where

T = TypeVar("T")

_links: dict[tuple[int, Where], Link] = {}


def link_to(where: Where) -> Link:
    """The link of this process to a cluster; made once. A child of a fork makes its own."""
    key = (os.getpid(), where)
    link = _links.get(key)
    if link is None:
        link = _links[key] = Link(where)
    return link


class Link:
    """A loop in a thread, and the clients that live in it. Used by one thread at a time."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self._thread = LoopThread("varlog-spark")
        self._admin: Admin | None = None
        self._logs: dict[str, Log] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done in the loop."""
        return self._thread.run(work)

    def items(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """What an async generator yields; the next item is fetched while the last one is used."""
        coming = self._thread.start(_next(source))
        try:
            while (item := coming.wait()) is not None:
                coming = self._thread.start(_next(source))
                yield item
        finally:
            coming.cancel()
            self._thread.run(_close(source))

    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = self.run(_opened(aio.admin(self.where.address, cluster=self.where.cluster)))
        return self._admin

    def log(self, topic: str) -> Log:
        """The log of a topic that is there: nothing is created by looking."""
        log = self._logs.get(topic)
        if log is None:
            where = self.where
            opening = aio.connect(
                where.address, topic, create=False, cluster=where.cluster, timeout_s=where.timeout_s
            )
            log = self._logs[topic] = self.run(_opened(opening))
        return log


async def _opened(opening: aio.Opening[Any]) -> Any:
    return await opening


async def _next(source: AsyncGenerator[T, None]) -> T | None:
    return await anext(source, None)


async def _close(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()
