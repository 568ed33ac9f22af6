"""The schedule: who is measured when. Systems take turns workload by workload, and the order changes from pass to pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.systems import System
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
    turns: list[Turn] = []
    for place, workload in enumerate(workloads):
        able = [system for system in systems if workload.runs_on(system)]
        if not able:
            continue
        first = (number * max(1, len(able) // 3) + place) % len(able)
        order = able[first:] + able[:first]
        turns += [
            Turn(number, workload, system) for system in (order if number % 2 == 0 else reversed(order))
        ]
    return turns
