"""[A4] Intake: appends that wait for room in front of a replica, in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from varlog.model.batch import BatchHeader
from varlog.model.errors import NotAccepted
from varlog.model.ids import LogStreamID
from varlog.model.limits import UNCOMMITTED_BATCHES_MAX, UNCOMMITTED_BYTES_MAX
from varlog.rpc.messages import Append
from varlog.rpc.transport import Call
from varlog.storage.headers import BatchKey


class Arrival(NamedTuple):
    """One checked batch that somebody wants to append. `request` where it is taken on a condition only."""

    call: Call
    header: BatchHeader
    batch: bytearray
    request: Append | None = None


class Intake:
    """The line in front of one replica, bounded in batches and bytes."""

    def __init__(self, log_stream: LogStreamID) -> None:
        self._log_stream = log_stream
        self._line: deque[Arrival] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._line)

    @property
    def first(self) -> Arrival:
        return self._line[0]

    def join(self, arrival: Arrival) -> None:
        """To the end of the line. NotAccepted: it is too long."""
        if (
            self._bytes + len(arrival.batch) > UNCOMMITTED_BYTES_MAX
            or len(self._line) >= UNCOMMITTED_BATCHES_MAX
        ):
            raise NotAccepted(
                f"log stream {self._log_stream} has too much in flight: append more slowly, or to more streams"
            )
        self._line.append(arrival)
        self._bytes += len(arrival.batch)

    def go_first(self, arrivals: Iterable[Arrival]) -> None:
        """Those who were in front already, and had to wait for something else, stay in front."""
        before = list(arrivals)
        self._line.extendleft(reversed(before))
        self._bytes += sum(len(arrival.batch) for arrival in before)

    def pop(self) -> Arrival:
        arrival = self._line.popleft()
        self._bytes -= len(arrival.batch)
        return arrival

    def holds(self, key: BatchKey) -> bool:
        """The batch waits here. Looks at each: for retries only."""
        return any((one.header.producer, one.header.sequence) == key for one in self._line)

    def refuse(self, error: Exception) -> None:
        """Nobody in line is taken."""
        line, self._line = self._line, deque()
        self._bytes = 0
        for arrival in line:
            arrival.call.fail(error)
