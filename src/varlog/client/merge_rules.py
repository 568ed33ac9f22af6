"""PURE. Merges the streams of a topic into one order (law 4, R-READ-3).

Rows of fetches in, ranges in GLSN order out. GLSNs are dense, so the stream that has the next one is next: nothing is compared,
nothing is sorted. Rows may be cut anywhere, come twice, and come in any order between streams; within one stream they must not
leave a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from varlog.model.errors import Trimmed
from varlog.model.ids import LogStreamID
from varlog.model.limits import FETCH_BYTES_DEFAULT, FETCH_BYTES_MIN, SUBSCRIPTION_BYTES_MAX
from varlog.model.lsn import GLSN, LLSN, NO_GLSN, NO_LLSN

# The chunk that is consumed, and the one that is fetched meanwhile.
CHUNKS_PER_STREAM: Final = 2

# `count` entries from this LLSN on are ordered from this GLSN on.
Row = tuple[LLSN, GLSN, int]


class MergedRange(NamedTuple):
    """`length` entries of one stream that follow each other in both orders; `source` is what they were fetched in."""

    log_stream: LogStreamID
    glsn: GLSN
    llsn: LLSN
    length: int
    source: object
    last: bool  # of its source


class _Lane:
    """What is known of one stream, and not taken yet."""

    __slots__ = ("clear_to", "next_glsn", "next_llsn", "sources", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[MergedRange] = deque()
        self.sources = 0
        self.next_llsn: LLSN = NO_LLSN  # not known before the first row
        self.next_glsn: GLSN = NO_GLSN
        self.clear_to: GLSN = NO_GLSN  # every entry of this stream up to here has been offered


class Merge:
    """The merging of one subscription from `begin` on, up to but without `end`."""

    def __init__(self, begin: GLSN, end: GLSN | None = None) -> None:
        self.next = begin
        self.end = end
        self.trimmed: GLSN = NO_GLSN
        self._newest: GLSN = NO_GLSN  # known to be ordered, in whichever stream
        self._lanes: dict[LogStreamID, _Lane] = {}
        self._heads: dict[GLSN, LogStreamID] = {}

    @property
    def done(self) -> bool:
        return self.end is not None and self.next >= self.end

    @property
    def streams(self) -> Sequence[LogStreamID]:
        return list(self._lanes)

    @classmethod
    def starting(cls, begin: GLSN | None, end: GLSN | None, oldest: GLSN) -> Merge:
        """From `begin`, or else from the oldest entry. Trimmed if what is asked for is gone already."""
        first = oldest if begin is None else begin
        if first < oldest and (end is None or first < end):
            raise Trimmed(first, oldest)
        return cls(first, end)

    def raise_if_trimmed(self) -> None:
        if self.trimmed_under:
            raise Trimmed(self.next, self.trimmed + 1)

    @property
    def trimmed_under(self) -> bool:
        """The next position is not here, and will never be."""
        return self.next <= self.trimmed and self.next not in self._heads

    @property
    def elsewhere(self) -> bool:
        """The next position is ordered, and no known stream has it: there is a stream that we do not know of."""
        if self._newest < self.next or self.next in self._heads:
            return False
        return all(lane.waiting or lane.clear_to >= self.next for lane in self._lanes.values())

    def add(self, log_stream: LogStreamID) -> None:
        self._lanes.setdefault(log_stream, _Lane())

    def cursor(self, log_stream: LogStreamID) -> tuple[LLSN, GLSN]:
        """Where to fetch from: an LLSN, or (0, a GLSN) as long as the stream's first one is not known."""
        lane = self._lanes[log_stream]
        return (lane.next_llsn, NO_GLSN) if lane.next_llsn else (NO_LLSN, self.next)

    def sources(self, log_stream: LogStreamID) -> int:
        """How many fetches of this stream are held and not taken to their end."""
        return self._lanes[log_stream].sources

    def offer(self, log_stream: LogStreamID, rows: Sequence[Row], source: object) -> None:
        """Entries `rows` of a stream, in whatever pieces. ValueError: they leave a gap, or contradict what came before."""
        lane = self._lanes[log_stream]
        fresh: list[MergedRange] = []
        next_llsn, next_glsn = lane.next_llsn, lane.next_glsn
        for llsn, glsn, count in rows:
            if next_llsn:
                if llsn > next_llsn:
                    raise ValueError(f"log stream {log_stream}: LLSN {llsn} came where {next_llsn} was next")
                seen = next_llsn - llsn
                if seen >= count:
                    continue
                llsn, glsn, count = LLSN(llsn + seen), GLSN(glsn + seen), count - seen
            if glsn < next_glsn:
                raise ValueError(
                    f"log stream {log_stream}: GLSN {glsn} came where {next_glsn} or more was next"
                )
            next_llsn, next_glsn = LLSN(llsn + count), GLSN(glsn + count)
            before = self.next - glsn  # asked for a position in the future, or in the middle of a batch
            if before >= count:
                continue
            if before > 0:
                llsn, glsn, count = LLSN(llsn + before), GLSN(glsn + before), count - before
            fresh.append(MergedRange(log_stream, glsn, llsn, count, source, False))
        lane.next_llsn, lane.next_glsn = next_llsn, next_glsn
        self._newest = max(self._newest, GLSN(next_glsn - 1))
        if fresh:
            fresh[-1] = fresh[-1]._replace(last=True)
            lane.sources += 1
            if not lane.waiting:
                self._heads[fresh[0].glsn] = log_stream
            lane.waiting.extend(fresh)

    def offered_up_to(self, log_stream: LogStreamID, glsn: GLSN) -> None:
        """The stream has nothing at or below `glsn` that was not offered."""
        lane = self._lanes[log_stream]
        lane.clear_to = max(lane.clear_to, glsn)
        self._newest = max(self._newest, glsn)

    def trimmed_up_to(self, glsn: GLSN) -> None:
        self.trimmed = max(self.trimmed, glsn)

    def pop_ready(self) -> list[MergedRange]:
        """Everything that goes next, in order; empty while the next position is not here."""
        taken: list[MergedRange] = []
        heads, lanes = self._heads, self._lanes
        position = self.next
        end = self.end
        while (end is None or position < end) and (log_stream := heads.pop(position, None)) is not None:
            lane = lanes[log_stream]
            merged = lane.waiting.popleft()
            if merged.last:
                lane.sources -= 1
            if lane.waiting:
                heads[lane.waiting[0].glsn] = log_stream
            if end is not None and position + merged.length > end:
                merged = merged._replace(length=end - position)
            taken.append(merged)
            position = GLSN(position + merged.length)
        self.next = position
        return taken


def fetch_bytes(streams: int) -> int:
    """How much one fetch of a subscription to `streams` streams asks for: all of them together stay below its limit."""
    share = SUBSCRIPTION_BYTES_MAX // (CHUNKS_PER_STREAM * max(1, streams))
    return max(FETCH_BYTES_MIN, min(FETCH_BYTES_DEFAULT, share))
