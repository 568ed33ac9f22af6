"""[A10] Appends that wait for their GLSN: answered when ordered, refused after a seal's cut, left undecided otherwise."""

from __future__ import annotations

from collections import deque

from varlog.model.batch import BatchHeader
from varlog.model.commit import CommitRow
from varlog.model.invariant import invariant
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import Appended
from varlog.rpc.transport import Call
from varlog.runtime.metrics import TrafficMeter
from varlog.storage.headers import BatchKey


class Waiters:
    """The waiting appends of one replica, in LLSN order, with the bytes they hold.

    Retries *join* a batch by its key, whether it waits here or may yet come: whoever answers the batch answers them (R-ORD-7).
    """

    def __init__(self, traffic: TrafficMeter) -> None:
        self._traffic = traffic
        self._waiting: deque[tuple[LLSN, LLSN, int, Call, BatchHeader, float]] = deque()
        self._joined: dict[BatchKey, list[Call]] = {}
        self.bytes_waiting = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, first: LLSN, end: LLSN, size: int, call: Call, header: BatchHeader) -> None:
        self._waiting.append((first, end, size, call, header, self._traffic.now()))
        self.bytes_waiting += size

    def answer(self, row: CommitRow) -> None:
        """Tell every append in `row` its position. A batch lies in one row: cuts follow batches (R-ORD-5)."""
        waiting, traffic = self._waiting, self._traffic
        now = traffic.now() if waiting else 0.0
        while waiting and waiting[0][0] < row.llsn_end:
            first, end, size, call, header, since = waiting.popleft()
            invariant(row.llsn_begin <= first and end <= row.llsn_end, "a batch is ordered whole (R-ORD-5)",
                      first=first, end=end, row=row)  # fmt: skip
            self.bytes_waiting -= size
            appended = Appended(GLSN(row.glsn_begin + first - row.llsn_begin), first)
            call.reply(appended)
            traffic.appended(end - first, size, now - since)
            if self._joined:
                for joined in self._joined.pop((header.producer, header.sequence), ()):
                    joined.reply(appended)

    def fail(self, error: Exception) -> None:
        """Everyone still waiting gets `error`."""
        waiting, self._waiting = self._waiting, deque()
        joined, self._joined = self._joined, {}
        self.bytes_waiting = 0
        for _, _, _, call, _, _ in waiting:
            call.fail(error)
        for calls in joined.values():
            for call in calls:
                call.fail(error)

    # --- retries ---------------------------------------------------------------------------------------------------------

    def holds(self, key: BatchKey) -> bool:
        """The batch waits here. Looks at each: for retries only."""
        return any((header.producer, header.sequence) == key for _, _, _, _, header, _ in self._waiting)

    def join(self, key: BatchKey, call: Call) -> None:
        """Answer `call` with the batch, whenever that is."""
        self._joined.setdefault(key, []).append(call)

    def leave(self, key: BatchKey, call: Call) -> bool:
        """Take `call` back. False: it has been answered."""
        calls = self._joined.get(key, [])
        if call not in calls:
            return False
        calls.remove(call)
        if not calls:
            del self._joined[key]
        return True
