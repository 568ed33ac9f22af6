"""[A4] BatchLookup: finds committed batches, by what their headers on disk say (_R-ORD-7). Idle while nobody retries.

What is asked while a search is under way is looked for together, in the next one: after a broken connection many ask at once, for
about the same stretch. Searches go from the newest batch back, in short jobs, so that readers of the same disk get their turn.
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
from varlog.storage.committed.headers import HeaderStretch
from varlog.storage.committed.log_store import LogStore

# Nobody is looked for further back than this: a client that waited so long for so much knows no better than OutcomeUnknown.
SEARCH_BYTES_MAX: Final = GIB

# What names a batch to whoever looks for it, and what is told of the newest one of that name.
_K = TypeVar("_K")
_R = TypeVar("_R")

# What was found, or None if it is certainly not there, or why that is not known.
OnFound = Callable[[_R | VarlogError | None], None]

# Looks through one stretch, in a worker: the newest batch there of each name.
SearchStretch = Callable[[HeaderStretch, dict[_K, None]], dict[_K, _R]]

# Entries [begin, end) do not match their checksums.
ReportCorruption = Callable[[LLSN, LLSN], None]


@dataclass(slots=True)
class _Wanted(Generic[_K, _R]):
    """Somebody asks for `key`, which is in (floor, end) if it is anywhere."""

    key: _K
    floor: LLSN
    end: LLSN
    found: OnFound[_R]


@dataclass(frozen=True, slots=True)
class LookupParts(Generic[_K, _R]):
    """Where is searched, how, and how far back (None: SEARCH_BYTES_MAX)."""

    store: LogStore
    worker: Worker
    on_corruption: ReportCorruption
    search: SearchStretch[_K, _R]
    bytes_max: int | None = None


class BatchLookup(Generic[_K, _R]):
    """The searches of one replica for one kind of name."""

    def __init__(self, parts: LookupParts[_K, _R]) -> None:
        self._parts = parts
        self._asked: list[_Wanted[_K, _R]] = []
        self._search: _Search[_K, _R] | None = None

    def find(self, key: _K, floor: LLSN, end: LLSN, found: OnFound[_R]) -> None:
        """SearchStretch for a batch among the committed ones in (floor, end); `found` is called once, later."""
        self._asked.append(_Wanted(key, floor, end, found))
        if self._search is None:
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        if self._search is None and self._asked:
            asked, self._asked = self._asked, []
            self._search = _Search(self._parts, asked, self._ended)
            self._search.step()

    def _ended(self) -> None:
        self._search = None
        self._start()


class _Search(Generic[_K, _R]):
    """One walk back over the headers, for everyone in `asked`."""

    def __init__(
        self, parts: LookupParts[_K, _R], asked: list[_Wanted[_K, _R]], ended: Callable[[], None]
    ) -> None:
        self._parts = parts
        self._store = store = parts.store
        self._asked = asked
        self._on_end = ended
        begin = LLSN(min(wanted.floor for wanted in asked) + 1)
        end = max(wanted.end for wanted in asked)
        # Everything from here on has been looked through.
        self._reached = end
        self._low = store.low_llsn
        bytes_max = parts.bytes_max or SEARCH_BYTES_MAX
        self._stretches: deque[HeaderStretch] = deque(store.header_stretches(begin, end, bytes_max))

    def step(self) -> None:
        """SearchStretch through the next stretch, unless everyone has an answer."""
        self._resolve_certain()
        if not self._asked or not self._stretches:
            self._fail_rest(self._unknown())
            return
        stretch, wanted = self._stretches.popleft(), {one.key: None for one in self._asked}
        search = self._parts.search
        done = self._parts.worker.run(lambda: search(stretch, wanted))
        done.add_done_callback(lambda future: self._searched(future, stretch))

    def _searched(self, done: asyncio.Future[dict[_K, _R]], stretch: HeaderStretch) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            if isinstance(error, CorruptBatch):
                self._parts.on_corruption(stretch.first_llsn, stretch.limit)
            self._fail_rest(
                Unavailable(f"log stream {self._store.log_stream} cannot be looked through here: {error}")
            )
            return
        self._reached = stretch.first_llsn
        found = done.result()
        asked, self._asked = self._asked, [one for one in self._asked if one.key not in found]
        for wanted in asked:
            if wanted.key in found:
                wanted.found(found[wanted.key])
        self.step()

    def _resolve_certain(self) -> None:
        """Who looked back to his floor without a find knows that there is none."""
        asked, self._asked = self._asked, [one for one in self._asked if one.floor + 1 < self._reached]
        for wanted in asked:
            if wanted.floor + 1 >= self._reached:
                wanted.found(None)

    def _fail_rest(self, why: VarlogError) -> None:
        asked, self._asked = self._asked, []
        for wanted in asked:
            wanted.found(why)
        self._on_end()

    def _unknown(self) -> VarlogError:
        stream, why = self._store.log_stream, "trimmed" if self._reached <= self._low else "too far back"
        return Unavailable(
            f"whether log stream {stream} has the batch is not known: what is below LLSN {self._reached} is {why}"
        )
