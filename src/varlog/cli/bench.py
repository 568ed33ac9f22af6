"""`varlog bench`: options, the data directory, and how the report is printed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import FAILED, WRONG_USAGE, fail, run_async
from varlog.model.cluster import Ordering

if TYPE_CHECKING:
    from varlog.bench.context import BenchSettings
    from varlog.bench.open_loop import Curve, OpenLoop
    from varlog.bench.run import BenchReport
    from varlog.bench.workload import Workload

DEFAULT_DATA = Path("varlog-data")


def bench_command(
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", "-w", help="Run only this workload; repeat for several."),
    ] = None,
    open_loop: Annotated[
        bool,
        typer.Option(
            "--open-loop",
            help="Offer multiples of the capacity at a steady rate, and count what is acknowledged in time.",
        ),
    ] = False,
    offered: Annotated[
        list[float] | None,
        typer.Option(
            help="A multiple of the capacity to offer; repeat for several [0.5 1 2 4]. Implies --open-loop."
        ),
    ] = None,
    deadline: Annotated[
        float, typer.Option(help="Deadline of each append of the open loop, in seconds.", show_default=True)
    ] = 1.0,
    ordering: Annotated[
        Ordering, typer.Option(help="The ordering of the topics that are measured.")
    ] = Ordering.COMMITTED,
    list_: Annotated[
        bool, typer.Option("--list", help="List the workloads and their targets, then exit.")
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Storage nodes of the cluster to start.")] = 3,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Copies of every entry [3, or all nodes].")
    ] = None,
    streams: Annotated[int, typer.Option(min=1, help="Log streams of every topic.")] = 1,
    seconds: Annotated[
        float | None, typer.Option(help="Measured time per workload [5; with --quick 1].")
    ] = None,
    entry_bytes: Annotated[
        int | None, typer.Option(help="Bytes per entry, instead of the workload's.")
    ] = None,
    appenders: Annotated[
        int | None, typer.Option(help="Concurrent appenders, instead of the workload's.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Entries per batch, instead of the workload's.")] = None,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Measure a running cluster: the address of its metadata repository."
        ),
    ] = "",
    embedded: Annotated[bool, typer.Option("--embedded", help="Measure a log inside this process.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Directory on the disk to measure [./varlog-data]; cleared afterwards."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short run with rough figures: does everything work?")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the report as Markdown.")] = False,
) -> None:
    """Measure a cluster (started for it, or running) or an embedded log against the raw limits of this machine."""
    # Imported here: `varlog --help` must not wait for them.
    from varlog.bench.catalogue import EVERYTHING, chosen_workloads
    from varlog.bench.context import BenchSettings

    if list_:
        print_workloads(EVERYTHING)
        return
    directory = data_directory(data)
    try:
        settings = BenchSettings(
            data=directory,
            nodes=nodes,
            replicas=replicas if replicas is not None else min(3, nodes),
            streams=streams,
            seconds=seconds if seconds is not None else 1.0 if quick else 5.0,
            warm_up_s=0.5 if quick else 1.0,
            entry_bytes=entry_bytes,
            appenders=appenders,
            batch=batch,
            cluster=cluster,
            embedded=embedded,
            quick=quick,
            ordering=ordering,
        )
        workloads = chosen_workloads(workload or [], ordering)
        load = _open_loop(settings, offered, deadline) if open_loop or offered else None
    except ValueError as error:
        fail(error, WRONG_USAGE)
    run_workloads(settings, load or workloads, keep=keep, as_json=json_, as_markdown=markdown)


def print_workloads(workloads: Sequence[Workload]) -> None:
    for one in workloads:
        print(f"{one.name:21} {one.title}: {one.target}")


def data_directory(data: Path | None) -> Path:
    """A directory for this run alone, below the one that the user named."""
    return ((data or DEFAULT_DATA) / f"bench-{os.getpid()}").absolute()


def run_workloads(
    settings: BenchSettings,
    load: Sequence[Workload] | OpenLoop,
    *,
    note: str = "",
    keep: bool = False,
    as_json: bool = False,
    as_markdown: bool = False,
) -> None:
    """Run the workloads, or the open loop, in a new directory, and print the report. Exit code 1: a workload was not measured."""
    from rich.console import Console

    from varlog.bench.context import display_for
    from varlog.bench.open_loop import OpenLoop
    from varlog.bench.run import BenchRun

    directory = settings.data
    created = [parent for parent in (directory, *directory.parents) if not parent.exists()]
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        fail(error, WRONG_USAGE)
    try:
        with display_for(Console(stderr=True)) as display:
            # The client side of every workload runs in this process, on the event loop of `run`.
            if isinstance(load, OpenLoop):
                _show(run_async(load.curve(display)), as_json=as_json, as_markdown=as_markdown)
                return
            report = run_async(BenchRun(settings, load, display, note).report())
    finally:
        if not keep:
            _remove(created)
    _show(report, as_json=as_json, as_markdown=as_markdown)
    if not report.all_measured:
        raise typer.Exit(FAILED)


def _remove(created: list[Path]) -> None:
    """The run's own directory, and those above it that were created for it, unless they are in use by now."""
    shutil.rmtree(created[0], ignore_errors=True)
    for parent in created[1:]:
        with contextlib.suppress(OSError):
            parent.rmdir()


def _open_loop(settings: BenchSettings, offered: list[float] | None, deadline_s: float) -> OpenLoop:
    from varlog.bench.open_loop import MULTIPLES, OpenLoop

    return OpenLoop(settings, offered or MULTIPLES, deadline_s)


def _show(report: BenchReport | Curve, *, as_json: bool, as_markdown: bool) -> None:
    from rich.console import Console

    if as_json:
        print(report.as_json())
    elif as_markdown:
        print(report.markdown())
    else:
        console = Console()
        report.show(console if console.is_terminal else Console(width=160))
