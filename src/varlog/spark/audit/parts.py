"""PURE. The nouns of an audit: ranges, blocks with digests, runs, findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

# The topic's positions are verified in pieces of this size: an incomplete piece is read again in detail.
GLSN_BLOCK = 1 << 20
_MASK = (1 << 64) - 1


class FindingKind(StrEnum):
    """What is wrong. UNREAD: nothing is known to be wrong, but it could not be read, so nothing is verified either."""

    DAMAGE = "damage"
    GAP = "gap"
    DUPLICATE = "duplicate"
    ORDER = "order"
    DIVERGENCE = "divergence"
    UNREAD = "unread"


class CommittedRun(NamedTuple):
    """Entry `llsn + i` is ordered at `glsn + i`, for 0 <= i < entries."""

    llsn: int
    glsn: int
    entries: int


class Batch(NamedTuple):
    """What is compared of one batch. Two that agree in all of this are the same bytes."""

    llsn: int
    entries: int
    body_crc: int
    header_crc: int


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that is wrong. 0 and "" where it does not apply: a gap in a topic's order is in no replica."""

    kind: FindingKind
    topic: str
    log_stream: int
    node: int
    path: str
    llsn: int
    glsn: int
    found: str
    expected: str


@dataclass(frozen=True, slots=True)
class AuditRange:
    """What one task reads: LLSNs [begin, end) of one replica. `first`: the stream's oldest, whose batch may begin below `begin`.
    `listing`: every batch and run is wanted, not only their digest."""

    topic: str
    log_stream: int
    node: int
    path: str
    begin: int
    end: int
    block_entries: int
    first: bool = False
    listing: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """LLSNs [begin, end) of one replica, as they were read. `edges`: see `edges_of`. Not `complete`: some of it could not be read,
    so its digest means nothing. `trimmed`: the log was trimmed here in the meantime."""

    log_stream: int
    node: int
    begin: int
    end: int
    entries: int
    size: int
    digest: bytes
    edges: dict[int, int]
    glsn_first: int
    glsn_last: int
    complete: bool = True
    trimmed: bool = False
    batches: tuple[Batch, ...] = ()
    runs: tuple[CommittedRun, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskFindings:
    """Everything that one task found."""

    blocks: tuple[Block, ...] = ()
    findings: tuple[Finding, ...] = ()
    more_findings: int = 0


def mark(position: int) -> int:
    """A number for a position, as good as random: 64 bits."""
    mixed = (position + 1) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31


def edges_of(runs: Iterable[CommittedRun], size: int = GLSN_BLOCK) -> dict[int, int]:
    """For each piece of `size` positions that the runs touch: the sum of mark(begin) - mark(end) of what they cover of it.

    Ranges cover a piece exactly once, without a gap or an overlap, if and only if their begins and ends cancel out but for the
    piece's own two: so sums of 64 bits from any number of tasks, added up, prove it without bringing the ranges together.
    """
    sums: dict[int, int] = {}
    for _, glsn, entries in runs:
        end = glsn + entries
        while glsn < end:
            piece = glsn // size
            stop = min(end, (piece + 1) * size)
            sums[piece] = (sums.get(piece, 0) + mark(glsn) - mark(stop)) & _MASK
            glsn = stop
    return sums


def merged_runs(runs: Iterable[CommittedRun]) -> list[CommittedRun]:
    """Runs that are contiguous in both orders, merged: how they were cut does not matter."""
    whole: list[CommittedRun] = []
    for run in runs:
        last = whole[-1] if whole else None
        if last and run.llsn == last.llsn + last.entries and run.glsn == last.glsn + last.entries:
            whole[-1] = last._replace(entries=last.entries + run.entries)
        else:
            whole.append(run)
    return whole


def cut(runs: Iterable[CommittedRun], begin: int, end: int) -> list[CommittedRun]:
    """What the runs have of LLSNs [begin, end)."""
    inside = []
    for llsn, glsn, entries in runs:
        low, high = max(llsn, begin), min(llsn + entries, end)
        if low < high:
            inside.append(CommittedRun(low, glsn + low - llsn, high - low))
    return inside
