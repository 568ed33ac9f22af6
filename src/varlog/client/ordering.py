"""OrderedTopic, AppendTransport: the contract of both orderings.

What a Log needs of its topic, whichever way it is ordered. One suite runs on both (tests/conformance/test_log_contract.py).
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
        raise InvalidRequest(f"{position!r} is no {kind}: positions are 1, 2, 3 …")


class AppendTransport(Protocol):
    """Delivers packed batches to the log."""

    closed: bool
    on_stall: Callable[[], None]  # called when something stalls that others could avoid

    @property
    def stalled(self) -> int:
        """Batches that are in flight for so long that others should not wait behind them."""
        ...

    @property
    def gather_entries_max(self) -> int:
        """How many single appends may share a batch."""
        ...

    def is_probe_next(self) -> bool:
        """The next batch that may go anywhere is a probe of a stream that was slow: it should have one entry."""
        ...

    def streams_free(self) -> int:
        """How many streams full batches can go to at once."""
        ...

    async def deliver(self, inflight: InflightBatch) -> Position:
        """The position of the batch's first entry. Rejected: certainly not in the log. OutcomeUnknown: maybe."""
        ...


class TopicSubscription(Protocol):
    """One reading of a topic. `next` is the position behind what it gave last."""

    next: GLSN

    def merged_ranges(self, *, empty: bool = False) -> AsyncGenerator[list[MergedRange], None]:
        """What follows, in order, in lists; each range's source is a Chunk. `empty`: also a list without any, where nothing but
        positions without an entry were passed."""
        ...

    def expect(self, glsn: GLSN) -> None:
        """A caller knows that everything up to `glsn` was assigned to appenders, and waits for it."""
        ...


class OrderedTopic(Protocol):
    """One topic, for one client. Every call ends by its deadline."""

    @property
    def append_transport(self) -> AppendTransport: ...

    async def read(self, glsn: GLSN, timeout_s: float) -> Entry: ...

    async def read_stream(self, log_stream: LogStreamID, llsn: LLSN, timeout_s: float) -> Entry: ...

    async def tail(self, timeout_s: float) -> TopicMark:
        """Newest and newest trimmed position; no acknowledged append is above the first."""
        ...

    async def newest(self, timeout_s: float) -> GLSN:
        """The first of these two alone."""
        ...

    async def trimmed(self, timeout_s: float) -> GLSN: ...

    async def trim(self, glsn: GLSN, respect_readers: bool, timeout_s: float) -> None: ...

    def subscription(self, begin: GLSN | None, end: GLSN | None, timeout_s: float) -> TopicSubscription:
        """Everything from `begin` up to `end`, in order, then what comes."""
        ...

    def parts(
        self, log_stream: LogStreamID, begin: LLSN, end: LLSN, cuts: Sequence[FetchPoint], timeout_s: float
    ) -> AsyncGenerator[Part, None]: ...

    async def measure(
        self, log_stream: LogStreamID, begin: GLSN, end: GLSN, points_max: int, timeout_s: float
    ) -> StreamRange: ...

    async def find_time(self, log_stream: LogStreamID, time_us: int, timeout_s: float) -> Position: ...

    def check_primary(self, operation: str) -> None:
        """Refused where the topic's streams have no primary, which `operation` needs."""
        ...
