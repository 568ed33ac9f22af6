"""[A5] Writer: writes a replica's appends to disk, with group commit.

What waits during a write goes to disk as one writev and one fdatasync. Where the disk is fast enough to be written by the event
loop itself, a write waits for the end of the loop's turn, so that everything that arrived in the turn is one group as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from varlog.model.batch import Buffer
from varlog.model.epoch import Epoch
from varlog.model.limits import GROUP_BATCHES_MAX, GROUP_BYTES_MAX, INLINE_GROUP_BYTES_MAX
from varlog.model.lsn import LLSN
from varlog.runtime.metrics import TrafficMeter
from varlog.runtime.worker import Worker
from varlog.storage.committed.log_store import LogStore


class Writer:
    """Writes the batches of one replica in order. `on_written(epoch, end)` and `on_failed(error)` run in the loop."""

    def __init__(
        self,
        store: LogStore,
        worker: Worker,
        on_written: Callable[[Epoch, LLSN], None],
        on_failed: Callable[[BaseException], None],
        traffic: TrafficMeter,
    ) -> None:
        self._store = store
        self._worker = worker
        self._on_written = on_written
        self._on_failed = on_failed
        self._traffic = traffic
        self._began = 0.0
        self._queue: list[Buffer] = []
        self._epoch = Epoch(0)
        self._busy = False

    def write(self, epoch: Epoch, batch: Buffer) -> None:
        """Queue a placed batch."""
        self._queue.append(batch)
        self._epoch = epoch
        if self._busy:
            return
        self._busy = True
        if self._worker.can_run_inline and len(batch) <= INLINE_GROUP_BYTES_MAX:
            asyncio.get_running_loop().call_soon(self._start, True)
        else:
            self._start(True)

    def drop_queue(self) -> None:
        """Drop what is not being written yet: a seal is about to cut it anyway."""
        self._queue.clear()

    def _start(self, may_run_inline: bool) -> None:
        group, self._queue, size = self._group()
        self._busy = bool(group)
        if group:
            epoch, store = self._epoch, self._store
            self._began = self._traffic.now()
            self._worker.call(
                lambda: store.append(group),
                lambda _, error: self._finished(error, epoch),
                inline=may_run_inline and size <= INLINE_GROUP_BYTES_MAX,
            )

    def _group(self) -> tuple[list[Buffer], list[Buffer], int]:
        """The next group within its bounds, what stays queued, and the group's bytes."""
        queue, size = self._queue, 0
        for index, batch in enumerate(queue):
            if (size + len(batch) > GROUP_BYTES_MAX and index) or index >= GROUP_BATCHES_MAX:
                return queue[:index], queue[index:], size
            size += len(batch)
        return queue, [], size

    def _finished(self, error: BaseException | None, epoch: Epoch) -> None:
        self._busy = False
        if error is not None:
            self._queue.clear()
            self._on_failed(error)
            return
        # The next group starts before this one is reported: the disk need not wait for our bookkeeping. Not in the loop: where
        # batches arrive faster than the disk writes them a thread is worth its cost, and groups must be reported in order.
        end = self._store.written_end
        self._traffic.wrote(self._traffic.now() - self._began)
        if self._queue:
            self._start(False)
        self._on_written(epoch, end)
