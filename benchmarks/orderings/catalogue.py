"""Catalogue: workloads that run on both orderings in turns, with their targets."""

from __future__ import annotations

from benchmarks.orderings.in_turns import BATCHES, Appending, InTurns, Load, Reading, Subscribing
from benchmarks.orderings.sequencer_rate import sequencer_positions
from benchmarks.orderings.targets import (
    POSITIONS_PER_S_MIN,
    LatencyAgainstCommitted,
    RateAgainstCommitted,
    judge_sequencer,
)
from varlog.bench.catalogue import UNITS
from varlog.bench.workload import Workload, WorkloadPlace

# A chain syncs one replica after the other and no order; the committed ordering syncs all replicas at once, and then the order.
ALONE_RATIO_MAX = 0.8
CHAIN_RATIO_MAX = 1.3
CHAIN_RATE_MIN = 1 / CHAIN_RATIO_MAX


def _latency(name: str, title: str, load: Load, *, alone: bool) -> Workload:
    most = ALONE_RATIO_MAX if alone else CHAIN_RATIO_MAX
    return Workload(
        _named(name, alone),
        _titled(title, alone),
        f"p50 at most {most:g} times the committed ordering's",
        WorkloadPlace.IN_TURNS,
        InTurns(load, alone=alone),
        LatencyAgainstCommitted(most),
    )


def _rate(name: str, title: str, load: Load, *, alone: bool) -> Workload:
    least = 1.0 if alone else CHAIN_RATE_MIN
    return Workload(
        _named(name, alone),
        _titled(title, alone),
        f"at least {least:.2g} of the committed ordering's entries/s",
        WorkloadPlace.IN_TURNS,
        InTurns(load, alone=alone),
        RateAgainstCommitted(least),
    )


def _named(name: str, alone: bool) -> str:
    return f"both-{name}-alone" if alone else f"both-{name}"


def _titled(title: str, alone: bool) -> str:
    return f"{title}; {'1 replica' if alone else 'all replicas'}"


# On one cluster, both orderings in turns; a figure is the median of the turns.
ORDERINGS: tuple[Workload, ...] = (
    *(_latency("append-1", "1 appender, 1 KiB", Appending(1), alone=alone) for alone in (True, False)),
    *(
        _rate("append-64", "64 appenders, 1 KiB, one entry per call", Appending(64), alone=alone)
        for alone in (True, False)
    ),
    *(_rate("batch-1000", "batches of 1000 x 1 KiB", BATCHES, alone=alone) for alone in (True, False)),
    _latency("read", "read one entry, 1 KiB", Reading(), alone=False),
    _rate("subscribe", "subscribe from the start, 100 B, into Python", Subscribing(), alone=False),
    Workload(
        "sequencer",
        "the sequencer alone, many positions per call",
        f"{POSITIONS_PER_S_MIN} positions/s",
        WorkloadPlace.IN_TURNS,
        sequencer_positions,
        judge_sequencer,
    ),
)

EVERYTHING: tuple[Workload, ...] = (*ORDERINGS, *UNITS)
