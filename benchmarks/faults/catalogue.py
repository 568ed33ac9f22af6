"""Catalogue: the fault workloads of both orderings by name, with their targets."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.faults.kill import (
    Kill,
    Victim,
    backup,
    head,
    judge_node,
    judge_pause,
    judge_repository,
    leader,
    middle,
    primary,
    sequencer,
    tail,
)
from varlog.bench.workload import Workload, WorkloadPlace
from varlog.model.cluster import Ordering

_NODE_TARGET = (
    "under 2 s without an append, no append fails that may take 10 s, under 50 ms for sealing and unsealing"
)

# Each has its own cluster, with the defaults of `varlog up` and two log streams.
COMMITTED: tuple[Workload, ...] = (
    Workload("kill-backup", "a backup killed", _NODE_TARGET, WorkloadPlace.DISK, Kill(backup), judge_node),
    Workload("kill-primary", "a primary killed", _NODE_TARGET, WorkloadPlace.DISK, Kill(primary), judge_node),
    Workload(
        "kill-apart",
        "a primary killed, four nodes, two copies: the other stream is not hurt",
        _NODE_TARGET,
        WorkloadPlace.DISK,
        Kill(primary, apart=True),
        judge_node,
    ),
    Workload(
        "kill-leader",
        "the leading metadata repository killed (three of them)",
        "no append fails that may take 10 s",
        WorkloadPlace.DISK,
        Kill(leader, replicated=True),
        judge_repository,
    ),
)

_PAUSE_TARGET = "under 2 s without an append, no append fails that may take 10 s"
_REPOSITORY_TARGET = "no append fails that may take 10 s"


def _killed(name: str, what: str, victim: Victim, ordering: Ordering) -> Workload:
    kill = Kill(victim, ordering=ordering)
    return Workload(name, f"{ordering}: {what} killed", _PAUSE_TARGET, WorkloadPlace.DISK, kill, judge_pause)


def _leader_killed(name: str, ordering: Ordering) -> Workload:
    title = f"{ordering}: the leading metadata repository killed (three of them)"
    kill = Kill(leader, replicated=True, ordering=ordering)
    return Workload(name, title, _REPOSITORY_TARGET, WorkloadPlace.DISK, kill, judge_repository)


SEQUENCED: tuple[Workload, ...] = (
    _killed("kill-head", "the head of a chain", head, Ordering.SEQUENCED),
    _killed("kill-middle", "the middle of a chain", middle, Ordering.SEQUENCED),
    _killed("kill-tail", "the tail of a chain", tail, Ordering.SEQUENCED),
    _killed("kill-sequencer", "the sequencer", sequencer, Ordering.SEQUENCED),
    _leader_killed("kill-leader-sequenced", Ordering.SEQUENCED),
)

# In one run, so that the machine is the same for both.
BOTH: tuple[Workload, ...] = (
    _killed("both-kill-backup", "a backup", backup, Ordering.COMMITTED),
    _killed("both-kill-primary", "a primary", primary, Ordering.COMMITTED),
    _leader_killed("both-kill-leader", Ordering.COMMITTED),
    *SEQUENCED,
)


# By the value of `--ordering`.
FAULTS: dict[str, Sequence[Workload]] = {"committed": COMMITTED, "sequenced": SEQUENCED, "both": BOTH}
