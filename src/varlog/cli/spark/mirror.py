"""`varlog spark mirror`: a topic of one cluster as a topic of another."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.spark.common import (
    DEFAULT_CLUSTER,
    ClusterOption,
    ConfOption,
    DryRunOption,
    JsonOption,
    MasterOption,
    QuietOption,
    Settings,
    VerboseOption,
    run,
    show_lines,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog.spark.jobs.mirror import MirrorReport
    from varlog.spark.jobs.progress import Progress


def mirror(
    topic: Annotated[str, typer.Argument(help="What is mirrored.")],
    to: Annotated[str, typer.Argument(help="The cluster to mirror to, by its address: host:port.")],
    to_topic: Annotated[
        str | None, typer.Option(help="The topic there, which is made if it is missing [the same name].")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Only what is there now; else until Ctrl-C or SIGTERM.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where Spark notes how far it is [where the mirror's topic ends]."),
    ] = None,
    batch_records: Annotated[int, typer.Option(help="Entries copied at a time.", min=1)] = 500_000,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    master: MasterOption = None,
    conf: ConfOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Copy a topic to another cluster, each entry once and at its position, as it is appended."""

    def job(spark: SparkSession, progress: Progress) -> MirrorReport:
        from varlog.spark.jobs.mirror import mirror
        from varlog.spark.jobs.stop import stop_on_signal

        with stop_on_signal() if not once else nullcontext() as stop:
            return mirror(
                spark,
                cluster,
                topic,
                to,
                to_topic or topic,
                checkpoint=checkpoint or "",
                continuous=not once,
                batch_records=batch_records,
                stop=stop,
                progress=progress,
                dry_run=dry_run,
            )

    run("mirror", job, Settings(master, conf, as_json, quiet, verbose), clusters=[cluster, to], show=_show)


def _show(report: MirrorReport) -> None:
    done = "would write" if report.dry_run else "written"
    mirrored = f"positions {report.begin} to {report.end - 1}" if report.end > report.begin else "nothing"
    show_lines(
        [
            ("topic", report.topic),
            ("mirror", report.to_topic),
            (done, f"{report.rows_written} entries"),
            ("mirrored", mirrored),
            ("not mirrored", f"{report.behind} entries"),
            ("reader", report.reader),
        ]
    )
