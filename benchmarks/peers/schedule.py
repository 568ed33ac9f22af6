"""The schedule: who is measured when. Systems take turns workload by workload, and the order changes from pass to pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.systems import System
from benchmarks.peers.targets import duels
from benchmarks.peers.workloads import Workload


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement: one workload on one system."""

    number: int
    workload: Workload
    system: System


def turns_of(number: int, workloads: Sequence[Workload], systems: Sequence[System]) -> list[Turn]:
    """The turns of pass `number` (from 0): all systems one after the other for each workload, so that what else the machine does
    falls on all of them alike. Each pass begins with another system, and every other pass goes the other way round."""
    return _in_turn(
        number, {workload: [one for one in systems if workload.runs_on(one)] for workload in workloads}
    )


def duel_of(number: int, workloads: Sequence[Workload], systems: Sequence[System]) -> list[Turn]:
    """As a pass, of those alone that decide a target: more ratios, from less time."""
    duellists = duels()
    return _in_turn(
        number,
        {
            workload: [one for one in systems if one.name in duellists.get(workload.name, ())]
            for workload in workloads
        },
    )


def _in_turn(number: int, able_by_workload: dict[Workload, list[System]]) -> list[Turn]:
    turns: list[Turn] = []
    for place, (workload, able) in enumerate(able_by_workload.items()):
        if not able:
            continue
        first = (number * max(1, len(able) // 3) + place) % len(able)
        order = able[first:] + able[:first]
        turns += [
            Turn(number, workload, system) for system in (order if number % 2 == 0 else reversed(order))
        ]
    return turns
