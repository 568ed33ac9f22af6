"""The batch: packed once, checked end to end, refused when it is over a limit or not what was packed."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model import batch as batches
from varlog.model.batch import (
    HEADER_BYTES,
    Columns,
    check_body,
    check_offsets,
    entries_of,
    pack,
    parse_header,
    place_batch,
    single,
    walk,
)
from varlog.model.epoch import Epoch
from varlog.model.errors import BatchTooLarge, CorruptBatch, EmptyBatch, EntryTooLarge, InvalidRequest
from varlog.model.ids import ProducerID
from varlog.model.limits import BATCH_BODY_BYTES_MAX, BATCH_ENTRIES_MAX, ENTRY_BYTES_MAX, MIB
from varlog.model.lsn import LLSN

ENTRIES = st.lists(st.binary(max_size=40), min_size=1, max_size=20)


def packed(entries: list[bytes], llsn: int = 1) -> bytearray:
    batch = pack(entries, producer=ProducerID(9), sequence=4, time_us=-5)
    place_batch(batch, Epoch(3), LLSN(llsn))
    return batch


@given(
    st.one_of(
        ENTRIES,
        st.lists(st.binary(max_size=3), min_size=30, max_size=200),
        st.integers(0, 9).flatmap(
            lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=30, max_size=80)
        ),
    ),
    st.data(),
)
def test_any_part_of_a_batch_is_cut_out_as_it_was_packed(entries: list[bytes], data: st.DataObject) -> None:
    """Few entries, many of all lengths, and many of one length go three ways. Trailing zeros are part of an entry."""
    entries = [entry + b"\0" * (len(entry) % 2) for entry in entries]
    begin = data.draw(st.integers(0, len(entries) - 1))
    end = data.draw(st.integers(begin + 1, len(entries)))
    buffer = b"before" * 4 + packed(entries)
    header = parse_header(buffer, 24)
    found = entries_of(buffer, header, 24, begin, end)
    assert found == entries[begin:end]
    assert all(type(entry) is bytes for entry in found)
    assert entries_of(buffer, header, 24) == entries


@given(ENTRIES, st.integers(1, 2**62))
def test_what_is_packed_comes_back(entries: list[bytes], llsn: int) -> None:
    batch = packed(entries, llsn)
    header = parse_header(batch)
    check_body(batch, header)
    check_offsets(batch, header)
    assert entries_of(batch, header) == entries
    assert header.size == len(batch) and len(batch) % 8 == 0
    assert (header.epoch, header.first_llsn, header.count, header.end_llsn) == (
        3,
        llsn,
        len(entries),
        llsn + len(entries),
    )
    assert (header.producer, header.sequence, header.time_us, header.flags) == (9, 4, -5, 0)


@given(ENTRIES)
def test_placing_changes_the_header_and_never_the_body(entries: list[bytes]) -> None:
    sent = pack(entries, producer=ProducerID(1), sequence=1, time_us=1)
    placed = bytearray(sent)
    place_batch(placed, Epoch(8), LLSN(77))
    assert placed[HEADER_BYTES:] == sent[HEADER_BYTES:]
    assert parse_header(placed).body_crc == parse_header(sent, signed=False).body_crc


def test_a_batch_that_is_not_placed_yet_has_no_signature_to_check() -> None:
    sent = pack([b"x"], producer=ProducerID(1), sequence=1, time_us=1)
    assert parse_header(sent, signed=False).count == 1
    with pytest.raises(CorruptBatch, match="header's checksum"):
        parse_header(sent)


@given(ENTRIES, st.data())
def test_any_flipped_bit_is_noticed(entries: list[bytes], data: st.DataObject) -> None:
    batch = packed(entries)
    at = data.draw(st.integers(0, len(batch) - 1))
    batch[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptBatch):
        check_body(batch, parse_header(batch))


@given(ENTRIES, st.data())
def test_a_batch_that_is_cut_off_is_noticed(entries: list[bytes], data: st.DataObject) -> None:
    batch = packed(entries)
    short = batch[: data.draw(st.integers(0, len(batch) - 1))]
    with pytest.raises(CorruptBatch, match="cut off"):
        check_body(short, parse_header(short))


@given(st.binary(max_size=200))
def test_noise_is_never_a_batch(noise: bytes) -> None:
    with pytest.raises(CorruptBatch):
        parse_header(noise)


@given(st.lists(ENTRIES, min_size=1, max_size=5))
def test_batches_back_to_back_are_walked_in_order(groups: list[list[bytes]]) -> None:
    llsn, buffer = 1, bytearray()
    for entries in groups:
        buffer += packed(entries, llsn)
        llsn += len(entries)
    found = [entries_of(buffer, header, at) for at, header in walk(buffer)]
    assert found == groups


@given(ENTRIES, st.data())
def test_one_entry_of_a_batch_is_a_batch_of_its_own(entries: list[bytes], data: st.DataObject) -> None:
    batch = packed(entries, 10)
    index = data.draw(st.integers(0, len(entries) - 1))
    one = single(batch, parse_header(batch), index)
    header = parse_header(one)
    check_body(one, header)
    assert (header.first_llsn, header.epoch, entries_of(one, header)) == (10 + index, 3, [entries[index]])


def test_limits_are_refused_with_the_facts() -> None:
    with pytest.raises(EmptyBatch):
        packed([])
    with pytest.raises(EntryTooLarge) as large:
        packed([bytes(ENTRY_BYTES_MAX + 1)])
    assert (large.value.size, large.value.limit) == (ENTRY_BYTES_MAX + 1, ENTRY_BYTES_MAX)
    with pytest.raises(BatchTooLarge, match="entries"):
        packed([b""] * (BATCH_ENTRIES_MAX + 1))
    with pytest.raises(BatchTooLarge, match="bytes"):
        packed([bytes(6 * MIB)] * 3)


def columns(entries: list[bytes], before: bytes = b"") -> Columns:
    """As an Arrow array has them, of which what is in `before` was sliced off."""
    offsets = array("i", accumulate(map(len, entries), initial=len(before)))
    return Columns(offsets.tobytes(), before + b"".join(entries) + b"behind")


@given(ENTRIES, st.binary(max_size=9))
def test_the_buffers_of_an_arrow_array_make_the_same_batch_as_its_entries(
    entries: list[bytes], before: bytes
) -> None:
    made = pack(columns(entries, before), producer=ProducerID(9), sequence=4, time_us=-5)
    assert made == pack(entries, producer=ProducerID(9), sequence=4, time_us=-5)


def test_arrow_buffers_are_held_to_the_same_limits() -> None:
    def refused(error: type[Exception], given: Columns, match: str | None = None) -> None:
        with pytest.raises(error, match=match):
            pack(given, producer=ProducerID(9), sequence=4, time_us=-5)

    refused(EmptyBatch, columns([]))
    refused(EmptyBatch, Columns(b"", b""))
    refused(EntryTooLarge, columns([bytes(ENTRY_BYTES_MAX + 1)]))
    refused(BatchTooLarge, columns([b""] * (BATCH_ENTRIES_MAX + 1)), "entries")
    refused(BatchTooLarge, columns([bytes(6 * MIB)] * 3), "bytes")
    for offsets in ([0, 3, 2], [-1, 2], [0, 99]):
        refused(InvalidRequest, Columns(array("i", offsets).tobytes(), b"abcd"), "offsets")


def test_what_is_exactly_at_a_limit_is_taken() -> None:
    assert parse_header(packed([bytes(ENTRY_BYTES_MAX)])).count == 1
    assert parse_header(packed([b""] * BATCH_ENTRIES_MAX)).count == BATCH_ENTRIES_MAX
    half = (BATCH_BODY_BYTES_MAX - 4 * 4) // 3
    fitting = packed([bytes(half)] * 3)
    assert BATCH_BODY_BYTES_MAX - 8 <= parse_header(fitting).body_bytes <= BATCH_BODY_BYTES_MAX


@pytest.mark.parametrize("offsets", [[1, 2, 3], [0, 3, 2], [0, -1, 3], [0, 1, 99], [0, 0, 0]])
def test_offsets_that_no_batch_has_are_refused_even_with_a_good_checksum(offsets: list[int]) -> None:
    """A checksum does not prove that its maker was right: the offsets are checked where a client's batch arrives."""
    batch = packed([b"a" * 20, b"b" * 20])
    batches.offsets_of(batch, parse_header(batch))[:] = memoryview(
        b"".join(o.to_bytes(4, "little", signed=True) for o in offsets)
    ).cast("i")
    with pytest.raises(CorruptBatch, match="offsets"):
        check_offsets(batch, parse_header(batch))


@pytest.mark.parametrize(
    ("at", "value"), [(4, 2), (5, 1), (6, 1), (12, 0), (12, 0xFFFFFFFF), (48, 4), (48, 0xFFFFFFF8), (52, 8)]
)
def test_a_well_signed_header_with_impossible_fields_is_refused(at: int, value: int) -> None:
    """An unknown version or feature, no entries, a body that cannot hold them: all refused before anyone believes a length."""
    batch = packed([b"entry"])
    width = 1 if at in (4, 5) else 2 if at == 6 else 4
    batch[at : at + width] = value.to_bytes(width, "little")
    place_batch(batch, Epoch(3), LLSN(1))  # signs it again
    with pytest.raises(CorruptBatch):
        parse_header(batch)


def test_the_headers_checksum_distinguishes_a_batch_from_any_other_in_its_place() -> None:
    """Law 8: also where the entries are the same."""
    batches = [pack([b"a"], producer=ProducerID(producer), sequence=1, time_us=1) for producer in (1, 2)]
    for batch in batches:
        place_batch(batch, Epoch(3), LLSN(9))
        assert parse_header(batch).crc == int.from_bytes(batch[60:64], "little")
    assert parse_header(batches[0]).crc != parse_header(batches[1]).crc
