"""Chunk: whatever part of it is asked for, in whatever order, it gives the entries that were packed."""

from __future__ import annotations

from random import Random

import pytest

from varlog.client.chunk import CUT_ENTRIES, Chunk, entry_lists
from varlog.client.merge_rules import MergedRange
from varlog.model.batch import pack, place_batch
from varlog.model.entry import Entry
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.lsn import GLSN, LLSN

STREAM = LogStreamID(3)
FIRST = 10


def chunk_of(sizes: list[int], random: Random) -> tuple[Chunk, list[Entry]]:
    """A chunk with batches of these sizes, and its entries, at GLSN = LLSN + 1000."""
    payload = bytearray()
    entries: list[Entry] = []
    for number, size in enumerate(sizes):
        data = [random.randbytes(random.choice((0, 1, 7, 30))) for _ in range(size)]
        llsn = FIRST + len(entries)
        batch = pack(data, producer=ProducerID(1), sequence=number + 1, time_us=number)
        place_batch(batch, Epoch(1), LLSN(llsn))
        payload += batch
        entries += [
            Entry(GLSN(llsn + n + 1000), LLSN(llsn + n), STREAM, number, one) for n, one in enumerate(data)
        ]
    return Chunk(payload), entries


SIZES = [[1], [1] * 40, [CUT_ENTRIES * 3 + 1], [5, CUT_ENTRIES, 1, 2, CUT_ENTRIES - 1, 400, 700]]


@pytest.mark.parametrize("sizes", SIZES)
def test_any_part_of_a_chunk_can_be_had_in_any_order(sizes: list[int], seed: int) -> None:
    random = Random(seed)
    chunk, entries = chunk_of(sizes, random)
    parts = [
        (0, len(entries)),
        *((random.randrange(len(entries)), random.randint(1, 2000)) for _ in range(30)),
    ]
    for begin, count in parts:
        wanted = entries[begin : begin + count]
        llsn = LLSN(FIRST + begin)
        assert chunk.entries(STREAM, GLSN(llsn + 1000), llsn, len(wanted)) == wanted
        assert chunk.columns(llsn, len(wanted)) == ([e.time_us for e in wanted], [e.data for e in wanted])


@pytest.mark.parametrize("sizes", SIZES)
def test_lists_are_bounded_and_together_are_the_ranges(sizes: list[int], seed: int) -> None:
    random = Random(seed)
    chunk, entries = chunk_of(sizes, random)
    taken, begin = [], 0
    while begin < len(entries):
        length = min(random.choice((1, 3, 900, 5000)), len(entries) - begin)
        llsn = LLSN(FIRST + begin)
        taken.append(MergedRange(STREAM, GLSN(llsn + 1000), llsn, length, chunk, last=False))
        begin += length
    lists = list(entry_lists(taken))
    assert [entry for part in lists for entry in part] == entries
    assert all(0 < len(part) <= CUT_ENTRIES for part in lists)
    assert all(len(part) == CUT_ENTRIES for part in lists[:-1])
