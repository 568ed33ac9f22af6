"""Bit rot beside the segments: whatever byte flips in state, rows or sidecars of an open store, memory puts it right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.storage.helpers import commit_all, files_of, fill, new_store, read_all, reopen, row
from varlog.model.batch import Buffer
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptReplica
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsFile
from varlog.storage.committed.log_store import LogStore
from varlog.storage.committed.row_file import ROW_BYTES

SEGMENT_BYTES = 350


def store_of_many_rows(directory: Path, *, unsynced: bool = False, trimmed: int = 0) -> LogStore:
    """Closed segments, rows that are apart in GLSN, two epochs; the newest row only in memory if asked for."""
    store = new_store(directory, segment_bytes=SEGMENT_BYTES)
    glsn = 1
    for number in range(12):
        fill(store, [[b"%d" % number * 20] * (1 + number % 2)])
        begin = store.committed_end
        store.commit(row(begin, glsn, store.written_end - begin, version=number + 1))
        glsn += store.written_end - begin + 1 + number % 3
        if not unsynced or number < 11:
            store.sync_rows()
    if trimmed:
        store.trim(GLSN(trimmed))
    return store


def order(store: LogStore) -> dict[int, int]:
    return {llsn: store.glsn_of(LLSN(llsn)) for llsn in range(store.low_llsn, store.committed_end)}


def flip(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def test_a_sound_store_is_left_alone(tmp_path: Path) -> None:
    store = store_of_many_rows(tmp_path)
    before = files_of(store.path)
    assert store.scrub_metadata() == ""
    assert store.scrub_sidecar(store.block_range(LLSN(1))) == ""
    assert files_of(store.path) == before


@pytest.mark.parametrize("bit", [0, 7])
def test_a_damaged_state_is_what_it_was(tmp_path: Path, bit: int) -> None:
    store = store_of_many_rows(tmp_path, trimmed=5)
    path = store.path / "state"
    good = path.read_bytes()
    for at in range(len(good)):
        flip(path, at, bit)
        assert "state is damaged" in store.scrub_metadata()
        assert path.read_bytes() == good
    path.unlink()
    assert "missing" in store.scrub_metadata()
    assert path.read_bytes() == good


@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_sidecar_is_what_it_was(tmp_path: Path, gone: bool) -> None:
    store = store_of_many_rows(tmp_path)
    path = min(store.path.glob("*.idx"))
    good = path.read_bytes()
    for at in range(len(good)):
        if gone:
            path.unlink()
        else:
            flip(path, at, 3)
        assert str(path) in store.scrub_sidecar(store.block_range(LLSN(1)))
        assert path.read_bytes() == good


def test_room_behind_the_last_batch_of_a_closed_segment_is_cut_off(tmp_path: Path) -> None:
    """An older copy, from when the segment was written to, has it; its batches are repaired, and the next start must not call the
    rest damage."""
    store = store_of_many_rows(tmp_path)
    path = min(store.path.glob("*.seg"))
    good = path.read_bytes()
    path.write_bytes(good + bytes(4096))
    assert "longer than what was written" in store.scrub_sidecar(store.block_range(LLSN(1)))
    assert path.read_bytes() == good
    assert store.scrub_sidecar(store.block_range(LLSN(1))) == ""


def test_the_newest_segment_gets_no_sidecar(tmp_path: Path) -> None:
    store = store_of_many_rows(tmp_path)
    before = files_of(store.path)
    assert store.scrub_sidecar(store.block_range(LLSN(store.committed_end - 1))) == ""
    assert files_of(store.path) == before


@pytest.mark.parametrize("unsynced", [False, True])
@pytest.mark.parametrize("trimmed", [0, 9])
def test_whatever_bit_flips_in_the_rows_the_order_stays(tmp_path: Path, unsynced: bool, trimmed: int) -> None:
    """Law 3: the order is decided once, forever."""
    store = store_of_many_rows(tmp_path, unsynced=unsynced, trimmed=trimmed)
    path = store.path / "commits.log"
    good, expected, entries = path.read_bytes(), order(store), read_all(store)
    synced_end = store.rows_synced_end
    for at in range(0, len(good) - ROW_BYTES, 3):
        flip(path, at, at % 8)
        assert "commits.log is damaged" in store.scrub_metadata()
        assert store.scrub_metadata() == ""
        again = LogStore.open(store._disk, store.path, segment_bytes=SEGMENT_BYTES)
        assert order(again) == {llsn: glsn for llsn, glsn in expected.items() if llsn < synced_end}
        assert (again.committed_end, again.low_llsn) == (synced_end, store.low_llsn)
        assert read_all(again) == {llsn: entry for llsn, entry in entries.items() if llsn < synced_end}
        if not unsynced:
            assert (again.high_watermark, again.last_row) == (store.high_watermark, store.last_row)
        again.close()
        path.write_bytes(good)


def test_the_last_row_keeps_its_epoch_and_its_context(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, [[b"a"]])
    commit_all(store)
    store.sync_rows()
    store.cut(Epoch(2), LLSN(2))
    store.open_epoch(Epoch(2))
    fill(store, [[b"b"], [b"c"]], epoch=2)
    commit_all(store, version=7)
    store.sync_rows()
    last = store.last_row
    flip(store.path / "commits.log", 2 * ROW_BYTES + 9, 1)
    assert store.scrub_metadata()
    assert reopen(store).last_row == last


def test_two_consecutive_bad_rows_are_reported_and_left_as_they_are(tmp_path: Path) -> None:
    store = store_of_many_rows(tmp_path)
    path = store.path / "commits.log"
    for number in (3, 4):
        flip(path, ROW_BYTES * (number + 1) + 10, 2)
    before = path.read_bytes()
    with pytest.raises(CorruptReplica, match="rows"):
        store.scrub_metadata()
    assert path.read_bytes() == before


def test_several_bad_rows_apart_are_put_right_together(tmp_path: Path) -> None:
    store = store_of_many_rows(tmp_path)
    expected = order(store)
    for number in (-1, 0, 2, 5, 11):
        flip(store.path / "commits.log", ROW_BYTES * (number + 1) + 10, 2)
    assert store.scrub_metadata()
    assert order(reopen(store, segment_bytes=SEGMENT_BYTES)) == expected


def test_a_compaction_signs_no_damaged_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped bit under a new checksum would be another order, forever (law 3)."""
    monkeypatch.setattr("varlog.storage.committed.commit_store._COMPACT_ROWS_MIN", 4)
    store = new_store(tmp_path)
    for number in range(1, 9):
        fill(store, [[b"x"]])
        store.commit(row(number, number, 1, version=number))
        if number < 4:
            store.sync_rows()
    expected = order(store)
    flip(store.path / "commits.log", 2 * ROW_BYTES + 25, 4)
    store.sync_rows()
    store.trim(GLSN(1))
    assert "commits.log is damaged" in store.scrub_metadata()
    store.trim(GLSN(2))
    del expected[1], expected[2]
    store = reopen(store)
    assert order(store) == expected


def test_what_a_failed_sync_left_readable_is_written_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The good row can be read back, and may not be on the disk; the next one that works writes the whole file."""
    store = store_of_many_rows(tmp_path)
    flip(store.path / "commits.log", 2 * ROW_BYTES + 9, 1)

    def fail(self: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr("varlog.runtime.disk.OsFile.sync", fail)
        with pytest.raises(OSError, match="Input/output"):
            store.scrub_metadata()
    store.resume(store.reopened())
    written: list[tuple[Path, int, int]] = []
    write = OsFile.write_at

    def spy(self: OsFile, buffers: Sequence[Buffer], offset: int) -> None:
        written.append((self.path, offset, sum(map(len, buffers))))
        write(self, buffers, offset)

    monkeypatch.setattr(OsFile, "write_at", spy)
    assert store.scrub_metadata() == ""
    path = store.path / "commits.log"
    assert written == [(path, 0, path.stat().st_size)]
    written.clear()
    assert store.scrub_metadata() == "" and written == []
