"""How the log grows: throughput and latency against streams, topics, appenders, entry and log size, readers; names every cliff.

    python -m benchmarks.growth                                    everything, under ten minutes
    python -m benchmarks.growth --only streams,topics              these alone
    python -m benchmarks.growth --only size --log-gib 32           a larger log; it needs three times that on the disk
    python -m benchmarks.growth --quick                            does everything work? Figures are rough
    python -m benchmarks.growth --only readers --json > part.json  a part
    python -m benchmarks.growth --from part.json --from more.json  put parts together, measure nothing
    python -m benchmarks.growth --render                           also into benchmarks/journal.md and docs/growth.svg

Each sweep has a cluster of its own: three storage nodes with a copy each, one client process. Exit code 1 if there is a cliff.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.growth.loads import Pace, measure  # noqa: E402 - of this tree, wherever it was started
from benchmarks.growth.report import cliffs_in, report_text  # noqa: E402
from benchmarks.growth.sweeps import SWEEPS, Point, Sweep, as_json, merged  # noqa: E402
from benchmarks.render import JOURNAL, plot_link, rendered  # noqa: E402
from varlog.bench.figures import format_count  # noqa: E402
from varlog.bench.machine import conditions_of, measure_raw  # noqa: E402
from varlog.model.limits import GIB  # noqa: E402

PLOT = ROOT / "docs" / "growth.svg"
SECTION = "growth"
RAW_S = 2.0


def sweeps_named(names: str) -> list[Sweep]:
    """Those of a comma-separated list, in the order of the catalogue."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in SWEEPS]:
        raise argparse.ArgumentTypeError(f"there is no sweep {unknown[0]!r}: choose from {', '.join(SWEEPS)}")
    return [sweep for name, sweep in SWEEPS.items() if name in wanted]


async def run(sweeps: Sequence[Sweep], pace: Pace, data: Path | None) -> dict[str, Any]:
    """Measure, each sweep in a directory that is gone before the next begins."""
    points: dict[str, list[Point]] = {}
    with tempfile.TemporaryDirectory(prefix="varlog-growth-", dir=data) as place:
        conditions = conditions_of(
            Path(place),
            where="3 storage nodes, one metadata repository, one manager, one client, a process each, on this machine; 3 replicas",
            sync=f"fdatasync before every answer; each point measured for {pace.seconds:g} s",
        )
        raw = measure_raw(Path(place), RAW_S)
    for sweep in sweeps:
        with tempfile.TemporaryDirectory(prefix="varlog-growth-", dir=data) as place:
            points[sweep.name] = await measure(sweep, pace, Path(place), _progress)
    return as_json(conditions.as_json(), raw.as_json(), points, quick=pace.quick)


def _progress(sweep: Sweep, point: Point) -> None:
    rate = sweep.rates[0]
    sys.stderr.write(f"{sweep.name} {format_count(point.load)}: {rate} {format_count(point.figures[rate])}\n")


def write_docs(report: dict[str, Any]) -> None:
    """The section and its plot. Only a whole report: half of one would leave the other half's old figures beside it."""
    if report["quick"]:
        raise ValueError("the figures are rough: measure without --quick")
    if missing := [name for name in SWEEPS if name not in report["sweeps"]]:
        raise ValueError(
            f"the report lacks {', '.join(missing)}; measure them and put the parts together with --from"
        )
    from benchmarks.growth.plot import draw

    draw(report, PLOT)
    image = plot_link("Throughput and latency as the load grows", PLOT, JOURNAL)
    text = f"{report_text(report)}\n{image}\n"
    JOURNAL.write_text(rendered(JOURNAL.read_text("utf-8"), text, SECTION), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=sweeps_named, help=f"of {', '.join(SWEEPS)}")
    parser.add_argument("--quick", action="store_true", help="few and small points: does everything work?")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each point")
    parser.add_argument(
        "--log-gib", type=float, default=4.0, help="how far the log grows; three times that on the disk"
    )
    parser.add_argument(
        "--data", type=Path, help="directory on the disk to be measured [that of temporary files]"
    )
    parser.add_argument(
        "--from",
        dest="parts",
        type=Path,
        action="append",
        default=[],
        help="an earlier --json; again for more",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--render", action="store_true", help=f"write {JOURNAL.name} and {PLOT.name}")
    options = parser.parse_args()
    reports = [json.loads(part.read_text("utf-8")) for part in options.parts]
    if not reports or options.only:
        pace = Pace(
            seconds=0.5 if options.quick else options.seconds,
            warm_up_s=0.2 if options.quick else 1.0,
            log_bytes_max=int(options.log_gib * GIB),
            quick=options.quick,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            reports.append(runner.run(run(options.only or list(SWEEPS.values()), pace, options.data)))
    report = merged(reports)
    sys.stdout.write((json.dumps(report, indent=1) + "\n") if options.json else report_text(report))
    if options.render:
        try:
            write_docs(report)
        except ValueError as problem:
            sys.stderr.write(f"not rendered: {problem}\n")
    sys.exit(1 if cliffs_in(report) else 0)


if __name__ == "__main__":
    main()
