"""How many entries a second the metadata repository orders, EMULATED: a real repository, and storage nodes that keep no data.

    python -m benchmarks.ordering.scale [--quick] [--series streams,rates,nodes,topics] [--seconds 4] [--json]
    python -m benchmarks.ordering.scale --streams 3500 [--rate 15000] [--copies 3] [--topics 1] [--per-node 64] [--interval-ms 50]
    python -m benchmarks.ordering.scale --render [--from FILE ...]

The repository is `vmr` in a process of its own, with its SQLite store and a sync for every cut. The nodes are sockets of another
process (emulated_node.py): they speak the protocol of sessions, reports and commits as storage nodes do, and have no entries, no
disks and no clients. Entries are what their reports say; their rate is given for each row and is one that a log stream of ours
reaches. Every run is checked: what the nodes received must be one order without gap or double, the same at every replica.

FILE is the output of an earlier run with --json; --render puts the table into benchmarks/journal.md and draws its plot.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.ordering.emulation import Emulation
from benchmarks.ordering.load import Load
from varlog.bench.figures import format_count, format_ms
from varlog.bench.machine import conditions_of

PLOT = Path("docs/ordering-scale.svg")
ROOT = Path(__file__).parents[2]
# All nodes together send this many reports per second, and each of them one message every 10 ms at most.
REPORTS_PER_S_MAX = 200_000
INTERVAL_MS_MIN = 10.0
# What a log stream of ours reaches with three copies of 1 KiB entries (benchmarks/journal.md): 64 appenders, and batches of 1000.
# The field's paper has 15 000 for a shard.
PAPER_RATE, APPENDERS_RATE, BATCHES_RATE = 15_000.0, 30_000.0, 140_000.0
# This many replicas per node make about a million entries a second on it, at the paper's rate and in batches.
PER_NODE, PER_NODE_IN_BATCHES = 64, 8

WHERE = (
    "EMULATED: the metadata repository is real, with its store, in a process of its own; all storage nodes are in one other "
    "process, a listening socket and a session each, and have no data; 3 replicas of each log stream on different nodes, and "
    "all of them report"
)


def load_of(streams: int, rate: float = PAPER_RATE, **more: Any) -> Load:
    load = Load(streams, rate=rate, **more)
    interval_ms = max(INTERVAL_MS_MIN, 1e3 * streams * load.copies / REPORTS_PER_S_MAX)
    return replace(load, interval_ms=interval_ms)


def series_of(seconds: float, quick: bool) -> dict[str, list[Load]]:
    """The loads, by what grows in them."""
    more = {"seconds": seconds, "warm_up_s": min(1.0, seconds / 2)}
    if quick:
        return {
            "streams": [load_of(streams, **more) for streams in (64, 256)],
            "topics": [load_of(256, topics=256, **more)],
        }
    rates = (1_500.0, APPENDERS_RATE, BATCHES_RATE)
    return {
        "streams": [load_of(streams, **more) for streams in (64, 256, 1024, 4096, 16_384)],
        "rates": [load_of(4096, rate, **more) for rate in rates],
        "nodes": [
            load_of(7200, BATCHES_RATE, replicas_per_node=per_node, **more)
            for per_node in (PER_NODE, PER_NODE_IN_BATCHES)
        ],
        "topics": [load_of(1024, topics=topics, **more) for topics in (32, 1024)],
    }


def loads_of(options: argparse.Namespace) -> dict[str, list[Load]]:
    if not options.streams:
        return series_of(options.seconds, options.quick)
    load = load_of(
        options.streams, options.rate, copies=options.copies, topics=options.topics,
        replicas_per_node=options.per_node, seconds=options.seconds,
    )  # fmt: skip
    if options.interval_ms:
        load = replace(load, interval_ms=options.interval_ms)
    return {"streams": [load]}


def measured(load: Load, processes: int, data: Path | None) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="varlog-ordering-", dir=data) as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(Emulation(load, Path(directory), processes).run()).as_json()


def report_of(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.data) as directory:
        conditions = conditions_of(
            Path(directory),
            where=WHERE,
            sync=f"every cut is synced; each row measured for {options.seconds:g} s",
        )
    report: dict[str, Any] = {"conditions": conditions.lines(), "series": {}}
    for name, loads in loads_of(options).items():
        if options.series is None or name in options.series:
            report["series"][name] = [measured(load, options.processes, options.data) for load in loads]
    return report


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Parts of one run as one."""
    series = {name: rows for report in reports for name, rows in report["series"].items()}
    return {"conditions": reports[0]["conditions"], "series": series}


HEAD = (
    "log streams", "topics", "nodes", "entries/s a stream", "entries/s a node", "a node reports every",
    "**ordered, entries/s**", "rows/s", "cut latency p50", "p99", "repository",
)  # fmt: skip


def table(report: dict[str, Any]) -> str:
    """As Markdown."""
    rows = [_received(row) for rows in report["series"].values() for row in rows]
    cells = [HEAD, ("---:",) * len(HEAD), *rows]
    lines = [f"- {line}" for line in report["conditions"]]
    return "\n".join([*lines, "", *("| " + " | ".join(row) + " |" for row in cells), ""])


def _received(row: dict[str, Any]) -> tuple[str, ...]:
    load = row["load"]
    on_a_node = load["streams"] * load["copies"] / row["nodes"] * load["rate"]
    return (
        format_count(load["streams"]), format_count(load["topics"]), format_count(row["nodes"]), format_count(load["rate"]),
        format_count(on_a_node), f"{load['interval_ms']:.0f} ms", f"**{_millions(row['entries_per_s'])}**",
        format_count(row["rows_per_s"]), format_ms(row["p50_s"]), format_ms(row["p99_s"]), f"{row['repository_cores']:.2f} cores",
    )  # fmt: skip


def _millions(value: float) -> str:
    return f"{value / 1e6:.3g} M" if value < 999.5e6 else f"{value / 1e9:.3f} G"


def render(report: dict[str, Any]) -> str:
    from benchmarks.ordering.plot import draw
    from benchmarks.render import JOURNAL, plot_link, rendered

    draw(report, ROOT / PLOT)
    image = plot_link("Entries ordered per second, and cut latency, emulated", ROOT / PLOT, JOURNAL)
    rows = f"{table(report)}\n{image}\n"
    JOURNAL.write_text(rendered(JOURNAL.read_text("utf-8"), rows, "ordering-scale"), "utf-8")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="does everything work? Figures are rough")
    parser.add_argument(
        "--series", type=lambda rows: rows.split(","), help="only these: streams,rates,nodes,topics"
    )
    alone = parser.add_argument_group("one load of your own")
    alone.add_argument("--streams", type=int)
    alone.add_argument("--rate", type=float, default=PAPER_RATE, help="entries a second and stream [15000]")
    alone.add_argument("--copies", type=int, default=3)
    alone.add_argument("--topics", type=int, default=1)
    alone.add_argument("--per-node", type=int, default=PER_NODE, help="replicas [64]")
    alone.add_argument("--interval-ms", type=float, help="between two reports of a node [by --streams]")
    parser.add_argument("--seconds", type=float, help="of each row [4]")
    parser.add_argument("--processes", type=int, default=1, help="that hold the emulated nodes")
    parser.add_argument("--data", type=Path, help="directory for the repository's store")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--render", action="store_true", help="into benchmarks/journal.md, with a plot")
    parser.add_argument("--from", dest="sources", type=Path, nargs="+", help="outputs of earlier runs")
    options = parser.parse_args()
    options.seconds = options.seconds or (1.0 if options.quick else 4.0)
    if options.sources:
        report = merged([json.loads(source.read_text("utf-8")) for source in options.sources])
    else:
        report = report_of(options)
    rows = render(report) if options.render else json.dumps(report) if options.json else table(report)
    sys.stdout.write(rows + "\n")


if __name__ == "__main__":
    main()
