"""Arrow: stretches of fetched batches as pyarrow.RecordBatch. A large batch is wrapped where it lies; small ones are joined.

A batch's body is laid out as an Arrow binary array (see model/batch.py), so its columns cost the same for one row or a million.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import repeat
from typing import TYPE_CHECKING, Any

from varlog.client.chunk import Chunk
from varlog.client.merge_rules import Stretch
from varlog.model.batch import HEADER_BYTES, BatchHeader
from varlog.model.lsn import LLSN

if TYPE_CHECKING:
    import pyarrow as pa

# From here on a batch is wrapped as it is; smaller ones are joined until together they are as large.
WRAP_ROWS_MIN = 512
WRAP_BYTES_MIN = 64 * 1024
JOIN_ROWS_MAX = 16_384


def load() -> Any:
    """pyarrow, loaded on first use: who only appends does not need it."""
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
    stretches: AsyncGenerator[list[Stretch], None],
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Record batches in GLSN order, as soon as their entries are there."""
    builder = Builder()
    async with aclosing(stretches):
        async for taken in stretches:
            for batch in builder.build(taken):
                yield batch


class Builder:
    """Turns stretches into record batches."""

    def __init__(self) -> None:
        import numpy

        self._pa = load()
        self._np = numpy
        self._schema = schema()

    def build(self, stretches: Sequence[Stretch]) -> Iterator[pa.RecordBatch]:
        """All entries of `stretches`, in order. What is small is joined with its neighbours, but waits for no other call."""
        small = _Columns()
        for stretch in stretches:
            chunk = stretch.source
            if not isinstance(chunk, Chunk):
                raise TypeError(f"a stretch of {type(chunk).__name__} has no batches")
            shift = stretch.glsn - stretch.llsn
            for large, llsn, count in _parts(chunk, stretch):
                if large is None:
                    small.add(chunk, stretch.log_stream, LLSN(llsn), count, shift)
                if small.data and (large is not None or len(small.data) >= JOIN_ROWS_MAX):
                    yield self._joined(small)
                    small = _Columns()
                if large is not None:
                    yield self._wrapped(chunk, stretch.log_stream, *large, llsn, count, shift)
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
        """One batch, its bytes where they are."""
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
        # Wrapped, not converted: microseconds are what a timestamp column holds.
        timestamp = pa.Array.from_buffers(
            self._schema.field(3).type, len(time_us), [None, pa.py_buffer(time_us)]
        )
        columns = [pa.array(glsn), pa.array(llsn), pa.array(log_stream), timestamp, data]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class _Columns:
    """Rows of small batches, column by column."""

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


def _parts(chunk: Chunk, stretch: Stretch) -> Iterator[tuple[_Large | None, int, int]]:
    """(batch, LLSN, count): large batches one by one; small neighbours together, as (None, LLSN, count)."""
    small_llsn, small_count = 0, 0
    for at, header, begin, end in chunk.pieces(stretch.llsn, stretch.length):
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
