"""Payload: rows of record batches as entries, cut into batches of the log.

Checked, and spread over streams by a key. Nothing here runs per row. Where a batch ends depends on the rows alone, not on how
Spark cut them into record batches: an attempt that sees the same rows in the same order makes the same batches, which the log
then recognises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from varlog.model.batch import Columns
from varlog.model.limits import BATCH_ENTRIES_MAX, ENTRY_BYTES_MAX, MIB
from varlog.spark.write.input_rules import InputError

CUT_BYTES: Final = 1 * MIB
CUT_ROWS: Final = 65_536
assert CUT_ROWS <= BATCH_ENTRIES_MAX  # noqa: S101 - of two constants

Offsets = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


def payload_of(batch: pa.RecordBatch, column: str) -> pa.Array:
    """A column's rows as bytes, text as UTF-8. Refuses rows without a value."""
    rows = batch.column(column)
    if rows.null_count:
        raise InputError(
            f"{rows.null_count} of {len(rows)} rows have no value (null) in column {column!r}, and nothing of them was written: "
            f'leave them out with df.where("{column} IS NOT NULL"), or give them one with coalesce'
        )
    return rows if _bytes_in(rows) else rows.cast(pa.large_binary() if _is_large(rows) else pa.binary())


class Cutter:
    """Rows in, arrays of about CUT_BYTES out. Keeps less than one of them."""

    def __init__(self, column: str, bytes_max: int = CUT_BYTES, rows_max: int = CUT_ROWS) -> None:
        self._column = column
        self._bytes_max = bytes_max
        self._rows_max = rows_max
        self._rows: list[pa.Array] = []
        self._rows_bytes = 0
        self._rows_count = 0

    def add(self, rows: pa.Array) -> Iterator[pa.Array]:
        """Add rows; yields the arrays that are full."""
        offsets = value_offsets(rows)
        begin = 0
        while begin < len(rows):
            end = self._end(offsets, begin)
            self._append(rows, offsets, begin, end)
            begin = end
            if begin < len(rows):
                yield self._emptied()

    def rest(self) -> pa.Array | None:
        """The rest at the end."""
        return self._emptied() if self._rows else None

    def _end(self, offsets: Offsets, begin: int) -> int:
        """One past the last row that fits; an empty batch has room for at least one."""
        room = min(int(offsets[begin]) + self._bytes_max - self._rows_bytes, int(offsets[-1]))
        # Of the same type: numpy would otherwise copy all offsets for each batch.
        end = int(np.searchsorted(offsets, offsets.dtype.type(room), side="right")) - 1
        return max(min(end, begin + self._rows_max - self._rows_count), begin if self._rows else begin + 1)

    def _append(self, rows: pa.Array, offsets: Offsets, begin: int, end: int) -> None:
        size = int(offsets[end] - offsets[begin])
        if size > ENTRY_BYTES_MAX:
            raise InputError(
                f"a row of column {self._column!r} has {size} bytes, and an entry at most {ENTRY_BYTES_MAX}: split it, or write "
                "only its address"
            )
        if end > begin:
            self._rows.append(rows.slice(begin, end - begin))
            self._rows_bytes += size
            self._rows_count += end - begin

    def _emptied(self) -> pa.Array:
        rows, self._rows, self._rows_bytes, self._rows_count = self._rows, [], 0, 0
        return rows[0] if len(rows) == 1 else pa.concat_arrays(rows)


def columns_of(rows: pa.Array) -> Columns:
    """An array's own buffers, without a copy; 64-bit offsets are converted to 32 bits."""
    offsets = value_offsets(rows)
    data = rows.buffers()[2]
    if _is_large(rows):
        begin = int(offsets[0])
        data = data.slice(begin, int(offsets[-1]) - begin) if data is not None else None
        offsets = offsets - begin
    return Columns(offsets.astype(np.int32, copy=False).data, memoryview(data if data is not None else b""))


def value_offsets(rows: pa.Array) -> Offsets:
    """Where each row begins in the array's bytes, and where the last one ends."""
    buffer = rows.buffers()[1]
    if buffer is None or buffer.size == 0:  # of an array without rows
        buffer = bytes(8)
    wanted = slice(rows.offset, rows.offset + len(rows) + 1)
    return (
        np.frombuffer(buffer, np.int64)[wanted]
        if _is_large(rows)
        else np.frombuffer(buffer, np.int32)[wanted]
    )


def in_order(
    batches: Iterable[pa.RecordBatch], data: str, order_by: str, key: str = ""
) -> Iterator[pa.RecordBatch]:
    """All rows, sorted; equal ones by their bytes, so that every attempt gets the same order. Keeps all of them in memory,
    twice."""
    names = list(dict.fromkeys(name for name in (data, order_by, key) if name))
    parts = [_large(batch.select(names), data) for batch in batches]
    if not parts:
        return
    table = pa.Table.from_batches(parts).combine_chunks()
    parts.clear()
    keys = [(name, "ascending") for name in dict.fromkeys((order_by, data))]
    order = pc.sort_indices(table, sort_keys=keys)
    whole = table.to_batches()[0] if table.num_rows else None
    for begin in range(0, len(order), CUT_ROWS):
        if whole is not None:
            yield whole.take(order.slice(begin, CUT_ROWS))


def _large(batch: pa.RecordBatch, data: str) -> pa.RecordBatch:
    """With offsets of 64 bits: a whole partition in one array may exceed 32 bits."""
    columns = [payload_of(batch, name) if name == data else batch.column(name) for name in batch.schema.names]
    wide = [column.cast(_wide(column.type)) for column in columns]
    return pa.RecordBatch.from_arrays(wide, names=batch.schema.names)


def _wide(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind


def spread(rows: pa.Array, key: pa.Array, streams: int) -> Iterator[tuple[int, pa.Array]]:
    """(index of a stream, its rows), for each stream that gets any. Equal keys go to one, in the order they came in."""
    chosen = (hashes_of(key) % np.uint64(streams)).astype(np.int64)
    order = np.argsort(chosen, kind="stable")
    sorted_rows = rows.take(pa.array(order))
    ends = np.searchsorted(chosen[order], np.arange(streams), side="right")
    begin = 0
    for stream, end in enumerate(ends.tolist()):
        if end > begin:
            yield stream, sorted_rows.slice(begin, end - begin)
        begin = end


def hashes_of(key: pa.Array) -> Hashes:
    """A hash of each value that is the same in every process and version, forever: rows of a key stay in their stream.

    Of whole numbers: themselves. Of bytes and text: their polynomial in an odd number. Both stirred at the end.
    """
    if pa.types.is_integer(key.type):
        plain = pc.fill_null(key.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).view(np.uint64)
    else:
        plain = _polynomials(pc.fill_null(key.cast(pa.large_binary()), b""))
    return _stirred(np.where(np.asarray(key.is_null()), ~_ODD, plain) if key.null_count else plain)


def _polynomials(key: pa.Array) -> Hashes:
    offsets = value_offsets(key)
    lengths = np.diff(offsets).astype(np.int64)
    found = lengths.astype(np.uint64)
    if not lengths.any():
        return found
    data = np.frombuffer(key.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64)
    places = np.arange(len(data), dtype=np.int64) - np.repeat(offsets[:-1] - offsets[0], lengths)
    powers = np.cumprod(np.full(int(lengths.max()) + 1, _ODD))
    terms = (data + np.uint64(1)) * powers[places]
    filled = lengths > 0
    found[filled] += np.add.reduceat(terms, (offsets[:-1] - offsets[0])[filled])
    return found


def _stirred(hashes: Hashes) -> Hashes:
    """Every bit of the input affects every bit of the output: a remainder uses the low ones alone."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def _bytes_in(rows: pa.Array) -> bool:
    return rows.type in (pa.binary(), pa.large_binary())


def _is_large(rows: pa.Array) -> bool:
    return rows.type in (pa.large_binary(), pa.large_string())
