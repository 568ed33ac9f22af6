"""SparkConnection: the connection that a Spark worker keeps between tasks.

Spark's Python workers run task after task; a new connection for each task would cost more than a small micro-batch.
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
from varlog.spark.options import LogLocation

T = TypeVar("T")

# Whether the cluster can be reached at all is known long before a slow answer would arrive.
REACH_S = 10.0

_connections: dict[tuple[int, LogLocation], SparkConnection] = {}


def connection_to(where: LogLocation) -> SparkConnection:
    """The connection of this process to a cluster, created once. A forked child creates its own."""
    key = (os.getpid(), where)
    connection = _connections.get(key)
    if connection is None:
        connection = _connections[key] = SparkConnection(where)
    return connection


def close_connections() -> None:
    """Close every connection of this process. Spark's workers never do: they end."""
    for key in [key for key in _connections if key[0] == os.getpid()]:
        _connections.pop(key).close()


class SparkConnection:
    """An event loop in a thread, and the clients that live in it. Used by one thread at a time."""

    def __init__(self, where: LogLocation) -> None:
        self.where = where
        self._thread = LoopThread("varlog-spark")
        self._cluster = where.cluster
        self._admin: Admin | None = None
        self._logs: dict[str, Log] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop, and return its result."""
        return self._thread.run(work)

    def start(self, work: Coroutine[Any, Any, T]) -> Started[T]:
        """Start `work` in the loop without waiting for it."""
        return self._thread.start(work)

    def items(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """What an async generator yields; the next item is fetched while the last one is used."""
        # A generator cannot be closed while it runs, and a step that is cancelled takes a while to end.
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
        """The log of an existing topic; no topic is created."""
        log = self._logs.get(topic)
        if log is None:
            where, cluster = self.where, self._reached()
            opening = aio.connect(
                where.address, topic, create=False, cluster=cluster, timeout_s=where.timeout_s
            )
            log = self._logs[topic] = self.run(_opened(opening))
        return log

    def fresh_log(self, topic: str) -> Log:
        """As `log`, with a fresh view: a deleted topic is unknown, and a recreated one is the new one."""
        log = self.log(topic)
        if self.run(log.connector.view()).topic_named(topic) is None:
            raise UnknownTopic(topic)
        return log

    def _reached(self) -> int:
        """The cluster at this address; later requests may take longer than this one."""
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


# --- prepare_worker: tunes a Python worker of Spark for many tasks --------------------------------------------------------------

# The programs that Spark runs as workers.
_WORKERS = ("pyspark.daemon", "pyspark.worker")


def prepare_worker() -> None:
    """To be called by a task when it begins. In a process that is no worker nothing happens.

    Spark collects garbage after every task. Visiting everything that was ever imported takes longer than a short task, and none of
    it is garbage. Not only once: a first task imports much after this call; and what survives a collection is in use.
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
