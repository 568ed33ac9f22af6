"""`varlog spark audit`: verifies every replica; a table, JSON, and an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import print_table, short_bytes
from varlog.cli.spark.common import (
    DEFAULT_CLUSTER,
    ClusterOption,
    ConfOption,
    JsonOption,
    MasterOption,
    QuietOption,
    Settings,
    VerboseOption,
    run_job,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog.spark.jobs.audit import AuditReport, Finding
    from varlog.spark.jobs.progress import Progress


def audit(
    topic: Annotated[
        str | None, typer.Argument(help="Topic to audit (default: all topics).", show_default=False)
    ] = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    begin: Annotated[
        int | None, typer.Option(min=1, help="First position (default: the oldest).", show_default=False)
    ] = None,
    end: Annotated[
        int | None,
        typer.Option(min=1, help="Position to stop before (default: the tail).", show_default=False),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Read every replica of every log stream and verify checksums, order, gaps, duplicates and that replicas are identical.

    Exit code 0: everything was read and is correct. 1: there are findings; each names its replica and position.
    """

    def job(spark: SparkSession, progress: Progress) -> AuditReport:
        from varlog.spark.jobs.audit import audit

        return audit(spark, cluster, topic, begin=begin, end=end, progress=progress)

    settings = Settings(master, conf, json_, quiet, verbose)
    run_job("audit", job, settings, clusters=[cluster], show=show, good=lambda report: report.clean)


def show(report: AuditReport) -> None:
    """The replicas, then the findings, then a summary."""
    print_table(
        "",
        ["topic", "#log stream", "#node", "#entries", "#bytes", "result"],
        [
            (one.topic, one.log_stream, one.node, f"{one.entries:,}", short_bytes(one.bytes), one.result)
            for one in report.replicas
        ],
    )
    if report.findings:
        print_table(
            "findings",
            ["what", "topic", "#log stream", "#node", "#LLSN", "#GLSN", "found", "expected", "replica"],
            [_row(finding) for finding in report.findings],
        )
    print(summary(report))


def summary(report: AuditReport) -> str:
    """One line."""
    positions = sum(one.end - one.begin for one in report.topics)
    read = (
        f"{positions:,} positions of {len(report.topics)} topics on {len(report.replicas)} replicas, "
        f"{short_bytes(report.bytes)} in {report.seconds:.1f} s"
    )
    if report.clean:
        return f"clean: {read}: checksums correct, no gap, no duplicate, in order, replicas identical"
    found = len(report.findings) + report.more_findings
    more = f", {report.more_findings} of them not shown" if report.more_findings else ""
    return f"NOT clean: {found} findings{more}; read {read}"


def _row(finding: Finding) -> tuple[object, ...]:
    return (
        finding.kind,
        finding.topic,
        finding.log_stream or "–",
        finding.node or "–",
        finding.llsn or "–",
        finding.glsn or "–",
        finding.found,
        finding.expected,
        finding.path or "–",
    )
