"""[A5] Group commit: what waits while a write is under way goes to disk as one writev and one fdatasync."""

from __future__ import annotations

from collections.abc import Callable

from varlog.model.batch import Buffer
from varlog.model.epoch import Epoch
from varlog.model.limits import GROUP_BATCHES_MAX, GROUP_BYTES_MAX
from varlog.model.lsn import LLSN
from varlog.runtime.worker import Worker
from varlog.storage.log_store import LogStore


class Writer:
    """Writes the batches of one replica in order. `on_written(epoch, end)` and `on_failed(error)` run in the loop."""

    def __init__(
        self,
        store: LogStore,
        worker: Worker,
        on_written: Callable[[Epoch, LLSN], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._on_written = on_written
        self._on_failed = on_failed
        self._queue: list[Buffer] = []
        self._epoch = Epoch(0)
        self._busy = False

    def write(self, epoch: Epoch, batch: Buffer) -> None:
        """Queue a placed batch."""
        self._queue.append(batch)
        self._epoch = epoch
        if not self._busy:
            self._start()

    def drop_queue(self) -> None:
        """Forget what is not being written yet: a seal is about to cut it anyway."""
        self._queue.clear()

    def _start(self) -> None:
        group, self._queue = self._group()
        epoch, store = self._epoch, self._store
        self._busy = True
        self._worker.call(lambda: store.append(group), lambda _, error: self._finished(error, epoch))

    def _group(self) -> tuple[list[Buffer], list[Buffer]]:
        """The next group within its bounds, and what stays queued."""
        queue, size = self._queue, 0
        for index, batch in enumerate(queue):
            size += len(batch)
            if (size > GROUP_BYTES_MAX and index) or index >= GROUP_BATCHES_MAX:
                return queue[:index], queue[index:]
        return queue, []

    def _finished(self, error: BaseException | None, epoch: Epoch) -> None:
        self._busy = False
        if error is not None:
            self._queue.clear()
            self._on_failed(error)
            return
        # The next group starts before this one is told: the disk need not wait for our bookkeeping.
        end = self._store.written_end
        if self._queue:
            self._start()
        self._on_written(epoch, end)
