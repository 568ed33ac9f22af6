"""`varlog spark compact`: the newest value of each key, as a snapshot."""

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
    run,
    show_lines,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog.spark.jobs.compact import CompactReport
    from varlog.spark.jobs.progress import Progress


def compact(
    topic: Annotated[str, typer.Argument(help="Topic to take a snapshot of.")],
    path: Annotated[
        str, typer.Argument(help="New directory for the snapshot, on any file system that Spark supports.")
    ],
    key: Annotated[
        str,
        typer.Option(
            metavar="SQL",
            help="The key of an entry, as SQL over the columns topic, glsn, llsn, log_stream, timestamp and data: "
            "\"get_json_object(data::string, '$.id')\". Entries without a key are left out.",
        ),
    ],
    value: Annotated[str, typer.Option(metavar="SQL", help="The value of an entry, as SQL.")] = "data",
    delete: Annotated[
        str | None, typer.Option(metavar="SQL", help="SQL that is true for an entry that deletes its key.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Older snapshot to continue from: only newer entries are read."),
    ] = None,
    archive: Annotated[
        str | None, typer.Option(metavar="DIR", help="Archive that has the trimmed entries.")
    ] = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    master: MasterOption = None,
    conf: ConfOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write the newest value of each key as Parquet, with the position of the snapshot, from which a state machine can start."""

    def job(spark: SparkSession, progress: Progress) -> CompactReport:
        from varlog.spark.jobs.compact import compact

        return compact(
            spark,
            cluster,
            topic,
            path,
            key=key,
            value=value,
            delete=delete,
            since=since,
            archive=archive,
            progress=progress,
            dry_run=dry_run,
        )

    run("compact", job, Settings(master, conf, as_json, quiet, verbose), clusters=[cluster], show=_show)


def _show(report: CompactReport) -> None:
    lines: list[tuple[str, object]] = [
        ("topic", report.topic),
        ("snapshot", report.path),
        ("key", report.key),
    ]
    if report.since:
        lines.append(("continues", f"a snapshot of position {report.since}"))
    read = f"{report.entries} (positions {report.begin} to {report.position})" if report.entries else "none"
    lines.append(("would read entries" if report.dry_run else "entries read", read))
    if not report.dry_run:
        lines += [("entries without a key", report.skipped), ("keys deleted", report.deleted)]
        lines += [
            ("keys", f"{report.rows} ({short_bytes(report.bytes)})"),
            ("up to position", report.position),
        ]
    show_lines(lines)
