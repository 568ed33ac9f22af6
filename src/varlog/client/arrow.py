"""Arrow: fetched batches of a topic or of one stream as pyarrow.RecordBatch.

A batch's body has the layout of an Arrow binary array (see model/batch.py), so columns cost the same for one row or a million.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from varlog.client.chunk import Chunk, Part
from varlog.client.merge_rules import MergedRange, Row
from varlog.model.batch import HEADER_BYTES, BatchHeader
from varlog.model.limits import KIB, MIB
from varlog.model.lsn import LLSN

if TYPE_CHECKING:
    import pyarrow as pa

# A batch of at least this many rows is wrapped without copying; smaller ones are joined until together they reach it.
WRAP_ROWS_MIN = 512
WRAP_BYTES_MIN = 64 * 1024
JOIN_ROWS_MAX = 16_384


def load() -> Any:
    """Returns pyarrow, imported on first use: a process that only appends does not need it."""
    try:
        import pyarrow
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "log.arrow() needs pyarrow, which is not installed: pip install 'varlog[arrow]'", name="pyarrow"
        ) from missing
    return pyarrow


def schema() -> pa.Schema:
    """The columns of every record batch; none of them is ever null."""
    pa = load()
    return pa.schema(
        [
            pa.field("glsn", pa.int64(), nullable=False),
            pa.field("llsn", pa.int64(), nullable=False),
            pa.field("log_stream", pa.int32(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("data", pa.binary(), nullable=False),
        ]
    )


async def record_batches(
    ranges: AsyncGenerator[list[MergedRange], None],
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yields record batches in GLSN order, as soon as their entries exist."""
    builder = Builder()
    async with aclosing(ranges):
        async for taken in ranges:
            for batch in builder.build(taken):
                yield batch


class Builder:
    """Converts ranges to record batches."""

    def __init__(self) -> None:
        import numpy

        self._pa = load()
        self._np = numpy
        self._schema = schema()

    def build(self, ranges: Sequence[MergedRange]) -> Iterator[pa.RecordBatch]:
        """Yields all entries of `ranges` in order. Small neighbours are joined, but never held back for a later call."""
        small = _Columns()
        for merged in ranges:
            chunk = merged.source
            if not isinstance(chunk, Chunk):
                raise TypeError(f"a range of {type(chunk).__name__} has no batches")
            shift = merged.glsn - merged.llsn
            for large, llsn, count in _parts(chunk, merged):
                if large is None:
                    small.add(chunk, merged.log_stream, LLSN(llsn), count, shift)
                if small.data and (large is not None or len(small.data) >= JOIN_ROWS_MAX):
                    yield self._joined(small)
                    small = _Columns()
                if large is not None:
                    yield self._wrapped(chunk, merged.log_stream, *large, llsn, count, shift)
        if small.data:
            yield self._joined(small)

    def _wrapped(
        self,
        chunk: Chunk,
        log_stream: int,
        at: int,
        header: BatchHeader,
        llsn: int,
        count: int,
        shift: int,
    ) -> pa.RecordBatch:
        """One batch as a record batch, without copying its bytes."""
        pa, np = self._pa, self._np
        body = memoryview(chunk.payload)[at + HEADER_BYTES : at + header.size]
        offsets_bytes = 4 * (header.count + 1)
        buffers = [None, pa.py_buffer(body[:offsets_bytes]), pa.py_buffer(body[offsets_bytes:])]
        data = pa.Array.from_buffers(pa.binary(), count, buffers, 0, llsn - header.first_llsn)
        llsns = np.arange(llsn, llsn + count, dtype=np.int64)
        return self._batch(
            llsns + shift,
            llsns,
            np.full(count, log_stream, np.int32),
            np.full(count, header.time_us, np.int64),
            data,
        )

    def _joined(self, columns: _Columns) -> pa.RecordBatch:
        np = self._np
        return self._batch(
            np.array(columns.glsn, np.int64),
            np.array(columns.llsn, np.int64),
            np.array(columns.log_stream, np.int32),
            np.array(columns.time_us, np.int64),
            self._pa.array(columns.data, self._pa.binary()),
        )

    def _batch(self, glsn: Any, llsn: Any, log_stream: Any, time_us: Any, data: Any) -> pa.RecordBatch:
        pa = self._pa
        # Wrapped, not converted: a timestamp column stores microseconds.
        timestamp = pa.Array.from_buffers(
            self._schema.field(3).type, len(time_us), [None, pa.py_buffer(time_us)]
        )
        columns = [pa.array(glsn), pa.array(llsn), pa.array(log_stream), timestamp, data]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class _Columns:
    """The rows of small batches, column by column."""

    def __init__(self) -> None:
        self.glsn: list[int] = []
        self.llsn: list[int] = []
        self.log_stream: list[int] = []
        self.time_us: list[int] = []
        self.data: list[bytes] = []

    def add(self, chunk: Chunk, log_stream: int, llsn: LLSN, count: int, shift: int) -> None:
        times, data = chunk.columns(llsn, count)
        self.glsn += range(llsn + shift, llsn + shift + count)
        self.llsn += range(llsn, llsn + count)
        self.log_stream += repeat(log_stream, count)
        self.time_us += times
        self.data += data


_Large = tuple[int, BatchHeader]


def _parts(chunk: Chunk, merged: MergedRange) -> Iterator[tuple[_Large | None, int, int]]:
    """Yields (batch, LLSN, count): each large batch alone; small neighbours together, as (None, LLSN, count)."""
    small_llsn, small_count = 0, 0
    for at, header, begin, end in chunk.pieces(merged.llsn, merged.length):
        if end - begin >= WRAP_ROWS_MIN or header.body_bytes >= WRAP_BYTES_MIN:
            if small_count:
                yield None, small_llsn, small_count
                small_count = 0
            yield (at, header), header.first_llsn + begin, end - begin
        else:
            small_llsn = small_llsn if small_count else header.first_llsn + begin
            small_count += end - begin
    if small_count:
        yield None, small_llsn, small_count


# Record batches of one stream's chunks: columns are built with numpy, and large batches are wrapped without copying.
#
# Small batches are joined until a record batch has about a megabyte. No step runs per entry: the bytes of a batch are copied
# in one piece, and a commit row costs one number in an array.

# A batch of at least this size becomes a record batch of its own; smaller ones are joined until they reach about this size.
RANGE_WRAP_BYTES_MIN: Final = 512 * KIB
JOIN_BYTES: Final = 1 * MIB
JOIN_ROWS: Final = 65_536
# From this average number of entries per batch on, a few numpy calls per batch are the faster way.
LONG_ROWS: Final = 32

Span = tuple[int, int]


async def range_batches(
    log_stream: int, parts: AsyncGenerator[Part, None]
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yields the record batches of a range, as its parts arrive."""
    builder = RangeBuilder(log_stream)
    async with aclosing(parts):
        async for rows, chunk in parts:
            for batch in builder.build(rows, chunk):
                yield batch


class RangeBuilder:
    """Converts parts of one stream to record batches. Columns are allocated in Arrow's own memory pool, which is reused: fresh
    memory from the system costs more than filling it."""

    def __init__(self, log_stream: int) -> None:
        import numpy

        self._np = numpy
        self._pa = load()
        self._schema = schema()
        self._log_stream = log_stream
        self._make_constants(JOIN_ROWS)

    def build(self, rows: Sequence[Row], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yields the entries that `rows` name, in order."""
        np = self._np
        table = np.fromiter(chain.from_iterable(rows), np.int64, 3 * len(rows)).reshape(-1, 3)
        pieces = _Pieces(np, chunk, int(table[0, 0]), int(table[-1, 0] + table[-1, 2]))
        for first, stop in pieces.groups():
            data = self._wrapped(pieces, first) if stop - first == 1 else self._joined(pieces, first, stop)
            yield self._batch(table, pieces, first, stop, data)

    def _wrapped(self, pieces: _Pieces, number: int) -> pa.Array:
        """One batch as an array, without copying its bytes."""
        pa = self._pa
        at, header = pieces.batches[number]
        body = memoryview(pieces.payload)[at + HEADER_BYTES : at + header.size]
        offsets_bytes = 4 * (header.count + 1)
        buffers = [None, pa.py_buffer(body[:offsets_bytes]), pa.py_buffer(body[offsets_bytes:])]
        skipped = int(pieces.skipped[number])
        return pa.Array.from_buffers(pa.binary(), int(pieces.counts[number]), buffers, 0, skipped)

    def _joined(self, pieces: _Pieces, first: int, stop: int) -> pa.Array:
        """Several batches as one array: their bytes are concatenated and their offsets continue."""
        np, pa, total = self._np, self._pa, int(pieces.begins[stop] - pieces.begins[first])
        offsets, buffer = self._column(total + 1, np.int32)
        long = total >= LONG_ROWS * (stop - first)
        spans = (self._long_offsets if long else self._short_offsets)(pieces, first, stop, offsets)
        joined = pa.allocate_buffer(int(offsets[total]))
        source, target = memoryview(pieces.payload), memoryview(joined).cast("B")
        if long:
            at = 0
            for low, high in spans:
                target[at : at + high - low] = source[low:high]
                at += high - low
        else:
            target[:] = b"".join([source[low:high] for low, high in spans])
        return pa.Array.from_buffers(pa.binary(), total, [None, buffer, joined])

    def _long_offsets(self, pieces: _Pieces, first: int, stop: int, offsets: Any) -> list[Span]:
        """Fill in the offsets of all entries with a few numpy calls per batch. Returns where the bytes of each batch are."""
        np, spans = self._np, []
        words = np.frombuffer(pieces.payload, "<i4")
        offsets[0] = done = end = 0
        columns = (pieces.words, pieces.counts, pieces.data_at)
        for word, count, data_at in zip(*(column[first:stop].tolist() for column in columns), strict=True):
            mine = words[word : word + count + 1]
            low, high = int(mine[0]), int(mine[count])
            np.add(mine[1:], end - low, out=offsets[done + 1 : done + count + 1])
            done, end = done + count, end + high - low
            spans.append((data_at + low, data_at + high))
        return spans

    def _short_offsets(self, pieces: _Pieces, first: int, stop: int, offsets: Any) -> list[Span]:
        """The same with a few numpy calls for all batches together, which cost more per entry."""
        np, total = self._np, len(offsets) - 1
        counts = pieces.counts[first:stop]
        begins = pieces.begins[first:stop] - pieces.begins[first]
        words = np.frombuffer(pieces.payload, "<i4")
        # The index of each entry's offset. The next word is where the entry ends.
        places = np.arange(total) + np.repeat(pieces.words[first:stop] - begins, counts)
        lows, highs = words[places], words[places + 1]
        offsets[0] = 0
        np.cumsum(highs - lows, out=offsets[1:])
        data_at = pieces.data_at[first:stop]
        ends = (data_at + highs[begins + counts - 1]).tolist()
        return list(zip((data_at + lows[begins]).tolist(), ends, strict=True))

    def _batch(self, table: Any, pieces: _Pieces, first: int, stop: int, data: pa.Array) -> pa.RecordBatch:
        np, pa, count = self._np, self._pa, len(data)
        if count > len(self._numbers):
            self._make_constants(count)
        begin = int(table[0, 0] + pieces.begins[first])
        llsns, llsn_buffer = self._column(count, np.int64)
        np.add(self._numbers[:count], begin, out=llsns)
        glsns, glsn_buffer = self._column(count, np.int64)
        self._order(table, begin, llsns, glsns)
        times, time_buffer = self._column(count, np.int64)
        if stop - first == 1:
            times.fill(pieces.times[first])
        else:
            times[:] = np.repeat(pieces.times[first:stop], pieces.counts[first:stop])
        types = [self._schema.field(name).type for name in ("glsn", "llsn", "timestamp")]
        glsn, llsn, time = (
            pa.Array.from_buffers(kind, count, [None, buffer])
            for kind, buffer in zip(types, (glsn_buffer, llsn_buffer, time_buffer), strict=True)
        )
        columns = [glsn, llsn, self._streams.slice(0, count), time, data]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _order(self, table: Any, begin: int, llsns: Any, glsns: Any) -> None:
        """Fill in the positions of entries `llsns`: within a commit row, GLSN and LLSN advance together."""
        np, end = self._np, begin + len(llsns)
        first = int(np.searchsorted(table[:, 0], begin, "right")) - 1
        stop = int(np.searchsorted(table[:, 0], end))
        shifts = table[first:stop, 1] - table[first:stop, 0]
        if stop - first == 1:
            np.add(llsns, shifts[0], out=glsns)
        else:
            bounds = np.clip(np.append(table[first:stop, 0], end), begin, end)
            np.add(llsns, np.repeat(shifts, np.diff(bounds)), out=glsns)

    def _column(self, count: int, kind: Any) -> tuple[Any, pa.Buffer]:
        """Returns an array to fill, and the buffer that holds it."""
        buffer = self._pa.allocate_buffer(count * self._np.dtype(kind).itemsize)
        return self._np.frombuffer(buffer, kind), buffer

    def _make_constants(self, count: int) -> None:
        self._numbers = self._np.arange(count, dtype=self._np.int64)
        self._streams = self._pa.array(self._np.full(count, self._log_stream, self._np.int32))


class _Pieces:
    """The batches of a chunk that hold LLSNs [begin, end), column by column."""

    def __init__(self, np: Any, chunk: Chunk, begin: int, end: int) -> None:
        self._np = np
        self.payload = chunk.payload
        first = bisect_right(chunk.batches, begin, key=_first_llsn) - 1
        self.batches = chunk.batches[first : bisect_left(chunk.batches, end, key=_first_llsn)]
        number = len(self.batches)
        at = np.fromiter((at for at, _ in self.batches), np.int64, number)
        header = [header for _, header in self.batches]
        llsns = np.fromiter((one.first_llsn for one in header), np.int64, number)
        counts = np.fromiter((one.count for one in header), np.int64, number)
        self.times = np.fromiter((one.time_us for one in header), np.int64, number)
        self._sizes = np.fromiter((one.body_bytes for one in header), np.int64, number)
        # Per batch: entries before the range, and entries in the range.
        self.skipped = np.maximum(begin - llsns, 0)
        self.counts = np.minimum(llsns + counts, end) - llsns - self.skipped
        self.begins = np.concatenate(([0], np.cumsum(self.counts)))
        # The index of the first offset of these entries, in words of four bytes, and where the bytes of the batch begin.
        self.words = (at + HEADER_BYTES) // 4 + self.skipped
        self.data_at = at + HEADER_BYTES + 4 * (counts + 1)

    def groups(self) -> Iterator[tuple[int, int]]:
        """Yields [first, stop) of the batches that form one record batch each."""
        np, number = self._np, len(self.batches)
        bytes_before = np.concatenate(([0], np.cumsum(self._sizes)))
        large = np.append(np.flatnonzero(self._sizes >= RANGE_WRAP_BYTES_MIN), number)
        first = 0
        while first < number:
            stop = min(
                int(np.searchsorted(bytes_before, bytes_before[first] + JOIN_BYTES, "right")) - 1,
                int(np.searchsorted(self.begins, self.begins[first] + JOIN_ROWS, "right")) - 1,
                int(large[np.searchsorted(large, first)]),
            )
            stop = max(stop, first + 1)
            yield first, stop
            first = stop


def _first_llsn(batch: tuple[int, BatchHeader]) -> int:
    return batch[1].first_llsn
