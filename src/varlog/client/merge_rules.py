"""PURE. Merges the streams of a topic into one order (law 4, R-READ-3).

It receives the rows of fetches and returns ranges in GLSN order. GLSNs are dense, so the stream that has the next GLSN is next:
nothing is compared or sorted. Rows may be split anywhere, arrive twice, and arrive in any order between streams; within one stream
they must not leave a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from varlog.model.errors import Trimmed
from varlog.model.ids import LogStreamID
from varlog.model.limits import FETCH_BYTES_DEFAULT, FETCH_BYTES_MIN, SUBSCRIPTION_BYTES_MAX
from varlog.model.lsn import GLSN, LLSN, NO_GLSN, NO_LLSN

# One chunk is consumed while the next one is fetched.
CHUNKS_PER_STREAM: Final = 2

# `count` entries starting at this LLSN have consecutive positions starting at this GLSN.
Row = tuple[LLSN, GLSN, int]


class MergedRange(NamedTuple):
    """`length` entries of one stream that are consecutive in both orders; `source` is the fetch result that holds them."""

    log_stream: LogStreamID
    glsn: GLSN
    llsn: LLSN
    length: int
    source: object
    last: bool  # the last range of its source


class _Lane:
    """What is known of one stream and not yet consumed."""

    __slots__ = ("clear_to", "next_glsn", "next_llsn", "sources", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[MergedRange] = deque()
        self.sources = 0
        self.next_llsn: LLSN = NO_LLSN  # unknown before the first row
        self.next_glsn: GLSN = NO_GLSN
        self.clear_to: GLSN = NO_GLSN  # every entry of this stream up to here has been offered


class Merge:
    """Merges the streams of one subscription, from `begin` up to but without `end`."""

    def __init__(self, begin: GLSN, end: GLSN | None = None) -> None:
        self.next = begin
        self.end = end
        self.trimmed: GLSN = NO_GLSN
        self._newest: GLSN = NO_GLSN  # newest position known to be ordered, in any stream
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
        """A merge from `begin`, or from the oldest entry if None. Raises Trimmed if `begin` is trimmed already."""
        first = oldest if begin is None else begin
        if first < oldest and (end is None or first < end):
            raise Trimmed(first, oldest)
        return cls(first, end)

    def raise_if_trimmed(self) -> None:
        if self.trimmed_under:
            raise Trimmed(self.next, self.trimmed + 1)

    @property
    def trimmed_under(self) -> bool:
        """Whether the next position was trimmed before it arrived here."""
        return self.next <= self.trimmed and self.next not in self._heads

    @property
    def elsewhere(self) -> bool:
        """Whether the next position is ordered in a stream that is not known here."""
        if self._newest < self.next or self.next in self._heads:
            return False
        return all(lane.waiting or lane.clear_to >= self.next for lane in self._lanes.values())

    def add(self, log_stream: LogStreamID) -> None:
        self._lanes.setdefault(log_stream, _Lane())

    def cursor(self, log_stream: LogStreamID) -> tuple[LLSN, GLSN]:
        """Where to fetch from: (LLSN, 0), or (0, GLSN) while the LLSN of the stream's first entry is unknown."""
        lane = self._lanes[log_stream]
        return (lane.next_llsn, NO_GLSN) if lane.next_llsn else (NO_LLSN, self.next)

    def sources(self, log_stream: LogStreamID) -> int:
        """How many fetches of this stream are held and not fully consumed."""
        return self._lanes[log_stream].sources

    def offer(self, log_stream: LogStreamID, rows: Sequence[Row], source: object) -> None:
        """Add entries `rows` of a stream, split in any way. Raises ValueError if they leave a gap or contradict earlier rows."""
        lane = self._lanes[log_stream]
        fresh: list[MergedRange] = []
        next_llsn, next_glsn = lane.next_llsn, lane.next_glsn
        for llsn, glsn, count in rows:
            if next_llsn:
                if llsn > next_llsn:
                    raise ValueError(f"log stream {log_stream}: LLSN {llsn} arrived, expected {next_llsn}")
                seen = next_llsn - llsn
                if seen >= count:
                    continue
                llsn, glsn, count = LLSN(llsn + seen), GLSN(glsn + seen), count - seen
            if glsn < next_glsn:
                raise ValueError(
                    f"log stream {log_stream}: GLSN {glsn} arrived, expected {next_glsn} or more"
                )
            next_llsn, next_glsn = LLSN(llsn + count), GLSN(glsn + count)
            before = self.next - glsn  # entries before the subscription's next position
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
        """Record that every entry of the stream at or below `glsn` has been offered."""
        lane = self._lanes[log_stream]
        lane.clear_to = max(lane.clear_to, glsn)
        self._newest = max(self._newest, glsn)

    def trimmed_up_to(self, glsn: GLSN) -> None:
        self.trimmed = max(self.trimmed, glsn)

    def pop_ready(self) -> list[MergedRange]:
        """Remove and return all ranges that are next in the order; empty while the next position is missing."""
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
    """The size of one fetch of a subscription to `streams` streams: all fetches together stay below the subscription's limit."""
    share = SUBSCRIPTION_BYTES_MAX // (CHUNKS_PER_STREAM * max(1, streams))
    return max(FETCH_BYTES_MIN, min(FETCH_BYTES_DEFAULT, share))
