"""`varlog bench`: options, the data directory, and how the report is printed."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.bench.settings import Measure
from varlog.cli.output import FAILED, WRONG_USAGE, fail, run

if TYPE_CHECKING:
    from varlog.bench.context import Display
    from varlog.bench.open_loop import Curve, OpenLoop
    from varlog.bench.run import Report
    from varlog.bench.settings import Settings
    from varlog.bench.workload import Workload

DEFAULT_DATA = Path("varlog-data")


def bench_command(
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", "-w", help="Run only this one; may be given more than once."),
    ] = None,
    faults: Annotated[
        bool, typer.Option("--faults", help="Kill processes under load: how long it shows, and how much.")
    ] = False,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark", help="Spark on a topic, against Spark on Parquet: read, write, stream, audit."
        ),
    ] = False,
    open_loop: Annotated[
        bool,
        typer.Option(
            "--open-loop",
            help="Offer multiples of the capacity at a steady rate, whatever the answers do: what is acknowledged in time.",
        ),
    ] = False,
    offered: Annotated[
        list[float] | None,
        typer.Option(
            help="A multiple of the capacity to offer; may be given more than once [0.5 1 2 4]. Implies --open-loop."
        ),
    ] = None,
    deadline: Annotated[
        float, typer.Option(help="Of each append of the open loop, in seconds.", show_default=True)
    ] = 1.0,
    ordering: Annotated[
        Measure,
        typer.Option(
            help="Topics of which ordering; both: one against the other in one run, in turns (with --faults, too)."
        ),
    ] = Measure.COMMITTED,
    list_: Annotated[
        bool, typer.Option("--list", help="Name the workloads and their targets, and stop.")
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Storage nodes of the cluster that is started.")] = 3,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Copies of every entry [3, or all nodes].")
    ] = None,
    streams: Annotated[int, typer.Option(min=1, help="Log streams of every topic.")] = 1,
    seconds: Annotated[
        float | None, typer.Option(help="Measured time of a workload [5; with --quick 1].")
    ] = None,
    entry_bytes: Annotated[
        int | None, typer.Option(help="Bytes of an entry, instead of the workload's.")
    ] = None,
    appenders: Annotated[
        int | None, typer.Option(help="Concurrent appenders, instead of the workload's.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Entries of a batch, instead of the workload's.")] = None,
    cluster: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Measure a running cluster: its metadata repository.")
    ] = "",
    embedded: Annotated[bool, typer.Option("--embedded", help="Measure a log inside this process.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Directory on the disk to be measured [./varlog-data]; cleared afterwards."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data where it is.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Short and rough: does everything work?")] = False,
    json_: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The report as Markdown tables.")] = False,
) -> None:
    """Measure a cluster (started for it, or running) or an embedded log against the raw limits of this machine."""
    # Here and not above: `varlog --help` must not wait for them.
    from rich.console import Console

    from varlog.bench.catalogue import EVERYTHING, chosen
    from varlog.bench.context import display_for
    from varlog.bench.run import Run
    from varlog.bench.settings import Settings

    if list_:
        for one in EVERYTHING:
            print(f"{one.name:21} {one.title}: {one.target}")
        return
    directory = (data or DEFAULT_DATA) / f"bench-{os.getpid()}"
    try:
        settings = Settings(
            data=directory.absolute(),
            nodes=nodes,
            replicas=replicas if replicas is not None else min(3, nodes),
            streams=2 if faults or spark else streams,
            seconds=seconds if seconds is not None else 1.0 if quick else 5.0,
            warm_up_s=0.5 if quick else 1.0,
            entry_bytes=entry_bytes,
            appenders=appenders,
            batch=batch,
            cluster=cluster,
            embedded=embedded,
            quick=quick,
            measure=ordering,
        )
        workloads = chosen(workload or [], faults=faults, spark=spark, measure=ordering)
        _check_spark(workloads)
        made = [parent for parent in (directory, *directory.parents) if not parent.exists()]
        directory.mkdir(parents=True)
    except (ValueError, OSError) as error:
        fail(error, WRONG_USAGE)
    try:
        with display_for(Console(stderr=True)) as display:
            if open_loop or offered:
                curve = run(_open_loop(settings, offered, deadline, display).curve())
                _show(curve, as_json=json_, as_markdown=markdown)
                return
            # The client side of every workload runs in this one process, on the loop that `run` takes.
            report = run(Run(settings, workloads, display).report())
    finally:
        _stop_spark(workloads)
        if not keep:
            _remove(made)
    _show(report, as_json=json_, as_markdown=markdown)
    if not report.all_measured:
        raise typer.Exit(FAILED)


def _check_spark(workloads: list[Workload]) -> None:
    """Say what is missing before anything is measured."""
    if any(workload.place == "spark" for workload in workloads):
        from varlog.model.errors import StartupError
        from varlog.spark.session import prepare

        try:
            prepare()
        except StartupError as missing:
            fail(missing)


def _stop_spark(workloads: list[Workload]) -> None:
    if any(workload.place == "spark" for workload in workloads):
        from varlog.bench.spark_session import stop

        stop()


def _remove(made: list[Path]) -> None:
    """The run's own directory, and those above it that were made for it, unless somebody else uses them by now."""
    shutil.rmtree(made[0], ignore_errors=True)
    for parent in made[1:]:
        with contextlib.suppress(OSError):
            parent.rmdir()


def _open_loop(
    settings: Settings, offered: list[float] | None, deadline_s: float, display: Display
) -> OpenLoop:
    from varlog.bench.open_loop import MULTIPLES, OpenLoop

    try:
        return OpenLoop(settings, offered or MULTIPLES, deadline_s, display)
    except ValueError as error:
        fail(error, WRONG_USAGE)


def _show(report: Report | Curve, *, as_json: bool, as_markdown: bool) -> None:
    from rich.console import Console

    if as_json:
        print(report.as_json())
    elif as_markdown:
        print(report.markdown())
    else:
        console = Console()
        report.show(console if console.is_terminal else Console(width=160))
