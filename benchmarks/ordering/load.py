"""Load: which log streams there are, on which emulated nodes, and what each node says when. Pure, the same in every process.

Entries are never made, only counted: a stream gets entries at a constant rate of its own, from 0.5 to 1.5 of the mean, and at the
time T after the start a replica that reports says that everything up to T is durable. Each node reports all its replicas every
`interval_ms`, each node at a moment of its own within the interval, so that the replicas of a stream are rarely at the same point.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Far apart for neighbours, and never the same twice: the golden section.
_SPREAD = 0.618033988749895


@dataclass(frozen=True, slots=True)
class Load:
    """`rate`: entries a second and stream, on average. A node holds at most `replicas_per_node`, all of different streams."""

    streams: int
    copies: int = 3
    rate: float = 15_000.0
    interval_ms: float = 20.0
    replicas_per_node: int = 64
    topics: int = 1
    warm_up_s: float = 1.0
    seconds: float = 4.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def interval_s(self) -> float:
        return self.interval_ms / 1e3

    @property
    def nodes(self) -> int:
        return max(self.copies, -(-self.streams * self.copies // self.replicas_per_node))

    @property
    def reports(self) -> int:
        """How often each node reports: until the end of the measurement, and once more."""
        return int((self.warm_up_s + self.seconds) / self.interval_s) + 2

    @property
    def end_s(self) -> float:
        """The last report of every node says how far its replicas are at this time, so that all of it can be ordered."""
        return self.reports * self.interval_s

    def holders(self) -> Ints:
        """[stream, replica] -> node, from 0; the first one is the primary."""
        first = np.arange(self.streams, dtype=np.int64)[:, None] * self.copies
        return (first + np.arange(self.copies, dtype=np.int64)) % self.nodes

    def topic_of(self, stream: int) -> int:
        return stream % self.topics

    def rates(self) -> Floats:
        """Of each stream: spread evenly around the mean."""
        part: Floats = np.arange(self.streams, dtype=np.float64) * _SPREAD % 1.0
        return np.asarray(self.rate * (1.0 + part - part.mean()), dtype=np.float64)

    def phases_s(self) -> Floats:
        """When within the interval each node reports."""
        return np.asarray(self.interval_s * (np.arange(self.nodes) * _SPREAD % 1.0), dtype=np.float64)

    def said_at_s(self, node: int, report: int) -> float:
        """The time that this report of this node is about."""
        if report >= self.reports - 1:
            return self.end_s
        return float(self.interval_s * (report + node * _SPREAD % 1.0))

    def first_report_of(self, ends: Ints, rates: Floats, phases_s: Floats) -> Ints:
        """Which report of a node with this phase is the first to say that entries below `ends` are durable."""
        needed_s = (ends - 1) / rates
        found = np.ceil((needed_s - phases_s) / self.interval_s - 1e-6).astype(np.int64)
        return np.clip(found, 0, self.reports - 1)


def durable_ends(rates: Floats, at_s: float) -> Ints:
    """How far streams with these rates are durable after this many seconds: one past the newest LLSN."""
    return 1 + np.floor(rates * at_s + 1e-6).astype(np.int64)
