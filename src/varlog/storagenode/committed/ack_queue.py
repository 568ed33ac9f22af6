"""[A10] AckQueue: appends that wait for their GLSN.

They are answered when they are ordered, refused after a seal has cut them, and left undecided otherwise.
"""

from __future__ import annotations

from collections import deque

from varlog.model.admission import BATCH_UNITS, Admission
from varlog.model.batch import BatchHeader
from varlog.model.commit import CommitRow
from varlog.model.invariant import invariant
from varlog.model.limits import GROUP_BYTES_MAX
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import AppendReply
from varlog.rpc.transport import Call
from varlog.runtime.metrics import TrafficMeter
from varlog.storage.committed.headers import BatchKey


class AckQueue:
    """The waiting appends of one replica, in LLSN order, and their bytes.

    Retries *join* a batch by its key, whether it waits here or may still arrive: they get the answer of the batch (R-ORD-7).
    """

    def __init__(self, traffic: TrafficMeter) -> None:
        self._traffic = traffic
        self._waiting: deque[tuple[LLSN, LLSN, int, Call, BatchHeader, float]] = deque()
        self._joined: dict[BatchKey, list[Call]] = {}
        self._admission = Admission()
        self.bytes_waiting = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def wait_s(self, now: float, batches: int = 0, size: int = 0) -> float:
        """How long one more append would wait for its order, behind these and `batches` of `size` bytes that wait elsewhere:
        estimated from recent cuts, and at least as long as the oldest has waited already. 0: nothing waits."""
        if not self._waiting:
            return 0.0
        units = self.bytes_waiting + size + BATCH_UNITS * (len(self._waiting) + batches)
        estimate_s = self._admission.estimate_s(1 + units / GROUP_BYTES_MAX, units)
        return max(estimate_s, now - self._waiting[0][5])

    def add(self, first: LLSN, end: LLSN, size: int, call: Call, header: BatchHeader) -> None:
        self._waiting.append((first, end, size, call, header, self._traffic.now()))
        self.bytes_waiting += size

    def answer(self, row: CommitRow) -> None:
        """Answer every append in `row` with its position. A batch is in one row: cuts follow batches (R-ORD-5)."""
        waiting, traffic = self._waiting, self._traffic
        if not waiting or waiting[0][0] >= row.llsn_end:
            return
        now, began = traffic.now(), waiting[0][5]
        units = self.bytes_waiting + BATCH_UNITS * len(waiting)
        while waiting and waiting[0][0] < row.llsn_end:
            first, end, size, call, header, since = waiting.popleft()
            invariant(row.llsn_begin <= first and end <= row.llsn_end, "a batch is ordered whole (R-ORD-5)",
                      first=first, end=end, row=row)  # fmt: skip
            self.bytes_waiting -= size
            appended = AppendReply(GLSN(row.glsn_begin + first - row.llsn_begin), first)
            call.reply(appended)
            traffic.appended(end - first, size, now - since)
            if self._joined:
                for joined in self._joined.pop((header.producer, header.sequence), ()):
                    joined.reply(appended)
        self._admission.served(units - self.bytes_waiting - BATCH_UNITS * len(waiting), began, now)

    def fail(self, error: Exception) -> None:
        """Every waiting append fails with `error`."""
        waiting, self._waiting = self._waiting, deque()
        joined, self._joined = self._joined, {}
        self.bytes_waiting = 0
        for _, _, _, call, _, _ in waiting:
            call.fail(error)
        for calls in joined.values():
            for call in calls:
                call.fail(error)

    # --- retries ---------------------------------------------------------------------------------------------------------

    def has(self, key: BatchKey) -> bool:
        """Whether the batch waits here. A linear search: for retries only."""
        return any((header.producer, header.sequence) == key for _, _, _, _, header, _ in self._waiting)

    def join(self, key: BatchKey, call: Call) -> None:
        """Answer `call` when the batch is answered."""
        self._joined.setdefault(key, []).append(call)

    def leave(self, key: BatchKey, call: Call) -> bool:
        """Undo `join`. False: the call has been answered."""
        calls = self._joined.get(key, [])
        if call not in calls:
            return False
        calls.remove(call)
        if not calls:
            del self._joined[key]
        return True
