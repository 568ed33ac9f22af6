"""Command: the options that the benchmarks beyond `varlog bench` share, and how they run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from varlog.bench.catalogue import workloads_named
from varlog.bench.context import BenchSettings
from varlog.bench.workload import Workload
from varlog.cli.bench import data_directory, print_workloads, run_workloads
from varlog.cli.output import WRONG_USAGE, complain

Parser = argparse.ArgumentParser


def options(description: str | None) -> Parser:
    """What each of them takes; a command may add its own."""
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-w", "--workload", action="append", default=[], help="only this one; repeat for several"
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and their targets, then exit")
    parser.add_argument(
        "--quick", action="store_true", help="short run with rough figures: does everything work?"
    )
    parser.add_argument("--seconds", type=float, help="measured time per workload [5; with --quick 1]")
    parser.add_argument("--nodes", type=int, default=3, help="storage nodes of the cluster [3]")
    parser.add_argument("--replicas", type=int, help="copies of every entry [3, or all nodes]")
    parser.add_argument("--entry-bytes", type=int, help="bytes per entry, instead of the workload's")
    parser.add_argument("--appenders", type=int, help="concurrent appenders, instead of the workload's")
    parser.add_argument("--batch", type=int, help="entries per batch, instead of the workload's")
    parser.add_argument("--cluster", default="", metavar="HOST:PORT", help="measure a running cluster")
    parser.add_argument("--data", type=Path, help="directory on the disk to measure [./varlog-data]")
    parser.add_argument("--keep", action="store_true", help="keep the data")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the report as Markdown")
    return parser


@dataclass(frozen=True)
class Benchmark:
    """A table of workloads. `prepare` raises ValueError if something is missing, before anything is measured."""

    table: Sequence[Workload]
    streams: int = 1
    note: str = ""
    prepare: Callable[[], object] = lambda: None


def run_benchmark(benchmark: Benchmark, chosen: argparse.Namespace) -> None:
    """Run the chosen workloads, print the report and exit: 1 if one was not measured, 2 for options that make no sense."""
    if chosen.list:
        print_workloads(benchmark.table)
        return
    try:
        settings = _settings(benchmark, chosen)
        workloads = (
            workloads_named(chosen.workload, benchmark.table) if chosen.workload else list(benchmark.table)
        )
        benchmark.prepare()
    except ValueError as error:
        complain(error)
        sys.exit(WRONG_USAGE)
    try:
        run_workloads(
            settings,
            workloads,
            note=benchmark.note,
            keep=chosen.keep,
            as_json=chosen.json,
            as_markdown=chosen.markdown,
        )
    except typer.Exit as end:
        sys.exit(end.exit_code)


def _settings(benchmark: Benchmark, chosen: argparse.Namespace) -> BenchSettings:
    return BenchSettings(
        data=data_directory(chosen.data),
        nodes=chosen.nodes,
        replicas=chosen.replicas if chosen.replicas is not None else min(3, chosen.nodes),
        streams=benchmark.streams,
        seconds=chosen.seconds if chosen.seconds is not None else 1.0 if chosen.quick else 5.0,
        warm_up_s=0.5 if chosen.quick else 1.0,
        entry_bytes=chosen.entry_bytes,
        appenders=chosen.appenders,
        batch=chosen.batch,
        cluster=chosen.cluster,
        quick=chosen.quick,
    )
