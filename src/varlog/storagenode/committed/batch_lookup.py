"""[A4] BatchLookup: finds committed batches by their headers on disk (R-ORD-7).

It is idle unless a client retries. Requests that arrive during a search are served together by the next one: after a broken
connection many ask at once, for about the same range. A search goes from the newest batch back, in short jobs, so that readers of
the same disk are not blocked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from varlog.model.errors import CorruptBatch, Unavailable, VarlogError
from varlog.model.limits import GIB
from varlog.model.lsn import LLSN
from varlog.runtime.worker import Worker
from varlog.storage.committed.headers import HeaderRange
from varlog.storage.committed.log_store import LogStore

# No search goes further back than this: a client that waited while this much was appended gets OutcomeUnknown.
SEARCH_BYTES_MAX: Final = GIB

# The key that identifies a batch, and the result for the newest batch with that key.
_K = TypeVar("_K")
_R = TypeVar("_R")

# Called with what was found, with None if it certainly does not exist, or with the reason why that is not known.
OnFound = Callable[[_R | VarlogError | None], None]

# Searches one range, in a worker: the newest batch in it for each key.
SearchRange = Callable[[HeaderRange, dict[_K, None]], dict[_K, _R]]

# Entries [begin, end) do not match their checksums.
ReportCorruption = Callable[[LLSN, LLSN], None]


@dataclass(slots=True)
class _Wanted(Generic[_K, _R]):
    """One request for `key`, which is in (floor, end) if it is anywhere."""

    key: _K
    floor: LLSN
    end: LLSN
    found: OnFound[_R]


class BatchLookup(Generic[_K, _R]):
    """The searches of one replica for one kind of key, at most `bytes_max` back (None: SEARCH_BYTES_MAX)."""

    def __init__(
        self,
        store: LogStore,
        worker: Worker,
        on_corruption: ReportCorruption,
        search: SearchRange[_K, _R],
        bytes_max: int | None = None,
    ) -> None:
        self._store = store
        self._worker = worker
        self._on_corruption = on_corruption
        self._search_range = search
        self._bytes_max = bytes_max
        self._queue: list[_Wanted[_K, _R]] = []
        self._searching = False
        # The present search: its requests, the ranges that are left, and from where on everything has been searched.
        self._wanted: list[_Wanted[_K, _R]] = []
        self._ranges: deque[HeaderRange] = deque()
        self._searched_from = LLSN(0)
        self._low = LLSN(0)

    def find(self, key: _K, floor: LLSN, end: LLSN, found: OnFound[_R]) -> None:
        """Search for a batch among the committed ones in (floor, end); `found` is called once, later."""
        self._queue.append(_Wanted(key, floor, end, found))
        if not self._searching:
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        if self._searching or not self._queue:
            return
        self._searching = True
        self._wanted, self._queue = self._queue, []
        begin = LLSN(min(wanted.floor for wanted in self._wanted) + 1)
        self._searched_from = end = max(wanted.end for wanted in self._wanted)
        self._low = self._store.low_llsn
        bytes_max = self._bytes_max or SEARCH_BYTES_MAX
        self._ranges = deque(self._store.header_ranges(begin, end, bytes_max))
        self._step()

    def _step(self) -> None:
        """Search the next range, unless every request has an answer."""
        self._resolve_absent()
        if not self._wanted or not self._ranges:
            self._end(self._unknown())
            return
        header_range, keys = self._ranges.popleft(), {one.key: None for one in self._wanted}
        search = self._search_range
        done = self._worker.run(lambda: search(header_range, keys))
        done.add_done_callback(lambda future: self._searched(future, header_range))

    def _searched(self, done: asyncio.Future[dict[_K, _R]], header_range: HeaderRange) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            if isinstance(error, CorruptBatch):
                self._on_corruption(header_range.first_llsn, header_range.limit)
            self._end(Unavailable(f"log stream {self._store.log_stream} cannot be searched here: {error}"))
            return
        self._searched_from = header_range.first_llsn
        results = done.result()
        wanted, self._wanted = self._wanted, [one for one in self._wanted if one.key not in results]
        for one in wanted:
            if one.key in results:
                one.found(results[one.key])
        self._step()

    def _resolve_absent(self) -> None:
        """A batch that was not found down to its floor does not exist."""
        searched_from = self._searched_from
        wanted, self._wanted = self._wanted, [one for one in self._wanted if one.floor + 1 < searched_from]
        for one in wanted:
            if one.floor + 1 >= searched_from:
                one.found(None)

    def _end(self, why: VarlogError) -> None:
        """The rest remain unknown, because of `why`; the next search begins."""
        wanted, self._wanted = self._wanted, []
        for one in wanted:
            one.found(why)
        self._searching = False
        self._start()

    def _unknown(self) -> VarlogError:
        stream, why = (
            self._store.log_stream,
            "trimmed" if self._searched_from <= self._low else "too far back",
        )
        return Unavailable(
            f"whether log stream {stream} has the batch is not known: what is below LLSN {self._searched_from} is {why}"
        )
