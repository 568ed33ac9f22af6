"""[A4] AdmissionQueue: appends that wait until a replica has capacity.

Each connection's appends stay in order; connections take turns.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from varlog.model.batch import BatchHeader
from varlog.model.errors import NotAccepted
from varlog.model.ids import LogStreamID
from varlog.model.limits import UNCOMMITTED_BATCHES_MAX, UNCOMMITTED_BYTES_MAX
from varlog.rpc.messages import AppendAt, AppendIdempotent
from varlog.rpc.transport import Call, Connection
from varlog.storage.committed.headers import BatchKey


class PendingAppend(NamedTuple):
    """One checked batch to be appended. `request`: the condition on which it is accepted. Its caller waits until `deadline`."""

    call: Call
    header: BatchHeader
    batch: bytearray
    request: AppendIdempotent | AppendAt | None = None
    deadline: float = math.inf


class AdmissionQueue:
    """The queue in front of one replica, bounded in batches and bytes, and fair between connections.

    Each connection has a queue of its own, in the order in which its batches arrived, and the queues are served in turns: a client
    that sends much waits behind itself. When the queue is full, the newest batch of the longest queue is refused in favour of a
    connection that has fewer.
    """

    def __init__(self, log_stream: LogStreamID) -> None:
        self._log_stream = log_stream
        self._front: deque[PendingAppend] = deque()  # served before all others
        self._lines: dict[Connection, deque[PendingAppend]] = {}  # the first one is served next
        self._batches = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._batches

    def ahead_of(self, connection: Connection) -> tuple[int, int]:
        """About how many batches, and bytes, are served before one that arrives from this connection now."""
        if not self._batches:
            return 0, 0
        turns = len(self._lines.get(connection, ())) + 1
        batches = min(self._batches, len(self._front) + turns * len(self._lines))
        return batches, self._bytes * batches // self._batches

    @property
    def first(self) -> PendingAppend:
        return self._front[0] if self._front else next(iter(self._lines.values()))[0]

    def join(self, pending_append: PendingAppend) -> None:
        """Append it to its connection's queue. NotAccepted: the queue is full, and no other connection has more."""
        own = self._lines.get(pending_append.call.connection, ())
        while self._full(pending_append):
            longest = max(self._lines.values(), key=len, default=deque[PendingAppend]())
            if len(own) + 1 >= len(longest):
                raise self._too_much()
            last = longest.pop()
            self._count(last, -1)
            last.call.fail(self._too_much())
        self._lines.setdefault(pending_append.call.connection, deque()).append(pending_append)
        self._count(pending_append, 1)

    def requeue(self, pending_appends: Iterable[PendingAppend]) -> None:
        """Put appends back to the front: they were there before, and had to wait for something else."""
        before = list(pending_appends)
        self._front.extendleft(reversed(before))
        for pending_append in before:
            self._count(pending_append, 1)

    def pop(self) -> PendingAppend:
        if self._front:
            pending_append = self._front.popleft()
        else:
            connection = next(iter(self._lines))
            line = self._lines.pop(connection)
            pending_append = line.popleft()
            if line:
                self._lines[connection] = line
        self._count(pending_append, -1)
        return pending_append

    def has(self, key: BatchKey) -> bool:
        """Whether the batch waits here. A linear search: for retries only."""
        return any((one.header.producer, one.header.sequence) == key for one in self._all())

    def refuse(self, error: Exception) -> None:
        """Every queued append fails with `error`."""
        waiting = self._all()
        self._front.clear()
        self._lines.clear()
        self._batches = self._bytes = 0
        for pending_append in waiting:
            pending_append.call.fail(error)

    def _all(self) -> list[PendingAppend]:
        return [*self._front, *(one for line in self._lines.values() for one in line)]

    def _full(self, pending_append: PendingAppend) -> bool:
        return (
            self._bytes + len(pending_append.batch) > UNCOMMITTED_BYTES_MAX
            or self._batches >= UNCOMMITTED_BATCHES_MAX
        )

    def _count(self, pending_append: PendingAppend, one: int) -> None:
        self._batches += one
        self._bytes += one * len(pending_append.batch)

    def _too_much(self) -> NotAccepted:
        return NotAccepted(
            f"log stream {self._log_stream} has too much in flight: append more slowly, or to more streams"
        )
