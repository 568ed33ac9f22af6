"""[Q5] UnitReader: reads of one log unit, and copies for other units.

One position, consecutive batches, sizes on disk. A fetch of a position that is not written may wait: each write that becomes
durable wakes the fetches that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from varlog.model.batch import Buffer, check_body, parse_header, single, walk
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, InvalidRequest, NotWritten, Trimmed, Unavailable
from varlog.model.limits import (
    COPY_BYTES_MAX,
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_WAIT_S_MAX,
    FETCHES_WAITING_MAX,
    MEASURE_POINTS_MAX,
)
from varlog.model.lsn import FIRST_LLSN, LLSN, NO_GLSN
from varlog.rpc.messages import (
    CopyUnit,
    CopyUnitReply,
    FetchUnit,
    FetchUnitReply,
    FindTimeReply,
    FindUnitTime,
    ListUnit,
    ListUnitReply,
    MeasureRangeReply,
    MeasureUnit,
    ReadUnit,
    ReadUnitReply,
)
from varlog.rpc.transport import Call
from varlog.runtime.fair_places import FairPlaces
from varlog.runtime.metrics import TrafficMeter
from varlog.runtime.worker import Worker
from varlog.storage.sequenced.page_store import PageRef, PageStore
from varlog.storagenode.sequenced.unit_machine import UnitMachine

T = TypeVar("T")

# A fetch that waits at a hole, behind which others are written, is answered after this time, so that its client fills the hole.
HOLE_REPLY_S: Final = 0.2
# One list of pages, and the pages of one copy: each is a few bytes in the list.
LIST_PAGES_MAX: Final = 4096


@dataclass(slots=True)
class _Waiting:
    call: Call
    request: FetchUnit
    deadline: float
    timer: asyncio.TimerHandle
    at_hole: bool


class UnitReader:
    """Serves what is durable in one unit. `admit(epoch)` raises if the unit must not answer a client now."""

    def __init__(
        self,
        store: Callable[[], PageStore],
        machine: UnitMachine,
        worker: Worker,
        traffic: TrafficMeter,
        admit: Callable[[Epoch], None],
        on_corruption: Callable[[LLSN, LLSN], None],
    ) -> None:
        self._get_store = store
        self._machine = machine
        self._worker = worker
        self._traffic = traffic
        self._admit = admit
        self._on_corruption = on_corruption
        self._waiting: FairPlaces[int, _Waiting] = FairPlaces()
        self._next_key = 0

    # --- one position ------------------------------------------------------------------------------------------------

    def read(self, call: Call, request: ReadUnit) -> None:
        """R-SEQ-6."""
        self._check(request.epoch, request.llsn)
        store = self._get_store()
        page = store.page(request.llsn)
        if page is None:
            raise NotWritten(request.llsn, store.newest)
        self.read_pages([page], partial(self._reply_one, call, request.llsn, request.whole), call.fail)

    def _reply_one(self, call: Call, llsn: LLSN, whole: bool, data: Buffer) -> None:
        header = parse_header(data)
        if not header.first_llsn <= llsn < header.end_llsn:
            raise CorruptBatch(f"LLSN {llsn} is not where the index says", 0, str(self._get_store().path))
        check_body(data, header)
        self._check_low(llsn)  # a trim may have come while the disk was read
        batch = data if whole else single(data, header, llsn - header.first_llsn)
        call.reply(ReadUnitReply(), batch)
        self._traffic.read(header.count if whole else 1, len(batch))

    # --- subscriptions: fetch ----------------------------------------------------------------------------------------

    def fetch(self, call: Call, request: FetchUnit) -> None:
        """Answer with batches, or keep the call until there is one or its wait ends."""
        now = asyncio.get_running_loop().time()
        self._fetch(call, request, now + min(request.wait_s, FETCH_WAIT_S_MAX))

    def _fetch(self, call: Call, request: FetchUnit, deadline: float) -> None:
        llsn = request.llsn
        self._check(request.epoch, llsn)
        pages = self._get_store().run(llsn, min(request.bytes_max or FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX))
        if pages:
            self.read_pages(pages, partial(self._reply_fetched, call, llsn, pages[-1].end_llsn), call.fail)
        elif deadline <= asyncio.get_running_loop().time() or not self._keep(call, request, deadline):
            self._reply_fetched(call, llsn, llsn, b"")

    def _reply_fetched(self, call: Call, llsn: LLSN, next_llsn: LLSN, data: Buffer) -> None:
        self._check_low(llsn)
        call.reply(FetchUnitReply(next_llsn, self._get_store().newest, self._machine.low), data)
        if data:
            self._traffic.read(next_llsn - llsn, len(data))

    def _keep(self, call: Call, request: FetchUnit, deadline: float) -> bool:
        """False: too many wait. A fetch that is displaced by it is answered as if its wait had ended."""
        left = self._waiting.make_room(call.connection, FETCHES_WAITING_MAX)
        if left is None:
            return False
        for kept in left:
            kept.timer.cancel()
            self._fetch_again(kept, 0.0)
        loop = asyncio.get_running_loop()
        key = self._next_key = self._next_key + 1
        at_hole = self._get_store().newest > request.llsn
        until = min(deadline, loop.time() + HOLE_REPLY_S) if at_hole else deadline
        timer = loop.call_at(until, self._expire, key)
        self._waiting.put(key, call.connection, _Waiting(call, request, deadline, timer, at_hole))
        return True

    def wake(self) -> None:
        """Something was written: answer the fetches it satisfies; those that now wait at a hole wait as long as a hole may."""
        if not self._waiting:
            return
        store = self._get_store()
        newest = store.newest
        for key, kept in list(self._waiting.items()):
            if store.page(kept.request.llsn) is not None or (not kept.at_hole and newest > kept.request.llsn):
                del self._waiting[key]
                kept.timer.cancel()
                self._fetch_again(kept, kept.deadline)

    def recheck_waiting(self) -> None:
        """The unit was sealed or trimmed: fetches that may not wait here any more fail."""
        for key, kept in list(self._waiting.items()):
            try:
                self._check(kept.request.epoch, kept.request.llsn)
            except Exception as refusal:  # noqa: BLE001 - it is the answer
                del self._waiting[key]
                kept.timer.cancel()
                kept.call.fail(refusal)

    def close(self, why: Exception) -> None:
        waiting, self._waiting = self._waiting, FairPlaces()
        for kept in waiting.values():
            kept.timer.cancel()
            kept.call.fail(why)

    def _expire(self, key: int) -> None:
        kept = self._waiting.pop(key, None)
        if kept is not None:
            self._fetch_again(kept, 0.0)

    def _fetch_again(self, kept: _Waiting, deadline: float) -> None:
        try:
            self._fetch(kept.call, kept.request, deadline)
        except Exception as error:  # noqa: BLE001 - the call needs an answer, whatever happened
            kept.call.fail(error)

    # --- sizes and times on disk -----------------------------------------------------------------------------------------

    def measure(self, call: Call, request: MeasureUnit) -> None:
        """`complete`: none of the entries asked for is a hole, or not written yet."""
        self._admit(request.epoch)
        store, low = self._get_store(), self._machine.low
        begin = max(request.begin, low)
        end = max(begin, min(request.end, LLSN(store.newest + 1)))
        points_max = min(max(0, request.points_max), MEASURE_POINTS_MAX)
        found = store.measure(begin, end, points_max)
        call.reply(MeasureRangeReply(begin, end, found.bytes, found.points, store.covers(begin, request.end)))

    def find_time(self, call: Call, request: FindUnitTime) -> None:
        self._admit(request.epoch)
        store, time_us = self._get_store(), request.time_us

        def reply(llsn: LLSN) -> None:
            call.reply(FindTimeReply(max(llsn, self._machine.low), NO_GLSN))

        self._work(lambda: store.find_time(time_us), reply, call.fail)

    # --- what others are filled from -----------------------------------------------------------------------------------

    def list(self, call: Call, request: ListUnit) -> None:
        """In any epoch, with or without a lease: what is written stays what it is (law 8)."""
        store, low = self._get_store(), self._machine.low
        llsn = max(request.llsn, low)
        pages = store.pages_from(llsn, LIST_PAGES_MAX)
        end = LLSN(max(llsn, store.newest + 1))
        next_llsn = pages[-1].end_llsn if len(pages) == LIST_PAGES_MAX else end
        listed = tuple((page.first_llsn, page.count, page.crc) for page in pages)
        call.reply(ListUnitReply(listed, next_llsn, store.newest, low, self._machine.epoch))

    def copy(self, call: Call, request: CopyUnit) -> None:
        store, llsn = self._get_store(), max(request.llsn, self._machine.low)
        bytes_max = min(request.bytes_max or COPY_BYTES_MAX, COPY_BYTES_MAX)
        pages = store.pages_from(llsn, LIST_PAGES_MAX, end=request.end, bytes_max=bytes_max)
        if not pages:
            call.reply(CopyUnitReply(request.end))
            return
        next_llsn = pages[-1].end_llsn

        def read() -> Buffer:
            data = store.read(pages)
            for at, header in walk(data):
                check_body(data, header, at)
            return data

        self._work(
            read,
            lambda data: call.reply(CopyUnitReply(next_llsn), data),
            partial(self._failed, call.fail, pages),
        )

    # --- disk reads --------------------------------------------------------------------------------------------------

    def read_pages(
        self, pages: Sequence[PageRef], then: Callable[[Buffer], None], failed: Callable[[Exception], None]
    ) -> None:
        """`then` with the pages' bytes: now if they are cached, else when the read worker has them."""
        store = self._get_store()
        unlucky = partial(self._failed, failed, pages)
        try:
            data = store.read_cached(pages)
            if data is not None:
                then(data)
                return
        except Exception as error:  # noqa: BLE001 - the call needs an answer, whatever happened
            unlucky(error)
            return
        self._work(lambda: store.read(pages), then, unlucky)

    def _work(
        self, job: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        def done(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                return
            try:
                then(future.result())
            except Exception as error:  # noqa: BLE001 - the call needs an answer, whatever happened
                failed(error)

        self._worker.run(job).add_done_callback(done)

    def _failed(
        self, failed: Callable[[Exception], None], pages: Sequence[PageRef], error: Exception
    ) -> None:
        if isinstance(error, (CorruptBatch, OSError)):
            self._on_corruption(pages[0].first_llsn, pages[-1].end_llsn)
        if isinstance(error, OSError):
            error = Unavailable(f"log stream {self._machine.log_stream} cannot be read here: {error}")
        failed(error)

    def _check(self, epoch: Epoch, llsn: LLSN) -> None:
        if llsn < FIRST_LLSN:
            raise InvalidRequest(f"LLSN {llsn} does not exist: they start at {FIRST_LLSN}")
        self._admit(epoch)
        self._check_low(llsn)

    def _check_low(self, llsn: LLSN) -> None:
        if llsn < self._machine.low:
            raise Trimmed(llsn, self._machine.low)
