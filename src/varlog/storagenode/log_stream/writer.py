"""[A5] Group commit: what waits while a write is under way goes to disk as one writev and one fdatasync."""

from __future__ import annotations

import asyncio
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
            self._start_soon()

    def drop_queue(self) -> None:
        """Forget what is not being written yet: a seal is about to cut it anyway."""
        self._queue.clear()

    def _start_soon(self) -> None:
        """At the end of this turn of the loop: what arrived together is written together."""
        self._busy = True
        asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        group, self._queue = self._group()
        epoch, store = self._epoch, self._store
        if not group:  # a seal dropped it
            self._busy = False
            return
        done = self._worker.run(lambda: store.append(group))
        if done.done():  # the worker was quick: one turn of the loop less on the way of every append
            self._finished(done, epoch)
        else:
            done.add_done_callback(lambda future: self._finished(future, epoch))

    def _group(self) -> tuple[list[Buffer], list[Buffer]]:
        """The next group within its bounds, and what stays queued."""
        queue, size = self._queue, 0
        for index, batch in enumerate(queue):
            size += len(batch)
            if (size > GROUP_BYTES_MAX and index) or index >= GROUP_BATCHES_MAX:
                return queue[:index], queue[index:]
        return queue, []

    def _finished(self, future: asyncio.Future[None], epoch: Epoch) -> None:
        self._busy = False
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._queue.clear()
            self._on_failed(error)
            return
        end = self._store.written_end
        if self._queue:
            self._start_soon()
        self._on_written(epoch, end)
