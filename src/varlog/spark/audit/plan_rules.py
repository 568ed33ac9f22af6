"""PURE. StreamPlan: the ranges that the tasks of an audit read.

The same ranges for all replicas of a stream, balanced by bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from varlog.model.limits import KIB, MIB
from varlog.spark.audit.compare_rules import majority
from varlog.spark.audit.parts import AuditRange, Finding, FindingKind

TASK_BYTES_MAX = 64 * MIB
TASK_BYTES_MIN = 256 * KIB
# What is read once more where replicas differ: small against a task.
BLOCK_BYTES_MAX = 4 * MIB
BLOCKS_A_TASK = 4
BLOCK_ENTRIES_MIN = 16
BLOCK_ENTRIES_MAX = 1 << 20
TASKS_A_CORE = 4


@dataclass(frozen=True, slots=True)
class ReplicaExtent:
    """What a replica has of the requested positions: its LLSNs [begin, end), and their bytes; `points` as in
    StreamRange."""

    begin: int
    end: int
    bytes: int
    points: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One stream: LLSNs [begin, end), which every replica is to have."""

    log_stream: int
    begin: int
    end: int
    bytes: int
    points: tuple[tuple[int, int], ...]


def stream_plan(log_stream: int, claims: Mapping[int, ReplicaExtent]) -> StreamPlan:
    """The begin of most replicas, and the end of the longest: what one has, all must have. `claims` by node, not empty."""
    begin = majority(claim.begin for claim in claims.values())
    largest = max(claims.values(), key=lambda claim: (claim.begin == begin, claim.end))
    return StreamPlan(log_stream, begin, max(begin, largest.end), largest.bytes, largest.points)


def block_entries(plan: StreamPlan, bytes_a_task: int) -> int:
    """Entries of a block: a power of two, the same for all replicas of the stream."""
    wanted_bytes = min(BLOCK_BYTES_MAX, bytes_a_task // BLOCKS_A_TASK)
    wanted = wanted_bytes * (plan.end - plan.begin) // max(1, plan.bytes)
    return 1 << max(BLOCK_ENTRIES_MIN, min(wanted, BLOCK_ENTRIES_MAX)).bit_length() - 1


def contradictions(
    plan: StreamPlan,
    claims: Mapping[int, ReplicaExtent],
    topic: str,
    paths: Mapping[tuple[int, int], str],
    glsn: int,
) -> list[Finding]:
    """Replicas that have the first position elsewhere than most."""
    return [
        Finding(
            FindingKind.ORDER,
            topic,
            plan.log_stream,
            node,
            paths.get((plan.log_stream, node), ""),
            claim.begin,
            glsn,
            f"the first entry from GLSN {glsn} on is at LLSN {claim.begin}",
            f"at LLSN {plan.begin}, as on most replicas",
        )
        for node, claim in claims.items()
        if claim.begin != plan.begin
    ]


def task_bytes(bytes_all: int, cores: int) -> int:
    """Enough tasks that all cores end at about the same time, and few enough that starting them costs little."""
    return min(TASK_BYTES_MAX, max(TASK_BYTES_MIN, bytes_all // max(1, cores * TASKS_A_CORE)))


def cuts(plan: StreamPlan, bytes_a_task: int) -> list[int]:
    """LLSNs at which the stream is cut, its begin and end among them; those between are multiples of a block."""
    found, block = [plan.begin], block_entries(plan, bytes_a_task)
    places = [bytes_before for _, bytes_before in plan.points]
    for wanted in range(bytes_a_task, plan.bytes, bytes_a_task):
        index = bisect_left(places, wanted)
        if index < len(places):
            llsn = plan.points[index][0] // block * block
            if found[-1] < llsn < plan.end:
                found.append(llsn)
    return [*found, plan.end]


def readings(
    plan: StreamPlan,
    topic: str,
    paths: Mapping[tuple[int, int], str],
    nodes: Sequence[int],
    bytes_a_task: int,
) -> list[AuditRange]:
    """Range by range, and of each range one replica after the other: so that neighbours in the list ask different nodes."""
    if plan.begin >= plan.end:
        return []
    places, block = cuts(plan, bytes_a_task), block_entries(plan, bytes_a_task)
    return [
        AuditRange(
            topic,
            plan.log_stream,
            node,
            paths.get((plan.log_stream, node), ""),
            begin,
            end,
            block,
            first=begin == plan.begin,
        )
        for begin, end in pairwise(places)
        for node in nodes
    ]
