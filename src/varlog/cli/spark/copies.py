"""`varlog spark archive`, `restore`, `mirror` and `compact`: copies of a topic."""

from __future__ import annotations

from contextlib import nullcontext
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
    run_job,
    show_lines,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog.spark.jobs.archive import ArchiveReport
    from varlog.spark.jobs.compact import CompactReport
    from varlog.spark.jobs.mirror import MirrorReport
    from varlog.spark.jobs.progress import Progress
    from varlog.spark.jobs.restore import RestoreReport

_TRIM, _FILES = "Trim", "Files"


def archive(
    topic: Annotated[str, typer.Argument(help="Topic to archive.")],
    path: Annotated[str, typer.Argument(help="Target: a local directory or a URI (hdfs://, s3a://).")],
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Keep archiving new entries until Ctrl-C or SIGTERM.")
    ] = False,
    range_records: Annotated[
        int,
        typer.Option(
            help="Entries per range; a range is archived as a whole.", min=1, rich_help_panel=_FILES
        ),
    ] = 1_000_000,
    rest_after: Annotated[
        float,
        typer.Option(
            help="With --continuous: seconds after which a partial range is archived.",
            min=0,
            rich_help_panel=_FILES,
        ),
    ] = 300.0,
    trim: Annotated[
        bool, typer.Option("--trim", help="Trim archived entries from the log.", rich_help_panel=_TRIM)
    ] = False,
    keep_records: Annotated[
        int, typer.Option(help="Keep the newest N entries in the log.", min=0, rich_help_panel=_TRIM)
    ] = 0,
    respect_readers: Annotated[
        bool,
        typer.Option(help="Keep what a named reader has not read yet.", rich_help_panel=_TRIM),
    ] = True,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    master: MasterOption = None,
    conf: ConfOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a topic to Parquet files, each entry exactly once. Run it again, also after a crash, and it continues."""

    def job(spark: SparkSession, progress: Progress) -> ArchiveReport:
        from varlog.spark.jobs.archive import archive
        from varlog.spark.jobs.progress import stop_on_signal

        with stop_on_signal() if continuous else nullcontext() as stop:
            return archive(
                spark,
                cluster,
                topic,
                path,
                range_records=range_records,
                continuous=continuous,
                trim=trim,
                keep_records=keep_records,
                respect_readers=respect_readers,
                rest_after_s=rest_after,
                stop=stop,
                progress=progress,
                dry_run=dry_run,
            )

    run_job(
        "archive",
        job,
        Settings(master, conf, as_json, quiet, verbose),
        clusters=[cluster],
        show=_show_archived,
    )


def _show_archived(report: ArchiveReport) -> None:
    done = "would write" if report.dry_run else "written"
    size = short_bytes(report.bytes_written)
    show_lines(
        [
            ("topic", report.topic),
            ("archive", report.path),
            (done, f"{report.rows_written} entries in {report.ranges_written} ranges ({size})"),
            (
                "archived",
                f"positions {report.begin} to {report.end - 1}" if report.end > report.begin else "nothing",
            ),
            ("not archived", f"{report.behind} entries"),
            ("trimmed", f"up to position {report.trimmed}" if report.trimmed else "nothing"),
            ("reader", report.reader),
        ]
    )


def restore(
    path: Annotated[str, typer.Argument(help="Archive: a local directory or a URI (hdfs://, s3a://).")],
    topic: Annotated[
        str, typer.Argument(help="Target: a topic that does not exist yet, or that this job began.")
    ],
    source_topic: Annotated[
        str | None, typer.Option(help="Topic of the archive, if its name differs.")
    ] = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    master: MasterOption = None,
    conf: ConfOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Restore an archive as a topic with one log stream: the same positions, bytes and times. After a crash, run it again."""

    def job(spark: SparkSession, progress: Progress) -> RestoreReport:
        from varlog.spark.jobs.restore import restore

        return restore(
            spark, path, cluster, topic, source_topic=source_topic, progress=progress, dry_run=dry_run
        )

    run_job(
        "restore",
        job,
        Settings(master, conf, as_json, quiet, verbose),
        clusters=[cluster],
        show=_show_restored,
    )


def _show_restored(report: RestoreReport) -> None:
    done = "would write" if report.dry_run else "written"
    show_lines(
        [
            ("archive", f"{report.path}, topic {report.source_topic}"),
            ("topic", report.topic),
            ("positions", f"{report.begin} to {report.end - 1}"),
            (done, f"{report.rows_written} entries"),
            ("already there", f"{report.rows_found} entries"),
        ]
    )


def mirror(
    topic: Annotated[str, typer.Argument(help="Topic to mirror.")],
    to: Annotated[str, typer.Argument(help="Address of the target cluster: host:port.")],
    to_topic: Annotated[
        str | None,
        typer.Option(help="Topic on the target cluster, created if missing (default: the same name)."),
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Copy what exists now, then exit; otherwise run until Ctrl-C or SIGTERM."
        ),
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Spark's checkpoint directory (default: none, continue at the end of the target topic).",
        ),
    ] = None,
    batch_records: Annotated[int, typer.Option(help="Entries per batch.", min=1)] = 500_000,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    master: MasterOption = None,
    conf: ConfOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Copy a topic to another cluster as it grows, each entry exactly once and at its position."""

    def job(spark: SparkSession, progress: Progress) -> MirrorReport:
        from varlog.spark.jobs.mirror import mirror
        from varlog.spark.jobs.progress import stop_on_signal

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

    run_job(
        "mirror",
        job,
        Settings(master, conf, as_json, quiet, verbose),
        clusters=[cluster, to],
        show=_show_mirrored,
    )


def _show_mirrored(report: MirrorReport) -> None:
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


# --- compact: the newest value of each key, as a snapshot -----------------------------------------------------------------------


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

    run_job("compact", job, Settings(master, conf, as_json, quiet, verbose), clusters=[cluster], show=_show)


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
