"""[R2] RangeQueries: asks the replicas of a stream where entries lie: the bytes of a range, and the place of a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from varlog.client.retry import Backoff
from varlog.client.routing import ATTEMPT_S, Routing, expect
from varlog.client.routing_rules import in_turn
from varlog.model.cluster import LogStream
from varlog.model.errors import Trimmed, Unavailable, UnknownLogStream, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN
from varlog.rpc.messages import FindTime, FindTimeReply, MeasureRange, MeasureRangeReply, Message

M = TypeVar("M", bound=Message)


class RangeQueries:
    """Questions of one client about one topic's streams. Any replica can answer; one that lacks entries is not believed."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def measure(
        self, log_stream: LogStreamID, begin: GLSN, end: GLSN, points_max: int, timeout_s: float
    ) -> MeasureRangeReply:
        request = MeasureRange(log_stream, begin, end, points_max)
        return await self._ask(
            log_stream, request, MeasureRangeReply, lambda found: found.complete, timeout_s
        )

    async def find_time(self, log_stream: LogStreamID, time_us: int, timeout_s: float) -> FindTimeReply:
        request = FindTime(log_stream, time_us)
        return await self._ask(log_stream, request, FindTimeReply, lambda found: True, timeout_s)

    async def stream(self, log_stream: LogStreamID, timeout_s: float) -> LogStream:
        """The stream, by a fresh view if the old one does not have it. UnknownLogStream: the topic has none of this id."""
        for fresh in (False, True):
            if fresh:
                await self._routing.refresh(timeout_s)
            found = next((s for s in self._routing.streams if s.log_stream == log_stream), None)
            if found is not None:
                return found
        raise UnknownLogStream(log_stream)

    async def _ask(
        self,
        log_stream: LogStreamID,
        request: Message,
        answer: type[M],
        good: Callable[[M], bool],
        timeout_s: float,
    ) -> M:
        """The first good answer of the replicas, asked in turn until the deadline."""
        backoff = Backoff(self._routing.environment, timeout_s)
        trouble = "its replicas have not heard of all of it yet"
        while True:
            self._routing.check_open()
            stream = await self.stream(log_stream, backoff.remaining_s)
            for node in in_turn(
                stream.replicas, self._routing.turn, self._routing.failure_detector.avoided()
            ):
                try:
                    attempt_s = min(backoff.remaining_s, ATTEMPT_S)
                    connection = await self._routing.connection_to(node, attempt_s)
                    got, _ = await connection.call(request, timeout_s=attempt_s)
                    found = expect(got, answer)
                    self._routing.failure_detector.node_answered(node)
                    if good(found):
                        return found
                except Trimmed:
                    raise
                except VarlogError as error:
                    self._routing.report_failure(node, error)
                    trouble = str(error)
            if backoff.spent:
                raise Unavailable(
                    f"log stream {log_stream} could not be measured within {timeout_s:g} s: {trouble}"
                )
            self._routing.refresh_soon()
            await backoff.wait()
