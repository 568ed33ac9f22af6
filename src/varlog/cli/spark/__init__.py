"""`varlog spark`: maintenance jobs on Spark, which is loaded when one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from varlog.cli.spark import audit, copies, ingest, report

spark = typer.Typer(
    help="Jobs on Spark: files into a topic, snapshots, reports and more.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _launcher(wanted: bool) -> None:
    if wanted:
        print(Path(__file__).with_name("submit.py"))
        raise typer.Exit()


@spark.callback()
def _options(
    launcher: Annotated[
        bool,
        typer.Option(
            "--launcher",
            callback=_launcher,
            is_eager=True,
            help="Print the path of the program for spark-submit, and exit. Its arguments are JOB and the job's options.",
        ),
    ] = False,
) -> None:
    """Jobs on Spark. Each is a function of varlog.spark.jobs as well."""


for _job in (
    copies.archive,
    audit.audit,
    copies.compact,
    ingest.ingest,
    copies.mirror,
    report.report,
    copies.restore,
):
    spark.command()(_job)

__all__ = ["spark"]
