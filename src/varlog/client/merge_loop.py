"""[R2] MergeLoop: runs the merge of a subscription of either ordering (R-READ-3).

One task per stream fetches the next chunk while the last one is consumed: at most CHUNKS_PER_STREAM chunks per stream. What is
consumed is decided by merge_rules alone, so that a repeated or torn fetch can neither skip nor repeat an entry. Which streams there
are, how one is fetched, and what to do while the next position is missing, is known to the subscription of each ordering.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from varlog.client.chunk import Chunk
from varlog.client.merge_rules import CHUNKS_PER_STREAM, Merge, MergedRange, Row, fetch_bytes
from varlog.client.routing import Routing
from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

logger = get_logger("client")


class MergeLoop:
    """Fetching tasks offer what came, one consumer reads `merged_ranges`. `merge` is set once they are read."""

    merge: Merge

    def __init__(self, routing: Routing) -> None:
        self.news = asyncio.Event()  # something came, or failed, that the consumer waits for
        self._routing = routing
        self._tasks = Tasks("subscription", self._task_failed)
        self._room: dict[LogStreamID, asyncio.Event] = {}  # of each stream: a chunk was consumed
        self._failure: BaseException | None = None

    # --- The consumer ---------------------------------------------------------------------------------------------------

    async def merged_ranges(
        self, merge: Merge, follow_view: Callable[[], None], wait_next: Callable[[], Awaitable[None]]
    ) -> AsyncGenerator[list[MergedRange], None]:
        """Yields the following ranges, in order, in lists of what has arrived. `follow_view` adds the streams of the view, now and
        when the view changes; `wait_next` returns once there may be more."""
        self.merge = merge
        stop_watching = self._routing.watch(follow_view)
        try:
            follow_view()
            while not merge.done:
                self.news.clear()
                if taken := merge.pop_ready():
                    for log_stream in {merged.log_stream: None for merged in taken}:
                        self._room[log_stream].set()
                    yield taken
                    # Yield to the loop, so that the next chunks arrive: a consumer that never waits would starve the tasks that
                    # feed it.
                    await asyncio.sleep(0)
                    continue
                self._raise_if_over()
                await wait_next()
        finally:
            stop_watching()
            await self._tasks.close()

    def _raise_if_over(self) -> None:
        if self._failure is not None:
            raise self._failure
        self.merge.raise_if_trimmed()

    def fail(self, error: BaseException) -> None:
        """The consumer gets this, once it has consumed what is there."""
        self._failure = self._failure or error
        self.news.set()

    def _task_failed(self, name: str, error: BaseException) -> None:
        self.fail(error)

    # --- One stream -----------------------------------------------------------------------------------------------------

    def has(self, log_stream: LogStreamID) -> bool:
        """Whether it was added."""
        return log_stream in self._room

    def add(self, log_stream: LogStreamID, pump: Coroutine[Any, Any, None]) -> None:
        """Merge one more stream, which `pump` fetches."""
        self.merge.add(log_stream)
        self._room[log_stream] = asyncio.Event()
        _ = self._tasks.spawn(f"pump/ls={log_stream}", pump)

    async def wait_room(self, log_stream: LogStreamID) -> None:
        """Until one more chunk of this stream may be fetched."""
        room = self._room[log_stream]
        while self.merge.sources(log_stream) >= CHUNKS_PER_STREAM:
            room.clear()
            await room.wait()

    @property
    def fetch_bytes(self) -> int:
        """How much one fetch asks for."""
        return fetch_bytes(len(self._room))

    def offer(self, log_stream: LogStreamID, rows: Sequence[Row], chunk: Chunk) -> None:
        """Pass entries to the merge. Unavailable: they cannot be right, and were not taken."""
        try:
            self.merge.offer(log_stream, rows, chunk)
        except ValueError as contradiction:
            logger.error(
                logfmt("a storage node contradicts the order", log_stream=log_stream, error=contradiction)
            )
            raise Unavailable(str(contradiction)) from contradiction

    async def learn_trim(self, timeout_s: float) -> None:
        """A stream's next entry is trimmed, so the topic's next position is too: ask the repository for the trimmed position."""
        try:
            tail = await self._routing.tail(timeout_s)
        except Unavailable:
            return  # the fetch task retries, and then calls this again
        self.merge.trimmed_up_to(tail.trimmed)
        self.news.set()
