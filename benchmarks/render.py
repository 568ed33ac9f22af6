"""Runs `varlog bench` and puts its table into docs/benchmarks.md, between the two markers.

    python benchmarks/render.py [--from FILE] [-- options of varlog bench]

FILE is the output of an earlier `varlog bench --markdown`; without it everything is measured now.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"
RUN_S_MAX = 1800


def rendered(page: str, table: str) -> str:
    """`page` with `table` between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} lacks the lines {BEGIN} and {END}: the table goes between them")
    return f"{before}{BEGIN}\n\n{table.strip()}\n\n{END}{after}"


def measured(options: list[str]) -> str:
    """The output of `varlog bench --markdown` of this tree."""
    done = subprocess.run(
        [sys.executable, "-m", "varlog.cli", "bench", "--markdown", *options],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        check=True,
        timeout=RUN_S_MAX,
    )
    return done.stdout.decode()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", type=Path, help="the output of an earlier run")
    # By hand: argparse gives up on `--` behind options of its own.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    table = arguments.source.read_text("utf-8") if arguments.source else measured(options)
    PAGE.write_text(rendered(PAGE.read_text("utf-8"), table), "utf-8")
    sys.stdout.write(table)


if __name__ == "__main__":
    main()
