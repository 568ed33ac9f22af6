"""`varlog spark restore`: an archive back into a topic."""

from __future__ import annotations

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

    from varlog.spark.jobs.progress import Progress
    from varlog.spark.jobs.restore import RestoreReport


def restore(
    path: Annotated[str, typer.Argument(help="The archive: a local directory, or a URI (hdfs://, s3a://).")],
    topic: Annotated[
        str, typer.Argument(help="Where to: a topic that is not there yet, or was begun by this job.")
    ],
    source_topic: Annotated[
        str | None, typer.Option(help="Which topic of the archive, if it is named otherwise.")
    ] = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    master: MasterOption = None,
    conf: ConfOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Bring an archive back as a topic with one log stream: the same positions, bytes and times. Run it again after a crash."""

    def job(spark: SparkSession, progress: Progress) -> RestoreReport:
        from varlog.spark.jobs.restore import restore

        return restore(
            spark, path, cluster, topic, source_topic=source_topic, progress=progress, dry_run=dry_run
        )

    run("restore", job, Settings(master, conf, as_json, quiet, verbose), clusters=[cluster], show=_show)


def _show(report: RestoreReport) -> None:
    done = "would write" if report.dry_run else "written"
    show_lines(
        [
            ("archive", f"{report.path}, topic {report.source_topic}"),
            ("topic", report.topic),
            ("positions", f"{report.begin} to {report.end - 1}"),
            (done, f"{report.rows_written} entries"),
            ("there before", f"{report.rows_found} entries"),
        ]
    )
