"""The dump: shows what exists, reports what is wrong, and never writes a byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.storage.helpers import files_of, fill, row
from varlog.model.batch import BatchHeader
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.committed.log_store import LogStore
from varlog.storage.dump import dump, dump_batches, dump_replica, dump_rows
from varlog.storage.read_only import ReadOnlyDisk
from varlog.storage.volume import NodeVolumes

DISK = OsDisk(synced=False)


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    """A data directory with one node on one volume, with one replica of two segments."""
    volume = tmp_path / "data" / "node-4"
    volume.mkdir(parents=True)
    node = NodeVolumes.open(DISK, random.Random(1), cluster=ClusterID(1), node=NodeID(4), volumes=[volume])
    store = LogStore.create(
        DISK, node.place(LogStreamID(3)), topic=TopicID(7), log_stream=LogStreamID(3), segment_bytes=400
    )
    store.cut(Epoch(1), LLSN(1))
    fill(store, [[b"a" * 100, b"b"], [b"c" * 100]], [[b"d" * 100]])
    store.commit(row(1, 1, 3, version=5))
    store.sync_rows()
    store.close()
    node.release()
    return store.path


@pytest.mark.parametrize("depth", range(5))
def test_a_good_directory_is_shown_from_any_level(tmp_path: Path, replica: Path, depth: int) -> None:
    """Data directory, volume, cluster's, node's or replica's directory."""
    level = [tmp_path / "data", *reversed(replica.parents[:3]), replica][depth]
    found = dump(DISK, level)
    if level.name == "cid=1":
        assert found.volumes == []
        return
    assert found.problems == []
    (shown,) = found.replicas
    assert shown.state is not None
    assert (shown.path, shown.state.topic, shown.state.log_stream, shown.state.epoch) == (replica, 7, 3, 1)
    assert (shown.written_end, shown.committed_end, shown.rows, shown.last_row) == (
        5,
        4,
        1,
        row(1, 1, 3, version=5),
    )
    first, second = shown.segments
    assert (first.first_llsn, first.end_llsn, first.batches, first.entries, first.index) == (1, 4, 2, 3, "ok")
    assert (second.first_llsn, second.end_llsn, second.batches, second.index) == (4, 5, 1, "none")


def test_batches_and_rows_are_listed(replica: Path) -> None:
    shown = list(dump_batches(DISK, replica / "00000000000000000001.seg"))
    assert [(header.first_llsn, header.count) for _, header in shown if isinstance(header, BatchHeader)] == [
        (1, 2),
        (3, 1),
    ]
    assert len(shown) == 2 and shown[0][0] == 0
    assert list(dump_rows(DISK, replica / "commits.log")) == [row(1, 1, 3, version=5)]


@pytest.mark.parametrize("name", ["state", "commits.log", "00000000000000000001.seg"])
def test_damage_is_reported_with_the_file_and_nothing_is_touched(
    tmp_path: Path, replica: Path, name: str
) -> None:
    path = replica / name
    content = bytearray(path.read_bytes())
    content[70 if len(content) > 70 else 20] ^= 1
    path.write_bytes(content)
    before = files_of(replica)
    problems = dump(DISK, tmp_path).problems
    assert any(name in problem for problem in problems)
    assert files_of(replica) == before


def test_damage_in_the_middle_of_a_segment_is_listed_where_it_is(replica: Path) -> None:
    path = replica / "00000000000000000001.seg"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    *_, (at, last) = dump_batches(DISK, path)
    assert isinstance(last, CorruptBatch) and at > 0
    shown = dump_replica(DISK, replica)
    assert shown.segments[0].batches == 1 and shown.segments[0].problem


def test_what_opening_would_put_right_is_a_note(replica: Path) -> None:
    newest = replica / "00000000000000000004.seg"
    newest.write_bytes(newest.read_bytes()[:100])
    (replica / "00000000000000000001.idx").unlink()
    before = files_of(replica)
    shown = dump_replica(DISK, replica)
    assert shown.problems == [] and any("00000000000000000004.seg" in note for note in shown.notes)
    assert [segment.index for segment in shown.segments] == ["missing", "none"]
    assert files_of(replica) == before


def test_a_directory_without_data_is_empty(tmp_path: Path) -> None:
    assert dump(DISK, tmp_path).volumes == []


def test_the_dumps_disk_refuses_every_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    disk = ReadOnlyDisk(DISK)
    file = disk.open(path)
    assert (file.read_at(3, 0), file.size(), disk.is_writable(tmp_path)) == (b"con", 7, False)
    for change in (
        lambda: disk.open(tmp_path / "new", create=True),
        lambda: disk.replace_file(path, b""),
        lambda: disk.rename(path, tmp_path / "other"),
        lambda: disk.remove(path),
        lambda: disk.make_directory(tmp_path / "dir"),
        lambda: disk.remove_tree(tmp_path),
        lambda: disk.sync_directory(tmp_path),
        lambda: disk.lock(path),
        lambda: file.write_at([b"x"], 0),
        lambda: file.sync(),
        lambda: file.reserve(9),
        lambda: file.truncate(0),
    ):
        with pytest.raises(PermissionError):
            change()
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and path.read_bytes() == b"content"
