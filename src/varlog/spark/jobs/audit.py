"""audit(): reads every replica of every log stream and verifies the log.

Verified, of the positions from the low watermark (or `begin`) to the tail at the start: every checksum, of headers and bodies; the
LLSNs of each replica without a gap; LLSN and GLSN rise together, and no batch is ordered in pieces; the replicas of a stream are
equal; the positions of a topic exist exactly once, over all its streams. What cannot be read is a finding as well:
it is not verified.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from varlog.model.errors import VarlogError
from varlog.spark.audit.parts import AuditRange, Finding, FindingKind, TaskFindings
from varlog.spark.audit.plan_rules import task_bytes
from varlog.spark.audit.task import Task
from varlog.spark.audit.topic import AuditedTopic, ReplicaAudit, TopicAudit
from varlog.spark.connection import SparkConnection, connection_to
from varlog.spark.jobs.progress import Progress, silent, watching
from varlog.spark.options import LogLocation, OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AuditReport", "Finding", "FindingKind", "ReplicaAudit", "TopicAudit", "audit"]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """`clean`: everything was read, and nothing is wrong. `more_findings`: found, and not listed."""

    clean: bool
    topics: tuple[TopicAudit, ...]
    replicas: tuple[ReplicaAudit, ...]
    findings: tuple[Finding, ...]
    more_findings: int
    bytes: int
    seconds: float


def audit(
    spark: SparkSession,
    address: str,
    topic: str | None = None,
    *,
    begin: int | None = None,
    end: int | None = None,
    progress: Progress = silent,
) -> AuditReport:
    """Audit one topic, or all (None). `begin` and `end` (exclusive) are positions; without them everything that exists now.

    Damage is reported to its storage node at the end: the node repairs it from the other replicas; the report stays the same.
    """
    started = time.monotonic()
    if topic is None and (begin is not None or end is not None):
        raise OptionError("'begin' and 'end' are positions of one topic: say which, with 'topic'")
    connection = connection_to(LogLocation(address))
    names = (
        [topic]
        if topic is not None
        else sorted(found.name for found in connection.run(connection.admin().topics()))
    )
    progress("asking the storage nodes", 0, 0)
    audits = [AuditedTopic(connection, name, begin, end) for name in names]
    cores = spark.sparkContext.defaultParallelism
    target = task_bytes(sum(found.bytes for found in audits), cores)
    outcomes = _read(
        spark,
        connection,
        [one for found in audits for one in found.readings(target)],
        "reading replicas",
        progress,
    )
    for found in audits:
        found.compare(outcomes.get(found.topic, []))
    again = [one for found in audits for one in found.readings_again()]
    listed = _read(spark, connection, again, "reading differences", progress)
    for found in audits:
        found.conclude(listed.get(found.topic, []))
    _report_damage(connection, [finding for found in audits for finding in found.findings])
    return _report(audits, time.monotonic() - started)


def _read(
    spark: SparkSession,
    connection: SparkConnection,
    plan: Sequence[AuditRange],
    what: str,
    progress: Progress,
) -> dict[str, list[TaskFindings]]:
    """The findings of the tasks by topic: one task per range."""
    if not plan:
        return {}
    # Not a DataFrame: mapInArrow would need pandas for no benefit.
    tasks = spark.sparkContext.parallelize(plan, len(plan))
    with watching(spark, what, progress):
        outcomes = tasks.map(Task(connection.where)).collect()
    found: dict[str, list[TaskFindings]] = defaultdict(list)
    for reading, outcome in zip(plan, outcomes, strict=True):
        found[reading.topic].append(outcome)
    return found


def _report_damage(connection: SparkConnection, findings: Iterable[Finding]) -> None:
    for finding in findings:
        if finding.kind is FindingKind.DAMAGE:
            one = connection.log(finding.topic).connector.on_node(finding.node)
            with contextlib.suppress(VarlogError):  # best effort: its own scrub finds it as well
                connection.run(one.report_damage(finding.log_stream, finding.llsn, finding.llsn + 1))


def _report(audits: Sequence[AuditedTopic], seconds: float) -> AuditReport:
    findings = sorted({finding for found in audits for finding in found.findings})
    replicas = tuple(replica for found in audits for replica in found.replicas())
    return AuditReport(
        not findings,
        tuple(found.result() for found in audits),
        replicas,
        tuple(findings),
        sum(found.more_findings for found in audits),
        sum(replica.bytes for replica in replicas),
        seconds,
    )
