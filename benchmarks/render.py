"""Runs a benchmark and puts its table between two markers of its page.

    python benchmarks/render.py [--from FILE] [-- options of varlog bench]
    python benchmarks/render.py --faults [--from FILE] [-- options of benchmarks.faults]
    python benchmarks/render.py --spark [--from FILE] [-- options of benchmarks.spark]
    python benchmarks/render.py --orderings [--faults] [--from FILE] [-- options of benchmarks.orderings or benchmarks.faults]

FILE is the output of an earlier run: with --json of benchmarks.faults, with --markdown of the others; without it everything is
measured now. With --faults a plot is drawn as well (needs matplotlib: pip install 'varlog[plot]').
The workloads of `varlog bench` go into docs/benchmarks.md, everything else into benchmarks/journal.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from varlog.bench.machine import Conditions  # noqa: E402 - of this tree, wherever it was started

PAGE = ROOT / "docs" / "benchmarks.md"
JOURNAL = ROOT / "benchmarks" / "journal.md"
BENCH, FAULTS, SPARK = "bench", "faults", "spark"
ORDERINGS, ORDERING_FAULTS = "orderings", "ordering-faults"
PLOTS = {FAULTS: ROOT / "docs" / "faults.svg", ORDERING_FAULTS: ROOT / "docs" / "ordering-faults.svg"}
# What `python -m` runs for each section.
HOW = {
    BENCH: ["varlog.cli", "bench", "--markdown"],
    FAULTS: ["benchmarks.faults", "--json"],
    SPARK: ["benchmarks.spark", "--markdown"],
    ORDERINGS: ["benchmarks.orderings", "--markdown"],
    ORDERING_FAULTS: ["benchmarks.faults", "--ordering", "both", "--json"],
}
MET = {True: "yes", False: "no", None: "–"}
RUN_S_MAX = 1800


def rendered(page: str, table: str, section: str = BENCH) -> str:
    """`page` with `table` between the markers of its section."""
    first, last = f"<!-- {section}:begin -->", f"<!-- {section}:end -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {first} and {last}: the table goes between them")
    return f"{before}{first}\n\n{table.strip()}\n\n{last}{after}"


def plot_link(caption: str, plot: Path, page: Path) -> str:
    """The plot as an image of the page, by the path from there."""
    return f"![{caption}]({Path(os.path.relpath(plot, page.parent)).as_posix()})"


def measured(command: list[str]) -> str:
    """The output of a benchmark of this tree."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        check=True,
        timeout=RUN_S_MAX,
    )
    return done.stdout.decode()


def faults_section(report: dict[str, Any], plot: Path) -> str:
    """The rows of a report about faults, their conditions above, the plot below; draws the plot."""
    from benchmarks.faults.plot import draw

    draw(report, plot)
    rows = [
        (result["title"], result["summary"], result["target"], MET[result["met"]])
        for result in report["results"]
    ]
    cells = [("fault", "measured", "target", "met"), ("---",) * 4, *rows]
    return "\n".join(
        [
            *(f"- {line}" for line in Conditions(**report["conditions"]).lines()),
            "",
            *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells),
            "",
            plot_link("Appends per second around each fault", plot, JOURNAL),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", action="store_true", help="the section about faults, and its plot")
    parser.add_argument("--spark", action="store_true", help="the section about Spark")
    parser.add_argument("--orderings", action="store_true", help="one ordering against the other")
    parser.add_argument("--from", dest="source", type=Path, help="the output of an earlier run")
    # By hand: argparse gives up on `--` behind options of its own.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    section = section_of(arguments)
    output = arguments.source.read_text("utf-8") if arguments.source else measured([*HOW[section], *options])
    table = faults_section(json.loads(output), PLOTS[section]) if section in PLOTS else output
    page = PAGE if section == BENCH else JOURNAL
    page.write_text(rendered(page.read_text("utf-8"), table, section), "utf-8")
    sys.stdout.write(table)


def section_of(arguments: argparse.Namespace) -> str:
    if arguments.orderings:
        return ORDERING_FAULTS if arguments.faults else ORDERINGS
    return FAULTS if arguments.faults else SPARK if arguments.spark else BENCH


if __name__ == "__main__":
    main()
