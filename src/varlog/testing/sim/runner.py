"""Runner: many seeds in parallel worker processes.

It reports progress, every violation, and the command that replays it.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from varlog.model.cluster import Ordering
from varlog.testing.sim.core.plan import SimPlan
from varlog.testing.sim.mutants.patch import Mutant
from varlog.testing.sim.recipes.plan import RecipePlan
from varlog.testing.sim.simulate import RunResult

# Seeds that a worker runs in one go: enough to forget the cost of handing them over, few enough for a live progress line.
CHUNK_SEEDS = 5
# A worker is replaced after this many chunks: what a run leaves behind must not accumulate.
CHUNKS_A_WORKER = 40


@dataclass(frozen=True)
class SeedResult:
    """The first seed that showed a planted bug, and by which property."""

    mutant: str
    seed: int | None
    checker: str
    sentence: str
    seconds: float


def replay_command(
    seed: int, ordering: Ordering = Ordering.COMMITTED, mutant: str = "", *, recipes: bool = False
) -> str:
    """The one command that runs a seed again and prints everything."""
    ordered = f" --ordering {ordering}" if ordering is not Ordering.COMMITTED else ""
    planted = f" --mutant {mutant}" if mutant else ""
    used = " --recipes" if recipes else ""
    return f"{_python()} -m varlog.testing.sim replay {seed}{used}{ordered}{planted}"


def run_seeds(
    first: int,
    count: int,
    jobs: int,
    orderings: Sequence[Ordering] = (Ordering.COMMITTED,),
    *,
    recipes: bool = False,
) -> Generator[RunResult, None, None]:
    """Results as they come: every seed in every ordering; with users of recipes, or of the log itself."""
    seeds = range(first, first + count)
    chunks = iter(
        [(seeds[at : at + CHUNK_SEEDS], order) for at in range(0, count, CHUNK_SEEDS) for order in orderings]
    )
    with _pool(jobs, CHUNKS_A_WORKER) as pool:
        waiting: set[Future[list[RunResult]]] = set()
        while True:
            while len(waiting) < 2 * jobs and (chunk := next(chunks, None)) is not None:
                waiting.add(pool.submit(run_chunk, list(chunk[0]), chunk[1], recipes=recipes))
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()


_planted = ""


def run_chunk(
    seeds: list[int], ordering: Ordering = Ordering.COMMITTED, mutant: str = "", *, recipes: bool = False
) -> list[RunResult]:
    """In a worker: these seeds, one after the other. A worker has one planted bug, or none, all its life."""
    global _planted  # noqa: PLW0603

    from varlog.testing.sim.mutants.catalog import plant
    from varlog.testing.sim.recipes.world import simulate_recipes
    from varlog.testing.sim.simulate import simulate

    if mutant != _planted:
        plant(mutant)
        _planted = mutant
    gc.freeze()  # what is imported stays: the collection after each run need not look at it
    run = simulate_recipes if recipes else simulate
    return [run(seed, ordering)[0] for seed in seeds]


def search_mutants(
    names: Sequence[str], seeds: int, jobs: int, known: Mapping[str, int]
) -> Iterator[SeedResult]:
    """Each planted bug in a fresh process of its own; yielded in the order of `names`."""
    with _pool(jobs, 1) as pool:
        for search in [pool.submit(search_mutant, name, seeds, known.get(name)) for name in names]:
            yield search.result()


def search_mutant(name: str, seeds: int, known: int | None = None) -> SeedResult:
    """In a worker: the first seed that shows this planted bug. The seed that showed it last time is tried before all others:
    it still does, unless a change of the code or of the plan has changed that run."""
    from varlog.testing.sim.mutants.catalog import find

    began = time.monotonic()
    mutant = find(name)
    ordering, recipes = mutant.ordering, mutant.recipe is not None
    first = [] if known is None else [known]
    for seed in (seed for seed in (*first, *range(1, seeds + 1)) if _can_show(mutant, seed)):
        for result in run_chunk([seed], ordering, name, recipes=recipes):
            if result.violations:
                checker, _, sentence = result.violations[0]
                return SeedResult(name, seed, checker, sentence, time.monotonic() - began)
    return SeedResult(name, None, "", "", time.monotonic() - began)


def _can_show(mutant: Mutant, seed: int) -> bool:
    plan = SimPlan.of(seed, mutant.ordering)
    used = mutant.recipe is None or mutant.recipe in RecipePlan.of(seed, plan.calm).works
    return used and set(mutant.needs) <= plan.kinds() and (plan.gray_watch or not mutant.gray_watch)


def default_jobs() -> int:
    return os.cpu_count() or 1


@contextmanager
def _pool(jobs: int, tasks_a_worker: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes with one PYTHONHASHSEED. A run does not depend on it; if it did, it could still be replayed."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        context = get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=tasks_a_worker) as pool:
            yield pool
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before


def _python() -> str:
    """How this interpreter is called, as short as it works from here."""
    here = os.path.relpath(sys.executable)
    name = here if len(here) < len(sys.executable) else sys.executable
    return subprocess.list2cmdline([name])
