"""CopySource: the other end of a sync: a sealed replica hands out whole batches and their commit rows (R-SYNC-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from varlog.model.epoch import Epoch
from varlog.model.errors import Unavailable
from varlog.model.limits import COPY_BYTES_MAX
from varlog.model.lsn import LLSN
from varlog.rpc.messages import CopyFrom, CopyFromReply
from varlog.rpc.transport import Call
from varlog.runtime.worker import Worker
from varlog.storage.copy import Copy, RottenCopy, read_copy
from varlog.storage.log_store import LogStore
from varlog.storagenode.log_stream.replica_machine import ReplicaMachine


class CopySource:
    """Answers CopyFrom. It keeps nothing between two requests. `on_rot` hears which entries it could not hand out."""

    def __init__(
        self, store: LogStore, machine: ReplicaMachine, worker: Worker, on_rot: Callable[[LLSN, LLSN], None]
    ) -> None:
        self._store = store
        self._machine = machine
        self._worker = worker
        self._on_rot = on_rot

    def copy(self, call: Call, request: CopyFrom) -> None:
        """Read and check in the read worker. What is trimmed is skipped: the answer says so."""
        self._machine.check_source(request.epoch)
        store, llsn = self._store, max(request.llsn, self._store.low_llsn)
        bytes_max = min(request.bytes_max or COPY_BYTES_MAX, COPY_BYTES_MAX)
        done = self._worker.run(lambda: read_copy(store, llsn, bytes_max))
        done.add_done_callback(partial(self._answer, call, request.epoch))

    def _answer(self, call: Call, epoch: Epoch, done: asyncio.Future[Copy]) -> None:
        if done.cancelled():
            return
        try:
            copy = done.result()
            self._machine.check_source(epoch)  # it may have been opened while the disk was read
            store = self._store
            rows, sealed_end = copy.rows, self._machine.sealed_end
            call.reply(
                CopyFromReply(rows, copy.next_llsn, sealed_end, store.trimmed, store.low_llsn), copy.data
            )
        except RottenCopy as rotten:
            self._on_rot(rotten.begin, rotten.end)
            call.fail(rotten.problem)
        except OSError as error:
            call.fail(Unavailable(f"log stream {self._store.log_stream} cannot be read here: {error}"))
        except Exception as failure:  # noqa: BLE001 - the call is owed an answer, whatever happened
            call.fail(failure)
