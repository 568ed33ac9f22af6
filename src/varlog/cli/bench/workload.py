"""Workload: a name, a target, how it is run and how its figures are judged against the target and the raw limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from varlog.cli.bench.raw import RawLimits

if TYPE_CHECKING:
    from varlog.cli.bench.bench_context import BenchContext

# Figures by name, unit last: {"p50_s": 0.0011, "appends_per_s": 21000.0}.
Measured = dict[str, float]


class Place(StrEnum):
    """Where a workload runs."""

    LOG = "log"  # on the cluster, or embedded if that is asked for
    CLUSTER = "cluster"  # looks at the processes of a cluster that the bench has started itself
    DISK = "disk"  # needs a data directory only
    SPARK = "spark"  # on a cluster, read and written by Spark
    BOTH = "both"  # on a cluster, with topics of both orderings


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What the figures mean: for people, as a ratio to a raw limit if there is one, and whether the target is met."""

    summary: str
    met: bool
    ratio: float | None = None
    against: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table."""

    name: str
    title: str
    target: str
    place: Place
    run: Callable[[BenchContext], Awaitable[Measured]]
    judge: Callable[[Measured, RawLimits], BenchResult]
    # The raw limits are measured right before and right after: only what ran side by side is compared.
    beside_raw: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """One workload, measured and judged. `met` is None where the target does not apply."""

    workload: str
    title: str
    target: str
    measured: Measured
    summary: str
    ratio: float | None
    against: str
    met: bool | None
    note: str = ""
    series: dict[str, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        return {
            "workload": self.workload,
            "title": self.title,
            "target": self.target,
            "measured": self.measured,
            "summary": self.summary,
            "ratio": self.ratio,
            "against": self.against,
            "met": self.met,
            "note": self.note,
        } | ({"series": self.series} if self.series else {})


def judged(
    workload: Workload,
    measured: Measured,
    raw: RawLimits,
    *,
    applies: bool,
    note: str = "",
    series: dict[str, list[float]] | None = None,
) -> Result:
    """The result; where the target does not apply (another load than the table's) it is left open."""
    verdict = workload.judge(measured, raw)
    return Result(
        workload.name,
        workload.title,
        workload.target,
        measured,
        verdict.summary,
        verdict.ratio,
        verdict.against,
        verdict.met if applies else None,
        note,
        series or {},
    )


def failed(workload: Workload, why: str) -> Result:
    """A workload that could not be measured: said, not left out."""
    return Result(workload.name, workload.title, workload.target, {}, "not measured", None, "", None, why)
