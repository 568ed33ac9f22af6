"""Two revisions, run by turns on this machine: prints the ratio of each figure with its spread, not its absolute value.

    python benchmarks/compare.py BEFORE [AFTER] [--rounds 4] [-- options of varlog bench]

BEFORE and AFTER are git revisions; `.`, the default of AFTER, is the working tree. Each revision is laid out in a directory of its
own and measures with its own `varlog bench`, on the packages of this interpreter. Without options: one appender, 64 appenders,
batches, reading from the start; about six minutes.

Exit code 0: nothing is worse. 1: something is worse, by more than the rounds of one revision differ. 2: not compared.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
WORKING_TREE = "."
DEFAULT_OPTIONS = (
    "-w",
    "append-1",
    "-w",
    "append-64",
    "-w",
    "batch-1000",
    "-w",
    "subscribe",
    "--seconds",
    "3",
)
ROUNDS = 4
# Figures where less is better; everything else that is compared is a rate.
LATENCIES = ("p50_s", "p99_s", "open_s", "open_warm_s", "resident_max_bytes", "core_max", "peak_bytes")
RATES = ("appends_per_s", "entries_per_s", "bytes_per_s")
RUN_S_MAX = 1800
WORSE, NOT_COMPARED = 1, 2

Samples = dict[tuple[str, str], list[float]]


class NotCompared(Exception):
    """What is in the way, and the remedy."""


@dataclass(frozen=True)
class Comparison:
    """One figure of one workload: the medians, and how far the rounds of each side lie apart (largest / smallest)."""

    workload: str
    figure: str
    before: float
    after: float
    spread_before: float
    spread_after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before

    @property
    def outcome(self) -> str:
        """Better, worse, or within what two rounds of the same revision differ by."""
        better = self.ratio < 1 if self.figure in LATENCIES else self.ratio > 1
        change = max(self.ratio, 1 / self.ratio)
        if change <= max(self.spread_before, self.spread_after):
            return "within the spread"
        return "better" if better else "worse"


def samples_of(reports: Sequence[dict[str, object]]) -> Samples:
    """All rounds of one side, by workload and figure."""
    samples: Samples = {}
    for report in reports:
        results = report["results"]
        for result in results if isinstance(results, list) else []:
            for figure, value in result["measured"].items():
                if figure in LATENCIES or figure in RATES:
                    samples.setdefault((result["workload"], figure), []).append(value)
    return samples


def compared(before: Samples, after: Samples) -> list[Comparison]:
    """What both sides have measured."""
    return [
        Comparison(
            workload,
            figure,
            statistics.median(values),
            statistics.median(after[workload, figure]),
            max(values) / min(values),
            max(after[workload, figure]) / min(after[workload, figure]),
        )
        for (workload, figure), values in before.items()
        if (workload, figure) in after and min(values) > 0 and min(after[workload, figure]) > 0
    ]


def comparison_table(comparisons: Iterable[Comparison]) -> str:
    """A table for people."""
    lines = [f"{'workload':18} {'figure':18} {'after/before':>12}  spread before, after"]
    for one in comparisons:
        spreads = f"{one.spread_before:.2f}, {one.spread_after:.2f}"
        lines.append(f"{one.workload:18} {one.figure:18} {one.ratio:12.2f}  {spreads}  {one.outcome}")
    return "\n".join(lines) + "\n"


def exit_code(comparisons: Sequence[Comparison]) -> int:
    """See the top of this file."""
    if not comparisons:
        return NOT_COMPARED
    return WORSE if any(one.outcome == "worse" for one in comparisons) else 0


def turns(rounds: int) -> Iterator[tuple[int, int]]:
    """(round, side): A B, B A, A B. A machine that gets slower or faster meanwhile favours neither."""
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            yield number, side


def check_revision(revision: str, root: Path) -> None:
    """NotCompared if there is no such commit here."""
    if revision == WORKING_TREE:
        return
    found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if found.returncode:
        raise NotCompared(
            f"there is no revision {revision!r} here: name a commit, a tag or a branch (see `git log --oneline`), or fetch it"
        )


@contextmanager
def source_of(revision: str, root: Path = ROOT) -> Iterator[Path]:
    """The source directory of a revision, laid out while it is needed: neither the working tree nor git's own files change."""
    if revision == WORKING_TREE:
        yield root / "src"
        return
    with tempfile.TemporaryDirectory(prefix="varlog-compare-") as directory:
        packed = _git(root, "archive", "--format=tar", revision, "src")
        if packed.returncode:
            raise NotCompared(
                f"revision {revision!r} cannot be laid out ({packed.stderr.decode().strip()}): it needs a src directory"
            )
        subprocess.run(["tar", "-x", "-C", directory], input=packed.stdout, check=True, timeout=60)
        yield Path(directory, "src")


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", root, *arguments], capture_output=True, check=False, timeout=60)


def _environment(source: Path) -> dict[str, str]:
    """PYTHONPATH comes before whatever is installed, also in the servers that the bench starts: they inherit it."""
    return os.environ | {"PYTHONPATH": str(source)}


def check_own_code(source: Path) -> None:
    """NotCompared if this interpreter would run another varlog than the one at `source`: both sides would be the same code."""
    ask = "import varlog.cli.serve; print(varlog.cli.serve.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", ask], env=_environment(source), capture_output=True, check=False, timeout=60
    )
    found = done.stdout.decode().strip()
    if done.returncode or not Path(found).resolve().is_relative_to(source.resolve()):
        why = found or done.stderr.decode().strip().rpartition("\n")[2]
        raise NotCompared(
            f"{sys.executable} does not run the code at {source} ({why}): use one that has no other varlog before PYTHONPATH"
        )


def measured(source: Path, options: Sequence[str]) -> dict[str, object]:
    """One run of `varlog bench --json` with the package at `source`."""
    start = "from varlog.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", start, "bench", "--json", *options],
        env=_environment(source),
        stdout=subprocess.PIPE,
        check=False,
        timeout=RUN_S_MAX,
    )
    if not done.stdout:
        raise NotCompared(
            f"varlog bench of {source} ended with exit code {done.returncode} and no report: see above"
        )
    report: dict[str, object] = json.loads(done.stdout)
    return report


def compare(
    before: str, after: str, rounds: int, options: Sequence[str], root: Path = ROOT
) -> list[Comparison]:
    """Run both by turns. Nothing is started before both are known to run their own code."""
    sides: tuple[list[dict[str, object]], list[dict[str, object]]] = ([], [])
    for revision in (before, after):
        check_revision(revision, root)
    with ExitStack() as stack:
        sources = [stack.enter_context(source_of(revision, root)) for revision in (before, after)]
        for source in sources:
            check_own_code(source)
        for number, side in turns(rounds):
            sys.stderr.write(f"round {number + 1} of {rounds}: {('before', 'after')[side]}\n")
            sides[side].append(measured(sources[side], options))
    return compared(samples_of(sides[0]), samples_of(sides[1]))


def _leave(number: int, frame: object) -> NoReturn:
    """A signal ends the program as an error would: what was laid out is removed."""
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", metavar="BEFORE")
    parser.add_argument("after", metavar="AFTER", nargs="?", default=WORKING_TREE)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each revision [{ROUNDS}]")
    # By hand: argparse gives up on `--` behind options of its own.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :] or DEFAULT_OPTIONS
    signal.signal(signal.SIGTERM, _leave)
    try:
        comparisons = compare(arguments.before, arguments.after, arguments.rounds, options)
    except NotCompared as problem:
        sys.stderr.write(f"compare: {problem}\n")
        sys.exit(NOT_COMPARED)
    sys.stdout.write(comparison_table(comparisons))
    sys.exit(exit_code(comparisons))


if __name__ == "__main__":
    main()
