"""CommittedTopic: the client side of a topic that the repository orders.

Implements the contract of `ordering.py`: storage nodes write, and the metadata repository orders.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from varlog.client.chunk import FetchPoint, Part
from varlog.client.committed.range_reader import RangeQueries, RangeReader
from varlog.client.committed.reader import Reader
from varlog.client.committed.sender import BatchSender
from varlog.client.committed.subscriber import CommittedSubscription
from varlog.client.routing import Routing
from varlog.model.commit import TopicMark
from varlog.model.entry import Entry, Position, StreamRange
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import Done, TrimTopic


class CommittedTopic:
    """A committed topic, as one client uses it."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._reader = Reader(routing)
        self._range_queries = RangeQueries(routing)
        self.append_transport = BatchSender(routing)

    async def read(self, glsn: GLSN, timeout_s: float) -> Entry:
        return await self._reader.read(glsn, timeout_s)

    async def read_stream(self, log_stream: LogStreamID, llsn: LLSN, timeout_s: float) -> Entry:
        return await self._reader.read_stream(log_stream, llsn, timeout_s)

    async def tail(self, timeout_s: float) -> TopicMark:
        return await self._routing.tail(timeout_s)

    async def newest(self, timeout_s: float) -> GLSN:
        return (await self._routing.tail(timeout_s)).high_watermark

    async def trimmed(self, timeout_s: float) -> GLSN:
        return (await self._routing.tail(timeout_s)).trimmed

    async def trim(self, glsn: GLSN, respect_readers: bool, timeout_s: float) -> None:
        request = TrimTopic(self._routing.topic.topic, glsn, respect_readers)
        await self._routing.ask_repository(request, Done, timeout_s, attempt_s=timeout_s)

    def subscription(self, begin: GLSN | None, end: GLSN | None, timeout_s: float) -> CommittedSubscription:
        return CommittedSubscription(self._routing, begin, end, timeout_s)

    def parts(
        self, log_stream: LogStreamID, begin: LLSN, end: LLSN, cuts: Sequence[FetchPoint], timeout_s: float
    ) -> AsyncGenerator[Part, None]:
        return RangeReader(self._routing, log_stream, begin, end, timeout_s=timeout_s, cuts=cuts).parts()

    async def measure(
        self, log_stream: LogStreamID, begin: GLSN, end: GLSN, points_max: int, timeout_s: float
    ) -> StreamRange:
        return await self._range_queries.measure(log_stream, begin, end, points_max, timeout_s)

    async def find_time(self, log_stream: LogStreamID, time_us: int, timeout_s: float) -> Position:
        return await self._range_queries.find_time(log_stream, time_us, timeout_s)

    def check_primary(self, operation: str) -> None:
        """Does nothing: every stream of a committed topic has a primary."""
