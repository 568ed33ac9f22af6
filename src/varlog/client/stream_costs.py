"""[A2] PURE. StreamCosts: what the next batch to a stream is expected to take.

In turns, one stream with a slow disk would take every fourth batch of four streams, and both places in flight of the client: all
appends would be as slow as it. By cost it gets a batch when its answers have been forgotten, to see whether it is still slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from varlog.model.cluster import LogStream
from varlog.model.ids import LogStreamID

# Of a stream that has not answered yet, and of one that answers sooner: below it streams are alike.
LATENCY_S: Final = 0.001
# Streams whose cost is at most this many times the least are used in turns: the difference is chance.
ALIKE: Final = 1.5
# The weight of the newest answer.
NEWEST: Final = 0.25
# What is known of a stream that answers nothing counts half after this: it is tried again, and is then known again.
FORGET_S: Final = 1.0
# A stream is slow where it takes this many times as long as the quickest one, and at least this long: others do not wait for it.
SLOW_TIMES: Final = 5.0
SLOW_S_MIN: Final = 0.01


class StreamCosts:
    """Times are the caller's, and only grow."""

    def __init__(self) -> None:
        self._latency: dict[LogStreamID, tuple[float, float]] = {}  # moving mean, and when it was last moved
        self._in_flight: dict[LogStreamID, list[float]] = {}  # when each was sent

    def sent(self, log_stream: LogStreamID, now: float) -> None:
        if (flights := self._in_flight.get(log_stream)) is None:
            self._in_flight[log_stream] = [now]
        else:
            flights.append(now)

    def ended(self, log_stream: LogStreamID, began: float, now: float, *, answered: bool) -> None:
        """The batch that was sent at `began` was answered, or is not waited for any more."""
        flights = self._in_flight[log_stream]
        if len(flights) > 1:
            flights.remove(began)
        else:
            del self._in_flight[log_stream]
        if answered:
            took_s = now - began
            known = self._latency.get(log_stream)
            mean = self._forgotten(known, now) if known else took_s
            self._latency[log_stream] = (mean + NEWEST * (took_s - mean), now)

    def in_flight(self, log_stream: LogStreamID) -> int:
        return len(self._in_flight.get(log_stream, ()))

    def latency_s(self, log_stream: LogStreamID, now: float) -> float:
        """What one batch takes there: at least what the oldest in flight has taken already."""
        known, flights = self._latency.get(log_stream), self._in_flight.get(log_stream)
        mean = self._forgotten(known, now) if known else LATENCY_S
        return max(mean, now - flights[0]) if flights else mean

    def cheapest(self, streams: Sequence[LogStream], turn: int, now: float) -> LogStream:
        """Where the next batch is expected to be answered first; in turns among those that are about as good."""
        if len(streams) == 1:
            return streams[0]
        costs = [self.cost_s(stream.log_stream, now) for stream in streams]
        bound = ALIKE * min(costs)
        alike = [stream for stream, cost_s in zip(streams, costs, strict=True) if cost_s <= bound]
        return alike[turn % len(alike)]

    def cost_s(self, log_stream: LogStreamID, now: float) -> float:
        return self.latency_s(log_stream, now) * (1 + self.in_flight(log_stream))

    def slow(self, streams: Sequence[LogStream], now: float) -> list[LogStreamID]:
        """Those that others do not wait for. Never all of them."""
        if len(self._latency) < 2 and not self._in_flight:
            return []
        latencies = {stream.log_stream: self.latency_s(stream.log_stream, now) for stream in streams}
        bound = max(SLOW_S_MIN, SLOW_TIMES * min(latencies.values(), default=0.0))
        return [log_stream for log_stream, latency_s in latencies.items() if latency_s > bound]

    def _forgotten(self, known: tuple[float, float], now: float) -> float:
        mean, at = known
        kept: float = 0.5 ** ((now - at) / FORGET_S)
        return max(LATENCY_S, mean * kept)
