"""[A8] Order: committed ends, high watermarks, and rows that replicas may lack.

It changes by whole cuts, only after they are durable, and is rebuilt deterministically from the base and the cuts after it. Rows
are dropped only when the base is rewritten, so that memory and store hold exactly the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Final

from varlog.metarepo.ordering.commit_rules import Cut, check_cut
from varlog.metarepo.records import BaseRecord, StreamBase
from varlog.model.cluster import ClusterView, Topic
from varlog.model.commit import CommitRow
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.invariant import invariant
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN, NO_GLSN

# See `many_rows`.
ROWS_PER_BASE_MIN: Final = 65_536
CUTS_PER_BASE_MIN: Final = 8


class Order:
    """The order of all committed topics, as far as it is durable."""

    def __init__(self, base: BaseRecord, cuts: Iterable[Cut] = (), topics: Iterable[Topic] = ()) -> None:
        """`topics`: those of the view. For a topic created after the base they are the only record of its first position."""
        # The newest ordered position of each committed topic. Moved by `apply` and `learn`; `keep_only` follows the view.
        self.high_watermarks: dict[TopicID, GLSN] = {
            found.topic: _before_first(found) for found in topics if not found.sequenced
        }
        # One past the last ordered LLSN of each stream. Moved together with the high watermark of its topic.
        self.committed_ends: dict[LogStreamID, LLSN] = {}
        # The newest rows of each stream, oldest first and without a gap; the last one ends at its committed end. `apply` and
        # `learn` add rows, `rebase` alone drops the oldest ones.
        self._rows: dict[LogStreamID, list[CommitRow]] = {}
        # Versions of the newest cut and of the base in the store: base_version <= version. `apply` moves the first, `rebase`
        # the second, `learn` both.
        self.version = self.base_version = 0
        # Rows of the cuts after the base: 0 if there are none. Counted by `apply`, reset by `rebase` and `learn`.
        self._rows_after_base = 0
        self._begin_at(base)
        for cut in cuts:
            self._know_left_topics(cut)
            self.apply(cut)

    def _begin_at(self, base: BaseRecord) -> None:
        self.base_version = self.version = base.version
        self._rows_after_base = 0
        self.high_watermarks.update(base.high_watermarks)
        for stream in base.streams:
            self.committed_ends[stream.log_stream] = stream.committed_end
            self._rows[stream.log_stream] = list(stream.rows)

    def validate(self) -> None:
        """Check how the fields relate to each other (laws 3, 4). It visits every row: for tests."""
        invariant(
            0 <= self.base_version <= self.version
            and (self._rows_after_base == 0 or self.cuts_after_base > 0),
            "the newest cut is not older than the base",
            base=self.base_version,
            version=self.version,
            rows_after_base=self._rows_after_base,
        )
        for log_stream, rows in self._rows.items():
            invariant(log_stream in self.committed_ends, "rows are of a known stream", log_stream=log_stream)
            for before, row in pairwise(rows):
                invariant(
                    row.llsn_begin == before.llsn_end and row.glsn_begin >= before.glsn_end,
                    "law 4: the rows of a stream have no gap, and their positions ascend",
                    log_stream=log_stream,
                    before=before,
                    row=row,
                )
            if rows:
                end = self.committed_ends[log_stream]
                invariant(
                    rows[-1].llsn_end == end and rows[-1].version <= self.version,
                    "law 3: the newest row ends where its stream is ordered",
                    row=rows[-1],
                    end=end,
                    version=self.version,
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order) and self._facts() == other._facts()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Order{self._facts()}"

    def _facts(self) -> tuple[object, ...]:
        rows = {log_stream: rows for log_stream, rows in self._rows.items() if rows}
        return self.base_version, self.version, self.high_watermarks, self.committed_ends, rows

    @property
    def cuts_after_base(self) -> int:
        return self.version - self.base_version

    @property
    def many_rows(self) -> bool:
        """Whether the cuts after the base have enough rows to be replaced by a new base, however few they are. A base contains
        every stream, so the more streams there are, the rarer it is written."""
        return self._rows_after_base >= max(ROWS_PER_BASE_MIN, CUTS_PER_BASE_MIN * len(self.committed_ends))

    def committed_end(self, log_stream: LogStreamID) -> LLSN:
        return self.committed_ends.get(log_stream, FIRST_LLSN)

    def high_watermark(self, topic: TopicID) -> GLSN:
        return self.high_watermarks.get(topic, NO_GLSN)

    def apply(self, cut: Cut) -> None:
        """Apply a durable cut (laws 3, 4)."""
        check_cut(cut, self.version, self.committed_ends, self.high_watermarks)
        self.version = cut.version
        ends, kept = self.committed_ends, self._rows
        for topic_cut in cut.topics:
            self.high_watermarks[topic_cut.topic] = topic_cut.high_watermark
            self._rows_after_base += len(topic_cut.rows)
            for log_stream, row in topic_cut.rows:
                ends[log_stream] = LLSN(row.llsn_begin + row.count)
                if (rows := kept.get(log_stream)) is None:
                    kept[log_stream] = [row]
                else:
                    rows.append(row)

    def _know_left_topics(self, cut: Cut) -> None:
        """Add topics that were created and deleted after the base: only their first row says where they began."""
        for part in cut.topics:
            self.high_watermarks.setdefault(part.topic, part.rows[0][1].previous_high_watermark)

    def keep_only(self, view: ClusterView) -> None:
        """Drop what left the view, and add what joined it. Sequenced topics are not ordered here."""
        topics = {
            found.topic: self.high_watermarks.get(found.topic, _before_first(found))
            for found in view.topics
            if not found.sequenced
        }
        ends = {
            found.log_stream: self.committed_end(found.log_stream)
            for found in view.streams
            if found.topic in topics
        }
        self._rows = {log_stream: rows for log_stream, rows in self._rows.items() if log_stream in ends}
        self.high_watermarks, self.committed_ends = topics, ends

    def kept_rows(self, log_stream: LogStreamID) -> list[CommitRow]:
        """All rows of the stream that are still stored, oldest first."""
        return self._rows.get(log_stream, [])

    def rows_from(self, log_stream: LogStreamID, begin: LLSN) -> list[CommitRow] | None:
        """The rows that order `begin` and everything after it, the first one cut there; None if some of them were dropped."""
        kept = self._rows.get(log_stream, [])
        if kept and kept[-1].llsn_begin == begin:
            return kept[-1:]  # nearly always only the newest row is needed
        if begin >= self.committed_end(log_stream):
            return []
        first = len(kept)
        while first > 0 and kept[first - 1].llsn_end > begin:  # backwards from the newest: mostly few steps
            first -= 1
        found = kept[first:]
        if not found or found[0].llsn_begin > begin:
            return None
        if found[0].llsn_begin < begin:
            found[0] = found[0].rest(begin - found[0].llsn_begin)
        return found

    def base(self, synced_end: Callable[[LogStreamID], LLSN]) -> BaseRecord:
        """This order in one record, without the rows that every replica has synced. A stream with an absent replica keeps its own
        rows, and no other stream's."""
        streams = []
        for log_stream, end in self.committed_ends.items():
            synced = synced_end(log_stream)
            rows = tuple(row for row in self._rows.get(log_stream, ()) if row.llsn_end > synced)
            streams.append(StreamBase(log_stream, end, rows))
        return BaseRecord(self.version, tuple(self.high_watermarks.items()), tuple(streams))

    def glsn_of(self, log_stream: LogStreamID, llsn: LLSN) -> GLSN | None:
        """The position of an ordered entry, if its row is still stored."""
        for row in reversed(self._rows.get(log_stream, [])):
            if row.llsn_begin <= llsn:
                return GLSN(row.glsn_begin + llsn - row.llsn_begin) if llsn < row.llsn_end else None
        return None

    def learned(
        self,
        topic: TopicID,
        ends: Mapping[LogStreamID, LLSN],
        rows: Iterable[tuple[LogStreamID, CommitRow]],
        begin: GLSN,
        newest: GLSN,
        synced_end: Callable[[LogStreamID], LLSN],
    ) -> BaseRecord:
        """This order as one base, extended by the rows that nodes reported for positions `begin` to `newest` of a topic, which
        must be consecutive (laws 3, 4). Before these, its streams end at `ends`: not where they end here, if everything in
        between is trimmed."""
        grown, version = Order(self.base(lambda _: FIRST_LLSN)), self.version
        glsn = begin
        for log_stream, end in ends.items():
            if end != grown.committed_end(log_stream):
                grown.committed_ends[log_stream] = end
                grown._rows.pop(log_stream, None)
        for log_stream, row in rows:
            end = grown.committed_end(log_stream)
            invariant(row.glsn_begin == glsn, "law 4: rows of a topic are consecutive", row=row, glsn=glsn)
            invariant(row.llsn_begin == end, "law 4: a row begins where its stream ended", row=row, end=end)
            grown.committed_ends[log_stream] = row.llsn_end
            grown._rows.setdefault(log_stream, []).append(row)
            glsn, version = row.glsn_end, max(version, row.version)
        invariant(
            glsn == newest + 1, "law 4: everything up to the newest is reported", reached=glsn, newest=newest
        )
        grown.high_watermarks[topic] = newest
        # Higher than every version that a node has seen.
        grown.version = version + 1
        return grown.base(synced_end)

    def learn(self, base: BaseRecord) -> None:
        """Adopt the base made by `learned`, which is durable."""
        self._begin_at(base)

    def rebase(self, base: BaseRecord) -> None:
        """Drop the rows that a base omits, which is durable."""
        self.base_version = base.version
        self._rows_after_base = 0
        self._rows = {stream.log_stream: list(stream.rows) for stream in base.streams if stream.rows}


def _before_first(topic: Topic) -> GLSN:
    return GLSN(topic.first - 1)


def merged_rows(rows: Iterable[CommitRow]) -> list[CommitRow]:
    """The same order in fewer rows: a row that continues exactly where the one before ended is merged with it."""
    found: list[CommitRow] = []
    for row in rows:
        if found and row.follows(found[-1]):
            found[-1] = found[-1].merged(row)
        else:
            found.append(row)
    return found
