"""D5: a metadata file that is sound but old.

The device lost a write that it had acknowledged. Before, the scrub checked checksums alone: an epoch, a seal, a trim or
synced rows were forgotten with the next start.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.helpers import commit_all, fill, new_store, reopen, row
from tests.storage.sequenced import test_page_store as units
from tests.storage.test_metadata_files import order, store_of_many_rows
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptReplica
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.committed.log_store import LogStore
from varlog.storage.committed.row_file import ROWS_NAME
from varlog.storage.committed.state_file import STATE_NAME
from varlog.storage.corruption import intact_bytes, read_block_range
from varlog.storage.sequenced.sync_watermark import SLOT_BYTES, SYNCED_NAME, Synced, decode_slots, read_mark
from varlog.storage.sequenced.unit_state import UNIT_NAME

LOST = "the device lost a write"


def put_back(path: Path, old: bytes) -> None:
    """Write the former bytes into the same file, as open descriptors see it."""
    with path.open("r+b") as file:
        file.write(old)
        file.truncate(len(old))


# --- the state of a replica -----------------------------------------------------------------------------------------


def change(store: LogStore, what: str) -> None:
    match what:
        case "trim":
            store.trim(GLSN(9))
        case "seal":
            store.cut(Epoch(5), store.committed_end)
        case _:
            store.cut(Epoch(5), store.committed_end)
            store.open_epoch(Epoch(5))


@pytest.mark.parametrize("what", ["trim", "seal", "unseal"])
def test_an_old_state_is_noticed_and_written_again(tmp_path: Path, what: str) -> None:
    store = store_of_many_rows(tmp_path)
    path = store.path / STATE_NAME
    old = path.read_bytes()
    change(store, what)
    newest, low, epoch = path.read_bytes(), store.low_llsn, store.epoch
    assert newest != old
    path.write_bytes(old)
    reported = store.scrub_metadata()
    assert LOST in reported and str(path) in reported
    assert path.read_bytes() == newest
    assert store.scrub_metadata() == ""
    again = reopen(store)
    assert (again.low_llsn, again.epoch) == (low, epoch)
    again.close()


# --- commit rows ----------------------------------------------------------------------------------------------------


def commit_more(store: LogStore, count: int, *, synced: bool = True) -> None:
    glsn = store.high_watermark + 2
    last = store.last_row
    version = last.version + 1 if last is not None else 1
    for number in range(count):
        fill(store, [[b"more"] * 2])
        begin = store.committed_end
        store.commit(row(begin, glsn, 2, version=version + number))
        glsn += 3
        if synced:
            store.sync_rows()


@pytest.mark.parametrize("unsynced", [0, 2])
@pytest.mark.parametrize("count", [2, 5])
def test_rows_that_the_device_lost_are_written_again(tmp_path: Path, count: int, unsynced: int) -> None:
    store = store_of_many_rows(tmp_path)
    path = store.path / ROWS_NAME
    old = path.read_bytes()
    commit_more(store, count)
    commit_more(store, unsynced, synced=False)
    before, last = order(store), store.last_row
    put_back(path, old)
    reported = store.scrub_metadata()
    assert LOST in reported and str(path) in reported
    assert store.scrub_metadata() == ""
    again = reopen(store)
    assert order(again) == before
    assert again.last_row == last
    commit_more(again, 1)
    again.close()


def test_rows_that_the_device_lost_are_noticed_when_a_failed_disk_is_opened_again(tmp_path: Path) -> None:
    """Before, the replica continued behind the gap: the next commit froze it as if it contradicted the repository, and
    nothing repaired it, because such a replica is evidence."""
    store = store_of_many_rows(tmp_path)
    path = store.path / ROWS_NAME
    old = path.read_bytes()
    commit_more(store, 3)
    end = store.committed_end
    commit_more(store, 1, synced=False)
    put_back(path, old)
    fresh = store.reopened()
    with pytest.raises(
        CorruptReplica, match=f"rows end at LLSN {fresh.committed_end}, and were durable up to {end}"
    ):
        store.resume(fresh)
    fresh.close()


def test_sectors_that_the_device_lost_are_written_again(tmp_path: Path) -> None:
    store = store_of_many_rows(tmp_path)
    path = store.path / ROWS_NAME
    commit_more(store, 20)
    before = order(store)
    with path.open("r+b") as file:
        file.seek(512 * 3)
        file.write(bytes(len(path.read_bytes()) - 512 * 3))
    assert LOST in store.scrub_metadata()
    again = reopen(store)
    assert order(again) == before
    again.close()


def test_the_rows_from_before_a_compaction_are_not_taken_for_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are sound: only memory knows that the newest ones are missing."""
    monkeypatch.setattr("varlog.storage.committed.commit_store._COMPACT_ROWS_MIN", 4)
    store = store_of_many_rows(tmp_path)
    path = store.path / ROWS_NAME
    old = path.read_bytes()
    store.trim(GLSN(20))
    assert len(path.read_bytes()) < len(old)
    commit_more(store, 3)
    before, last = order(store), store.last_row
    put_back(path, old)
    assert LOST in store.scrub_metadata()
    assert store.scrub_metadata() == ""
    again = reopen(store)
    assert order(again) == before
    assert again.last_row == last
    again.close()


def test_rows_that_order_entries_differently_are_rejected(tmp_path: Path) -> None:
    """A file of the same length, sound, that contradicts memory."""
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        directory.mkdir()
    store, other = store_of_many_rows(one), store_of_many_rows(two)
    commit_more(store, 2)
    fill(other, [[b"more"] * 2], [[b"more"] * 2])
    begin = other.committed_end
    other.commit(row(begin, other.high_watermark + 50, 2, version=90))
    other.sync_rows()
    other.commit(row(begin + 2, other.high_watermark + 60, 2, version=91))
    other.sync_rows()
    before = order(store)
    put_back(store.path / ROWS_NAME, (other.path / ROWS_NAME).read_bytes())
    assert LOST in store.scrub_metadata()
    again = reopen(store)
    assert order(again) == before
    again.close()
    other.close()


def test_sound_rows_are_left_alone_whatever_was_trimmed_or_is_not_synced(tmp_path: Path) -> None:
    store = store_of_many_rows(tmp_path, unsynced=True)
    for glsn in (3, 9, 20, 100):
        assert store.scrub_metadata() == ""
        store.trim(GLSN(glsn))
        commit_more(store, 1, synced=False)
        assert store.scrub_metadata() == ""
    store.close()


# --- log units ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["epoch", "trim"])
def test_an_old_state_of_a_log_unit_is_noticed_and_written_again(tmp_path: Path, what: str) -> None:
    store = units.new_unit(tmp_path)
    units.write(store, units.sized(1), units.sized(3))
    path = store.path / UNIT_NAME
    old = path.read_bytes()
    if what == "epoch":
        store.set_epoch(Epoch(7))
    else:
        store.trim(LLSN(3))
    newest = path.read_bytes()
    path.write_bytes(old)
    assert LOST in store.scrub_metadata()
    assert path.read_bytes() == newest
    assert store.scrub_metadata() == ""
    store.close()


def test_an_old_mark_of_a_log_unit_is_noticed_and_written_again(tmp_path: Path) -> None:
    """With it, acknowledged entries would count as a torn write after a power loss."""
    store = units.new_unit(tmp_path)
    units.write(store, units.sized(1))
    path = store.path / SYNCED_NAME
    old = path.read_bytes()
    units.write(store, units.sized(3))
    newest = read_mark(OsDisk(), store.path)
    put_back(path, old)
    found = read_mark(OsDisk(), store.path)
    assert found is not None and newest is not None and found < newest
    assert LOST in store.scrub_metadata()
    assert decode_slots(path.read_bytes()[: 2 * SLOT_BYTES]) == (newest, newest)
    assert store.scrub_metadata() == ""
    assert newest > Synced()
    store.close()


# --- segments -------------------------------------------------------------------------------------------------------


def test_a_batch_that_a_seal_had_cut_off_is_not_taken_for_the_one_in_its_place(tmp_path: Path) -> None:
    """An older copy of a segment has, behind its last ordered entry, what was written in an epoch that is over: every
    checksum is right. Before, it was shown at the position of the entry that was ordered there since, and repair kept
    it."""
    store = new_store(tmp_path)
    fill(store, [[b"one"]])
    commit_all(store)
    fill(store, [[b"cut"]])
    (segment,) = store.path.glob("*.seg")
    old = segment.read_bytes()
    store.cut(Epoch(2), store.committed_end)
    store.open_epoch(Epoch(2))
    fill(store, [[b"two"]], epoch=2)
    store.commit(row(2, 2, 1, version=2, epoch=2))
    store.sync_rows()
    assert store.examine(store.block_range(LLSN(1), 1_000)) == []
    good = segment.read_bytes()
    put_back(segment, old)
    (rot,) = store.examine(store.block_range(LLSN(2), 1_000))
    assert "a batch of epoch 1 is where LLSN 2 of epoch 2 was ordered" in rot.what
    blocks = store.block_range(LLSN(2))
    size, end = intact_bytes(read_block_range(blocks), blocks.begin, blocks.end, store.ordered(blocks))
    assert end == 2 and old[:size] == good[:size]
    store.close()
