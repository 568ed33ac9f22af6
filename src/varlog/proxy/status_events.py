"""StatusEvents: the cluster's status as a stream of events: one every second, or the problem in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from varlog.model.errors import VarlogError
from varlog.proxy.deadline import Deadline
from varlog.proxy.event_stream import event
from varlog.proxy.problem import problem_of
from varlog.proxy.status_publisher import StatusPublisher

KIND: Final = "status"
EVERY_S: Final = 1.0
# A look at the cluster that takes longer is told as a problem, and the next one is tried.
TIMEOUT_S: Final = 5.0


class StatusEvents:
    """What one page is sent. All that look at the same time are told the same, and the manager is asked once."""

    kind = KIND

    def __init__(self, publisher: StatusPublisher, leave: Callable[[], None]) -> None:
        self._teller = publisher
        self._leave = leave
        self._due_s = 0.0

    async def wait_text(self, gone: asyncio.Future[str], timeout_s: float) -> bytes | None:
        loop = asyncio.get_running_loop()
        await asyncio.wait([gone], timeout=max(0.0, min(timeout_s, self._due_s - loop.time())))
        if gone.done() or loop.time() < self._due_s:
            return b""
        self._due_s = loop.time() + EVERY_S
        return await self._event()

    async def close(self) -> None:
        self._leave()

    async def _event(self) -> bytes:
        try:
            return event("status", (await Deadline(TIMEOUT_S).wait(self._teller.tell())).json)
        except VarlogError as error:
            return event("problem", problem_of(error).encoded())
