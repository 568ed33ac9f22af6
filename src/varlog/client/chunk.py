"""[R6] Chunk: fetched batches, checked end to end when they arrive, taken apart into entries when they are wanted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import repeat

from varlog.model.batch import JUNK, BatchHeader, Buffer, check_body, check_offsets, entries_of, walk
from varlog.model.entry import Entry
from varlog.model.errors import CorruptBatch
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN


class Chunk:
    """Placed batches back to back, without a gap in LLSN. CorruptBatch: a byte of it is not what its writer sent."""

    __slots__ = ("_data", "_times", "batches", "end_llsn", "first_llsn", "has_junk", "payload")

    def __init__(self, payload: Buffer) -> None:
        self.payload = payload
        self.batches: list[tuple[int, BatchHeader]] = []
        self._data: list[bytes] | None = None
        self._times: list[int] = []
        next_llsn: LLSN | None = None
        flags = 0
        for at, header in walk(payload):
            check_body(payload, header, at)
            check_offsets(payload, header, at)
            if next_llsn is not None and header.first_llsn != next_llsn:
                raise CorruptBatch(f"LLSN {header.first_llsn} came where {next_llsn} was next", at)
            next_llsn = header.end_llsn
            flags |= header.flags
            self.batches.append((at, header))
        if next_llsn is None:
            raise CorruptBatch("there is no batch in it")
        self.first_llsn = self.batches[0][1].first_llsn
        self.end_llsn = next_llsn
        self.has_junk = bool(flags & JUNK)

    def entries(self, log_stream: LogStreamID, glsn: GLSN, llsn: LLSN, count: int) -> list[Entry]:
        """Entries [llsn, llsn + count), the first of them at `glsn`. Built without a loop in Python."""
        times, data = self.columns(llsn, count)
        glsns, llsns = range(glsn, glsn + count), range(llsn, llsn + count)
        return list(map(Entry, glsns, llsns, repeat(log_stream), times, data))  # type: ignore[arg-type]

    def columns(self, llsn: LLSN, count: int) -> tuple[list[int], list[bytes]]:
        """Times and bytes of entries [llsn, llsn + count)."""
        if self._data is None:
            self._take_apart()
        begin = llsn - self.first_llsn
        return self._times[begin : begin + count], (self._data or [])[begin : begin + count]

    def pieces(self, llsn: LLSN, count: int) -> Iterator[tuple[int, BatchHeader, int, int]]:
        """(offset, header, begin, end) of the batches that hold [llsn, llsn + count); begin and end are entries of the batch."""
        end = llsn + count
        index = bisect_right(self.batches, llsn, key=lambda batch: batch[1].first_llsn) - 1
        while llsn < end:
            at, header = self.batches[index]
            stop = min(end, header.end_llsn)
            yield at, header, llsn - header.first_llsn, stop - header.first_llsn
            llsn = LLSN(stop)
            index += 1

    def without_junk(self, llsn: LLSN, count: int) -> Iterator[tuple[LLSN, int]]:
        """(LLSN, count) of those of [llsn, llsn + count) that are entries, as long as nothing is between them. What fills a hole is
        none (R-SEQ-7)."""
        begin = end = llsn
        for _, header, _, stop in self.pieces(llsn, count):
            if header.is_junk:
                if end > begin:
                    yield begin, end - begin
                begin = LLSN(header.first_llsn + stop)
            end = LLSN(header.first_llsn + stop)
        if end > begin:
            yield begin, end - begin

    def _take_apart(self) -> None:
        data: list[bytes] = []
        times: list[int] = []
        for at, header in self.batches:
            data += entries_of(self.payload, header, at)
            times += repeat(header.time_us, header.count)
        self._data, self._times = data, times
