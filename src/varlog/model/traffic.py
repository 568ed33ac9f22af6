"""Traffic: what one replica or log unit has done for clients since its start.

Latencies are counted in fixed buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import Final

import msgspec

from varlog.model.ids import NodeID

# A node is slow where its writes take this many times as long as those of the other nodes, and at least this long.
SLOW_FACTOR: Final = 5.0
SLOW_S_MIN: Final = 0.02

# Upper ends of the buckets, 0.1 ms to 10 s; one more bucket is for what took longer. They are part of the wire format: a change
# needs another field.
LATENCY_BOUNDS_S: Final = (
    *(0.0001, 0.0002, 0.0003, 0.0005, 0.0007),
    *(0.001, 0.002, 0.003, 0.005, 0.007),
    *(0.01, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 2.0, 3.0, 5.0, 7.0, 10.0),
)


class Traffic(msgspec.Struct, frozen=True, array_like=True):
    """Appends: batches that were acknowledged here, by a primary in order and durable everywhere, by a log unit durable
    here alone. Reads: answers with entries. Bytes are those of the entries with their framing on the wire. `append_s`:
    the sum of all appends' times; `append_buckets`: how many took how long (see LATENCY_BOUNDS_S), empty while there
    was none. `write_s`: the mean time of a write with its sync in the last seconds; 0 if there were too few."""

    appends: int = 0
    append_entries: int = 0
    append_bytes: int = 0
    append_s: float = 0.0
    append_buckets: tuple[int, ...] = ()
    reads: int = 0
    read_entries: int = 0
    read_bytes: int = 0
    write_s: float = 0.0


def slow_nodes(write_s: Mapping[NodeID, float]) -> dict[NodeID, float]:
    """Of nodes and how long a write takes on each (0: not known), those that are much slower than the others. Never all
    of them."""
    slow = {}
    for node, seconds in write_s.items():
        others = [other_s for other, other_s in write_s.items() if other != node and other_s > 0]
        if others and seconds >= max(SLOW_S_MIN, SLOW_FACTOR * median_low(others)):
            slow[node] = seconds
    return slow
