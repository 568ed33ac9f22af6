"""[A8] Outbox: which commit rows and topic marks one node in session still lacks.

It stores positions, not messages: a slow node costs no memory, and gets everything that it missed in one message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from varlog.metarepo.ordering.order import merged_rows
from varlog.metarepo.state import RepositoryState
from varlog.model.cluster import LogStream
from varlog.model.commit import CommitRow, TopicMark
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.invariant import invariant
from varlog.model.lsn import FIRST_LLSN, LLSN, NO_GLSN
from varlog.rpc.messages import Commits
from varlog.runtime.logging import get_logger, logfmt

# One message stays well below the limit of a frame's message part: a row takes at most 70 bytes.
ROWS_PER_MESSAGE_MAX: Final = 8_192

_log = get_logger("metarepo")

# Rows of one stream, oldest first.
StreamRows = tuple[LogStreamID, tuple[CommitRow, ...]]


class Outbox:
    """What one node lacks, in one session."""

    def __init__(self, state: RepositoryState, node_name: str) -> None:
        self._state = state
        self._node_name = node_name
        # Number of the newest message, 0 before the first. Moved by `next_message` alone.
        self._serial = 0
        # The first message is due even if the node lacks nothing, because the node waits for it. Cleared by `next_message`.
        self._first = True
        # Per stream of the node, the next LLSN to send; None: the node lacks rows that are no longer stored here, so that only a
        # sync helps. `begin` and `follow` set it, `next_message` advances it.
        self._cursors: dict[LogStreamID, int | None] = {}
        # The streams whose cursor is None, nearly always none: stored separately because every report queries it.
        self.needs_sync: set[LogStreamID] = set()
        # Streams that may lack rows from their cursor on. `begin` and `add_rows` add, `next_message` removes them.
        self._streams: dict[LogStreamID, None] = {}
        # Rows of the newest cut, of streams that lack nothing else: they begin at the cursor, and are not in `_streams`. Nearly
        # always they are the whole next message. `add_rows` sets them, and moves them to `_streams` if more arrive before a
        # message.
        self._fresh: list[StreamRows] = []
        # Topics whose mark is to be sent. `add_topic` and `follow` add, `next_message` removes them.
        self._topics: dict[TopicID, None] = {}

    def validate(self) -> None:
        """Check how the fields relate to each other. It visits every stream: for tests."""
        cursors, fresh = self._cursors, [log_stream for log_stream, _ in self._fresh]
        invariant(self._first == (self._serial == 0), "the first message has serial 1", serial=self._serial)
        invariant(
            self.needs_sync == {log_stream for log_stream, cursor in cursors.items() if cursor is None},
            "a sync is needed by the streams without a cursor",
            cursors=cursors,
            needs_sync=self.needs_sync,
        )
        invariant(
            len(set(fresh)) == len(fresh) and not self._streams.keys() & set(fresh),
            "a stream with fresh rows is listed once and lacks nothing else",
            fresh=fresh,
            streams=tuple(self._streams),
        )
        for log_stream, rows in self._fresh:
            invariant(
                cursors.get(log_stream) == rows[0].llsn_begin,
                "fresh rows begin at the cursor",
                log_stream=log_stream,
                cursor=cursors.get(log_stream),
                row=rows[0],
            )

    def begin(self, log_stream: LogStreamID, committed_end: LLSN | None) -> None:
        """Start a stream whose replica on the node is ordered up to `committed_end`. None: no row can be sent to it."""
        self._set_cursor(log_stream, committed_end)
        self._streams[log_stream] = None

    def _set_cursor(self, log_stream: LogStreamID, cursor: LLSN | None) -> None:
        self._cursors[log_stream] = cursor
        if cursor is None:
            self.needs_sync.add(log_stream)
        else:
            self.needs_sync.discard(log_stream)

    def follow(self, streams: Iterable[LogStream]) -> None:
        """Set the node's streams. One that it did not report when the session began is new there, or was lost: a sync fills it,
        and its reports show that (see `resume`)."""
        current = {stream.log_stream: stream for stream in streams}
        for log_stream in [found for found in self._cursors if found not in current]:
            del self._cursors[log_stream]
            self.needs_sync.discard(log_stream)
            self._streams.pop(log_stream, None)
            self._fresh = [found for found in self._fresh if found[0] != log_stream]
        for log_stream, stream in current.items():
            if log_stream not in self._cursors:
                fresh = self._state.order.committed_end(log_stream) == FIRST_LLSN
                self._set_cursor(log_stream, FIRST_LLSN if fresh else None)
                self._topics[stream.topic] = None
                if not fresh:
                    facts = {"node": self._node_name, "log_stream": log_stream}
                    _log.info(logfmt("a replica is new on its node: it needs a sync", **facts))

    def resume(self, log_stream: LogStreamID, rows_synced_end: LLSN) -> None:
        """Continue from `rows_synced_end`: a replica that lacked rows reports that it got them from another replica."""
        if (
            log_stream in self.needs_sync
            and self._state.order.rows_from(log_stream, rows_synced_end) is not None
        ):
            self.begin(log_stream, rows_synced_end)

    def add_rows(self, rows: list[StreamRows]) -> None:
        """Add the newest rows of some streams. The rows themselves are kept only if the node lacks nothing else of their streams,
        and only until more rows arrive; after that the cursors show what it lacks."""
        spilled, self._fresh = self._fresh, []
        if spilled:
            self._streams.update((log_stream, None) for log_stream, _ in spilled)
        if self._streams:
            self._streams.update((log_stream, None) for log_stream, _ in rows)
            return
        cursors = self._cursors
        for found in rows:
            if cursors.get(found[0]) == found[1][0].llsn_begin:
                self._fresh.append(found)
            else:
                self._streams[found[0]] = None

    def add_topic(self, topic: TopicID) -> None:
        self._topics[topic] = None

    @property
    def empty(self) -> bool:
        return not (self._first or self._streams or self._fresh or self._topics)

    def next_message(self) -> Commits | None:
        """All rows that the node lacks now, or the oldest of them if they exceed one message; None if it lacks nothing."""
        if self.empty:
            return None
        rows, self._fresh = self._fresh, []
        if self._streams:
            lacking = rows + self._lacking()
            rows = [
                (found[0], tuple(merged_rows(found[1]))) if len(found[1]) > 1 else found for found in lacking
            ]
        whole = (
            len(rows) == 1 == len(rows[0][1]) or sum(len(found) for _, found in rows) <= ROWS_PER_MESSAGE_MAX
        )
        if not whole:
            self._streams.update((log_stream, None) for log_stream, _ in rows)
            rows = _oldest(self._lacking())
        marks = tuple([self._mark(topic, whole) for topic in self._topics if topic in self._state.topics])
        if whole:
            self._streams.clear()
            self._topics.clear()
        cursors = self._cursors
        for log_stream, sent in rows:
            last = sent[-1]
            cursors[log_stream] = last.llsn_begin + last.count
        if not rows and not marks and not self._first:
            return None
        self._first = False
        self._serial += 1
        version = self._state.order.version if whole else max(found[-1].version for _, found in rows)
        return Commits(self._serial, version, marks, tuple(rows))

    def _lacking(self) -> list[StreamRows]:
        lacking: list[StreamRows] = []
        cursors, rows_from = self._cursors, self._state.order.rows_from
        for log_stream in self._streams:
            cursor = cursors.get(log_stream)
            if cursor is None:
                continue
            found = rows_from(log_stream, LLSN(cursor))
            if found is None:
                # Rows after the gap would only make the node ask again, forever.
                self._set_cursor(log_stream, None)
                _log.warning(
                    logfmt(
                        "a replica lacks commit rows that are no longer kept here: it needs a sync",
                        node=self._node_name,
                        log_stream=log_stream,
                        committed_end=cursor,
                    )
                )
            elif found:
                lacking.append((log_stream, tuple(found)))
        return lacking

    def _mark(self, topic: TopicID, whole: bool) -> TopicMark:
        """The mark of a topic. A high watermark means that everything up to it was sent; until then (`whole` is False) only the
        trim is sent."""
        mark = self._state.mark(topic)
        return mark if whole else TopicMark(topic, NO_GLSN, mark.trimmed)


def _oldest(lacking: list[StreamRows]) -> list[StreamRows]:
    """About ROWS_PER_MESSAGE_MAX of the oldest rows, in whole versions: rows are sent in version order."""
    versions = sorted(row.version for _, found in lacking for row in found)
    newest = versions[ROWS_PER_MESSAGE_MAX - 1]
    parts = (
        (log_stream, tuple(row for row in found if row.version <= newest)) for log_stream, found in lacking
    )
    return [(log_stream, part) for log_stream, part in parts if part]
