"""PURE. RateMeter: rates and append latency of a cluster, from its counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN
from varlog.model.status import LATENCY_BOUNDS_S, Traffic

# Two samples closer than this are too noisy; one older than WINDOW_S is out of date.
SPAN_S_MIN: Final = 0.2
SPAN_S: Final = 0.9
WINDOW_S: Final = 10.0

ReplicaKey = tuple[NodeID, LogStreamID]


@dataclass(frozen=True, slots=True)
class TrafficSample:
    """The counters at one time: each topic's newest position, each replica's traffic. `writers`: the one node of a log stream whose
    traffic counts as its appends (the others have copies of the same entries)."""

    at_s: float
    newest: Mapping[TopicID, GLSN]
    traffic: Mapping[ReplicaKey, Traffic]
    writers: Mapping[LogStreamID, NodeID]


@dataclass(frozen=True, slots=True)
class Rate:
    """Per second. Percentiles are None where there was no append."""

    append_entries_per_s: float = 0.0
    append_bytes_per_s: float = 0.0
    read_entries_per_s: float = 0.0
    read_bytes_per_s: float = 0.0
    append_p50_s: float | None = None
    append_p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterRates:
    """Of the cluster, by topic (appends alone) and by node."""

    whole: Rate
    topics: Mapping[TopicID, float] = field(default_factory=dict)
    nodes: Mapping[NodeID, Rate] = field(default_factory=dict)


class RateMeter:
    """The newest samples. `rates()` compares the newest with one about a second older; None until there are two."""

    def __init__(self) -> None:
        self._samples: deque[TrafficSample] = deque()

    def add(self, sample: TrafficSample) -> None:
        while self._samples and sample.at_s - self._samples[0].at_s > WINDOW_S:
            self._samples.popleft()
        self._samples.append(sample)

    def rates(self) -> ClusterRates | None:
        if not self._samples:
            return None
        newest = self._samples[-1]
        before = [sample for sample in self._samples if newest.at_s - sample.at_s >= SPAN_S_MIN]
        if not before:
            return None
        long_enough = [sample for sample in before if newest.at_s - sample.at_s >= SPAN_S]
        return rates_between(long_enough[-1] if long_enough else before[0], newest)


def rates_between(old: TrafficSample, new: TrafficSample) -> ClusterRates:
    span_s = new.at_s - old.at_s
    topics = {
        topic: max(0, newest - old.newest[topic]) / span_s
        for topic, newest in new.newest.items()
        if topic in old.newest
    }
    done = {
        place: _since(old.traffic[place], traffic)
        for place, traffic in new.traffic.items()
        if place in old.traffic
    }
    appended = {place: part for place, part in done.items() if new.writers.get(place[1]) == place[0]}
    nodes = {
        node: _rate(
            [part for place, part in appended.items() if place[0] == node],
            [part for place, part in done.items() if place[0] == node],
            span_s,
        )
        for node in dict.fromkeys(place[0] for place in done)
    }
    return ClusterRates(_rate(list(appended.values()), list(done.values()), span_s), topics, nodes)


def _since(old: Traffic, new: Traffic) -> Traffic:
    """The traffic between two samples. Counters that fell were reset by a restart: then all of it counts."""
    if new.appends < old.appends or new.reads < old.reads:
        old = Traffic()
    buckets = old.append_buckets or (0,) * len(new.append_buckets)
    return Traffic(
        new.appends - old.appends,
        new.append_entries - old.append_entries,
        new.append_bytes - old.append_bytes,
        max(0.0, new.append_s - old.append_s),
        tuple(now - then for now, then in zip(new.append_buckets, buckets, strict=False)),
        new.reads - old.reads,
        new.read_entries - old.read_entries,
        new.read_bytes - old.read_bytes,
    )


def _rate(appended: Sequence[Traffic], done: Sequence[Traffic], span_s: float) -> Rate:
    buckets = merged_buckets([part.append_buckets for part in appended])
    return Rate(
        sum(part.append_entries for part in appended) / span_s,
        sum(part.append_bytes for part in appended) / span_s,
        sum(part.read_entries for part in done) / span_s,
        sum(part.read_bytes for part in done) / span_s,
        latency_percentile(buckets, 0.50),
        latency_percentile(buckets, 0.99),
    )


def merged_buckets(buckets: Sequence[Sequence[int]]) -> list[int]:
    """The sum of several histograms, each with all buckets or none."""
    return [sum(column) for column in zip(*(counts for counts in buckets if counts), strict=False)]


def latency_percentile(buckets: Sequence[int], share: float) -> float | None:
    """The latency that `share` of the appends did not exceed, interpolated within a bucket. None: there was no append."""
    total = sum(buckets)
    if total <= 0:
        return None
    wanted, below = share * total, 0
    for number, count in enumerate(buckets):
        if below + count >= wanted and count:
            low = LATENCY_BOUNDS_S[number - 1] if number else 0.0
            high = LATENCY_BOUNDS_S[min(number, len(LATENCY_BOUNDS_S) - 1)]
            return low + (high - low) * max(0.0, wanted - below) / count
        below += count
    return LATENCY_BOUNDS_S[-1]
