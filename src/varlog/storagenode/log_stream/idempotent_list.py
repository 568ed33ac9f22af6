"""[A4] IdempotentBatchList: which batches of a chain are ordered, read from the headers on disk, a page at a time (R-USE-4)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from varlog.model.errors import CorruptBatch, Unavailable
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import ListIdempotentBatches, ListIdempotentBatchesReply
from varlog.rpc.transport import Call
from varlog.runtime.worker import Worker
from varlog.storage.headers import BatchPlace, HeaderStretch
from varlog.storage.log_store import LogStore

PAGE_BATCHES: Final = 10_000
_NO_BOUND: Final = 2**63


class IdempotentBatchList:
    """Lists the chains of one replica."""

    def __init__(self, store: LogStore, worker: Worker, on_damage: Callable[[LLSN, LLSN], None]) -> None:
        self._store = store
        self._worker = worker
        self._on_damage = on_damage

    def list(self, call: Call, request: ListIdempotentBatches) -> None:
        """Answer later, with the first page above `request.min_llsn`."""
        _Listing(self._store, self._worker, self._on_damage, call, request).step()


class _Listing:
    """One page. Stretch by stretch, so that readers of the same disk get their turn."""

    def __init__(
        self,
        store: LogStore,
        worker: Worker,
        on_damage: Callable[[LLSN, LLSN], None],
        call: Call,
        request: ListIdempotentBatches,
    ) -> None:
        self._store = store
        self._worker = worker
        self._on_damage = on_damage
        self._call = call
        self._producer = request.producer
        self._begin = begin = max(LLSN(request.min_llsn + 1), store.llsn_from(GLSN(request.min_glsn + 1)))
        self._stretches: deque[HeaderStretch] = deque(
            reversed(store.header_stretches(begin, store.committed_end, _NO_BOUND))
        )
        self._found: list[tuple[int, LLSN, int, int]] = []

    def step(self) -> None:
        found = self._found
        if not self._stretches or len(found) > PAGE_BATCHES:
            self._call.reply(
                ListIdempotentBatchesReply(tuple(found[:PAGE_BATCHES]), more=len(found) > PAGE_BATCHES)
            )
            return
        stretch, store, wanted = self._stretches.popleft(), self._store, {self._producer: None}
        done = self._worker.run(lambda: store.batches_of(stretch, wanted))
        done.add_done_callback(lambda future: self._looked(future, stretch))

    def _looked(self, done: asyncio.Future[list[BatchPlace]], stretch: HeaderStretch) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            if isinstance(error, CorruptBatch):
                self._on_damage(stretch.first_llsn, stretch.limit)
            stream = self._store.log_stream
            self._call.fail(Unavailable(f"log stream {stream} cannot be looked through here: {error}"))
            return
        self._found += [
            (place.sequence, place.llsn, place.entries, place.body_crc)
            for place in done.result()
            if place.llsn >= self._begin
        ]
        self.step()
