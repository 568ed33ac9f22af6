"""AuditedTopic: the audit of one topic, on the driver.

What to read, what was found, and what to read again in detail.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from varlog.client.log import Log
from varlog.model.entry import StreamRange
from varlog.model.errors import VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN
from varlog.model.projection import Projection
from varlog.model.status import ReplicaStatus, UnitStatus
from varlog.spark.audit.compare_rules import (
    BlockKey,
    by_block,
    differed,
    differing,
    divergences,
    holes,
    majority_blocks,
    out_of_order,
    uncovered,
)
from varlog.spark.audit.parts import GLSN_BLOCK, AuditRange, Block, Finding, FindingKind, TaskFindings
from varlog.spark.audit.plan_rules import (
    ReplicaExtent,
    StreamPlan,
    block_entries,
    contradictions,
    readings,
    stream_plan,
)
from varlog.spark.audit.task import replica_source, retried
from varlog.spark.connection import SparkConnection
from varlog.spark.read.origin import settled_mark

# Differing blocks that are read again, batch by batch; further ones are counted.
LISTED_BLOCKS_MAX = 64


@dataclass(frozen=True, slots=True)
class TopicAudit:
    """Positions [begin, end) of a topic were read; `clean`: all of them are correct."""

    topic: str
    begin: int
    end: int
    streams: int
    clean: bool


@dataclass(frozen=True, slots=True)
class ReplicaAudit:
    """What was read of one replica, and the result."""

    topic: str
    log_stream: int
    node: int
    path: str
    entries: int
    bytes: int
    result: str


class AuditedTopic:
    """One topic: what to read, what was found, and what to read again."""

    def __init__(self, connection: SparkConnection, topic: str, begin: int | None, end: int | None) -> None:
        self.topic = topic
        self.findings: list[Finding] = []
        self.more_findings = 0
        self._connection = connection
        self._log: Log = connection.fresh_log(topic)
        mark = connection.run(settled_mark(self._log))
        tail, trimmed = mark.high_watermark, mark.trimmed
        # After the tail: whatever stream has a position below it is in this view.
        view = connection.run(self._log.connector.view())
        self._streams = view.streams_of(self._log.topic.topic)
        self._projection = view.projection(self._log.topic.topic)
        oldest = max(trimmed + 1, self._log.topic.first)
        self._begin = max(oldest, begin or oldest)
        self._end = max(self._begin, min(tail + 1, end or tail + 1))
        self._trimmed = trimmed
        self._paths: dict[tuple[int, int], str] = {}
        self._fill_holes()
        self._statuses = self._ask_nodes()
        self._plans = [plan for stream in self._streams if (plan := self._plan(stream.log_stream))]
        self._bytes_a_task = 0
        self._blocks: list[Block] = []
        self._places: dict[BlockKey, list[Block]] = {}
        self._differing: list[BlockKey] = []
        self._uncovered: list[int] = []

    @property
    def bytes(self) -> int:
        return sum(plan.bytes * len(self._nodes(plan.log_stream)) for plan in self._plans)

    # --- planning ------------------------------------------------------------------------------------------------------

    def _nodes(self, log_stream: int) -> list[int]:
        """The replicas of a stream whose nodes answer."""
        replicas = next(stream.replicas for stream in self._streams if stream.log_stream == log_stream)
        return [node for node in replicas if (log_stream, node) in self._statuses]

    def _fill_holes(self) -> None:
        """Positions of a sequenced topic that were assigned and not read since: reading them decides their content on every
        node of the chain (R-SEQ-8)."""
        if self._projection is None:
            return
        for stream in self._streams:
            self._connection.run(self._read_to_end(self._projection, stream.log_stream))

    async def _read_to_end(self, projection: Projection, log_stream: LogStreamID) -> None:
        """From where some node of the chain has a hole."""
        first, end = (projection.llsn_from(log_stream, GLSN(at)) for at in (self._begin, self._end))
        for node in projection.chain(log_stream).nodes:
            with contextlib.suppress(VarlogError):  # one that does not answer is reported below
                units = (await self._log.connector.on_node(node).status()).units
                dense_end = next((unit.dense_end for unit in units if unit.log_stream == log_stream), first)
                if (begin := max(first, dense_end)) < end:
                    async with contextlib.aclosing(
                        self._log.connector.chunks(log_stream, begin, end)
                    ) as parts:
                        async for _ in parts:
                            pass

    def _ask_nodes(self) -> dict[tuple[int, int], ReplicaStatus | UnitStatus]:
        """The status of each replica of this topic; a node that does not answer is a finding, and so is one that is out
        of sync with its chain."""
        statuses: dict[tuple[int, int], ReplicaStatus | UnitStatus] = {}
        silent_nodes: dict[int, str] = {}
        for node in sorted({node for stream in self._streams for node in stream.replicas}):
            try:
                status = retried(self._connection, self._log.connector.on_node(node).status)
                statuses |= {(replica.log_stream, node): replica for replica in status.replicas}
                statuses |= {(unit.log_stream, node): unit for unit in status.units}
            except VarlogError as error:
                silent_nodes[node] = str(error)
        self._paths = {replica: status.path for replica, status in statuses.items()}
        for stream in self._streams:
            for node in stream.replicas:
                if self._projection and node in self._projection.chain(stream.log_stream).out_of_sync:
                    statuses.pop((stream.log_stream, node), None)
                    silent_nodes.setdefault(node, "it is out of sync with its chain, and not filled yet")
                if (stream.log_stream, node) not in statuses:
                    why = silent_nodes.get(node, "the node has no such replica")
                    self._unread(stream.log_stream, node, why)
        return statuses

    def _plan(self, log_stream: int) -> StreamPlan | None:
        claims: dict[int, ReplicaExtent] = {}
        for node in self._nodes(log_stream):
            try:
                found = retried(self._connection, partial(self._measured, log_stream, node))
                claims[node] = ReplicaExtent(found.begin, found.end, found.bytes, found.points)
            except VarlogError as error:
                status = self._statuses.pop((log_stream, node))
                trouble = f"; the node says: {status.trouble}" if status.trouble else ""
                self._unread(log_stream, node, f"{error}{trouble}")
        if not claims:
            return None
        plan = stream_plan(log_stream, claims)
        self.findings += contradictions(plan, claims, self.topic, self._paths, self._begin)
        return plan

    async def _measured(self, log_stream: int, node: int) -> StreamRange:
        one = await replica_source(self._log, node)
        return await one.measure(log_stream, self._begin, self._end)

    def readings(self, bytes_a_task: int) -> list[AuditRange]:
        self._bytes_a_task = bytes_a_task
        return [
            reading
            for plan in self._plans
            for reading in readings(plan, self.topic, self._paths, self._nodes(plan.log_stream), bytes_a_task)
        ]

    # --- comparing -------------------------------------------------------------------------------------------------------

    def compare(self, outcomes: Iterable[TaskFindings]) -> None:
        """After everything was read once."""
        self._add(outcomes)
        self.findings += out_of_order(self._blocks, self.topic, self._paths)
        self._places = by_block(self._blocks)
        self._differing = differing(self._places)
        low = self._low_after()
        self._uncovered = [
            piece
            for piece in uncovered(majority_blocks(self._places).values(), self._begin, self._end)
            if piece * GLSN_BLOCK >= low or low <= self._begin
        ]

    def _add(self, outcomes: Iterable[TaskFindings]) -> None:
        for outcome in outcomes:
            self._blocks += outcome.blocks
            self.findings += outcome.findings
            self.more_findings += outcome.more_findings

    def _low_after(self) -> int:
        """The oldest position that was not trimmed during the audit."""
        if any(block.trimmed for block in self._blocks):
            self._trimmed = self._connection.run(self._log.trimmed())
        return max(self._begin, self._trimmed + 1)

    def readings_again(self) -> list[AuditRange]:
        """Blocks to be read batch by batch: of all replicas where they differ, of one where the positions are not dense."""
        self.more_findings += max(0, len(self._differing) - LISTED_BLOCKS_MAX)
        self._differing = self._differing[:LISTED_BLOCKS_MAX]
        wanted = {block for place in self._differing for block in self._keys(self._places[place])}
        speak = majority_blocks(self._places)
        pieces = set(self._uncovered)
        wanted |= set(self._keys(block for block in speak.values() if pieces & block.edges.keys()))
        plans = {plan.log_stream: plan for plan in self._plans}
        return [
            AuditRange(
                self.topic,
                log_stream,
                node,
                self._paths[log_stream, node],
                begin,
                end,
                block_entries(plans[log_stream], self._bytes_a_task),
                first=begin == plans[log_stream].begin,
                listing=True,
            )
            for log_stream, begin, end, node in sorted(wanted)
        ]

    @staticmethod
    def _keys(blocks: Iterable[Block]) -> list[tuple[int, int, int, int]]:
        return [(block.log_stream, block.begin, block.end, block.node) for block in blocks]

    def conclude(self, outcomes: Sequence[TaskFindings]) -> None:
        """After the differences were read again."""
        listed: dict[BlockKey, list[Block]] = defaultdict(list)
        for outcome in outcomes:
            for block in outcome.blocks:
                if block.complete:
                    listed[block.log_stream, block.begin].append(block)
        for place in self._differing:
            found = divergences(listed[place], self.topic, self._paths)
            self.findings += found or differed(self._places[place], self.topic, self._paths)
        self._find_holes(listed)
        self.findings = [self._located(finding) for finding in self.findings]

    def _located(self, finding: Finding) -> Finding:
        """With its GLSN, which a replica that is damaged there does not know, and another one does."""
        if finding.glsn or not finding.llsn:
            return finding
        for node in self._nodes(finding.log_stream):
            with contextlib.suppress(VarlogError):
                one = self._connection.run(replica_source(self._log, node))
                rows = self._connection.run(one.fetch(finding.log_stream, finding.llsn, bytes_max=1)).rows
                if rows and rows[0][0] == finding.llsn:
                    return replace(finding, glsn=rows[0][1])
        return finding

    def _find_holes(self, listed: Mapping[BlockKey, Sequence[Block]]) -> None:
        runs = [(block.log_stream, run) for block in majority_blocks(listed).values() for run in block.runs]
        diverging = [run for place in self._differing for block in listed[place] for run in block.runs]
        proven = (
            len(majority_blocks(self._places)) == len(self._places)
            and len(self._plans) == len(self._streams)
            and all(
                len(listed.get(place, ())) == len(self._places[place]) for place in differing(self._places)
            )
        )
        for piece in self._uncovered:
            begin, end = max(self._begin, piece * GLSN_BLOCK), min(self._end, (piece + 1) * GLSN_BLOCK)
            self.findings += holes(runs, begin, end, self.topic, diverging=diverging, proven=proven)

    def _unread(self, log_stream: int, node: int, why: str) -> None:
        self.findings.append(
            Finding(
                FindingKind.UNREAD,
                self.topic,
                log_stream,
                node,
                self._paths.get((log_stream, node), ""),
                0,
                0,
                why,
                "its entries",
            )
        )

    # --- reports -------------------------------------------------------------------------------------------------------

    def result(self) -> TopicAudit:
        return TopicAudit(self.topic, self._begin, self._end, len(self._streams), not self.findings)

    def replicas(self) -> list[ReplicaAudit]:
        entries: Counter[tuple[int, int]] = Counter()
        size: Counter[tuple[int, int]] = Counter()
        for block in self._blocks:
            entries[block.log_stream, block.node] += block.entries
            size[block.log_stream, block.node] += block.size
        return [
            ReplicaAudit(
                self.topic,
                stream.log_stream,
                node,
                self._paths.get((stream.log_stream, node), ""),
                entries[stream.log_stream, node],
                size[stream.log_stream, node],
                self._result(stream.log_stream, node),
            )
            for stream in self._streams
            for node in stream.replicas
        ]

    def _result(self, log_stream: int, node: int) -> str:
        kinds = Counter(
            str(finding.kind)
            for finding in self.findings
            if (finding.log_stream, finding.node) == (log_stream, node)
        )
        return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "sound"
