"""Torn and flipped bytes, at every offset of a small store: repaired or reported; never served, never lost silently."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.storage.helpers import (
    STREAM,
    TOPIC,
    Host,
    batch,
    commit_all,
    files_of,
    fill,
    new_store,
    read_all,
    reopen,
    row,
)
from varlog.model.batch import HEADER_BYTES
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, CorruptReplica
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.committed.log_store import LogStore
from varlog.storage.committed.row_file import ROW_BYTES, ROWS_NAME
from varlog.storage.committed.segment import Fence, Scan, scan
from varlog.storage.segment_file import ReadFileAt

DISK = OsDisk(synced=False)
DIRECTORY = Path(f"/volume/lsid={STREAM}")
SEGMENT_BYTES = 350


def small_store(directory: Path, segment_bytes: int = SEGMENT_BYTES) -> LogStore:
    """Two closed segments and a newest one; entries 1 to 7 trimmed up to 2 and committed up to 6, 7 to 8 not; rows of two syncs."""
    directory.mkdir(exist_ok=True)
    store = new_store(directory, segment_bytes=segment_bytes)
    fill(store, [[b"one", b"two"], [b"three" * 20]], [[b"four" * 30], [b"five"]])
    store.commit(row(1, 1, 3, version=1))
    store.sync_rows()
    store.commit(row(4, 8, 1, version=2))
    store.commit(row(5, 10, 1, version=3))
    store.sync_rows()
    fill(store, [[b"six"]])
    store.commit(row(6, 20, 1, version=4))
    store.sync_rows()
    fill(store, [[b"seven"], [b"eight"]])
    store.trim(GLSN(2))
    return store


COMMITTED = {3: b"three" * 20, 4: b"four" * 30, 5: b"five", 6: b"six"}
TAIL = {7: b"seven", 8: b"eight"}


def open_at(directory: Path) -> LogStore:
    return LogStore.open(DISK, directory, segment_bytes=SEGMENT_BYTES)


def check_intact(store: LogStore) -> None:
    """Every committed entry is there, the uncommitted tail is there up to some point, and the trim holds."""
    assert (store.committed_end, store.low_llsn, store.trimmed, store.high_watermark) == (7, 3, 2, 20)
    assert read_all(store) == COMMITTED
    assert [store.glsn_of(LLSN(llsn)) for llsn in COMMITTED] == [3, 8, 10, 20]
    tail_end = store.written_end
    assert 7 <= tail_end <= 9
    if tail_end > 7:
        store.commit(row(7, 30, tail_end - 7, version=9))
    assert read_all(store) == COMMITTED | {llsn: entry for llsn, entry in TAIL.items() if llsn < tail_end}


def test_the_small_store_is_what_the_tests_below_believe(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    assert [path.name[-6:] for path in sorted(store.path.iterdir())] == [
        "01.idx", "01.seg", "04.idx", "04.seg", "06.seg", "ts.log", "state",
    ]  # fmt: skip
    check_intact(reopen(store, segment_bytes=SEGMENT_BYTES))


def open_or_damaged(host: Host) -> tuple[LogStore | None, str]:
    """The store, or the path that is called damaged."""
    try:
        return LogStore.open(host.disk, DIRECTORY, segment_bytes=SEGMENT_BYTES), ""
    except CorruptReplica as damaged:
        return None, damaged.path


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_a_flipped_byte_at_any_offset_is_repaired_or_reported(tmp_path: Path, flip: int) -> None:
    """Opening succeeds with every committed entry intact, or raises CorruptReplica, names the file and touches nothing."""
    original = small_store(tmp_path)
    original.close()
    files = files_of(original.path)
    newest = max(name for name in files if name.endswith(".seg"))
    reported = opened = 0
    for name, good in files.items():
        closed = name.endswith(".seg") and name != newest
        for at in range(len(good)):
            flipped = files | {name: good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]}
            host = Host(at)
            host.put(DIRECTORY, flipped)
            store, damaged = open_or_damaged(host)
            if store is None:
                assert name in damaged, f"{name} was flipped at {at}, {damaged} was named"
                assert host.files(DIRECTORY) == flipped
                reported += 1
                continue
            opened += 1
            try:
                check_intact(store)
            except CorruptBatch:
                # Not read when it was opened, or noted then: a reader uses another replica, and it is repaired.
                assert closed or store.corrupt_ranges, f"{name} at {at}"
    assert reported > 300 and opened > 300


@pytest.mark.parametrize("how", ["short", "zeros", "noise"])
def test_a_group_torn_at_any_offset_is_cut_at_a_batch(tmp_path: Path, how: str) -> None:
    """Law 1: the group was not acknowledged, so any whole batches of it may stay, and nothing else."""
    original = small_store(tmp_path, segment_bytes=2000)
    fill(original, [[b"nine", b"ten"], [b"eleven"], [b"twelve" * 9]])
    original.close()
    newest = max(original.path.glob("*.seg")).name
    good = (original.path / newest).read_bytes()
    sizes = [len(batch(9, [b"nine", b"ten"])), len(batch(11, [b"eleven"])), len(batch(12, [b"twelve" * 9]))]
    used = len(good.rstrip(b"\0")) + 7 & ~7
    begin = used - sum(sizes)
    assert good[begin : begin + 4] == b"VLB1"
    files = files_of(original.path)
    for at in range(begin, used):
        rest = {"short": b"", "zeros": bytes(len(good) - at), "noise": b"\xa5" * (len(good) - at)}[how]
        host = Host(at)
        host.put(DIRECTORY, files | {newest: good[:at] + rest})
        store = LogStore.open(host.disk, DIRECTORY, segment_bytes=2000)
        ends = [9, 11, 12, 13]
        whole = sum(1 for number in range(1, 4) if begin + sum(sizes[:number]) <= at)
        # A torn end that was zero anyway (padding) leaves the batch whole.
        assert store.written_end in ({ends[whole], ends[whole + 1]} if how == "zeros" else {ends[whole]})
        assert len(host.files(DIRECTORY)[newest]) <= used
        fill(store, [[b"again"]])
        store.commit(row(7, 30, store.written_end - 7, version=9))
        entries = read_all(store)
        assert entries[7] == b"seven" and entries[store.written_end - 1] == b"again"


def test_a_hole_in_a_group_hides_what_is_behind_it_forever(tmp_path: Path) -> None:
    """A power loss may keep the second batch of a group and lose the first. The second must not come back when the first
    position is written again."""
    store = new_store(tmp_path)
    fill(store, [[b"keep"]])
    fill(store, [[b"lost"], [b"ghost"]])
    store.close()
    newest = max(store.path.glob("*.seg"))
    content = bytearray(newest.read_bytes())
    at = content.index(b"lost") - 64 - 8
    content[at : at + len(batch(2, [b"lost"]))] = bytes(len(batch(2, [b"lost"])))
    newest.write_bytes(content)
    store = LogStore.open(DISK, store.path)
    assert store.written_end == 2
    fill(store, [[b"next"]])
    assert reopen(store).written_end == 3
    assert b"ghost" not in newest.read_bytes()


@pytest.mark.parametrize(
    "missing", ["state", "commits.log", "00000000000000000001.seg", "00000000000000000004.seg"]
)
def test_a_missing_file_is_reported(tmp_path: Path, missing: str) -> None:
    store = small_store(tmp_path)
    store.close()
    (store.path / missing).unlink()
    before = files_of(store.path)
    with pytest.raises(CorruptReplica):
        open_at(store.path)
    assert files_of(store.path) == before


def test_a_replica_under_another_streams_name_is_reported(tmp_path: Path) -> None:
    """R-SN-7: a directory is not trusted by its name."""
    store = new_store(tmp_path)
    store.close()
    store.path.rename(tmp_path / "lsid=99")
    with pytest.raises(CorruptReplica, match="log stream 3"):
        LogStore.open(DISK, tmp_path / "lsid=99")


def test_rows_of_another_replica_are_reported(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.close()
    (tmp_path / "other").mkdir()
    other = LogStore.create(DISK, tmp_path / "other" / "lsid=4", topic=TOPIC, log_stream=LogStreamID(4))
    shutil.copy(other.path / "commits.log", store.path / "commits.log")
    with pytest.raises(CorruptReplica, match="log stream 4"):
        LogStore.open(DISK, store.path)


def test_rows_beyond_the_data_are_dropped_and_never_made_good_from_the_tail(tmp_path: Path) -> None:
    """R-CTX-3: the commit was partial: drop it, take the one before, continue from there."""
    store = new_store(tmp_path)
    fill(store, [[b"a"], [b"b"], [b"c"], [b"d"]])
    store.commit(row(1, 1, 2, version=1))
    store.sync_rows()
    store.commit(row(3, 7, 2, version=2))
    store.sync_rows()
    store.close()
    newest = store.path / "00000000000000000001.seg"
    newest.write_bytes(
        newest.read_bytes()[: 3 * len(batch(1, [b"a"]))]
    )  # the data ends in the middle of the second row
    store = LogStore.open(DISK, store.path)
    assert (store.written_end, store.committed_end, store.high_watermark) == (4, 3, 2)
    assert store.last_row == row(1, 1, 2, version=1)
    # Another order may come for the entry that is left; it is the repository's word that counts.
    store.commit(row(3, 7, 1, version=2))
    store.sync_rows()
    assert reopen(store).last_row == row(3, 7, 1, version=2)


def test_a_tail_behind_a_seal_is_cut_again_when_the_crash_came_before_the_cut(tmp_path: Path) -> None:
    """Law 6, over several segments: the state is durable, the truncation is not."""
    store = new_store(tmp_path, segment_bytes=400)
    fill(store, *[[[b"x" * 100]] for _ in range(10)])
    store.commit(row(1, 1, 3))
    store.sync_rows()
    tail = files_of(store.path)
    store.cut(Epoch(2), LLSN(4))
    store.close()
    for name, content in tail.items():
        if name.endswith((".seg", ".idx")):
            (store.path / name).write_bytes(content)
    store = LogStore.open(DISK, store.path, segment_bytes=400)
    assert (store.written_end, store.committed_end) == (4, 4)
    assert sorted(path.name for path in store.path.glob("*.seg")) == [
        "00000000000000000001.seg",
        "00000000000000000003.seg",
    ]
    fill(store, [[b"new"]], epoch=2)
    commit_all(store)
    assert read_all(store)[4] == b"new"


def test_entries_that_were_committed_behind_a_seal_are_damage_not_a_tail(tmp_path: Path) -> None:
    """Law 6 says it cannot be; if it is, nothing is touched."""
    store = new_store(tmp_path)
    fill(store, [[b"a"], [b"b"]])
    commit_all(store)
    store.sync_rows()
    store.set_epoch(Epoch(2), LLSN(2))
    store.close()
    before = files_of(store.path)
    with pytest.raises(CorruptReplica, match="older epoch"):
        LogStore.open(DISK, store.path)
    assert files_of(store.path) == before


def test_segments_that_a_trim_was_removing_go_in_any_order(tmp_path: Path) -> None:
    """Law 9: names may be lost in another order than they were removed."""
    store = new_store(tmp_path, segment_bytes=400)
    fill(store, *[[[b"x" * 100]] for _ in range(10)])
    commit_all(store)
    store.sync_rows()
    tail = files_of(store.path)
    store.trim(GLSN(8))
    store.close()
    for name in ("00000000000000000001.seg", "00000000000000000005.seg", "00000000000000000005.idx"):
        (store.path / name).write_bytes(tail[name])
    store = LogStore.open(DISK, store.path, segment_bytes=400)
    assert list(read_all(store)) == [9, 10]
    assert [path.name for path in sorted(store.path.glob("*.seg"))] == ["00000000000000000009.seg"]
    assert list(store.path.glob("*.idx")) == []


def test_leftovers_of_replacements_are_cleared(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    (store.path / "state.new").write_bytes(b"half")
    (store.path / "00000000000000000099.idx").write_bytes(b"orphan")
    check_intact(reopen(store, segment_bytes=SEGMENT_BYTES))
    assert not list(store.path.glob("*.new")) and not (store.path / "00000000000000000099.idx").exists()


def test_an_open_of_a_sound_store_reads_no_closed_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening must not read whole segments: the time of an open does not grow with the log."""
    store = small_store(tmp_path)
    store.close()
    scanned: list[LLSN] = []

    def spy(read: ReadFileAt, size: int, first_llsn: LLSN, *rest: Fence | LLSN) -> Scan:
        scanned.append(first_llsn)
        return scan(read, size, first_llsn, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("varlog.storage.committed.recovery.scan", spy)
    open_at(store.path)
    assert scanned == [6]


def test_a_rotten_body_of_an_ordered_batch_in_the_newest_segment_is_noted_and_the_rest_opens(
    tmp_path: Path,
) -> None:
    """No crash spoils what was ordered, so it is no torn tail: nothing behind it may be cut (law 10)."""
    original = small_store(tmp_path)
    original.close()
    newest = max(original.path.glob("*.seg"))
    content = bytearray(newest.read_bytes())
    content[HEADER_BYTES + 9] ^= 4  # in "six", which is ordered; seven and eight lie behind it and are not
    newest.write_bytes(content)
    store = open_at(original.path)
    assert store.corrupt_ranges == ((6, 7),)
    assert (store.committed_end, store.written_end) == (7, 9)
    with pytest.raises(CorruptBatch):
        read_all(store)


ROWS = 3


def _newest_row_goes_bad(host: Host) -> None:
    host.drive.file(DIRECTORY / ROWS_NAME).flip(ROW_BYTES * ROWS + 9, 2)


def _lose_power(host: Host) -> None:
    while host.drive.crash(host.rng) != "lose all":
        pass
    host.boot()


def _ordered(host: Host) -> LogStore:
    store = LogStore.create(host.disk, DIRECTORY, topic=TOPIC, log_stream=STREAM)
    for number in range(ROWS):
        fill(store, [[b"entry"]])
        commit_all(store, 10 * (number + 1))  # far apart: rows that follow each other become one
        store.sync_rows()
    return store


def test_a_newest_row_that_goes_bad_after_a_clean_stop_is_damage_whatever_power_was_lost() -> None:
    """Taken for a torn write it would be cut, and with it the only memory of a position where the repository is older."""
    host = Host(1)
    store = _ordered(host)
    store.settle_rows()
    store.close()
    _lose_power(host)
    _newest_row_goes_bad(host)
    assert open_or_damaged(host) == (None, str(DIRECTORY / ROWS_NAME))


def test_a_row_that_was_found_bad_is_damage_after_a_loss_of_power_as_well() -> None:
    host = Host(1)
    _ordered(host)
    host.boot()  # the process is gone, and what it had not synced is still to be read
    _newest_row_goes_bad(host)
    assert open_or_damaged(host) == (None, str(DIRECTORY / ROWS_NAME))
    _lose_power(host)
    assert open_or_damaged(host) == (None, str(DIRECTORY / ROWS_NAME))
