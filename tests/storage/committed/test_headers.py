"""Batches are found by whose they are: those in the range, the newest range first, over segments and trims."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.storage.helpers import STREAM, TOPIC, commit_all, fill
from varlog.model.batch import pack, parse_header, place_batch
from varlog.model.errors import CorruptBatch, Trimmed
from varlog.model.ids import ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.committed import headers as headers_module
from varlog.storage.committed.headers import BatchKey
from varlog.storage.committed.log_store import LogStore


def made(path: Path, random: Random, *, segment_bytes: int = 2000) -> tuple[LogStore, list[tuple[int, int]]]:
    """A store with batches of many sizes, and (first, end) of each; `fill` uses the first LLSN as the sequence."""
    store = LogStore.create(
        OsDisk(), path / "ls", topic=TOPIC, log_stream=STREAM, segment_bytes=segment_bytes
    )
    batches = []
    for _ in range(40):
        group = [[random.randbytes(random.choice((0, 9, 300)))] * random.randint(1, 4) for _ in range(3)]
        at = int(store.written_end)
        for entries in group:
            batches.append((at, at + len(entries)))
            at += len(entries)
        fill(store, group)
    commit_all(store)
    return store, batches


def key(first: int) -> BatchKey:
    return ProducerID(5), first


def find_all(
    store: LogStore, begin: int, end: int, wanted: dict[BatchKey, None], bytes_max: int = 1 << 30
) -> tuple[dict[BatchKey, LLSN], int]:
    """Everything found, and the LLSN from which on everything was looked through."""
    found: dict[BatchKey, LLSN] = {}
    reached = end
    for header_range in store.header_ranges(LLSN(begin), LLSN(end), bytes_max):
        found |= store.find_batches(header_range, wanted)
        assert header_range.first_llsn < reached
        reached = header_range.first_llsn
    return found, reached


@pytest.mark.parametrize("range_bytes", [1, 500, 1 << 20])
def test_every_batch_of_the_range_is_found_and_none_at_or_above_its_end(
    tmp_path: Path, seed: int, range_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers_module, "RANGE_BYTES", range_bytes)
    random = Random(seed)
    store, batches = made(tmp_path, random)
    everything = {key(first): None for first, _ in batches}
    for _ in range(30):
        begin = random.randint(1, batches[-1][1])
        end = random.choice(batches)[1]
        found, reached = find_all(store, begin, end, everything)
        inside = {key(first): first for first, last in batches if last > begin and last <= end}
        assert inside.items() <= found.items()
        assert all(llsn < end for llsn in found.values())
        assert reached <= begin or begin >= end
    assert find_all(store, 1, batches[-1][1], {(ProducerID(6), 1): None})[0] == {}


def test_the_search_ends_where_its_bytes_do_and_reports_that(tmp_path: Path, seed: int) -> None:
    store, batches = made(tmp_path, Random(seed))
    end = batches[-1][1]
    found, reached = find_all(store, 1, end, {key(1): None, key(batches[-1][0]): None}, bytes_max=1)
    assert found == {key(batches[-1][0]): batches[-1][0]}
    assert 1 < reached < end


def test_what_is_trimmed_is_not_searched_and_a_concurrent_trim_is_reported(tmp_path: Path, seed: int) -> None:
    store, batches = made(tmp_path, Random(seed))
    end = batches[-1][1]
    stale = store.header_ranges(LLSN(1), LLSN(end), 1 << 30)[-1]
    stale.segment.release()
    store.trim(GLSN(end // 2))
    _, reached = find_all(store, 1, end, {key(1): None})
    assert 1 < reached <= store.low_llsn
    with pytest.raises(Trimmed):
        store.find_batches(stale, {key(1): None})


def test_damaged_headers_are_never_taken_for_an_answer(tmp_path: Path, seed: int) -> None:
    store, batches = made(tmp_path, Random(seed), segment_bytes=1 << 20)
    path = next((tmp_path / "ls").glob("*.seg"))
    content = bytearray(path.read_bytes())
    content[30] ^= 1  # in the first batch's producer
    path.write_bytes(content)
    with pytest.raises(CorruptBatch):
        find_all(store, 1, batches[-1][1], {key(1): None})


@pytest.mark.parametrize("size", [10, 5_000, 300_000])
def test_the_batches_of_some_producers_are_listed_in_order_however_long_the_bodies_between_are(
    tmp_path: Path, size: int
) -> None:
    store = LogStore.create(OsDisk(), tmp_path / "ls", topic=TOPIC, log_stream=STREAM)
    batches = []
    for number in range(1, 13):
        producer = ProducerID(number % 3)
        batch = pack([bytes(size), b""], producer=producer, sequence=number, time_us=1)
        place_batch(batch, store.epoch, LLSN(2 * number - 1))
        batches.append(batch)
    store.append(batches)
    commit_all(store)
    (header_range,) = store.header_ranges(LLSN(1), LLSN(25), 1 << 40)
    found = store.batches_of(header_range, {ProducerID(1): None, ProducerID(2): None})
    expected = [number for number in range(1, 13) if number % 3]
    assert [
        (place_batch.producer, place_batch.sequence, place_batch.llsn, place_batch.entries)
        for place_batch in found
    ] == [(number % 3, number, 2 * number - 1, 2) for number in expected]
    assert [place_batch.body_crc for place_batch in found] == [
        parse_header(batches[number - 1]).body_crc for number in expected
    ]
