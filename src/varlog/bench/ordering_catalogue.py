"""The workloads of `varlog bench --ordering both` and `sequenced` by name, in the order they run, with their targets."""

from __future__ import annotations

from varlog.bench.in_turns import BATCHES, Appending, InTurns, Load, Reading, Subscribing
from varlog.bench.kill import (
    Kill,
    Victim,
    backup,
    head,
    judge_pause,
    judge_repository,
    leader,
    middle,
    primary,
    sequencer,
    tail,
)
from varlog.bench.ordering_targets import (
    POSITIONS_PER_S_MIN,
    LatencyAgainstCommitted,
    RateAgainstCommitted,
    judge_sequencer,
)
from varlog.bench.replica_workloads import sync_unit
from varlog.bench.sequencer_rate import sequencer_positions
from varlog.bench.workload import Place, Workload, judge_sync
from varlog.model.cluster import Ordering

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
        Place.BOTH,
        InTurns(load, alone=alone),
        LatencyAgainstCommitted(most),
    )


def _rate(name: str, title: str, load: Load, *, alone: bool) -> Workload:
    least = 1.0 if alone else CHAIN_RATE_MIN
    return Workload(
        _named(name, alone),
        _titled(title, alone),
        f"at least {least:.2g} of the committed ordering's entries/s",
        Place.BOTH,
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
        _rate("append-64", "64 appenders, 1 KiB, one entry a call", Appending(64), alone=alone)
        for alone in (True, False)
    ),
    *(_rate("batch-1000", "batches of 1000 x 1 KiB", BATCHES, alone=alone) for alone in (True, False)),
    _latency("read", "read one entry, 1 KiB", Reading(), alone=False),
    _rate("subscribe", "subscribe from the start, 100 B, into Python", Subscribing(), alone=False),
    Workload(
        "sequencer",
        "the sequencer alone, many positions a call",
        f"{POSITIONS_PER_S_MIN} positions/s",
        Place.BOTH,
        sequencer_positions,
        judge_sequencer,
    ),
)

# Of log units, by themselves: these are measured with `--ordering sequenced`, too.
UNITS: tuple[Workload, ...] = (
    Workload(
        "unit-sync",
        "fill an empty log unit from one of 512 MiB",
        "MB/s at least 0.5 of the raw sequential write+fdatasync bandwidth",
        Place.DISK,
        sync_unit,
        judge_sync,
        beside_raw=True,
    ),
)

_TARGET = "under 2 s without an append, no append fails that may take 10 s"
_REPOSITORY_TARGET = "no append fails that may take 10 s"


def _killed(name: str, what: str, victim: Victim, ordering: Ordering) -> Workload:
    kill = Kill(victim, ordering=ordering)
    return Workload(name, f"{ordering}: {what} killed", _TARGET, Place.DISK, kill, judge_pause)


def _leader_killed(name: str, ordering: Ordering) -> Workload:
    title = f"{ordering}: the leading metadata repository killed (three of them)"
    kill = Kill(leader, replicated=True, ordering=ordering)
    return Workload(name, title, _REPOSITORY_TARGET, Place.DISK, kill, judge_repository)


# Each has a cluster of its own, as the faults of the committed ordering have.
SEQUENCED_FAULTS: tuple[Workload, ...] = (
    _killed("kill-head", "the head of a chain", head, Ordering.SEQUENCED),
    _killed("kill-middle", "the middle of a chain", middle, Ordering.SEQUENCED),
    _killed("kill-tail", "the tail of a chain", tail, Ordering.SEQUENCED),
    _killed("kill-sequencer", "the sequencer", sequencer, Ordering.SEQUENCED),
    _leader_killed("kill-leader-sequenced", Ordering.SEQUENCED),
)

# In one run, so that the machine is the same for both.
ORDERING_FAULTS: tuple[Workload, ...] = (
    _killed("both-kill-backup", "a backup", backup, Ordering.COMMITTED),
    _killed("both-kill-primary", "a primary", primary, Ordering.COMMITTED),
    _leader_killed("both-kill-leader", Ordering.COMMITTED),
    *SEQUENCED_FAULTS,
)
