"""[A8] PURE. Reports of what is durable -> the next Cut, which assigns GLSNs.

Law 2: only entries that every replica of a running stream stores, in the stream's epoch, are ordered. Law 3: a position is assigned
once. Law 4: GLSNs of a topic and LLSNs of a stream are consecutive, within a cut and from cut to cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from varlog.model.cluster import LogStream, StreamState
from varlog.model.commit import CommitRow, Report
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.invariant import invariant
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN, NO_GLSN

# Looked up once: the lookup of an enum member takes half as long as all other checks of a stream together.
_RUNNING: Final = StreamState.RUNNING

# A stream that may have something to order, how far it is ordered, and the newest report of each replica. A plain tuple: each cut
# creates one for each of thousands of streams.
Candidate = tuple[LogStream, LLSN, Mapping[NodeID, Report]]


@dataclass(frozen=True, slots=True)
class TopicCut:
    """What one cut orders in one topic: one row per stream, consecutive in GLSN, sorted by stream id."""

    topic: TopicID
    rows: tuple[tuple[LogStreamID, CommitRow], ...]

    @property
    def high_watermark(self) -> GLSN:
        """The topic's newest position after this cut."""
        return self.rows[0][1].high_watermark


@dataclass(frozen=True, slots=True)
class Cut:
    """One step of the order, over all topics with new entries."""

    version: int
    topics: tuple[TopicCut, ...]

    @property
    def rows(self) -> int:
        return sum(len(part.rows) for part in self.topics)


def orderable_end(stream: LogStream, committed_end: LLSN, reports: Mapping[NodeID, Report]) -> LLSN:
    """One past the last LLSN that may be ordered now (law 2); `committed_end` if nothing may."""
    if stream.state is not _RUNNING:
        return committed_end
    end: LLSN | None = None
    epoch = stream.epoch
    for node in stream.replicas:
        report = reports.get(node)
        # A report of another epoch covers entries that a seal may have cut (laws 6, 7).
        if report is None or report.epoch != epoch:
            return committed_end
        if end is None or report.durable_end < end:
            end = report.durable_end
    # A peer's report is checked, not trusted: one that claims less than what is ordered revokes nothing (law 3).
    return committed_end if end is None or end < committed_end else end


def next_cut(
    version: int, candidates: Iterable[Candidate], high_watermarks: Mapping[TopicID, GLSN]
) -> Cut | None:
    """The cut after `version`, or None if nothing may be ordered. The work is per stream with new entries, never per entry."""
    grown: dict[TopicID, list[_Grown]] = {}
    for stream, committed_end, reports in candidates:
        count = orderable_end(stream, committed_end, reports) - committed_end
        if count > 0:
            if (rows := grown.get(stream.topic)) is None:
                rows = grown[stream.topic] = []
            rows.append((stream.log_stream, committed_end, count, stream.epoch))
    if not grown:
        return None
    return Cut(
        version + 1,
        tuple(
            _topic_cut(version + 1, topic, grown[topic], high_watermarks.get(topic, NO_GLSN))
            for topic in sorted(grown)
        ),
    )


# A stream, its committed end before the cut, the number of new entries, and its epoch.
_Grown = tuple[LogStreamID, LLSN, int, Epoch]


def _topic_cut(version: int, topic: TopicID, grown: list[_Grown], before: GLSN) -> TopicCut:
    grown.sort(key=itemgetter(0))
    after = GLSN(before + sum(count for _, _, count, _ in grown))
    glsn = GLSN(before + 1)
    rows: list[tuple[LogStreamID, CommitRow]] = []
    for log_stream, llsn, count, epoch in grown:
        rows.append((log_stream, CommitRow(version, after, before, glsn, llsn, count, epoch)))
        glsn = GLSN(glsn + count)
    return TopicCut(topic, tuple(rows))


def check_cut(
    cut: Cut,
    version: int,
    committed_ends: Mapping[LogStreamID, LLSN],
    high_watermarks: Mapping[TopicID, GLSN],
) -> None:
    """Raise InvariantBroken unless `cut` continues exactly where everything before it ended (laws 3, 4)."""
    invariant(cut.version == version + 1, "cuts follow each other by one", cut=cut.version, newest=version)
    for topic_cut in cut.topics:
        before = high_watermarks.get(topic_cut.topic, NO_GLSN)
        glsn = GLSN(before + 1)
        newest_stream = LogStreamID(0)
        for log_stream, row in topic_cut.rows:
            end = committed_ends.get(log_stream, FIRST_LLSN)
            # All checks in one expression: a cut may have thousands of rows, and checking each law separately takes longer than
            # making them.
            if not (
                row.version == cut.version
                and log_stream > newest_stream
                and row.llsn_begin == end
                and row.glsn_begin == glsn
                and row.previous_high_watermark == before
            ):
                _raise_broken_law(row, cut.version, log_stream > newest_stream, end, glsn, before)
            newest_stream = log_stream
            glsn = row.glsn_end
        after = topic_cut.high_watermark
        invariant(glsn == after + 1, "law 4: a topic grows by what was ordered", after=after, reached=glsn)


def _raise_broken_law(
    row: CommitRow, version: int, in_order: bool, end: LLSN, glsn: GLSN, before: GLSN
) -> None:
    """Raise for the law that a row violates which does not continue where everything before it ended."""
    invariant(row.version == version, "a row belongs to its cut", row=row, cut=version)
    invariant(in_order, "one row per stream, in order", row=row)
    invariant(row.llsn_begin == end, "law 4: a row begins where its stream ended", row=row, end=end)
    invariant(row.glsn_begin == glsn, "law 4: rows of a topic lie back to back", row=row, glsn=glsn)
    invariant(row.previous_high_watermark == before, "law 3: the order only grows", row=row, before=before)
