"""[R4 R6] ReplicaReader: fetches and point reads of one replica.

Only ordered entries, whole batches, one lookup and one disk read (R-READ-2). A point read checks the body, because it takes it
apart. A fetch does not: it would walk every batch for a check that each client makes anyway, end to end, before it trusts an entry.
A client that gets a bad batch reads from another replica, and reports the damage to this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from varlog.model.batch import check_body, single, walk
from varlog.model.errors import CorruptBatch, NotWritten, Trimmed, Unavailable
from varlog.model.limits import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_WAIT_S_MAX,
    FETCHES_WAITING_MAX,
    MEASURE_POINTS_MAX,
)
from varlog.model.lsn import GLSN, LLSN, NO_GLSN
from varlog.rpc.messages import (
    Fetch,
    FetchReply,
    FindTime,
    FindTimeReply,
    MeasureRange,
    MeasureRangeReply,
    ReadAtReply,
)
from varlog.rpc.transport import Call
from varlog.runtime.fair_places import FairPlaces
from varlog.runtime.metrics import TrafficMeter
from varlog.runtime.worker import Worker
from varlog.storage.committed.log_store import BatchChunk, Extent, LogStore
from varlog.storagenode.topic_watermarks import TopicWatermarks

ReadAnswer = Callable[[Call, LLSN, BatchChunk], None]


@dataclass(slots=True)
class _Waiting:
    call: Call
    request: Fetch
    timer: asyncio.TimerHandle


class ReplicaReader:
    """Serves the ordered entries of one replica. Cached bytes are sent immediately; others are read by the read worker."""

    def __init__(
        self,
        store: LogStore,
        worker: Worker,
        marks: TopicWatermarks,
        traffic: TrafficMeter,
        on_corruption: Callable[[LLSN, LLSN], None],
    ) -> None:
        self._store = store
        self._traffic = traffic
        self._worker = worker
        self._marks = marks
        self._on_corruption = on_corruption
        self._waiting: FairPlaces[int, _Waiting] = FairPlaces()
        self._next_key = 0

    # --- subscriptions: fetch --------------------------------------------------------------------------------------------

    def fetch(self, call: Call, request: Fetch) -> None:
        """Answer with batches, or keep the call until something is ordered or its wait ends."""
        llsn = self.begin(request)
        self._check_low(llsn, request.glsn)
        if llsn < self._store.committed_end:
            self._answer(call, llsn, request.bytes_max)
        elif request.wait_s <= 0 or not self._keep(call, request):
            self._answer_nothing(call, llsn)

    def wake(self) -> None:
        """Something was ordered: answer the fetches it satisfies."""
        satisfied = [
            key for key, kept in self._waiting.items() if self.begin(kept.request) < self._store.committed_end
        ]
        for key in satisfied:
            kept = self._waiting.pop(key)
            kept.timer.cancel()
            self._retry(kept)

    def close(self) -> None:
        for kept in self._waiting.values():
            kept.timer.cancel()
        self._waiting.clear()

    def _keep(self, call: Call, request: Fetch) -> bool:
        """False: too many wait. A fetch that is displaced by it is answered as if its wait had ended."""
        left = self._waiting.make_room(call.connection, FETCHES_WAITING_MAX)
        if left is None:
            return False
        for kept in left:
            kept.timer.cancel()
            self._answer_nothing(kept.call, self.begin(kept.request))
        key = self._next_key = self._next_key + 1
        wait_s = min(request.wait_s, FETCH_WAIT_S_MAX)
        timer = asyncio.get_running_loop().call_later(wait_s, self._expire, key)
        self._waiting.put(key, call.connection, _Waiting(call, request, timer))
        return True

    def _retry(self, kept: _Waiting) -> None:
        try:
            self.fetch(kept.call, kept.request)
        except Exception as error:  # noqa: BLE001 - the call needs an answer, whatever happened
            kept.call.fail(error)

    def _expire(self, key: int) -> None:
        kept = self._waiting.pop(key, None)
        if kept is not None:
            self._answer_nothing(kept.call, self.begin(kept.request))

    def begin(self, request: Fetch) -> LLSN:
        """The LLSN at which a fetch begins."""
        return request.llsn or self._store.llsn_from(request.glsn)

    def _answer_nothing(self, call: Call, llsn: LLSN) -> None:
        store, marks = self._store, self._marks
        call.reply(
            FetchReply(
                (), llsn, store.committed_end, marks.high_watermark(store.topic), marks.trimmed(store.topic)
            )
        )

    def _answer(self, call: Call, llsn: LLSN, bytes_max: int) -> None:
        self._read(call, llsn, min(bytes_max or FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX), self._reply)

    def _reply(self, call: Call, llsn: LLSN, chunk: BatchChunk) -> None:
        store, marks = self._store, self._marks
        self._check_low(llsn, NO_GLSN)  # a trim may have come while the disk was read
        rows = store.rows_between(llsn, chunk.end_llsn)
        high, low = marks.high_watermark(store.topic), marks.trimmed(store.topic)
        call.reply(FetchReply(rows, chunk.end_llsn, store.committed_end, high, low), chunk.data)
        self._traffic.read(chunk.end_llsn - llsn, len(chunk.data))

    def _check_low(self, llsn: LLSN, glsn: GLSN) -> None:
        trimmed = self._marks.trimmed(self._store.topic)
        if llsn < self._store.low_llsn or 0 < glsn <= trimmed:
            raise Trimmed(glsn or llsn, trimmed + 1)

    # --- point reads -------------------------------------------------------------------------------------------------

    def find(self, glsn: GLSN) -> LLSN | None:
        """The LLSN that is ordered at `glsn` here."""
        return self._store.find(glsn)

    def read_llsn(self, call: Call, llsn: LLSN) -> None:
        """Answer with one entry by its position in the stream."""
        store = self._store
        if llsn < store.low_llsn:
            raise Trimmed(llsn, store.low_llsn)
        if llsn >= store.committed_end:
            raise NotWritten(llsn, store.committed_end - 1)
        self._read(call, llsn, 1, self._reply_one)

    def _reply_one(self, call: Call, llsn: LLSN, chunk: BatchChunk) -> None:
        if llsn < self._store.low_llsn:
            raise Trimmed(llsn, self._store.low_llsn)
        for at, header in walk(chunk.data):
            if header.first_llsn <= llsn < header.end_llsn:
                check_body(chunk.data, header, at)
                batch = single(chunk.data, header, llsn - header.first_llsn, at)
                call.reply(ReadAtReply(True, self._store.log_stream, self._store.glsn_of(llsn)), batch)
                self._traffic.read(1, len(batch))
                return
        raise CorruptBatch(f"LLSN {llsn} is not where the index says", 0, str(self._store.path))

    # --- where entries lie ---------------------------------------------------------------------------------------------

    def measure(self, request: MeasureRange, *, is_authoritative: bool) -> MeasureRangeReply:
        """The size on disk of a range of GLSNs. `is_authoritative`: this replica lacks nothing up to the newest seal."""
        store, marks = self._store, self._marks
        self._check_low(store.low_llsn, request.begin)
        begin, end = store.llsn_from(request.begin), store.llsn_from(request.end)
        end = max(begin, end)
        found = store.measure(begin, end, min(max(0, request.points_max), MEASURE_POINTS_MAX))
        # Rows arrive in order, and with them the topic's watermark: a node that has the end has all rows before it.
        complete = is_authoritative and marks.high_watermark(store.topic) >= request.end - 1
        return MeasureRangeReply(begin, end, found.bytes, found.points, complete)

    def find_time(self, call: Call, request: FindTime) -> None:
        """Answer with the first entry appended at or after a time; the read worker searches for it."""
        store, time_us = self._store, request.time_us
        # Read before the search: what is ordered meanwhile is newer than the answer.
        newest = GLSN(self._marks.high_watermark(store.topic) + 1)
        done = self._worker.run(lambda: store.find_time(time_us))
        done.add_done_callback(partial(self._time_found, call, newest))

    def _time_found(self, call: Call, newest: GLSN, done: asyncio.Future[LLSN]) -> None:
        if done.cancelled():
            return
        try:
            llsn = max(done.result(), self._store.low_llsn)
            call.reply(
                FindTimeReply(llsn, self._store.glsn_of(llsn) if llsn < self._store.committed_end else newest)
            )
        except OSError as error:
            call.fail(Unavailable(f"log stream {self._store.log_stream} cannot be read here: {error}"))
        except Exception as failure:  # noqa: BLE001 - the call needs an answer, whatever happened
            call.fail(failure)

    # --- one disk read -----------------------------------------------------------------------------------------------

    def _read(self, call: Call, llsn: LLSN, bytes_max: int, answer: ReadAnswer) -> None:
        """`answer` with the batches from `llsn` on: now if they are cached, else when the read worker has them."""
        store = self._store
        extent = store.extent(llsn, bytes_max)
        try:
            chunk = store.read_cached(extent)
            if chunk is not None:
                answer(call, llsn, chunk)
                return
        except CorruptBatch:
            self._damaged(extent)
            raise
        done = self._worker.run(lambda: store.read(extent))
        done.add_done_callback(partial(self._read_done, call, llsn, extent, answer))

    def _read_done(
        self, call: Call, llsn: LLSN, extent: Extent, answer: ReadAnswer, done: asyncio.Future[BatchChunk]
    ) -> None:
        if done.cancelled():
            return
        try:
            answer(call, llsn, done.result())
        except OSError as error:
            self._damaged(extent)
            call.fail(Unavailable(f"log stream {self._store.log_stream} cannot be read here: {error}"))
        except CorruptBatch as damaged:
            self._damaged(extent)
            call.fail(damaged)
        except Exception as failure:  # noqa: BLE001 - the call needs an answer, whatever happened
            call.fail(failure)

    def _damaged(self, extent: Extent) -> None:
        self._on_corruption(extent.first_llsn, LLSN(max(extent.llsn, extent.sure_llsn) + 1))
