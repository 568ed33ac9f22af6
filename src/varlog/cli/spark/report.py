"""`varlog spark report`: rates, sizes, arrivals and skew of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import print_table
from varlog.cli.spark.common import (
    DEFAULT_CLUSTER,
    ClusterOption,
    ConfOption,
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

    from varlog.spark.jobs.progress import Progress
    from varlog.spark.report.report_rules import TopicReport

BUCKETS = 96


def report(
    topic: Annotated[str, typer.Argument(help="Topic to report on.")],
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a self-contained HTML page with plots.")
    ] = None,
    buckets: Annotated[
        int, typer.Option(min=2, max=1000, help="Maximum number of time intervals.")
    ] = BUCKETS,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="Option of the read, such as startingTimestamp=… or archive=…",
        ),
    ] = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    master: MasterOption = None,
    conf: ConfOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show how much was appended to a topic, when, and to which of its log streams."""
    options = pairs("--option", option)

    def job(spark: SparkSession, progress: Progress) -> TopicReport:
        from varlog.spark.jobs.report import report

        return report(spark, cluster, topic, html=html, buckets=buckets, options=options, progress=progress)

    run_job("report", job, Settings(master, conf, as_json, quiet, verbose), clusters=[cluster], show=_show)


def _show(report: TopicReport) -> None:
    _show_whole(report)
    if report.entries:
        _show_spread(report)
        _show_streams(report)
        _show_silences(report)
    if report.page:
        print(f"\npage: {report.page}")


def _show_whole(report: TopicReport) -> None:
    from varlog.spark.report.report_rules import bytes_text, count_text, duration_text, time_text

    lines: list[tuple[str, object]] = [("topic", f"{report.topic} (cluster {report.cluster})")]
    if not report.entries:
        return show_lines([*lines, ("entries", "none")])
    lines += [
        ("positions", f"{report.begin} to {report.end - 1}"),
        ("entries", f"{report.entries:,} ({bytes_text(report.bytes)})"),
        ("first", f"{time_text(report.first_us)} UTC"),
        (
            "last",
            f"{time_text(report.last_us)} UTC ({duration_text(report.last_us - report.first_us)} later)",
        ),
        ("mean", f"{count_text(report.entries_rate)} entries/s, {bytes_text(report.bytes_rate)}/s"),
        ("fullest second", f"{report.peak_entries:,} entries ({report.burst:.1f} times the mean)"),
        (
            "skew of entries",
            f"variation {report.entries_skew.variation:.2f}, largest {report.entries_skew.largest:.2f} × mean",
        ),
        (
            "skew of bytes",
            f"variation {report.bytes_skew.variation:.2f}, largest {report.bytes_skew.largest:.2f} × mean",
        ),
    ]
    return show_lines(lines)


def _show_spread(report: TopicReport) -> None:
    from varlog.spark.report.report_rules import bytes_text, duration_text

    spreads = (
        ("entry size", report.size, bytes_text),
        ("between arrivals", report.between_arrivals_us, duration_text),
    )
    rows = [
        (name, *(text(v) for v in (one.min, one.mean, one.p50, one.p90, one.p99, one.p999, one.max)))
        for name, one, text in spreads
    ]
    print()
    print_table("", ["", "#min", "#mean", "#p50", "#p90", "#p99", "#p99.9", "#max"], rows)


def _show_streams(report: TopicReport) -> None:
    from varlog.spark.report.report_rules import bytes_text, share_text, time_text

    rows = [
        (
            one.log_stream,
            f"{one.entries:,}",
            share_text(one.entries_share),
            bytes_text(one.bytes),
            share_text(one.bytes_share),
            bytes_text(one.size.p50),
            bytes_text(one.size.p99),
            time_text(one.last_us) if one.entries else "never",
        )
        for one in report.streams
    ]
    print()
    print_table(
        "", ["log stream", "#entries", "#share", "#bytes", "#share", "#p50", "#p99", "last append"], rows
    )


def _show_silences(report: TopicReport) -> None:
    from varlog.spark.report.report_rules import duration_text, time_text

    rows = [
        (time_text(gap.begin_us), time_text(gap.end_us), duration_text(gap.length_us))
        for gap in report.silences
    ]
    if rows:
        print()
        print_table("", ["nothing from", "to (UTC)", "#length"], rows[:5])
