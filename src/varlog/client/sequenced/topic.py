"""[Q1] SequencedTopic: the client side of a topic with a sequencer.

Implements the contract of `ordering.py`: clients write along chains, at positions that a sequencer assigns.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from varlog.client.chunk import FetchPoint, Part
from varlog.client.node_client import DamageReports
from varlog.client.retry import Backoff
from varlog.client.routing import Routing
from varlog.client.sequenced.projections import Projections
from varlog.client.sequenced.range_reader import SequencedRangeQueries, SequencedRangeReader
from varlog.client.sequenced.reader import SequencedReader
from varlog.client.sequenced.repair import Repair
from varlog.client.sequenced.sender import SequencedBatchSender
from varlog.client.sequenced.subscriber import SequencedSubscription
from varlog.client.sequenced.tokens import TokenClient
from varlog.client.sequenced.units import Units
from varlog.model.commit import TopicMark
from varlog.model.entry import Entry, Position, StreamRange
from varlog.model.errors import PreconditionFailed, TrimBeyondTail
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import Done, TrimTopic


class SequencedTopic:
    """A sequenced topic, as one client uses it."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._projections = Projections(routing)
        self._units = Units(routing, self._projections)
        self._tokens = TokenClient(routing, self._projections)
        reports = DamageReports(routing)
        self._repair = Repair(self._units, reports)
        self._reader = SequencedReader(self._units, self._tokens, self._repair, reports)
        self._range_queries = SequencedRangeQueries(self._units, self._tokens)
        self.append_transport = SequencedBatchSender(self._units, self._tokens, self._repair)

    async def read(self, glsn: GLSN, timeout_s: float) -> Entry:
        return await self._reader.read(glsn, timeout_s)

    async def read_stream(self, log_stream: LogStreamID, llsn: LLSN, timeout_s: float) -> Entry:
        return await self._reader.read_stream(log_stream, llsn, timeout_s)

    async def tail(self, timeout_s: float) -> TopicMark:
        """The newest position by the sequencer's count, and the newest trimmed position (R-SEQ-1)."""
        backoff = Backoff(self._routing.environment, timeout_s)
        trimmed = await self.trimmed(timeout_s)
        newest = GLSN(await self._tokens.next(backoff) - 1)
        return TopicMark(self._routing.topic.topic, newest, trimmed)

    async def newest(self, timeout_s: float) -> GLSN:
        """The newest position alone, in one request."""
        return GLSN(await self._tokens.next(Backoff(self._routing.environment, timeout_s)) - 1)

    async def trimmed(self, timeout_s: float) -> GLSN:
        return (await self._routing.tail(timeout_s)).trimmed

    async def trim(self, glsn: GLSN, respect_readers: bool, timeout_s: float) -> None:
        backoff = Backoff(self._routing.environment, timeout_s)
        given = await self._tokens.next(backoff)
        if glsn >= given:
            raise TrimBeyondTail(glsn, GLSN(given - 1))
        request, limit_s = TrimTopic(self._routing.topic.topic, glsn, respect_readers), backoff.remaining_s
        await self._routing.ask_repository(request, Done, limit_s, attempt_s=limit_s)

    def subscription(self, begin: GLSN | None, end: GLSN | None, timeout_s: float) -> SequencedSubscription:
        return SequencedSubscription(self._units, self._tokens, self._repair, begin, end, timeout_s)

    def parts(
        self, log_stream: LogStreamID, begin: LLSN, end: LLSN, cuts: Sequence[FetchPoint], timeout_s: float
    ) -> AsyncGenerator[Part, None]:
        reader = SequencedRangeReader(
            self._units, self._tokens, self._reader, log_stream, begin, end, timeout_s=timeout_s, cuts=cuts
        )
        return reader.parts()

    async def measure(
        self, log_stream: LogStreamID, begin: GLSN, end: GLSN, points_max: int, timeout_s: float
    ) -> StreamRange:
        return await self._range_queries.measure(log_stream, begin, end, points_max, timeout_s)

    async def find_time(self, log_stream: LogStreamID, time_us: int, timeout_s: float) -> Position:
        return await self._range_queries.find_time(log_stream, time_us, timeout_s)

    def check_primary(self, operation: str) -> None:
        raise PreconditionFailed(
            f"{operation} needs a primary, and topic {self._routing.topic_name!r} is sequenced: write to a topic created with "
            f"`varlog topic create --ordering committed`"
        )
