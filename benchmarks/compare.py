"""Two revisions, run by turns on this machine: prints the ratio of each figure, not its absolute value.

    python benchmarks/compare.py BEFORE AFTER [--rounds 3] [-- options of varlog bench]

BEFORE and AFTER are git revisions; `.` is the working tree. Each revision measures with its own `varlog bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Figures where less is better; everything else that is compared is a rate.
LATENCIES = ("p50_s", "p99_s", "open_s", "open_warm_s", "resident_max_bytes", "core_max", "peak_bytes")
RATES = ("appends_per_s", "entries_per_s", "bytes_per_s")
RUN_S_MAX = 1800

Samples = dict[tuple[str, str], list[float]]


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
    def told(self) -> str:
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


@contextmanager
def source_of(revision: str) -> Iterator[Path]:
    """The source directory of a revision, in a work tree of its own."""
    if revision == ".":
        yield ROOT / "src"
        return
    with tempfile.TemporaryDirectory(prefix="varlog-compare-") as directory:
        tree = Path(directory, "tree")
        subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "-q", "--detach", tree, revision], check=True, timeout=60
        )
        try:
            yield tree / "src"
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True, timeout=60)


def measured(source: Path, options: Sequence[str]) -> dict[str, object]:
    """One run of `varlog bench --json` with the package at `source`."""
    start = "from varlog.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", start, "bench", "--json", *options],
        env=os.environ | {"PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        check=False,
        timeout=RUN_S_MAX,
    )
    if not done.stdout:
        raise SystemExit(f"varlog bench of {source} ended with exit code {done.returncode} and no report")
    report: dict[str, object] = json.loads(done.stdout)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each revision")
    # By hand: argparse gives up on `--` behind options of its own.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    sides: tuple[list[dict[str, object]], list[dict[str, object]]] = ([], [])
    with ExitStack() as stack:
        sources = [
            stack.enter_context(source_of(revision)) for revision in (arguments.before, arguments.after)
        ]
        for number in range(arguments.rounds):
            # A B, B A, A B: a machine that gets slower or faster meanwhile favours neither.
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                sys.stderr.write(f"round {number + 1} of {arguments.rounds}: {('before', 'after')[side]}\n")
                sides[side].append(measured(sources[side], options))
    sys.stdout.write(f"{'workload':18} {'figure':18} {'after/before':>12}  spread before, after\n")
    for one in compared(samples_of(sides[0]), samples_of(sides[1])):
        spreads = f"{one.spread_before:.2f}, {one.spread_after:.2f}"
        sys.stdout.write(f"{one.workload:18} {one.figure:18} {one.ratio:12.2f}  {spreads}  {one.told}\n")


if __name__ == "__main__":
    main()
