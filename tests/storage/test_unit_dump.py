"""The dump of log units: what is there, what is damaged, and not a byte touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.helpers import STREAM, TOPIC, batch, files_of
from varlog.model.batch import junk
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch
from varlog.model.lsn import LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.dump import UnitDump, dump, dump_batches, dump_unit
from varlog.storage.segment_file import index_path
from varlog.storage.sequenced.page_segment import page_segment_path
from varlog.storage.sequenced.page_store import PageStore


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Epoch 2, LLSNs 1 to 12 without 7 and 8, two segments; the first two are junk."""
    path = tmp_path / f"lsid={STREAM}"
    store = PageStore.create(OsDisk(synced=False), path, topic=TOPIC, log_stream=STREAM, segment_bytes=600)
    store.set_epoch(Epoch(2))
    for first in (5, 3, 11, 9):
        store.publish(store.append([batch(first, [b"x" * 50] * 2)]))
    store.publish(store.append([junk(LLSN(1), 2)]))
    store.close()
    return path


def only(path: Path) -> UnitDump:
    [found] = dump(OsDisk(), path).units
    return found


def test_a_unit_is_shown_as_it_is(unit: Path) -> None:
    before = files_of(unit)
    seen = only(unit)
    assert seen.state is not None and (seen.state.epoch, seen.state.low) == (2, 1)
    assert (seen.newest, seen.dense_end, seen.runs) == (12, 7, 2)
    assert [(s.number, s.lowest_llsn, s.highest_llsn, s.batches, s.entries) for s in seen.segments] == [
        (1, 3, 12, 3, 6),
        (2, 1, 10, 2, 4),
    ]
    assert [(s.index, s.junk_entries, s.problem) for s in seen.segments] == [("ok", 0, ""), ("none", 2, "")]
    assert seen.problems == [] and seen.notes == []
    assert files_of(unit) == before


def test_batches_are_listed_in_the_order_of_their_arrival(unit: Path) -> None:
    segment = page_segment_path(unit, 1)
    found = [header for _, header in dump_batches(OsDisk(), segment)]
    assert [header.first_llsn for header in found if not isinstance(header, CorruptBatch)] == [5, 3, 11]


@pytest.mark.parametrize(
    ("name", "at", "said"),
    [
        ("00000000000000000001.seg", 276, "[3, 5) are damaged"),
        ("00000000000000000001.seg", 180, "at byte 176"),
        ("00000000000000000002.seg", 100, "[9, 11) are damaged"),
        ("00000000000000000002.seg", 2, "at byte 0"),
        ("unit", 20, "checksum is wrong"),
    ],
)
def test_every_damaged_byte_is_a_problem(unit: Path, name: str, at: int, said: str) -> None:
    content = bytearray((unit / name).read_bytes())
    content[at] ^= 1
    (unit / name).write_bytes(content)
    assert any(said in problem for problem in dump(OsDisk(), unit).problems)


def test_a_lost_sidecar_and_a_torn_tail_are_no_problems(unit: Path) -> None:
    index_path(page_segment_path(unit, 1)).unlink()
    newest = page_segment_path(unit, 2)
    newest.write_bytes(newest.read_bytes() + bytes(batch(20, [b"x" * 50]))[:80])
    seen = dump_unit(OsDisk(), unit)
    assert seen.problems == [] and [s.index for s in seen.segments] == ["missing", "none"]
    assert "cut 00000000000000000002.seg" in seen.notes[0]


def test_units_stand_beside_replicas(unit: Path) -> None:
    """Found from a node's directory on."""
    seen = dump(OsDisk(), unit.parent)
    assert [found.path for found in seen.units] == [unit] and seen.replicas == []
