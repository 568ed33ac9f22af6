"""OrderedTopic, AppendTransport: the contract of both orderings.

They are what a Log needs of a topic of either ordering. One suite tests both (tests/conformance/test_log_contract.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from varlog.client.append_rules import InflightBatch
from varlog.client.chunk import FetchPoint, Part
from varlog.client.merge_rules import MergedRange
from varlog.model.commit import TopicMark
from varlog.model.entry import Entry, Position, StreamRange
from varlog.model.errors import InvalidRequest
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN, LSN_MAX


def check_position(kind: str, position: int) -> None:
    if not 1 <= position <= LSN_MAX:
        raise InvalidRequest(f"{position!r} is not a {kind}: positions are 1, 2, 3 …")


class AppendTransport(Protocol):
    """Delivers packed batches to the log."""

    closed: bool
    on_stall: Callable[[], None]  # called when a batch stalls and others could avoid its stream

    @property
    def stalled(self) -> int:
        """How many batches have been in flight for so long that others should not wait behind them."""
        ...

    @property
    def gather_entries_max(self) -> int:
        """The maximum number of single appends in one batch."""
        ...

    def is_probe_next(self) -> bool:
        """Whether the next batch with a free choice of stream probes a stream that was slow: it should have a single entry."""
        ...

    def streams_free(self) -> int:
        """How many streams full batches can be sent to concurrently."""
        ...

    async def deliver(self, inflight: InflightBatch) -> Position:
        """Returns the position of the batch's first entry. Rejected: certainly not in the log. OutcomeUnknown: it may be."""
        ...


class TopicSubscription(Protocol):
    """One subscription to a topic. `next` is the position after the last one yielded."""

    next: GLSN

    def merged_ranges(self, *, empty: bool = False) -> AsyncGenerator[list[MergedRange], None]:
        """Yields the following ranges, in order, in lists; each range's source is a Chunk. `empty`: also yields an empty
        list if only positions without an entry were passed."""
        ...

    def expect(self, glsn: GLSN) -> None:
        """Announce that everything up to `glsn` was assigned to appenders, and that a caller waits for it."""
        ...


class OrderedTopic(Protocol):
    """One topic, as one client uses it. Every call ends by its deadline."""

    @property
    def append_transport(self) -> AppendTransport: ...

    async def read(self, glsn: GLSN, timeout_s: float) -> Entry: ...

    async def read_stream(self, log_stream: LogStreamID, llsn: LLSN, timeout_s: float) -> Entry: ...

    async def tail(self, timeout_s: float) -> TopicMark:
        """The newest position and the newest trimmed position. No acknowledged append is above the former."""
        ...

    async def newest(self, timeout_s: float) -> GLSN:
        """The newest position alone."""
        ...

    async def trimmed(self, timeout_s: float) -> GLSN: ...

    async def trim(self, glsn: GLSN, respect_readers: bool, timeout_s: float) -> None: ...

    def subscription(self, begin: GLSN | None, end: GLSN | None, timeout_s: float) -> TopicSubscription:
        """A subscription to everything from `begin` up to but without `end`, including what is appended later."""
        ...

    def parts(
        self, log_stream: LogStreamID, begin: LLSN, end: LLSN, cuts: Sequence[FetchPoint], timeout_s: float
    ) -> AsyncGenerator[Part, None]: ...

    async def measure(
        self, log_stream: LogStreamID, begin: GLSN, end: GLSN, points_max: int, timeout_s: float
    ) -> StreamRange: ...

    async def find_time(self, log_stream: LogStreamID, time_us: int, timeout_s: float) -> Position: ...

    def check_primary(self, operation: str) -> None:
        """Raise InvalidRequest if the topic's streams have no primary, which `operation` needs."""
        ...
