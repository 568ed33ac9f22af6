"""[A2] PURE. StreamCosts: the expected latency of the next batch, per stream.

With round robin over four streams, one stream with a slow disk would get every fourth batch, and would soon occupy both in-flight
slots of the client: all appends would be as slow as that stream. With costs, it gets a batch only once its latency estimate has
decayed, to find out whether it is still slow. That batch is a probe, and should have one entry, because everything in it may wait
as long as the previous batch did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from varlog.model.cluster import LogStream
from varlog.model.ids import LogStreamID

# The latency of a stream that has not answered yet, and the lower bound for all: below it, streams are considered equal.
LATENCY_S: Final = 0.001
# Streams whose cost is at most this multiple of the lowest are used in turn: the difference is noise.
ALIKE: Final = 1.5
# The weight of the latest answer in the moving mean.
NEWEST: Final = 0.25
# The half-life of a latency estimate without new answers: the stream is then tried and measured again.
FORGET_S: Final = 1.0
# A stream is slow if it takes this multiple of the fastest stream's latency, and at least this long: others do not wait for it.
SLOW_TIMES: Final = 5.0
SLOW_S_MIN: Final = 0.01
# A slow stream with at least this latency gets one probe at a time until PROBES in a row were answered quickly: a bad disk is not
# slow every time. Below this latency the probes would cost callers more than the stream does.
PROBED_S_MIN: Final = 0.03
PROBES: Final = 8


class StreamCosts:
    """The cost estimates of one client. The caller passes the time, which must not decrease."""

    def __init__(self) -> None:
        self._latency: dict[
            LogStreamID, tuple[float, float]
        ] = {}  # moving mean, and when it was last updated
        self._in_flight: dict[LogStreamID, list[float]] = {}  # when each batch was sent
        # Streams that were slow or did not answer, and how many more quick answers in a row they need: a batch to them is a probe.
        self.suspects: dict[LogStreamID, int] = {}

    def sent(self, log_stream: LogStreamID, now: float) -> None:
        if (flights := self._in_flight.get(log_stream)) is None:
            self._in_flight[log_stream] = [now]
        else:
            flights.append(now)

    def ended(self, log_stream: LogStreamID, began: float, now: float, *, answered: bool) -> None:
        """Record that the batch sent at `began` was answered, or is not waited for any more."""
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
        """The expected latency of one batch: at least the age of the oldest one in flight."""
        known, flights = self._latency.get(log_stream), self._in_flight.get(log_stream)
        mean = self._forgotten(known, now) if known else LATENCY_S
        return max(mean, now - flights[0]) if flights else mean

    def cheapest(self, streams: Sequence[LogStream], turn: int, now: float) -> LogStream:
        """The stream that is expected to answer first; in turn among those that are about equal."""
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
        """The streams that others do not wait for. Never all of them."""
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
        """Whether a probe is in flight: no other batch follows it or waits for it."""
        return log_stream in self.suspects and log_stream in self._in_flight

    def _slow_bound_s(self, now: float) -> float:
        """The latency from which an answer is slow, relative to the fastest stream; a single stream is compared with itself."""
        return _slow_bound_s(self._forgotten(known, now) for known in self._latency.values())

    def _forgotten(self, known: tuple[float, float], now: float) -> float:
        mean, at = known
        kept: float = 0.5 ** ((now - at) / FORGET_S)
        return max(LATENCY_S, mean * kept)


def _slow_bound_s(latencies: Iterable[float]) -> float:
    return max(SLOW_S_MIN, SLOW_TIMES * min(latencies, default=0.0))
