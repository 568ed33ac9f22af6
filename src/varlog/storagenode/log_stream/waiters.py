"""[A10] Appends that wait for their GLSN: answered when ordered, refused after a seal's cut, left undecided otherwise."""

from __future__ import annotations

from collections import deque

from varlog.model.commit import CommitRow
from varlog.model.invariant import invariant
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import Appended
from varlog.rpc.transport import Call


class Waiters:
    """The waiting appends of one replica, in LLSN order, with the bytes they hold."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[LLSN, LLSN, int, Call]] = deque()
        self.bytes_waiting = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, first: LLSN, end: LLSN, size: int, call: Call) -> None:
        self._waiting.append((first, end, size, call))
        self.bytes_waiting += size

    def answer(self, row: CommitRow) -> None:
        """Tell every append in `row` its position. A batch lies in one row: cuts follow batches (R-ORD-5)."""
        waiting = self._waiting
        while waiting and waiting[0][0] < row.llsn_end:
            first, end, size, call = waiting.popleft()
            invariant(row.llsn_begin <= first and end <= row.llsn_end, "a batch is ordered whole (R-ORD-5)",
                      first=first, end=end, row=row)  # fmt: skip
            self.bytes_waiting -= size
            call.reply(Appended(GLSN(row.glsn_begin + first - row.llsn_begin), first))

    def fail(self, error: Exception) -> None:
        """Everyone still waiting gets `error`."""
        waiting, self._waiting = self._waiting, deque()
        self.bytes_waiting = 0
        for _, _, _, call in waiting:
            call.fail(error)
