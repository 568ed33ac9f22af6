"""Rows become batches by what they are, not by how Spark hands them over; keys choose streams permanently."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from varlog.model.batch import entries_of as unpacked
from varlog.model.batch import pack, parse_header
from varlog.model.ids import ProducerID
from varlog.model.limits import ENTRY_BYTES_MAX
from varlog.spark.write.input_rules import InputError
from varlog.spark.write.payload import Cutter, columns_of, hashes_of, in_order, payload_of, spread

BYTES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]


def batch_of(rows: Sequence[object], kind: pa.DataType = pa.binary()) -> pa.RecordBatch:  # noqa: B008 - never changes
    return pa.RecordBatch.from_arrays([pa.array(rows, kind)], names=["data"])


def cut(rows: list[bytes], sizes: list[int], kind: pa.DataType) -> list[list[bytes]]:
    """The batches out of record batches of these sizes."""
    cutter = Cutter("data", bytes_max=100, rows_max=7)
    found: list[pa.Array] = []
    begin = 0
    for size in sizes:
        taken = batch_of([row.decode() for row in rows], kind).slice(begin, size)
        found += cutter.add(payload_of(taken, "data"))
        begin += size
    rest = cutter.rest()
    return [part.to_pylist() for part in [*found, *([] if rest is None else [rest])]]


@pytest.mark.parametrize("kind", BYTES, ids=str)
def test_batches_are_the_same_however_the_rows_were_handed_over(kind: pa.DataType, seed: int) -> None:
    chance = random.Random(seed)
    rows = [b"x" * chance.choice((0, 3, 30, 250)) + b"%d" % n for n in range(60)]
    whole = cut(rows, [60], kind)
    assert [row for part in whole for row in part] == rows
    assert all(len(part) <= 7 and (len(b"".join(part)) <= 100 or len(part) == 1) for part in whole)
    assert cut(rows, [0, 1, 12, 7, 0, 40], kind) == whole == cut(rows, [1] * 60, kind)


@pytest.mark.parametrize("kind", BYTES, ids=str)
def test_a_slice_of_a_column_is_packed_as_it_is(kind: pa.DataType) -> None:
    rows = payload_of(batch_of(["", "a", "€uro", "", "tail"], kind).slice(1, 3), "data")
    batch = pack(columns_of(rows), producer=ProducerID(1), sequence=1, time_us=0)
    assert unpacked(batch, parse_header(batch, signed=False)) == [b"a", "€uro".encode(), b""]


def test_rows_without_a_value_are_refused_by_column() -> None:
    with pytest.raises(InputError, match=r"1 of 3 rows have no value \(null\) in column 'data'.*IS NOT NULL"):
        payload_of(batch_of([b"a", None, b"b"]), "data")


def test_a_row_over_the_limit_is_refused_by_column() -> None:
    rows = payload_of(batch_of([b"a", bytes(ENTRY_BYTES_MAX + 1)]), "data")
    with pytest.raises(InputError, match=f"column 'data' has {ENTRY_BYTES_MAX + 1} bytes"):
        list(Cutter("data").add(rows))


def test_sorted_rows_come_in_one_order_whatever_order_they_arrived_in(seed: int) -> None:
    rows = [(n % 5, b"%d" % (n % 17), n % 3) for n in range(200)]
    shuffled = random.Random(seed).sample(rows, len(rows))

    def ordered(given: list[tuple[int, bytes, int]]) -> list[bytes]:
        batches = [
            pa.RecordBatch.from_pydict({"at": at, "data": data, "key": key})
            for at, data, key in (zip(*given[n : n + 30], strict=True) for n in range(0, 200, 30))
        ]
        return [row for batch in in_order(batches, "data", "at", "key") for row in batch["data"].to_pylist()]

    assert ordered(rows) == ordered(shuffled) == [data for _, data, _ in sorted(rows)]
    assert list(in_order([], "data", "at")) == []


def test_sorting_by_the_payload_sorts_by_its_bytes() -> None:
    [batch] = in_order([batch_of(["b", "", "a"], pa.string())], "data", "data")
    assert batch["data"].to_pylist() == [b"", b"a", b"b"]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.int32(), pa.int64()], ids=str)
def test_rows_of_a_key_share_a_stream_in_their_order(kind: pa.DataType) -> None:
    keys = pa.array([n * n % 23 for n in range(300)], pa.int64())
    key = keys.cast(kind if pa.types.is_integer(kind) else pa.string()).cast(kind)
    rows = pa.array([b"%d" % n for n in range(300)], pa.binary())
    found = {stream: part.to_pylist() for stream, part in spread(rows, key, 3)}
    assert sorted(row for part in found.values() for row in part) == sorted(rows.to_pylist())
    of_key: dict[int, set[int]] = {}
    for stream, part in found.items():
        numbers = [int(row) for row in part]
        assert numbers == sorted(numbers)
        for number in numbers:
            of_key.setdefault(number * number % 23, set()).add(stream)
    assert all(len(streams) == 1 for streams in of_key.values())
    assert len(found) == 3


def test_a_keys_hash_never_changes() -> None:
    """Rows that were written years ago are in the stream that their key has today."""
    text = pa.array(["", "a", "customer-7", None, "a\0"])
    assert (hashes_of(text) % np.uint64(1000)).tolist() == [0, 784, 249, 452, 83]
    assert hashes_of(text.cast(pa.binary())).tolist() == hashes_of(text).tolist()
    assert hashes_of(text.slice(1, 2)).tolist() == hashes_of(text).tolist()[1:3]
    whole = pa.array([0, 1, -1, None, 2**40])
    assert (hashes_of(whole) % np.uint64(1000)).tolist() == [0, 789, 67, 452, 568]


def test_hashes_spread_evenly() -> None:
    for key in (pa.array(range(0, 40_000, 8)), pa.array([f"user-{n:06}" for n in range(5000)])):
        counts = np.bincount((hashes_of(key) % np.uint64(4)).astype(np.int64), minlength=4)
        assert counts.min() > 1100
