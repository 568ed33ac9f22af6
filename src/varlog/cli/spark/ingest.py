"""`varlog spark ingest`: files into a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import short_bytes
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
    pairs,
    run_job,
    show_lines,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog.spark.jobs.ingest import IngestReport
    from varlog.spark.jobs.progress import Progress

_ROW, _RERUN = "What becomes an entry", "Re-running"


def ingest(
    topic: Annotated[str, typer.Argument(help="Target topic.")],
    source: Annotated[
        str, typer.Argument(help="File, directory or pattern, on any file system that Spark supports.")
    ],
    format: Annotated[
        str,
        typer.Option(
            "--format", help="parquet, csv, json (one row per line), text, or binary (one entry per file)."
        ),
    ] = "text",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="Option of Spark's reader for the format, such as header=true.",
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="DDL", help='Columns of csv or json files: "id bigint, name string".'),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="The value of this column.", rich_help_panel=_ROW)
    ] = None,
    expression: Annotated[
        str | None,
        typer.Option(
            metavar="SQL",
            help="SQL over the columns (default: the only column, or all columns as JSON).",
            rich_help_panel=_ROW,
        ),
    ] = None,
    writer: Annotated[
        str | None,
        typer.Option(
            help="Name by which a second run recognises the first (default: derived from the files).",
            rich_help_panel=_RERUN,
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Directory that records finished files; later runs read only new ones.",
            rich_help_panel=_RERUN,
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Keep waiting for new files until Ctrl-C.", rich_help_panel=_RERUN),
    ] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    master: MasterOption = None,
    conf: ConfOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write files to a topic, each row exactly once. After a crash, run it again: it completes what is missing."""
    options = pairs("--option", option)

    def job(spark: SparkSession, progress: Progress) -> IngestReport:
        from varlog.spark.jobs.ingest import ingest

        return ingest(
            spark,
            source,
            cluster,
            topic,
            format=format,
            options=options,
            schema=schema,
            column=column,
            expression=expression,
            writer=writer,
            checkpoint=checkpoint,
            follow=follow,
            progress=progress,
            dry_run=dry_run,
        )

    run_job("ingest", job, Settings(master, conf, as_json, quiet, verbose), clusters=[cluster], show=_show)


def _show(report: IngestReport) -> None:
    rows: list[tuple[str, object]] = [
        ("topic", report.topic),
        ("an entry is", report.entry),
        ("writer", report.writer or "the checkpoint's"),
    ]
    if report.files:
        rows.append(("files", f"{report.files} ({short_bytes(report.bytes)})"))
    if report.found_done:
        rows.append(("rows", "none: an earlier run had written them all"))
    elif report.dry_run:
        rows += [("would write, e.g.", sample) for sample in report.sample]
    else:
        rows.append(("rows", report.rows))
    show_lines(rows)
