"""[A2] PURE. StreamCosts: what the next batch to a stream is expected to take.

In turns, one stream with a slow disk would take every fourth batch of four streams, and both places in flight of the client: all
appends would be as slow as it. By cost it gets a batch when its answers have been forgotten, to see whether it is still slow: a
probe, which should have one entry, because everything in it may wait as long as the batch before it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
# A slow stream that takes this long gets one probe at a time until PROBES in a row were answered quickly: a bad disk is not slow
# every time. What takes less costs its callers less than the probes would.
PROBED_S_MIN: Final = 0.03
PROBES: Final = 8


class StreamCosts:
    """Times are the caller's, and only grow."""

    def __init__(self) -> None:
        self._latency: dict[LogStreamID, tuple[float, float]] = {}  # moving mean, and when it was last moved
        self._in_flight: dict[LogStreamID, list[float]] = {}  # when each was sent
        # Streams that were slow, or gave no answer, and how many quick answers in a row they still owe: a batch there is a probe.
        self.suspects: dict[LogStreamID, int] = {}

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
        took_s, bound_s = now - began, self._slow_bound_s(now)
        mean = took_s
        if answered:
            known = self._latency.get(log_stream)
            mean = self._forgotten(known, now) if known else took_s
            mean += NEWEST * (took_s - mean)
            self._latency[log_stream] = (mean, now)
        if mean > max(bound_s, PROBED_S_MIN) or (took_s > bound_s and log_stream in self.suspects):
            self.suspects[log_stream] = PROBES
        elif answered and log_stream in self.suspects:
            self.suspects[log_stream] -= 1
            if not self.suspects[log_stream]:
                del self.suspects[log_stream]

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
        if self.suspects:
            streams = [one for one in streams if not self._is_probed(one.log_stream)] or streams
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
        bound = _slow_bound_s(latencies.values())
        slow = [log_stream for log_stream, latency_s in latencies.items() if latency_s > bound]
        slow += [
            log_stream for log_stream in latencies if log_stream not in slow and self._is_probed(log_stream)
        ]
        return slow if len(slow) < len(streams) else []

    def _is_probed(self, log_stream: LogStreamID) -> bool:
        """A probe is in flight: nothing else follows it or waits for it."""
        return log_stream in self.suspects and log_stream in self._in_flight

    def _slow_bound_s(self, now: float) -> float:
        """Of an answer, compared with the quickest stream; a stream alone is compared with itself."""
        return _slow_bound_s(self._forgotten(known, now) for known in self._latency.values())

    def _forgotten(self, known: tuple[float, float], now: float) -> float:
        mean, at = known
        kept: float = 0.5 ** ((now - at) / FORGET_S)
        return max(LATENCY_S, mean * kept)


def _slow_bound_s(latencies: Iterable[float]) -> float:
    return max(SLOW_S_MIN, SLOW_TIMES * min(latencies, default=0.0))
