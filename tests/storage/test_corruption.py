"""Bit rot in a store: every flipped bit of what is committed is found where it is, and a copy makes the file what it was."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from tests.storage.helpers import (
    Host,
    batch,
    chunk_entries,
    commit_all,
    files_of,
    fill,
    new_store,
    read_all,
    reopen,
    row,
)
from varlog.model.batch import entries_of, parse_header
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, Trimmed
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsDisk, OsFile
from varlog.storage.committed.log_store import LogStore
from varlog.storage.corruption import BlockRange, Corruption, intact_bytes

SEGMENT_BYTES = 1500
DIRECTORY = Path("/volume/lsid=3")


@pytest.fixture(autouse=True)
def _short_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points close together, so that small stores have many ranges."""
    monkeypatch.setattr("varlog.storage.committed.index.INDEX_STRIDE_BYTES", 256)


def filled(directory: Path, batches: int = 30) -> LogStore:
    """Batches of one to three entries over several segments, all of them committed."""
    store = new_store(directory, segment_bytes=SEGMENT_BYTES)
    for number in range(batches):
        fill(store, [[b"%d.%d" % (number, i) * (1 + number % 7) for i in range(1 + number % 3)]])
    commit_all(store)
    return store


def block_ranges(store: LogStore, bytes_max: int = 0) -> list[BlockRange]:
    found = []
    llsn = store.low_llsn
    while llsn < store.committed_end:
        found.append(store.block_range(llsn, bytes_max))
        llsn = found[-1].end
    return found


def rot_of(store: LogStore, bytes_max: int = 0) -> list[Corruption]:
    return [rot for blocks in block_ranges(store, bytes_max) for rot in store.examine(blocks)]


def bytes_of(blocks: BlockRange) -> bytes:
    """The batches of the range alone, without what may follow them."""
    content = blocks.segment.path.read_bytes()[blocks.offset : blocks.offset + blocks.size]
    at, llsn = 0, blocks.begin
    while llsn < blocks.end:
        header = parse_header(content, at)
        at, llsn = at + header.size, header.end_llsn
    return content[:at]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << at % 8
    path.write_bytes(content)


@pytest.mark.parametrize("bytes_max", [0, 600, 1 << 20])
def test_ranges_follow_each_other_and_cover_what_is_committed(tmp_path: Path, bytes_max: int) -> None:
    store = filled(tmp_path)
    found = block_ranges(store, bytes_max)
    assert found[0].begin == 1 and found[-1].end == store.committed_end
    for before, after in pairwise(found):
        assert after.begin == before.end
        assert before.segment is not after.segment or after.offset == before.offset + before.size
    parts = [part for blocks in found for part in blocks.parts()]
    assert [(part.begin, part.end) for part in parts] == [(s.begin, s.end) for s in block_ranges(store)]
    assert len(parts) > 10
    assert rot_of(store, bytes_max) == []


def test_every_flipped_byte_is_found_in_its_range_and_repaired(tmp_path: Path) -> None:
    """Headers, offsets, entries, padding: wherever it is, the file is byte for byte what it was."""
    store = filled(tmp_path, batches=14)
    good = files_of(store.path)
    for blocks in block_ranges(store):
        copy = bytes_of(blocks)
        for at in range(blocks.offset, blocks.offset + len(copy)):
            flip(blocks.segment.path, at)
            for bytes_max in (0, 1 << 20):
                (rot,) = rot_of(store, bytes_max)
                assert (rot.begin, rot.end) == (blocks.begin, blocks.end) and rot.what
            store.repair(blocks.begin, blocks.end, copy)
            assert rot_of(store) == []
    assert files_of(store.path) == good


def test_repairing_intact_data_changes_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path)
    good = files_of(store.path)
    for blocks in block_ranges(store):
        store.repair(blocks.begin, blocks.end, bytes_of(blocks))
    assert files_of(store.path) == good


def test_a_copy_that_is_not_exactly_the_range_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    store = filled(tmp_path)
    chosen = block_ranges(store)[3]
    copy, other = bytes_of(chosen), bytes_of(block_ranges(store)[4])
    flip(chosen.segment.path, chosen.offset + 70)
    before = files_of(store.path)
    corrupt = bytearray(copy)
    corrupt[-1] ^= 1
    for bad in (corrupt, copy[:-8], copy + bytes(8), copy + other, other, b""):
        with pytest.raises(CorruptBatch):
            store.repair(chosen.begin, chosen.end, bad)
    with pytest.raises(CorruptBatch, match="not between two points"):
        store.repair(chosen.begin, block_ranges(store)[4].end, copy + other)
    assert files_of(store.path) == before
    fill(store, [[b"the store is still sound"]])


def test_the_newest_range_is_repaired_below_what_is_not_committed(tmp_path: Path) -> None:
    """The tail behind it is neither looked at nor touched."""
    store = new_store(tmp_path)
    fill(store, [[b"a"]], [[b"b"]], [[b"c"]])
    store.commit(row(1, 1, 2))
    (newest,) = block_ranges(store)
    assert (newest.begin, newest.end, newest.exact) == (1, 3, False)
    copy, path = bytes_of(newest), newest.segment.path
    good = path.read_bytes()
    flip(path, len(copy) + 70)
    assert rot_of(store) == []
    flip(path, 70)
    assert [(rot.begin, rot.end) for rot in rot_of(store)] == [(1, 3)]
    store.repair(newest.begin, newest.end, copy)
    assert rot_of(store) == []
    flip(path, len(copy) + 70)
    assert path.read_bytes() == good
    with pytest.raises(CorruptBatch, match="LLSN 2 follows the copy, not 3"):
        store.repair(LLSN(1), LLSN(3), batch(1, [b"a", b"b"]))
    assert path.read_bytes() == good


def test_a_copy_that_was_fetched_before_more_was_written_still_fits(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, [[b"a" * 40]], [[b"b" * 40]])
    commit_all(store)
    (newest,) = block_ranges(store)
    copy = bytes_of(newest)
    flip(newest.segment.path, 70)
    fill(store, *[[[b"more" * 10]] for _ in range(10)])
    commit_all(store)
    store.repair(newest.begin, newest.end, copy)
    assert rot_of(store) == []
    assert reopen(store).written_end == 13


def test_a_cut_whose_place_is_hidden_by_damage_removes_nothing_and_works_once_repaired(
    tmp_path: Path,
) -> None:
    """Law 6: the tail is really gone, or the seal is not acknowledged."""
    store = new_store(tmp_path, segment_bytes=400)
    fill(store, *[[[b"x" * 50]] for _ in range(9)])
    store.commit(row(1, 1, 1))
    newest = store.block_range(LLSN(1))
    copy = bytes_of(newest)
    flip(newest.segment.path, newest.offset + 12)
    before = {name: content for name, content in files_of(store.path).items() if name.endswith("seg")}
    with pytest.raises(CorruptBatch):
        store.cut(Epoch(2), LLSN(2))
    assert {name: content for name, content in files_of(store.path).items() if name.endswith("seg")} == before
    store.repair(newest.begin, newest.end, copy)
    store.cut(Epoch(2), LLSN(2))
    assert (store.written_end, store.committed_end) == (2, 2)
    assert list(read_all(reopen(store))) == [1]


def test_a_cut_whose_place_is_hidden_by_damage_in_trimmed_entries_takes_all_of_them(tmp_path: Path) -> None:
    """What is trimmed cannot be repaired, and a seal must not wait for it."""
    store = new_store(tmp_path, segment_bytes=400)
    fill(store, *[[[b"x" * 50]] for _ in range(9)])
    store.commit(row(1, 1, 1))
    store.trim(GLSN(1))
    flip(store.block_range(LLSN(1)).segment.path, 12)
    store.cut(Epoch(2), LLSN(2))
    assert (store.written_end, store.committed_end, store.low_llsn) == (2, 2, 2)
    assert [path.name for path in store.path.glob("*.seg")] == ["00000000000000000002.seg"]
    store = reopen(store)
    assert (store.written_end, store.committed_end, store.low_llsn) == (2, 2, 2)
    store.open_epoch(Epoch(2))
    fill(store, [[b"new"]], epoch=2)
    commit_all(store)
    assert read_all(store) == {2: b"new"}


def test_damage_right_behind_a_seal_does_not_hinder_the_cut(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, *[[[b"x" * 50]] for _ in range(3)])
    store.commit(row(1, 1, 2))
    (newest,) = block_ranges(store)
    flip(newest.segment.path, len(bytes_of(newest)) + 12)
    store.cut(Epoch(2), LLSN(3))
    assert list(read_all(reopen(store))) == [1, 2]


def test_what_is_trimmed_in_a_damaged_range_is_filled_up_so_that_the_rest_can_be_read(
    tmp_path: Path,
) -> None:
    """No replica has the trimmed bytes any more, and the batch behind them is reached over their headers (law 9)."""
    store = filled(tmp_path)
    good = read_all(store)
    blocks = next(s for s in block_ranges(store)[5:] if s.exact and s.end - s.begin > 3)
    copy = bytes_of(blocks)
    header = parse_header(copy)
    store.trim(GLSN(header.end_llsn - 1))
    assert store.low_llsn == header.end_llsn and store.block_range(store.low_llsn) == blocks
    flip(blocks.segment.path, blocks.offset + 16)
    with pytest.raises(CorruptBatch):
        read_all(store)
    store.repair(blocks.begin, blocks.end, copy[header.size :])
    assert rot_of(store) == []
    expected = {llsn: entry for llsn, entry in good.items() if llsn >= store.low_llsn}
    assert read_all(store) == expected
    store = reopen(store)
    assert read_all(store) == expected
    with pytest.raises(Trimmed):
        store.extent(blocks.begin, 1)


def test_damage_in_trimmed_entries_before_a_tail_that_is_not_committed_is_filled_up(tmp_path: Path) -> None:
    """Nothing says where the readable part lies, neither a header nor the index: its own bytes do."""
    store = new_store(tmp_path)
    fill(store, *[[[bytes([64 + number]) * 9]] for number in range(6)])
    store.commit(row(1, 1, 2))  # the others are not ordered yet
    store.sync_rows()
    good = read_all(store)
    blocks = store.block_range(LLSN(1))
    assert (blocks.begin, blocks.end, blocks.exact) == (1, 3, False)
    copy, size = bytes_of(blocks), parse_header(bytes_of(blocks)).size
    store.trim(GLSN(1))
    flip(blocks.segment.path, blocks.offset + 16)  # the header of LLSN 1, which is trimmed
    store.repair(LLSN(1), LLSN(3), copy[size : 2 * size])
    assert rot_of(store) == []
    assert read_all(store) == {llsn: entry for llsn, entry in good.items() if llsn > 1}
    assert reopen(store).written_end == 7


def test_what_is_not_trimmed_is_never_filled_up(tmp_path: Path) -> None:
    store = filled(tmp_path)
    blocks = next(s for s in block_ranges(store) if s.end - s.begin > 3)
    copy = bytes_of(blocks)
    before = files_of(store.path)
    with pytest.raises(CorruptBatch, match="is not what was"):
        store.repair(blocks.begin, blocks.end, copy[parse_header(copy).size :])
    assert files_of(store.path) == before


@pytest.mark.parametrize("entries", [1, 3])
def test_damage_in_trimmed_entries_is_filled_up_and_opening_does_not_stumble_over_it(
    tmp_path: Path, entries: int
) -> None:
    """Opening reads the newest segment from its first byte on, trimmed or not."""
    store = new_store(tmp_path)
    fill(store, *[[[b"x" * 100] * entries] for _ in range(9)])
    commit_all(store)
    store.sync_rows()
    good = read_all(store)
    first = store.block_range(LLSN(1))
    store.trim(GLSN(first.end - 1))
    assert (store.oldest_llsn, store.low_llsn) == (1, first.end)
    flip(first.segment.path, 20)
    assert [(rot.begin, rot.end) for rot in store.examine(store.block_range(LLSN(1)))] == [(1, first.end)]
    store.fill(first.begin, first.end)
    store.fill(first.begin, first.end)
    assert store.examine(store.block_range(LLSN(1))) == []
    expected = {llsn: entry for llsn, entry in good.items() if llsn >= first.end}
    assert read_all(store) == expected
    assert read_all(reopen(store)) == expected


def test_a_large_trimmed_batch_is_filled_up_within_the_limits_of_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("varlog.storage.corruption.ENTRY_BYTES_MAX", 500)
    store = new_store(tmp_path)
    fill(store, [[b"x" * 450] * 4], [[b"next"]])
    commit_all(store)
    store.trim(GLSN(4))
    flip(store.block_range(LLSN(1)).segment.path, 70)
    store.fill(LLSN(1), LLSN(5))
    chunk = store.read(store.extent(LLSN(5), 1))
    assert chunk_entries(chunk) == {5: b"next"}
    data = store.block_range(LLSN(1)).segment.path.read_bytes()
    assert max(map(len, entries_of(data, parse_header(data)))) <= 500
    assert store.examine(store.block_range(LLSN(1))) == []


def test_sound_bytes_end_at_the_first_damage(tmp_path: Path) -> None:
    data = b"".join(batch(llsn, [b"a", b"b"]) for llsn in (1, 3, 5))
    size = len(data) // 3
    assert intact_bytes(data, LLSN(1), LLSN(7)) == (3 * size, 7)
    assert intact_bytes(data, LLSN(1), LLSN(3)) == (size, 3)
    assert intact_bytes(data, LLSN(2), LLSN(7)) == (3 * size, 7), "the batch that holds the LLSN"
    assert intact_bytes(data, LLSN(3), LLSN(7)) == (0, 3)
    assert intact_bytes(b"", LLSN(3), LLSN(7)) == (0, 3)
    for at in (size + 1, size + 70, 2 * size - 1):
        corrupt = bytearray(data)
        corrupt[at] ^= 1
        assert intact_bytes(corrupt, LLSN(1), LLSN(7)) == (size, 3)


def test_examining_does_not_open_segments_for_good(tmp_path: Path) -> None:
    store = reopen(filled(tmp_path), segment_bytes=SEGMENT_BYTES)
    assert rot_of(store) == []
    assert sum(blocks.segment.opened() is not None for blocks in block_ranges(store)[:-1]) <= 1


class _BadSector(OsDisk):
    """A disk that cannot read one place of one file."""

    def __init__(self) -> None:
        super().__init__(synced=False)
        self.bad: tuple[Path, int] | None = None

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        file = super().open(path, create=create)
        read = file.read_at

        def read_at(size: int, offset: int) -> bytes:
            if self.bad is not None and self.bad[0] == path and offset <= self.bad[1] < offset + size:
                raise OSError(5, "Input/output error")
            return read(size, offset)

        file.read_at = read_at  # type: ignore[method-assign]
        return file


def test_a_sector_that_cannot_be_read_is_rot_of_its_range(tmp_path: Path) -> None:
    filled(tmp_path).close()
    disk = _BadSector()
    store = LogStore.open(disk, tmp_path / "lsid=3", segment_bytes=SEGMENT_BYTES)
    commit_all(store)
    blocks = block_ranges(store)[2]
    disk.bad = (blocks.segment.path, blocks.offset + 100)
    assert [(rot.begin, rot.end) for rot in rot_of(store, 1 << 20)] == [(blocks.begin, blocks.end)]


def _segment(name: str) -> str:
    return name if name.endswith(".seg") else ""


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_in_the_middle_of_a_repair_leaves_damage_that_is_found_again(seed: int) -> None:
    """Sectors of the write survive or not: the range is damaged, or it is repaired; no other byte differs."""
    host = Host(seed)
    host.disk.make_directory(DIRECTORY.parent)
    store = LogStore.create(
        host.disk, DIRECTORY, topic=TopicID(7), log_stream=LogStreamID(3), segment_bytes=SEGMENT_BYTES
    )
    store.cut(Epoch(1), LLSN(1))
    fill(store, *[[[b"%d" % number * 200]] for number in range(12)])
    commit_all(store)
    store.sync_rows()
    good = host.files(DIRECTORY)
    # The newest segment is read when it is opened: damage in it is reported then (see test_damage).
    closed = [blocks for blocks in block_ranges(store) if blocks.segment.path.name != max(good, key=_segment)]
    blocks = random.Random(seed).choice(closed)
    name = blocks.segment.path.name
    copy = good[name][blocks.offset : blocks.offset + blocks.size]
    inode = host.drive.file(blocks.segment.path)
    for at in range(blocks.offset, blocks.offset + blocks.size, 97):
        inode.flip(at, at % 8)
    host.disk.crash_at = host.disk.operations + 1 + seed % 2
    with pytest.raises(BaseException, match="host"):
        store.repair(blocks.begin, blocks.end, copy)
    store = LogStore.open(host.boot(), DIRECTORY, segment_bytes=SEGMENT_BYTES)
    rotten = rot_of(store)
    assert [(rot.begin, rot.end) for rot in rotten] in ([], [(blocks.begin, blocks.end)])
    if rotten:
        store.repair(blocks.begin, blocks.end, copy)
    files = host.files(DIRECTORY)
    segments = [n for n in good if n.endswith(".seg")]
    assert {n: files[n] for n in segments[:-1]} == {n: good[n] for n in segments[:-1]}
    assert rot_of(store) == []


def test_a_repair_that_fails_on_the_disk_poisons_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that failed is never taken for one that worked, whatever it was for."""
    store = filled(tmp_path)
    blocks = block_ranges(store)[0]
    copy = bytes_of(blocks)

    def fail(self: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("varlog.runtime.disk.OsFile.sync", fail)
    with pytest.raises(OSError, match="Input/output"):
        store.repair(blocks.begin, blocks.end, copy)
    monkeypatch.undo()
    with pytest.raises(OSError, match="Input/output"):
        fill(store, [[b"no"]])


def test_a_segment_that_was_removed_is_damage_and_not_trimmed(tmp_path: Path) -> None:
    """Law 9: what nobody trimmed is never said to be."""
    store = filled(tmp_path)
    first = store.block_range(LLSN(1))
    first.segment.release()
    first.segment.path.unlink()
    with pytest.raises(CorruptBatch, match="missing"):
        store.read(store.extent(LLSN(1), 1))
    assert [(rot.begin, rot.what) for rot in store.examine(first)] == [(1, "its segment file is missing")]
