"""[Q5] Group commit of one log unit: what waits while a write is under way goes to disk as one writev and one fdatasync."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from varlog.model.batch import Buffer
from varlog.model.epoch import Epoch
from varlog.model.limits import BRIEF_GROUP_BYTES_MAX, GROUP_BATCHES_MAX, GROUP_BYTES_MAX
from varlog.rpc.transport import Call
from varlog.runtime.metrics import TrafficMeter
from varlog.runtime.worker import Worker
from varlog.storage.page_store import Page, PageStore
from varlog.storagenode.log_unit.unit_machine import Pending


@dataclass(slots=True, eq=False)
class UnitWrite(Pending):
    """A batch, and who waits for it to be durable: clients of `epoch`, or a sync. `since`: when a client's batch came; junk and
    copies are not counted, and have none."""

    batch: Buffer
    epoch: Epoch
    calls: list[Call] = field(default_factory=list)
    copied: asyncio.Future[None] | None = None
    since: float | None = None


class UnitWriter:
    """Writes the batches of one unit as they come. `on_written(writes)` and `on_failed(writes, error)` run in the loop."""

    def __init__(
        self,
        store: Callable[[], PageStore],
        worker: Worker,
        on_written: Callable[[Sequence[UnitWrite]], None],
        on_failed: Callable[[Sequence[UnitWrite], BaseException], None],
        traffic: TrafficMeter,
    ) -> None:
        self.bytes_waiting = 0
        self._store = store
        self._worker = worker
        self._on_written = on_written
        self._on_failed = on_failed
        self._traffic = traffic
        self._began = 0.0
        self._queue: list[UnitWrite] = []
        self._busy: asyncio.Future[list[Page]] | None = None
        self._held = 0

    @property
    def idle(self) -> bool:
        return self._busy is None and not self._queue

    @property
    def batches_waiting(self) -> int:
        return len(self._queue)

    def write(self, write: UnitWrite) -> None:
        self._queue.append(write)
        self.bytes_waiting += len(write.batch)
        if self._busy is None and not self._held:
            self._start()

    def drop(self, which: Callable[[UnitWrite], bool]) -> list[UnitWrite]:
        """Those that are not being written yet, and now never will be."""
        dropped = [write for write in self._queue if which(write)]
        if dropped:
            self._queue = [write for write in self._queue if not which(write)]
            self.bytes_waiting -= sum(len(write.batch) for write in dropped)
        return dropped

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Nothing is being written meanwhile: what was under way has been told, what comes waits."""
        self._held += 1
        try:
            while self._busy is not None:
                await asyncio.wait([self._busy])
            yield
        finally:
            self._held -= 1
            if self._queue and self._busy is None and not self._held:
                self._start()

    def _start(self) -> None:
        group, self._queue, size = self._group()
        store, batches = self._store(), [write.batch for write in group]
        self._began = self._traffic.now()
        brief = size <= BRIEF_GROUP_BYTES_MAX
        self._busy = done = self._worker.run(lambda: store.append(batches), brief=brief)
        done.add_done_callback(lambda future: self._finished(future, store, group))

    def _group(self) -> tuple[list[UnitWrite], list[UnitWrite], int]:
        """The next group within its bounds, what stays queued, and the group's bytes."""
        queue, size = self._queue, 0
        for index, write in enumerate(queue):
            if (size + len(write.batch) > GROUP_BYTES_MAX and index) or index >= GROUP_BATCHES_MAX:
                return queue[:index], queue[index:], size
            size += len(write.batch)
        return queue, [], size

    def _finished(self, future: asyncio.Future[list[Page]], store: PageStore, group: list[UnitWrite]) -> None:
        self._busy = None
        self.bytes_waiting -= sum(len(write.batch) for write in group)
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._on_failed([*group, *self.drop(lambda _: True)], error)
            return
        # Published before the next group starts: whoever asks meanwhile sees it as written, not as gone.
        store.publish(future.result())
        self._traffic.wrote(self._traffic.now() - self._began)
        if self._queue and not self._held:
            self._start()
        self._on_written(group)
