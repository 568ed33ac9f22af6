"""CommitStore and its file: merging, lazy syncs, compaction, forgetting, and what a torn or damaged file says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.helpers import STREAM, TOPIC, row
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptReplica
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.committed.commit_store import CommitStore
from varlog.storage.committed.row_file import (
    ROW_BYTES,
    ROW_TYPE,
    FoundRows,
    encode_end_mark,
    encode_row,
    encode_row_header,
    merge_adjacent,
    merge_rows,
    read_row,
    read_rows,
    row_at,
)
from varlog.storage.disk_space import DiskSpace

DISK = OsDisk(synced=False)


def rows_of(counts_and_gaps: list[tuple[int, int]]) -> list[CommitRow]:
    """Rows back to back in LLSN, with these counts and with these gaps in GLSN before them."""
    made: list[CommitRow] = []
    for version, (count, gap) in enumerate(counts_and_gaps, 1):
        llsn, glsn = (made[-1].llsn_end, made[-1].glsn_end) if made else (LLSN(1), GLSN(1))
        made.append(row(llsn, glsn + gap, count, version))
    return made


ROWS = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 1, 5])), min_size=1, max_size=30).map(
    rows_of
)


def found_in(content: bytes) -> FoundRows:
    return read_rows(lambda size, offset: content[offset : offset + size], len(content), Path("commits.log"))


def opened(directory: Path) -> CommitStore:
    content = (directory / "commits.log").read_bytes()
    found = found_in(content)
    store = CommitStore(DISK, directory, TOPIC, STREAM)
    last = (
        read_row(lambda size, offset: content[offset : offset + size], len(found) - 1) if len(found) else None
    )
    store.restore(found, len(found), last)
    return store


def file_rows(directory: Path) -> int:
    return len(found_in((directory / "commits.log").read_bytes()))


# --- order ---------------------------------------------------------------------------------------------------------


@given(ROWS)
def test_the_merged_runs_answer_like_the_rows_they_came_from(
    tmp_path_factory: pytest.TempPathFactory, rows: list[CommitRow]
) -> None:
    directory = tmp_path_factory.mktemp("rows")
    made = CommitStore.create(DISK, directory, TOPIC, STREAM)
    for each in rows:
        made.commit(each, FIRST_LLSN)
    made.sync()
    glsn_of = {
        llsn: each.glsn_begin + llsn - each.llsn_begin
        for each in rows
        for llsn in range(each.llsn_begin, each.llsn_end)
    }
    llsn_of = {glsn: llsn for llsn, glsn in glsn_of.items()}
    for store in (made, opened(directory)):
        assert (store.committed_end, store.high_watermark) == (rows[-1].llsn_end, rows[-1].glsn_end - 1)
        assert [store.glsn_of(LLSN(llsn)) for llsn in glsn_of] == list(glsn_of.values())
        for glsn in range(rows[-1].glsn_end + 2):
            assert store.find(GLSN(glsn)) == llsn_of.get(glsn)
            assert store.llsn_from(GLSN(glsn)) == min(
                (llsn for at, llsn in llsn_of.items() if at >= glsn), default=store.committed_end
            )
        found = store.rows_between(LLSN(2), LLSN(9))
        assert [(llsn + i, glsn + i) for llsn, glsn, n in found for i in range(n)] == [
            i for i in glsn_of.items() if 2 <= i[0] < 9
        ]
        assert all(a[1] + a[2] != b[1] for a, b in pairwise(found))


@given(ROWS)
def test_rows_merge_the_same_way_in_memory_and_in_a_file(rows: list[CommitRow]) -> None:
    encoded = b"".join(encode_row(each, 0) for each in rows)
    merged = merge_rows(np.frombuffer(encoded, ROW_TYPE))
    assert [row_at(merged, number) for number in range(len(merged))] == merge_adjacent(rows)


def test_runs_of_different_epochs_stay_apart_in_the_file() -> None:
    rows = [row(1, 1, 2, version=1, epoch=1), row(3, 3, 2, version=2, epoch=2)]
    assert merge_adjacent(rows) == rows
    assert len(merge_rows(np.frombuffer(b"".join(encode_row(each, 0) for each in rows), ROW_TYPE))) == 2


# --- the file -------------------------------------------------------------------------------------------------------


def test_rows_of_one_sync_are_merged_before_they_are_written(tmp_path: Path) -> None:
    store = CommitStore.create(DISK, tmp_path, TOPIC, STREAM)
    for each in rows_of([(1, 0)] * 50 + [(1, 3)] + [(1, 0)] * 50):
        store.commit(each, FIRST_LLSN)
    assert store.sync() == store.rows_synced_end == 102
    assert file_rows(tmp_path) == 2
    last = opened(tmp_path).last_row
    assert last == CommitRow(101, GLSN(104), GLSN(53), GLSN(54), LLSN(51), 51, Epoch(1))


def test_a_sync_whose_end_mark_finds_no_room_does_not_write_its_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are durable by then. Written a second time they would be damage: they do not continue where the rows before ended."""
    store = CommitStore.create(DISK, tmp_path, TOPIC, STREAM)
    for each in rows_of([(3, 0)]):
        store.commit(each, FIRST_LLSN)
    with monkeypatch.context() as full:
        full.setattr(CommitStore, "_write_end_mark", _no_room)
        with pytest.raises(OSError, match="No space"):
            store.sync()
    assert store.sync() == 4
    assert len(opened(tmp_path)._index) == 1


def _no_room(store: CommitStore) -> None:
    raise OSError(28, "No space left on device")


def test_a_sync_without_new_rows_touches_nothing(tmp_path: Path) -> None:
    store = CommitStore.create(DISK, tmp_path, TOPIC, STREAM)
    before = (tmp_path / "commits.log").stat().st_mtime_ns
    assert store.sync() == 1
    assert (tmp_path / "commits.log").stat().st_mtime_ns == before


def test_a_file_of_many_small_syncs_is_compacted(tmp_path: Path) -> None:
    """A topic with one stream has one run forever; its file must not grow forever."""
    store = CommitStore.create(DISK, tmp_path, TOPIC, STREAM)
    for each in rows_of([(1, 0)] * 5000):
        store.commit(each, FIRST_LLSN)
        store.sync()
        store.compact(FIRST_LLSN, DiskSpace(DISK, tmp_path))
    assert file_rows(tmp_path) < 1000 and store.size_bytes < 100_000
    again = opened(tmp_path)
    assert (again.committed_end, again.high_watermark, again.glsn_of(LLSN(4321))) == (5001, 5000, 4321)
    assert again.last_row is not None and again.last_row.version == 5000


def test_trimmed_rows_leave_file_and_memory_and_the_newest_stays(tmp_path: Path) -> None:
    store = CommitStore.create(DISK, tmp_path, TOPIC, STREAM)
    rows = rows_of([(1, 1)] * 6000)
    for each in rows[:5900]:
        store.commit(each, FIRST_LLSN)
    store.sync()
    store.compact(LLSN(5501), DiskSpace(DISK, tmp_path))
    assert file_rows(tmp_path) == 400
    for each in rows[5900:]:
        store.commit(each, LLSN(5501))
    assert store.find(rows[5500].glsn_begin) == 5501
    assert store.glsn_of(LLSN(5501)) == rows[5500].glsn_begin
    assert store.llsn_from(GLSN(1)) == 5501
    store.sync()
    again = opened(tmp_path)
    assert (again.committed_end, again.last_row) == (6001, rows[-1])


# --- torn and damaged files -------------------------------------------------------------------------------------------


def written(*syncs: list[CommitRow]) -> bytes:
    """A file as these syncs leave it, and its end mark."""
    content, count = encode_row_header(TOPIC, STREAM), 0
    for rows in syncs:
        content += b"".join(encode_row(each, count) for each in rows)
        count += len(rows)
    return content + encode_end_mark(count)


GAPPED = rows_of([(2, 1)] * 6)


def test_a_sync_torn_at_any_byte_loses_only_its_own_rows(tmp_path: Path) -> None:
    """What was durable before it stays, whatever of it reached the disk, in whatever order."""
    before = written(GAPPED[:2])
    after = written(GAPPED[:2], GAPPED[2:])[:-ROW_BYTES]  # the mark comes only after the sync
    for at in range(len(before) - ROW_BYTES, len(after) + 1):
        for torn in (
            after[:at],
            after[:at] + bytes(len(after) - at),
            before[:at] + bytes(max(0, at - len(before))) + after[at:],
        ):
            found = found_in(torn)
            assert 2 <= len(found) <= 6 and found.end_llsn == GAPPED[len(found) - 1].llsn_end
            (tmp_path / "commits.log").write_bytes(torn)
            store = opened(tmp_path)
            for each in GAPPED[len(found) :]:
                store.commit(each, FIRST_LLSN)
            store.sync()
            # Nothing of the torn write is left behind the end mark: without the mark it could look like the next rows.
            content = (tmp_path / "commits.log").read_bytes()
            assert len(content) == ROW_BYTES * (2 + len(found_in(content)))
            assert opened(tmp_path).last_row == GAPPED[-1]


@pytest.mark.parametrize("bad", range(6))
def test_a_bad_row_that_was_durable_is_damage_even_if_it_is_the_last(bad: int) -> None:
    """The repository may have forgotten it: cutting it would lose committed entries in silence."""
    content = bytearray(written(GAPPED[:3], GAPPED[3:]))
    content[ROW_BYTES * (bad + 1) + 9] ^= 4
    with pytest.raises(CorruptReplica, match=f"row {bad} "):
        found_in(bytes(content))


def test_rows_that_do_not_continue_are_damage() -> None:
    for wrong in ([GAPPED[0], GAPPED[2]], [GAPPED[0], row(3, 2, 1)]):
        with pytest.raises(CorruptReplica, match="row 1 does not continue"):
            found_in(written(wrong))


def test_more_rows_than_fit_in_one_window_are_checked_like_few() -> None:
    """They are read in windows; a bad one in the second is found, and so is what a later window says of an earlier one."""
    count = 40_000
    made = np.zeros(count, ROW_TYPE)
    made["llsn"], made["glsn"], made["count"], made["version"] = (
        1 + np.arange(count),
        1 + 2 * np.arange(count),
        1,
        1,
    )
    rows = [row_at(made, number) for number in range(count)]
    content = bytearray(written(rows))
    found = found_in(bytes(content))
    assert (len(found), found.end_llsn, found.torn, found.marked) == (count, count + 1, False, True)
    content[ROW_BYTES * 20_001] ^= 1
    with pytest.raises(CorruptReplica, match="row 20000 "):
        found_in(bytes(content))
    # Without the mark nobody says that the sync was finished: it may be a torn one.
    assert len(found_in(bytes(content[:-ROW_BYTES]))) == 20_000
