"""LogStore: append, commit, read, trim, cut and reopen of one replica."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.helpers import (
    STREAM,
    TOPIC,
    FailingDisk,
    batch,
    chunk_entries,
    commit_all,
    fill,
    new_store,
    raised,
    read_all,
    reopen,
    row,
)
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, NotWritten, StaleEpoch, Trimmed, Unavailable
from varlog.model.invariant import InvariantBroken
from varlog.model.limits import INDEX_STRIDE_BYTES
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsDisk, OsFile
from varlog.storage.committed.log_store import LogStore


def numbered(count: int, size: int = 8, start: int = 1) -> list[list[bytes]]:
    """`count` batches of one entry each, all different."""
    return [[f"{number:08d}".encode().ljust(size, b".")] for number in range(start, start + count)]


def now_and_after_restart(store: LogStore, *, segment_bytes: int = 1 << 20) -> Iterator[LogStore]:
    yield store
    yield reopen(store, segment_bytes=segment_bytes)


# --- a new store ---------------------------------------------------------------------------------------------------


def test_a_new_store_is_empty(tmp_path: Path) -> None:
    store = LogStore.create(OsDisk(), tmp_path / "lsid=3", topic=TOPIC, log_stream=STREAM)
    for opened in (store, LogStore.open(OsDisk(), store.path)):
        assert (opened.topic, opened.log_stream, opened.path) == (TOPIC, STREAM, tmp_path / "lsid=3")
        assert (opened.epoch, opened.sealed_end, opened.opened) == (0, 1, False)
        assert (opened.written_end, opened.committed_end, opened.low_llsn, opened.rows_synced_end) == (
            1,
            1,
            1,
            1,
        )
        assert (opened.trimmed, opened.high_watermark, opened.last_row) == (0, 0, None)
        assert (opened.find(GLSN(1)), opened.llsn_from(GLSN(1))) == (None, 1)
        assert opened.rows_between(LLSN(1), LLSN(9)) == ()


def test_a_store_is_never_made_over_another(tmp_path: Path) -> None:
    """R-SN-6."""
    store = new_store(tmp_path)
    with pytest.raises(FileExistsError):
        LogStore.create(OsDisk(), store.path, topic=TOPIC, log_stream=STREAM)


# --- append, commit, read -----------------------------------------------------------------------------------------


def test_what_is_appended_and_committed_is_read_back_also_after_a_restart(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, [[b"a", b"b"], [b"c"]], [[b"", b"e" * 5000]])
    commit_all(store)
    store.sync_rows()
    expected = {1: b"a", 2: b"b", 3: b"c", 4: b"", 5: b"e" * 5000}
    assert read_all(store) == expected
    again = reopen(store)
    assert read_all(again) == expected
    assert (again.written_end, again.committed_end, again.high_watermark, again.rows_synced_end) == (
        6,
        6,
        5,
        6,
    )
    assert again.last_row == row(1, 1, 5)


def test_only_what_is_committed_can_be_read(tmp_path: Path) -> None:
    """Law 5."""
    store = new_store(tmp_path)
    fill(store, numbered(5))
    store.commit(row(1, 1, 2))
    assert list(read_all(store)) == [1, 2]
    with pytest.raises(NotWritten) as unwritten:
        store.extent(LLSN(3), 1)
    assert (unwritten.value.position, unwritten.value.newest) == (3, 2)
    with pytest.raises(NotWritten):
        store.glsn_of(LLSN(3))


@pytest.mark.parametrize("bytes_max", [1, 100, 5000, 1 << 20])
@pytest.mark.parametrize("size", [8, 1000, INDEX_STRIDE_BYTES, 3 * INDEX_STRIDE_BYTES])
def test_every_entry_is_found_from_every_position(tmp_path: Path, size: int, bytes_max: int) -> None:
    store = new_store(tmp_path, segment_bytes=100_000)
    fill(store, numbered(40, size), numbered(1, 50_000), numbered(40, size, 42))
    commit_all(store)
    everything = read_all(store)
    assert list(everything) == list(range(1, 82))
    for llsn in range(1, 82):
        chunk = store.read(store.extent(LLSN(llsn), bytes_max))
        assert chunk.first_llsn == llsn and chunk.data.nbytes <= max(bytes_max, 64 + 8 + 50_000)
        assert chunk_entries(chunk) == {at: everything[at] for at in range(llsn, chunk.end_llsn)}
        assert len(chunk_entries(chunk)) == 1 or chunk.data.nbytes <= bytes_max


def test_a_batch_is_never_cut_but_may_begin_before_the_requested_position(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, [[b"a", b"b", b"c"], [b"d"]])
    commit_all(store)
    chunk = store.read(store.extent(LLSN(2), 1))
    assert (chunk.first_llsn, chunk.end_llsn, chunk_entries(chunk)) == (1, 4, {1: b"a", 2: b"b", 3: b"c"})


def test_a_full_fetch_is_nearly_as_large_as_requested(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, numbered(500, 1000))
    commit_all(store)
    chunk = store.read(store.extent(LLSN(3), 100_000))
    assert 100_000 - 2 * INDEX_STRIDE_BYTES < chunk.data.nbytes <= 100_000


def test_groups_of_more_buffers_than_one_writev_takes_are_written(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, numbered(2500))
    commit_all(store)
    assert len(read_all(reopen(store))) == 0  # no row was synced: nothing is committed
    store = LogStore.open(OsDisk(synced=False), store.path)
    assert store.written_end == 2501
    commit_all(store)
    assert read_all(store) == {number: f"{number:08d}".encode() for number in range(1, 2501)}


def test_one_buffer_may_hold_several_batches(tmp_path: Path) -> None:
    """A backup gets them back to back."""
    store = new_store(tmp_path)
    store.append([memoryview(batch(1, [b"a"]) + batch(2, [b"b", b"c"])), batch(4, [b"d"])])
    commit_all(store)
    assert read_all(store) == {1: b"a", 2: b"b", 3: b"c", 4: b"d"}


def test_segments_roll_by_size_and_the_sidecars_serve_after_a_restart(tmp_path: Path) -> None:
    store = new_store(tmp_path, segment_bytes=2000)
    fill(store, *[numbered(7, 100, 1 + 7 * group) for group in range(6)])
    commit_all(store)
    store.sync_rows()
    expected = read_all(store)
    segments = sorted(store.path.glob("*.seg"))
    assert len(segments) == 4 and all(path.stat().st_size <= 2000 for path in segments)
    assert len(list(store.path.glob("*.idx"))) == 3
    assert read_all(reopen(store, segment_bytes=2000)) == expected


def test_a_lost_or_corrupt_sidecar_is_rebuilt(tmp_path: Path) -> None:
    store = new_store(tmp_path, segment_bytes=2000)
    fill(store, numbered(60, 100))
    commit_all(store)
    store.sync_rows()
    expected = read_all(store)
    first, second, *_ = sidecars = sorted(store.path.glob("*.idx"))
    written = [path.read_bytes() for path in sidecars]
    first.unlink()
    second.write_bytes(b"nonsense")
    store = reopen(store, segment_bytes=2000)
    assert read_all(store) == expected
    assert [path.read_bytes() for path in sidecars] == written


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    store = new_store(tmp_path, segment_bytes=1000)
    fill(store, [[b"a"], [b"b" * 5000], [b"c"]])
    commit_all(store)
    store.sync_rows()
    assert list(read_all(reopen(store, segment_bytes=1000))) == [1, 2, 3]
    assert len(list(store.path.glob("*.seg"))) == 3


def test_what_does_not_continue_where_the_log_ends_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """Law 4."""
    store = new_store(tmp_path)
    with pytest.raises(InvariantBroken, match="law 4"):
        store.append([batch(1, [b"a"]), batch(3, [b"gap"])])
    with pytest.raises(InvariantBroken, match="whole batches"):
        store.append([batch(1, [b"a"])[:-8]])
    fill(store, [[b"right"]])
    commit_all(store)
    assert read_all(store) == {1: b"right"}


def test_a_batch_of_an_epoch_that_is_over_is_refused(tmp_path: Path) -> None:
    """Law 7. Below the seal an older epoch's batch is welcome: that is how a replica catches up."""
    store = new_store(tmp_path)
    store.set_epoch(Epoch(4), LLSN(3))
    fill(store, [[b"a", b"b"]], epoch=2)
    with pytest.raises(StaleEpoch):
        fill(store, [[b"c"]], epoch=3)
    fill(store, [[b"c"]], epoch=4)
    assert store.written_end == 4


# --- order ---------------------------------------------------------------------------------------------------------


def test_both_orders_are_searched_both_ways(tmp_path: Path) -> None:
    """R-READ-2: the rows are (1..3 at 5..7), (4..5 at 10..11), (6 at 12): the last two are adjacent and merge."""
    store = new_store(tmp_path)
    fill(store, numbered(8))
    for committed in (row(1, 5, 3, 1), row(4, 10, 2, 2), row(6, 12, 1, 3)):
        store.commit(committed)
    assert [store.glsn_of(LLSN(llsn)) for llsn in range(1, 7)] == [5, 6, 7, 10, 11, 12]
    assert [store.find(GLSN(glsn)) for glsn in range(4, 14)] == [None, 1, 2, 3, None, None, 4, 5, 6, None]
    assert [store.llsn_from(GLSN(glsn)) for glsn in (1, 5, 7, 8, 9, 10, 12, 13, 99)] == [
        1,
        1,
        3,
        4,
        4,
        4,
        6,
        7,
        7,
    ]
    assert store.rows_between(LLSN(1), LLSN(7)) == ((1, 5, 3), (4, 10, 3))
    assert store.rows_between(LLSN(2), LLSN(5)) == ((2, 6, 2), (4, 10, 1))
    assert store.rows_between(LLSN(5), LLSN(99)) == ((5, 11, 2),)
    assert (store.committed_end, store.high_watermark, store.last_row) == (7, 12, row(6, 12, 1, 3))


def test_a_position_is_found_in_memory_and_read_from_disk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-READ-2: in each of several segments, also after a restart."""
    store = new_store(tmp_path, segment_bytes=1000)
    fill(store, numbered(30, 100))
    store.commit(row(1, 101, 30))
    store.sync_rows()
    read: list[int] = []
    read_at = OsFile.read_at

    def spy(self: OsFile, size: int, offset: int) -> bytes:
        read.append(size)
        return read_at(self, size, offset)

    for opened in now_and_after_restart(store, segment_bytes=1000):
        with monkeypatch.context() as spied:
            spied.setattr(OsFile, "read_at", spy)
            for number in (1, 9, 10, 17, 30):
                llsn = opened.find(GLSN(100 + number))
                assert llsn == number
                extent = opened.extent(llsn, 1)
                assert read == [], "found in memory"
                found = chunk_entries(opened.read(extent))
                assert found[llsn].startswith(f"{number:08d}".encode())
                assert len(read) == 1
                read.clear()


def test_a_commit_that_skips_goes_back_or_runs_ahead_is_our_bug(tmp_path: Path) -> None:
    """Laws 1, 3, 4. R-CTX-2: a commit context is taken only for entries that are on disk already."""
    store = new_store(tmp_path)
    fill(store, numbered(4))
    store.commit(row(1, 5, 2))
    for wrong in (row(4, 9, 1), row(1, 5, 2), row(3, 6, 1), row(3, 7, 3)):
        with pytest.raises(InvariantBroken):
            store.commit(wrong)
    assert (store.committed_end, store.high_watermark) == (3, 6)


def test_rows_are_durable_only_after_their_sync(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, numbered(6))
    store.commit(row(1, 1, 2))
    assert store.sync_rows() == store.rows_synced_end == 3
    store.commit(row(3, 9, 4, version=2))
    assert store.rows_synced_end == 3
    again = reopen(store)
    assert (again.committed_end, again.rows_synced_end, again.written_end) == (3, 3, 7)
    again.commit(row(3, 9, 4, version=2))  # the repository sends what was not synced
    assert again.sync_rows() == 7
    assert reopen(again).last_row == row(3, 9, 4, version=2)


# --- trim ------------------------------------------------------------------------------------------------------------


def test_a_trim_is_reported_and_survives_a_restart(tmp_path: Path) -> None:
    """R-TRIM-1, law 9."""
    store = new_store(tmp_path, segment_bytes=1000)
    fill(store, numbered(30, 100))
    store.commit(row(1, 11, 30))
    store.trim(GLSN(25))
    for opened in now_and_after_restart(store, segment_bytes=1000):
        assert (opened.trimmed, opened.low_llsn, opened.committed_end) == (25, 16, 31)
        with pytest.raises(Trimmed) as trimmed:
            opened.extent(LLSN(15), 1)
        assert (trimmed.value.position, trimmed.value.oldest) == (15, 16)
        with pytest.raises(Trimmed):
            opened.glsn_of(LLSN(15))
        assert (opened.find(GLSN(25)), opened.find(GLSN(26)), opened.llsn_from(GLSN(1))) == (None, 16, 16)
        assert list(read_all(opened)) == list(range(16, 31))


def test_a_trim_removes_whole_segments_and_their_sidecars(tmp_path: Path) -> None:
    store = new_store(tmp_path, segment_bytes=1000)
    fill(store, numbered(30, 100))
    commit_all(store)
    before = store.size_bytes
    store.trim(GLSN(29))
    assert [path.name for path in sorted(store.path.glob("*.seg"))] == ["00000000000000000026.seg"]
    assert list(store.path.glob("*.idx")) == []
    assert store.size_bytes < before / 4
    assert read_all(store) == {30: b"00000030".ljust(100, b".")}


def test_everything_can_be_trimmed_and_the_log_continues(tmp_path: Path) -> None:
    store = new_store(tmp_path, segment_bytes=1000)
    fill(store, numbered(30, 100))
    store.commit(row(1, 1, 30, version=8))
    store.trim(GLSN(99))
    store = reopen(store, segment_bytes=1000)
    assert (store.low_llsn, store.committed_end, store.high_watermark, store.last_row) == (
        31,
        31,
        30,
        row(1, 1, 30, 8),
    )
    fill(store, numbered(2, 100, 31))
    store.commit(row(31, 100, 2))
    assert list(read_all(store)) == [31, 32]


def test_entries_trimmed_before_they_were_ordered_here_are_trimmed_when_they_are(tmp_path: Path) -> None:
    """Law 9: a trim can reach a replica before the rows do."""
    store = new_store(tmp_path)
    fill(store, numbered(6))
    store.commit(row(1, 1, 2))
    store.trim(GLSN(4))
    store.commit(row(3, 3, 4, version=2))
    store.sync_rows()
    for opened in now_and_after_restart(store):
        assert (opened.low_llsn, opened.trimmed) == (5, 4)
        assert list(read_all(opened)) == [5, 6]


def test_a_trim_never_goes_back(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, numbered(6))
    commit_all(store)
    store.trim(GLSN(4))
    store.trim(GLSN(2))
    assert (store.trimmed, store.low_llsn) == (4, 5)


def test_a_reader_of_a_trimmed_segment_gets_its_bytes_or_the_word_trimmed(tmp_path: Path) -> None:
    """What was opened before the trim can be read to its end; what was not says Trimmed; another file's bytes never come."""
    store = new_store(tmp_path, segment_bytes=1000)
    fill(store, numbered(30, 100))
    commit_all(store)
    store = reopen_committed(store)
    held, late = store.extent(LLSN(1), 500), store.extent(LLSN(8), 500)
    keep = held.segment.open()
    store.trim(GLSN(29))
    assert held.segment.opened() is None
    assert chunk_entries(held.chunk(keep.file.read_at(held.size, held.offset)))[1] == b"00000001".ljust(
        100, b"."
    )
    assert store.read_cached(late) is None
    with pytest.raises(Trimmed):
        store.read(late)


def reopen_committed(store: LogStore) -> LogStore:
    store.sync_rows()
    return reopen(store, segment_bytes=1000)


# --- cut -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [0, 1, 9, 10, 15, 29, 30])
def test_a_cut_tail_is_gone_for_good(tmp_path: Path, committed: int) -> None:
    """R-SEAL-5, law 6: at every place of several segments; what is written next takes its positions."""
    store = new_store(tmp_path, segment_bytes=1000)
    fill(store, numbered(30, 100))
    if committed:
        store.commit(row(1, 1, committed))
    end = LLSN(committed + 1)
    store.cut(Epoch(2), end)
    store.cut(Epoch(2), end)
    assert (store.written_end, store.epoch, store.sealed_end, store.opened) == (end, 2, end, False)
    assert not any(f"{number:08d}".encode() in content(store) for number in range(committed + 1, 31))
    again = reopen(store, segment_bytes=1000)
    assert (again.written_end, again.committed_end, again.epoch, again.sealed_end) == (end, end, 2, end)
    fill(again, [[b"new"]] * 20, epoch=2)
    commit_all(again)
    again.sync_rows()
    entries = read_all(reopen(again, segment_bytes=1000))
    assert (
        list(entries.values())
        == [f"{n:08d}".encode().ljust(100, b".") for n in range(1, committed + 1)] + [b"new"] * 20
    )


def content(store: LogStore) -> bytes:
    return b"".join(path.read_bytes() for path in store.path.iterdir())


def test_a_cut_never_reaches_what_is_committed_and_never_divides_a_batch(tmp_path: Path) -> None:
    """R-ORD-5, laws 6 and 7: all of a batch stays, or nothing."""
    store = new_store(tmp_path)
    fill(store, [[b"a"], [b"b"], [b"c", b"d"]])
    store.commit(row(1, 1, 2))
    with pytest.raises(InvariantBroken, match="law 6"):
        store.cut(Epoch(2), LLSN(2))
    with pytest.raises(InvariantBroken, match="never divides a batch"):
        store.cut(Epoch(2), LLSN(4))
    with pytest.raises(InvariantBroken, match="law 7"):
        store.cut(Epoch(1), LLSN(3))


def test_an_opened_epoch_is_remembered_until_the_next_seal(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.open_epoch(Epoch(1))
    assert [each.opened for each in now_and_after_restart(store)] == [True, True]
    store = LogStore.open(OsDisk(synced=False), store.path)
    with pytest.raises(InvariantBroken, match="law 7"):
        store.open_epoch(Epoch(2))
    store.set_epoch(Epoch(2), LLSN(1))
    assert [each.opened for each in now_and_after_restart(store)] == [False, False]


def test_entering_a_newer_epoch_keeps_the_tail_until_a_restart_or_a_cut(tmp_path: Path) -> None:
    """A sealing replica still lacks commits below the seal; what lies behind the seal never comes back (law 6)."""
    store = new_store(tmp_path)
    fill(store, [[b"a"], [b"b"], [b"c"]])
    store.set_epoch(Epoch(2), LLSN(3))
    assert store.written_end == 4
    store.commit(row(1, 1, 2))
    store.sync_rows()
    again = reopen(store)
    assert (again.written_end, again.committed_end, again.epoch, again.sealed_end) == (3, 3, 2, 3)


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "sync", "reserve"])
def test_a_failed_write_poisons_the_store_and_reads_continue(tmp_path: Path, kind: str) -> None:
    """Every later append and cut raises the same error; a failed sync is not tried again."""
    disk = FailingDisk()
    store = new_store(tmp_path, disk=disk)
    fill(store, numbered(3))
    commit_all(store)
    store.sync_rows()
    large = numbered(1, 2 << 20) if kind == "reserve" else numbered(1)
    disk.fail_next = kind
    failure = raised(lambda: fill(store, large))
    assert isinstance(failure, OSError)
    disk.calls.clear()
    assert raised(lambda: fill(store, numbered(1))) is failure
    assert raised(lambda: store.cut(Epoch(2), LLSN(4))) is failure
    assert disk.calls == []
    assert (store.written_end, len(read_all(store))) == (4, 3)
    store.trim(GLSN(1))  # a full disk must be able to get rid of something
    again = reopen(store)
    fill(again, numbered(1))
    assert (again.low_llsn, again.written_end) == (2, 5)


def test_what_a_failed_sync_left_behind_is_not_believed_after_a_restart(tmp_path: Path) -> None:
    """Law 1: the page cache may hold what the disk does not."""
    disk = FailingDisk()
    store = new_store(tmp_path, disk=disk)
    fill(store, numbered(3))
    disk.fail_next = "sync"
    assert isinstance(raised(lambda: fill(store, numbered(2))), OSError)
    assert reopen(store).written_end == 4


def test_a_failed_sync_of_rows_poisons_the_store(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = new_store(tmp_path, disk=disk)
    fill(store, numbered(3))
    store.commit(row(1, 1, 2))
    disk.fail_next = "sync"
    failure = raised(store.sync_rows)
    assert isinstance(failure, OSError) and raised(store.sync_rows) is failure
    assert raised(lambda: fill(store, numbered(1))) is failure
    assert (store.rows_synced_end, len(read_all(store))) == (1, 2)


def test_a_closed_store_is_not_read(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, numbered(1))
    commit_all(store)
    extent = store.extent(LLSN(1), 1)
    store.close()
    assert store.read_cached(extent) is None
    with pytest.raises(Unavailable):
        store.read(extent)


def test_bytes_that_rotted_in_a_closed_segment_are_never_served_as_good(tmp_path: Path) -> None:
    """Design section 4, bit rot: the header of the batch asked for is checked here, the body by the reader."""
    store = new_store(tmp_path, segment_bytes=1000)
    fill(store, numbered(30, 100))
    commit_all(store)
    store.sync_rows()
    expected = read_all(store)
    first = min(store.path.glob("*.seg"))
    good = first.read_bytes()
    for at in range(0, len(good), 7):
        first.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        store = reopen(store, segment_bytes=1000)
        for llsn in (1, 4, 8):
            try:
                found = chunk_entries(store.read(store.extent(LLSN(llsn), 300)))
            except CorruptBatch:
                continue
            assert found.items() <= expected.items()
