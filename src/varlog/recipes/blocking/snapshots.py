"""TopicSnapshots over a log of `varlog.connect`, for recipes without async: its loop is another one than theirs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from varlog.client.blocking import Log
from varlog.model.lsn import GLSN
from varlog.recipes import topic_snapshots
from varlog.runtime.environment import system_environment

T = TypeVar("T")


class TopicSnapshots:
    """In the topic of `log`, which holds nothing else, and is closed after the recipes that use it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._inner = topic_snapshots.TopicSnapshots(log.asynchronous)
        self._environment = system_environment()

    async def save(self, name: str, position: GLSN, content: bytes) -> None:
        """As the inner one."""
        await self._there(self._inner.save(name, position, content))

    async def newest(self, name: str) -> tuple[GLSN, bytes] | None:
        """As the inner one."""
        return await self._there(self._inner.newest(name))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """In the log's loop, while this one goes on."""
        worker = self._environment.make_worker("snapshots")
        try:
            return await worker.run(lambda: self._log.run(work))
        finally:
            await worker.close()
