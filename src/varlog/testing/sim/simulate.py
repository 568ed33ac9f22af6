"""simulate(): runs one seed to its end and checks its history and log lines."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from varlog.model.cluster import Ordering
from varlog.storagenode.committed.replica_machine import ReplicaMachine
from varlog.storagenode.sequenced.unit_machine import UnitMachine
from varlog.testing.sim.core.limits import SEQUENCED_BOUNDS, STORE_BOUNDS, tight_limits
from varlog.testing.sim.core.loop import CURRENT, SimLoop, SimulationStuck, make_loop
from varlog.testing.sim.core.plan import DISK_FAILURES, FaultKind
from varlog.testing.sim.world import World
from varlog.testing.validation import validate_after_events

STEPS_MAX = 2_000_000
# A run takes a fraction of a second; the longest take some seconds.
PROCESSOR_S_MAX = 120.0
# Log lines of a repository whose store went back in time.
REWIND_WORDS = ("STOPPED", "went back in time", "was adopted from the nodes", "replica frozen")
# Log lines about copies that are lost, harmed or old.
LOSS_WORDS = (*REWIND_WORDS, "replica is damaged", "replica cannot be opened", "unit is damaged")
# Log lines of nodes about a repository that knows nothing of their cluster.
FOREIGN_WORDS = "belongs to the cluster with UUID"


@dataclass(frozen=True)
class RunResult:
    """What one seed came to."""

    seed: int
    ordering: Ordering
    digest: str
    violations: tuple[tuple[str, str, str], ...]  # checker, law, sentence
    operations: int
    steps: int
    virtual_s: float
    counts: dict[str, int]


class LogLines(logging.Handler):
    """What the services log while the world runs: errors are complaints, the rest is part of the trace."""

    def __init__(self, world: World, *, tracing: bool) -> None:
        quiet = logging.WARNING if world.history.beyond else logging.ERROR
        super().__init__(logging.DEBUG if tracing else quiet)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get()
        if self._world.over or (process is not None and not process.alive):
            return
        name = process.name if process is not None else "simulator"
        text = f"{name} [{record.levelname.lower()}] {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._world.trace(text)
        if self._world.history.beyond and FOREIGN_WORDS in text:
            self._world.history.said.append(text)
        if record.levelno >= logging.ERROR and not self._is_due(
            process.host if process is not None else "", text
        ):
            self._world.history.complaints.append(text)

    def _is_due(self, host: str, text: str) -> bool:
        """A disk that is damaged on purpose, or fails, is to be complained about by its node, and by no other."""
        kinds = self._world.plan.kinds()
        if ("replica is damaged" in text or "replica frozen" in text) and host in self._world.damaged_hosts:
            return True
        if FaultKind.BEYOND in kinds and any(words in text for words in LOSS_WORDS):
            return True
        if FaultKind.STORE_REWIND in kinds and any(words in text for words in REWIND_WORDS):
            self._world.history.said.append(text)
            return True
        if {FaultKind.STORE_FULL, FaultKind.OPEN} & kinds and "the metadata repository has stopped" in text:
            return True
        return bool(DISK_FAILURES & kinds) and "replica cannot be opened" in text


def simulate(
    seed: int,
    ordering: Ordering = Ordering.COMMITTED,
    *,
    trace: Callable[[str], None] | None = None,
    messages: bool = False,
) -> tuple[RunResult, World]:
    """Run one seed and check its history."""
    world = World(seed, ordering, trace=trace, messages=messages)
    return run_world(world, tracing=trace is not None), world


def run_world(world: World, *, tracing: bool = False) -> RunResult:
    """Run a world to its end and check its history."""
    seed, ordering = world.seed, world.plan.ordering
    logger = logging.getLogger("varlog")
    lines = LogLines(world, tracing=tracing)
    before = logger.level, logger.propagate
    logger.addHandler(lines)
    logger.setLevel(lines.level)
    logger.propagate = False
    loop = make_loop(steps_max=STEPS_MAX)
    try:
        try:
            with ExitStack() as tight:
                tight.enter_context(validate_after_events(ReplicaMachine, UnitMachine))
                tight.enter_context(tight_limits(random.Random(f"{seed}/limits")))
                tight.enter_context(tight_limits(random.Random(f"{seed}/store limits"), STORE_BOUNDS))
                if ordering is Ordering.SEQUENCED:
                    rng = random.Random(f"{seed}/sequenced limits")
                    tight.enter_context(tight_limits(rng, SEQUENCED_BOUNDS))
                world.tighten(tight)
                tight.enter_context(loop.limit_processor_time(PROCESSOR_S_MAX))
                loop.run_until_complete(world.run())
        except SimulationStuck as stuck:
            world.history.trouble.append(str(stuck))
        # Before the loop lets go of what is unfinished: that is the end of the world, not a part of it.
        return check_world(world, loop)
    finally:
        world.over = True
        loop.close()
        logger.removeHandler(lines)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def check_world(world: World, loop: SimLoop) -> RunResult:
    counts = world.counts()
    return RunResult(
        seed=world.seed,
        ordering=world.plan.ordering,
        digest=world.digest(),
        violations=tuple(world.violations()),
        operations=sum(counts.values()),
        steps=loop.steps,
        virtual_s=loop.time(),
        counts=counts,
    )
