"""Samples: every figure that was measured, by run, pass, system and workload; medians, spread, and ratios of the same pass."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from varlog.bench.figures import median
from varlog.bench.machine import Conditions, RawLimits, combined

# Grows when a field changes its meaning, so that files of another version are refused instead of misread.
JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one turn. `lap` is `run/pass`, or `run/pass/duel`: what has the same one was measured side by side."""

    lap: str
    system: str
    workload: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some values, the lowest and the highest."""

    median: float
    low: float
    high: float
    count: int


def spread_of(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values), len(values))


@dataclass
class Findings:
    """Everything one run or several have found. `idle` is cores at rest by group, `failures` what could not be measured."""

    conditions: Conditions
    seconds: float
    samples: list[Sample] = field(default_factory=list)
    rounds: list[RawLimits] = field(default_factory=list)
    idle: dict[str, list[float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def raw(self) -> RawLimits:
        return combined(self.rounds)

    @property
    def passes(self) -> int:
        return len({sample.lap for sample in self.samples if sample.lap.count("/") == 1})

    @property
    def duels(self) -> int:
        return len({sample.lap for sample in self.samples if sample.lap.count("/") == 2})

    def values(self, system: str, workload: str, figure: str) -> list[float]:
        return [
            sample.figures[figure]
            for sample in self.samples
            if sample.system == system and sample.workload == workload and figure in sample.figures
        ]

    def spread(self, system: str, workload: str, figure: str) -> Spread | None:
        """None where it was not measured."""
        values = self.values(system, workload, figure)
        return spread_of(values) if values else None

    def ratios(
        self,
        figure: str,
        ours: tuple[str, str],
        theirs: Iterable[tuple[str, str]],
        *,
        lower_is_better: bool = False,
    ) -> Spread | None:
        """How many times better `ours` (system, workload) is than the best of `theirs`, lap by lap: only what was measured
        side by side is compared."""
        by_lap: dict[str, dict[tuple[str, str], float]] = {}
        for sample in self.samples:
            if figure in sample.figures:
                by_lap.setdefault(sample.lap, {})[sample.system, sample.workload] = sample.figures[figure]
        others, best, ratios = tuple(theirs), min if lower_is_better else max, list[float]()
        for found in by_lap.values():
            there = [found[other] for other in others if other in found]
            if ours in found and there:
                mine, their = found[ours], best(there)
                ratios.append(their / mine if lower_is_better else mine / their)
        return spread_of(ratios) if ratios else None

    def as_json(self) -> str:
        return json.dumps(
            {
                "version": JSON_VERSION,
                "conditions": self.conditions.as_json(),
                "seconds": self.seconds,
                "samples": [
                    {"lap": one.lap, "system": one.system, "workload": one.workload, "figures": one.figures}
                    for one in self.samples
                ],
                "raw_rounds": [one.as_json() for one in self.rounds],
                "idle": self.idle,
                "versions": self.versions,
                "failures": self.failures,
                "took_s": self.took_s,
            },
            indent=1,
        )


def loaded(path: Path) -> Findings:
    """Out of a file that an earlier run has written."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if found.get("version") != JSON_VERSION:
        raise ValueError(
            f"{path} is of version {found.get('version')}, this program reads {JSON_VERSION}: measure again"
        )
    return Findings(
        Conditions(**found["conditions"]),
        found["seconds"],
        [Sample(**one) for one in found["samples"]],
        [RawLimits(**one) for one in found["raw_rounds"]],
        found["idle"],
        found["versions"],
        found["failures"],
        found["took_s"],
    )


def merged(parts: Sequence[Findings]) -> Findings:
    """Several runs as one: their samples keep their laps, so that ratios stay within a run."""
    first = parts[0]
    idle: dict[str, list[float]] = {}
    for part in parts:
        for group, values in part.idle.items():
            idle.setdefault(group, []).extend(values)
    return Findings(
        first.conditions,
        min(part.seconds for part in parts),
        [sample for part in parts for sample in part.samples],
        [one for part in parts for one in part.rounds],
        idle,
        {name: version for part in parts for name, version in part.versions.items()},
        [failure for part in parts for failure in part.failures],
        sum(part.took_s for part in parts),
    )
