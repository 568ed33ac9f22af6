"""Link: the connection that a Python process of Spark keeps between its tasks

Spark's Python workers run task after task; a new connection for each would cost more than many a micro-batch.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncGenerator, Coroutine, Generator
from functools import cache
from typing import Any, TypeVar

from varlog import aio
from varlog.client.admin import Admin
from varlog.client.log import Log
from varlog.model.errors import UnknownTopic
from varlog.runtime.loop_thread import LoopThread, Started
from varlog.runtime.process import keep_freed
from varlog.spark.options import Where

T = TypeVar("T")

# Whether anybody is there is known long before a slow answer would be.
REACH_S = 10.0

_links: dict[tuple[int, Where], Link] = {}


def link_to(where: Where) -> Link:
    """The link of this process to a cluster; made once. A child of a fork makes its own."""
    key = (os.getpid(), where)
    link = _links.get(key)
    if link is None:
        link = _links[key] = Link(where)
    return link


def close_links() -> None:
    """Let go of everything in this process. A process of Spark's own never does: it ends."""
    for key in [key for key in _links if key[0] == os.getpid()]:
        _links.pop(key).close()


class Link:
    """A loop in a thread, and the clients that live in it. Used by one thread at a time."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self._thread = LoopThread("varlog-spark")
        self._cluster = where.cluster
        self._admin: Admin | None = None
        self._logs: dict[str, Log] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done in the loop."""
        return self._thread.run(work)

    def start(self, work: Coroutine[Any, Any, T]) -> Started[T]:
        """Start `work` in the loop, and do not wait for it."""
        return self._thread.start(work)

    def items(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """What an async generator yields; the next item is fetched while the last one is used."""
        # A generator cannot be closed while it is asked, and a question that is cancelled takes a while to end.
        turn = asyncio.Lock()
        coming = self._thread.start(_next(source, turn))
        try:
            while (item := coming.wait()) is not None:
                coming = self._thread.start(_next(source, turn))
                yield item
        finally:
            coming.cancel()
            self._thread.run(_close(source, turn))

    def admin(self) -> Admin:
        if self._admin is None:
            where, cluster = self.where, self._reached()
            opening = aio.admin(where.address, cluster=cluster, timeout_s=where.timeout_s)
            self._admin = self.run(_opened(opening))
        return self._admin

    def log(self, topic: str) -> Log:
        """The log of a topic that is there: nothing is created by looking."""
        log = self._logs.get(topic)
        if log is None:
            where, cluster = self.where, self._reached()
            opening = aio.connect(
                where.address, topic, create=False, cluster=cluster, timeout_s=where.timeout_s
            )
            log = self._logs[topic] = self.run(_opened(opening))
        return log

    def fresh_log(self, topic: str) -> Log:
        """As `log`, by a view of now: a topic that was deleted is unknown, and one that was made anew is the new one."""
        log = self.log(topic)
        if self.run(log.connector.view()).topic_named(topic) is None:
            raise UnknownTopic(topic)
        return log

    def _reached(self) -> int:
        """Which cluster is there; whatever is asked later may take longer than this."""
        if not self._cluster:
            self._cluster = self.run(_cluster_at(self.where.address, min(REACH_S, self.where.timeout_s)))
        return self._cluster

    def close(self) -> None:
        for log in self._logs.values():
            self.run(log.close())
        if self._admin is not None:
            self.run(self._admin.close())
        self._thread.close()


async def _cluster_at(address: str, timeout_s: float) -> int:
    async with aio.admin(address, timeout_s=timeout_s) as admin:
        return admin.cluster


async def _opened(opening: aio.Opening[Any]) -> Any:
    return await opening


async def _next(source: AsyncGenerator[T, None], turn: asyncio.Lock) -> T | None:
    async with turn:
        return await anext(source, None)


async def _close(source: AsyncGenerator[Any, None], turn: asyncio.Lock) -> None:
    async with turn:
        await source.aclose()


# settle(): makes a Python process of Spark's own fit for task after task: what is loaded stays, what is freed is kept.

# What Spark runs as a program to have workers.
_WORKERS = ("pyspark.daemon", "pyspark.worker")


def prepare_worker() -> None:
    """To be called by a task when it begins. In any other process than a worker nothing happens.

    Spark collects garbage behind every task. Walking over everything that was ever imported takes longer than many a task; and
    none of that is garbage. Not once only: a first task loads much after this; and what is left behind a collection is in use.
    """
    if _is_worker():
        _keep_freed_once()
        gc.freeze()


@cache
def _keep_freed_once() -> None:
    keep_freed()
    gc.collect()


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name in _WORKERS
