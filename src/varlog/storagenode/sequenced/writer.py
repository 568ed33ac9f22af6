"""[Q5] UnitWriter: writes a log unit's batches to disk, with group commit.

What waits during a write goes to disk as one writev and one fdatasync. A write with a deadline is not begun once it cannot be
durable by then (O1). Only its positions are lost by that: nothing of it is on disk, and no other unit has it, because only the
first try at the head of a chain has a deadline.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from varlog.model.admission import BATCH_UNITS, Admission
from varlog.model.batch import Buffer
from varlog.model.epoch import Epoch
from varlog.model.limits import GROUP_BATCHES_MAX, GROUP_BYTES_MAX, INLINE_GROUP_BYTES_MAX
from varlog.rpc.transport import Call
from varlog.runtime.metrics import TrafficMeter
from varlog.runtime.worker import Worker
from varlog.storage.sequenced.page_store import PageRef, PageStore
from varlog.storagenode.sequenced.unit_machine import Pending


@dataclass(slots=True, eq=False)
class UnitWrite(Pending):
    """A batch, and the clients of `epoch` or the sync that wait until it is durable. `since`: when a client's batch arrived; junk
    and copies are not counted, and have none. `deadline`: when none of the waiting clients needs it any more; infinite if one of
    them has none."""

    batch: Buffer
    epoch: Epoch
    calls: list[Call] = field(default_factory=list)
    copied: asyncio.Future[None] | None = None
    since: float | None = None
    deadline: float = math.inf


class UnitWriter:
    """Writes the batches of one unit as they come. `on_written(writes)`, `on_failed(writes, error)` and `on_late(writes)`, for
    those that are not begun any more, run in the loop."""

    def __init__(
        self,
        store: Callable[[], PageStore],
        worker: Worker,
        on_written: Callable[[Sequence[UnitWrite]], None],
        on_failed: Callable[[Sequence[UnitWrite], BaseException], None],
        on_late: Callable[[Sequence[UnitWrite]], None],
        traffic: TrafficMeter,
    ) -> None:
        self.bytes_waiting = 0
        self._store = store
        self._worker = worker
        self._on_written = on_written
        self._on_failed = on_failed
        self._on_late = on_late
        self._traffic = traffic
        self._began = 0.0
        self._queue: list[UnitWrite] = []
        self._busy: asyncio.Future[list[PageRef]] | None = None
        self._pauses = 0
        self._admission = Admission()  # fitted to the groups that were written lately

    @property
    def idle(self) -> bool:
        return self._busy is None and not self._queue

    @property
    def batches_waiting(self) -> int:
        return len(self._queue)

    def wait_s(self) -> float:
        """How long one more write takes to be durable, behind those that wait: by the groups that were written lately, and at least
        as long as the present group has taken already. 0: nothing is being written."""
        if self._busy is None:
            return 0.0
        units = self.bytes_waiting + BATCH_UNITS * (len(self._queue) + 1)
        estimate_s = self._admission.estimate_s(1 + units / GROUP_BYTES_MAX, units)
        return max(estimate_s, self._traffic.now() - self._began)

    def write(self, write: UnitWrite) -> None:
        self._queue.append(write)
        self.bytes_waiting += len(write.batch)
        if self._busy is None and not self._pauses:
            self._start()

    def drop(self, which: Callable[[UnitWrite], bool]) -> list[UnitWrite]:
        """Remove and return the writes that have not started, and now never will."""
        dropped = [write for write in self._queue if which(write)]
        if dropped:
            self._queue = [write for write in self._queue if not which(write)]
            self.bytes_waiting -= sum(len(write.batch) for write in dropped)
        return dropped

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Nothing is written meanwhile: the present group has been reported, new writes wait."""
        self._pauses += 1
        try:
            while self._busy is not None:
                await asyncio.wait([self._busy])
            yield
        finally:
            self._pauses -= 1
            if self._queue and self._busy is None and not self._pauses:
                self._start_in_time()

    def _start_in_time(self) -> None:
        """The next group, without the writes whose deadlines it would miss. These have waited, so there was a group before it: a
        wrong estimate is corrected by the next write that finds nothing waiting, which is never refused."""
        now, queue = self._traffic.now(), self._queue
        units = min(self.bytes_waiting, GROUP_BYTES_MAX) + BATCH_UNITS * min(len(queue), GROUP_BATCHES_MAX)
        durable_at = now + self._admission.estimate_s(1, units)
        late = self.drop(lambda write: write.deadline < durable_at)
        if self._queue:
            self._start()
        if late:
            self._on_late(late)

    def _start(self) -> None:
        group, self._queue, size = self._group()
        store, batches = self._store(), [write.batch for write in group]
        self._began = self._traffic.now()
        inline = size <= INLINE_GROUP_BYTES_MAX
        self._busy = done = self._worker.run(lambda: store.append(batches), inline=inline)
        done.add_done_callback(lambda future: self._finished(future, store, group))

    def _group(self) -> tuple[list[UnitWrite], list[UnitWrite], int]:
        """The next group within its bounds, what stays queued, and the group's bytes."""
        queue, size = self._queue, 0
        for index, write in enumerate(queue):
            if (size + len(write.batch) > GROUP_BYTES_MAX and index) or index >= GROUP_BATCHES_MAX:
                return queue[:index], queue[index:], size
            size += len(write.batch)
        return queue, [], size

    def _finished(
        self, future: asyncio.Future[list[PageRef]], store: PageStore, group: list[UnitWrite]
    ) -> None:
        self._busy = None
        size = sum(len(write.batch) for write in group)
        self.bytes_waiting -= size
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._on_failed([*group, *self.drop(lambda _: True)], error)
            return
        # Published before the next group starts: a request meanwhile sees it as written, not as gone.
        store.publish(future.result())
        now, began = self._traffic.now(), self._began
        self._traffic.wrote(now - began)
        if self._queue and not self._pauses:
            self._start_in_time()
        self._on_written(group)
        # Last: nobody waits for it.
        self._admission.served(size + BATCH_UNITS * len(group), began, now)
