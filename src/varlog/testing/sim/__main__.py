"""Commands of the simulator: `run`, `nightly`, `replay` and `mutants`.

`run` many seeds, search new ones for hours (`nightly`), `replay` one, plant bugs (`mutants`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from varlog.model.cluster import Ordering
from varlog.testing.sim.runner import default_jobs, replay_command, run_seeds, search_mutants
from varlog.testing.sim.simulate import RunResult

BOTH = "both"
# Seeds that a nightly search draws at a time: each in every ordering, with and without users of recipes.
NIGHTLY_SEEDS = 20
NEW_SEEDS = 2**40
# Properties of how a cluster lives; all others are of the data that it holds and of what it says of them.
LIVENESS = frozenset(
    {"Heals", "DeadlinesKept", "CalmSucceeds", "NothingBreaks", "StoppedWhereDue", "GrayStaysLocal"}
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m varlog.testing.sim", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="simulate many seeds; exit 1 if one violates a law")
    run.add_argument("--seeds", type=int, default=1000, help="how many (default 1000)")
    run.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    run.add_argument(
        "--ordering",
        choices=[*Ordering, BOTH],
        default=BOTH,
        help="how topics are ordered; both: each seed once in each way (default)",
    )
    run.add_argument("--recipes", action="store_true", help="users use recipes, not the log itself")
    run.add_argument(
        "--jobs", type=int, default=default_jobs(), help="worker processes (default: one a core)"
    )
    nightly = commands.add_parser(
        "nightly",
        help="search new random seeds for hours, in both orderings, with and without recipes; exit 1 if one fails",
    )
    nightly.add_argument("--hours", type=float, default=4.0, help="how long (default 4)")
    nightly.add_argument(
        "--failures",
        type=Path,
        default=Path("sim-failures.txt"),
        help="file that failing seeds are added to, each with the command that replays it",
    )
    nightly.add_argument("--jobs", type=int, default=default_jobs(), help="worker processes")
    replay = commands.add_parser("replay", help="run one seed again and print everything")
    replay.add_argument("seed", type=int)
    replay.add_argument(
        "--ordering",
        choices=[*Ordering],
        help="how topics are ordered (default: committed, or as the mutant needs it)",
    )
    replay.add_argument("--recipes", action="store_true", help="users use recipes, not the log itself")
    replay.add_argument("--mutant", default="", help="plant this bug first")
    replay.add_argument("--messages", action="store_true", help="print every message as well")
    mutants = commands.add_parser("mutants", help="plant known bugs; exit 1 if one is not found")
    mutants.add_argument("--seeds", type=int, default=3000, help="the most for each (default 3000)")
    mutants.add_argument("--only", default="", metavar="NAME", help="this one alone")
    mutants.add_argument(
        "--quick", action="store_true", help="without those that only very many seeds can show"
    )
    mutants.add_argument(
        "--ordering", choices=[*Ordering, BOTH], default=BOTH, help="those of this ordering alone"
    )
    mutants.add_argument("--jobs", type=int, default=default_jobs(), help="worker processes")
    mutants.add_argument(
        "--known",
        type=Path,
        help="JSON file of the seeds that showed each planted bug last time; these are tried first",
    )
    mutants.add_argument(
        "--record", action="store_true", help="search all seeds, and rewrite the file of --known"
    )
    chosen = parser.parse_args(arguments)
    if chosen.command == "run":
        orderings = tuple(Ordering) if chosen.ordering == BOTH else (Ordering(chosen.ordering),)
        return run_command(chosen.first, chosen.seeds, chosen.jobs, orderings, recipes=chosen.recipes)
    if chosen.command == "nightly":
        return nightly_command(chosen.hours * 3600, chosen.failures, chosen.jobs)
    if chosen.command == "replay":
        ordering = Ordering(chosen.ordering) if chosen.ordering else None
        return replay_seed(
            chosen.seed, ordering, chosen.mutant, messages=chosen.messages, recipes=chosen.recipes
        )
    if chosen.record and chosen.known is None:
        mutants.error("--record needs --known FILE")
    return mutants_command(
        chosen.seeds,
        chosen.only,
        chosen.ordering,
        chosen.jobs,
        quick=chosen.quick,
        known=chosen.known,
        record=chosen.record,
    )


def run_command(
    first: int, seeds: int, jobs: int, orderings: Sequence[Ordering], *, recipes: bool = False
) -> int:
    """Every seed in every ordering; every violation in words, with the command that replays it."""
    began = time.monotonic()
    done = failed = operations = 0
    virtual_s = 0.0
    runs = seeds * len(orderings)
    for result in run_seeds(first, seeds, jobs, orderings, recipes=recipes):
        done += 1
        operations += result.operations
        virtual_s += result.virtual_s
        if result.violations:
            failed += 1
            _clear_progress()
            print(f"seed {result.seed} ({result.ordering}) violates:")
            for checker, law, sentence in result.violations:
                print(f"  {checker} ({law}): {sentence}")
            print(f"  replay: {replay_command(result.seed, result.ordering, recipes=recipes)}", flush=True)
        _progress(f"{done}/{runs} seeds, {failed} failed, {done / (time.monotonic() - began):.1f} seeds/s")
    _clear_progress()
    took = time.monotonic() - began
    print(
        f"{done} seeds ({', '.join(orderings)}), {operations} operations, {virtual_s / 3600:.1f} h of cluster time in {took:.0f} s "
        f"({done / took:.1f} seeds/s): {f'{failed} seeds violate a law' if failed else 'no violation'}"
    )
    return 1 if failed else 0


def nightly_command(seconds: float, failures: Path, jobs: int) -> int:
    """New seeds until the time is over; every failure is printed, and added to the file immediately."""
    began = time.monotonic()
    draw = random.SystemRandom()
    done = failed = 0
    recipes = False
    while done == 0 or time.monotonic() - began < seconds:
        first = draw.randrange(NEW_SEEDS)
        with closing(run_seeds(first, NIGHTLY_SEEDS, jobs, tuple(Ordering), recipes=recipes)) as results:
            for result in results:
                done += 1
                if result.violations:
                    failed += 1
                    _write_failure(result, failures, recipes=recipes)
                _progress(f"{done} seeds, {failed} failed")
                if time.monotonic() - began >= seconds:
                    break
        recipes = not recipes
    _clear_progress()
    took = time.monotonic() - began
    outcome = f"{failed} seeds violate a law: see {failures}" if failed else "no violation"
    print(f"{done} new seeds in {took:.0f} s ({done / took:.1f} seeds/s): {outcome}")
    return 1 if failed else 0


def _write_failure(result: RunResult, failures: Path, *, recipes: bool) -> None:
    replay = replay_command(result.seed, result.ordering, recipes=recipes)
    lines = [f"{checker} ({law}): {sentence}" for checker, law, sentence in result.violations]
    text = "\n".join([replay, *(f"  {line}" for line in lines), ""])
    _clear_progress()
    print(text, end="", flush=True)
    with failures.open("a") as file:
        file.write(text)


def replay_seed(
    seed: int, ordering: Ordering | None, mutant: str, *, messages: bool, recipes: bool = False
) -> int:
    """One seed in this process, with every event printed."""
    from varlog.testing.sim.mutants.catalog import plant
    from varlog.testing.sim.recipes.world import simulate_recipes
    from varlog.testing.sim.simulate import simulate

    if mutant:
        planted = plant(mutant)
        ordering, recipes = ordering or planted.ordering, recipes or planted.recipe is not None
        print(f"planted: {planted.wrong}")
    run = simulate_recipes if recipes else simulate
    result, _ = run(seed, ordering or Ordering.COMMITTED, trace=print, messages=messages)
    print(
        f"\nhistory {result.digest}: {result.operations} operations, {result.virtual_s:.3f} s of cluster time"
    )
    for what, count in sorted(result.counts.items()):
        print(f"  {what}: {count}")
    for checker, law, sentence in result.violations:
        print(f"violated: {checker} ({law}): {sentence}")
    if not result.violations:
        print("no violation")
    return 1 if result.violations else 0


def mutants_command(
    seeds: int,
    only: str,
    ordering: str,
    jobs: int,
    *,
    quick: bool = False,
    known: Path | None = None,
    record: bool = False,
) -> int:
    """A table: planted bug, the seed that shows it, the property that broke, how long the search took."""
    from varlog.testing.sim.mutants.catalog import MUTANTS, RARE

    chosen = [
        mutant
        for mutant in MUTANTS
        if only in ("", mutant.name)
        and ordering in (BOTH, mutant.ordering)
        and not (quick and mutant.name in RARE)
    ]
    if not chosen:
        print(
            f"there is no planted bug {only!r}; there are: {', '.join(one.name for one in MUTANTS)}",
            file=sys.stderr,
        )
        return 2
    width = max(len(mutant.name) for mutant in chosen)
    print(f"{'planted bug':{width}}  {'seed':>5}  {'seconds':>7}  found by")
    survivors = []
    by_data = 0
    _progress(f"searching {len(chosen)} planted bugs")
    shown = json.loads(known.read_text()) if known is not None and known.exists() else {}
    searches = search_mutants([mutant.name for mutant in chosen], seeds, jobs, {} if record else shown)
    for mutant, found in zip(chosen, searches, strict=True):
        _clear_progress()
        if found.seed is None:
            survivors.append(mutant)
            print(
                f"{mutant.name:{width}}  {'-':>5}  {found.seconds:7.1f}  NOT FOUND within {seeds} seeds",
                flush=True,
            )
        else:
            by_data += found.checker not in LIVENESS
            shown[mutant.name] = found.seed
            print(
                f"{mutant.name:{width}}  {found.seed:>5}  {found.seconds:7.1f}  {found.checker}", flush=True
            )
    if record and known is not None:
        names = {mutant.name for mutant in MUTANTS}
        kept = {name: seed for name, seed in shown.items() if name in names}
        known.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
    for mutant in survivors:
        print(f"not found: {mutant.name}: {mutant.wrong}")
    seen = len(chosen) - len(survivors)
    print(
        f"{seen} of {len(chosen)} planted bugs found: {by_data} by checks of the data, {seen - by_data} by liveness"
    )
    return 1 if survivors else 0


def _progress(text: str) -> None:
    """One line that is written over, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
