"""CursorRegistry: named readers and writers in the metadata repository.

Every call is idempotent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from varlog.client.retry import Backoff
from varlog.client.routing import Routing
from varlog.model.cluster import NamedReader, NamedWriter
from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import GLSN
from varlog.rpc.messages import (
    BeginWrite,
    Done,
    EndWrite,
    ForgetReader,
    ForgetWriter,
    GetReaders,
    GetReadersReply,
    GetWriters,
    GetWritersReply,
    SetReader,
    WriterReply,
)

EVERY_TOPIC = TopicID(0)

PageStart = tuple[TopicID, str]  # a page holds what comes behind this name of this topic

N = TypeVar("N", NamedReader, NamedWriter)


class CursorRegistry:
    """Readers and writers of any topic of the cluster, by the topic's id."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    # --- Readers --------------------------------------------------------------------------------------------------------

    async def set_reader(
        self, topic: TopicID, name: str, position: GLSN, back: bool, timeout_s: float
    ) -> NamedReader:
        request = SetReader(topic, name, position, self._now_us, back)
        return (await self._routing.ask_repository(request, GetReadersReply, timeout_s)).readers[0]

    async def readers(self, topic: TopicID, timeout_s: float) -> tuple[NamedReader, ...]:
        async def page(after: PageStart, remaining_s: float) -> tuple[Sequence[NamedReader], bool]:
            reply = await self._routing.ask_repository(GetReaders(topic, after), GetReadersReply, remaining_s)
            return reply.readers, reply.more

        return await self._all_pages(page, timeout_s)

    async def forget_reader(self, topic: TopicID, name: str, timeout_s: float) -> None:
        await self._routing.ask_repository(ForgetReader(topic, name), Done, timeout_s)

    # --- Writers --------------------------------------------------------------------------------------------------------

    async def begin_write(
        self, name: str, batch: int, streams: Iterable[int] | None, kept: bool, timeout_s: float
    ) -> NamedWriter:
        backoff = Backoff(self._routing.environment, timeout_s)
        if streams is None:
            streams = await self._streams_now(backoff.remaining_s)
        topic = self._routing.topic.topic
        request = BeginWrite(topic, name, batch, tuple(map(LogStreamID, streams)), kept, self._now_us)
        return (await self._routing.ask_repository(request, WriterReply, backoff.remaining_s)).writer

    async def _streams_now(self, timeout_s: float) -> list[LogStreamID]:
        """The streams that accept appends now; if none does, all of them: the write waits until one does."""
        await self._routing.refresh(timeout_s)
        found = self._routing.running or self._routing.streams
        if not found:
            raise Unavailable(
                f"topic {self._routing.topic_name!r} has no log stream yet: add one with `varlog stream add`"
            )
        return [stream.log_stream for stream in found]

    async def end_write(self, topic: TopicID, name: str, batch: int, timeout_s: float) -> NamedWriter:
        request = EndWrite(topic, name, batch, self._now_us)
        return (await self._routing.ask_repository(request, WriterReply, timeout_s)).writer

    async def writers(self, topic: TopicID, timeout_s: float) -> tuple[NamedWriter, ...]:
        async def page(after: PageStart, remaining_s: float) -> tuple[Sequence[NamedWriter], bool]:
            reply = await self._routing.ask_repository(GetWriters(topic, after), GetWritersReply, remaining_s)
            return reply.writers, reply.more

        return await self._all_pages(page, timeout_s)

    async def forget_writer(self, topic: TopicID, name: str, timeout_s: float) -> None:
        await self._routing.ask_repository(ForgetWriter(topic, name), Done, timeout_s)

    # --- Both -----------------------------------------------------------------------------------------------------------

    async def _all_pages(
        self, page: Callable[[PageStart, float], Awaitable[tuple[Sequence[N], bool]]], timeout_s: float
    ) -> tuple[N, ...]:
        """Everything that `page` returns, page after page. Each begins behind the name it is given, and says whether there is
        more."""
        backoff = Backoff(self._routing.environment, timeout_s)
        found: list[N] = []
        after = (EVERY_TOPIC, "")
        while True:
            items, more = await page(after, backoff.remaining_s)
            found += items
            if not more or not items:
                return tuple(found)
            after = (items[-1].topic, items[-1].name)

    @property
    def _now_us(self) -> int:
        return self._routing.environment.clock.wall_us()
