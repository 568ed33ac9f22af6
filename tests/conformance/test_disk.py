"""The contract of Disk (varlog.runtime.disk).

Kept alike by the file system and by the simulator's drive.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from varlog.runtime.disk import Disk, OsDisk
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.drive import Drive
from varlog.testing.sim.core.loop import Process


def _os_disk() -> Disk:
    return OsDisk()


def _sim_disk() -> Disk:
    return SimDisk(Drive(), Process("sn1"), random.Random(1), lambda: None)


@pytest.fixture(params=[_os_disk, _sim_disk], ids=["os", "simulation"])
def disk(request: pytest.FixtureRequest) -> Disk:
    make: Callable[[], Disk] = request.param
    return make()


@pytest.fixture
def home(disk: Disk, tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "home"
    disk.make_directory(path)
    disk.make_directory(path)  # it may exist already
    return path


def test_a_file_holds_what_was_written_at_each_offset(disk: Disk, home: Path) -> None:
    file = disk.open(home / "f", create=True)
    file.write_at([b"abc", bytearray(b"def"), memoryview(b"ghi")], 0)
    file.write_at([b"XY"], 2)
    file.sync()
    assert (file.size(), file.read_at(100, 0), file.read_at(3, 7)) == (9, b"abXYefghi", b"hi")
    file.close()
    assert disk.read_file(home / "f") == b"abXYefghi"


def test_a_file_grows_by_writing_behind_its_end_or_by_reserving(disk: Disk, home: Path) -> None:
    file = disk.open(home / "f", create=True)
    file.write_at([b"z"], 4)
    file.reserve(8)
    file.reserve(2)  # never shrinks
    assert file.read_at(100, 0) == b"\0\0\0\0z\0\0\0"
    file.truncate(5)
    assert file.read_at(100, 3) == b"\0z"
    file.close()


def test_a_cached_read_is_right_or_nothing(disk: Disk, home: Path) -> None:
    disk.replace_file(home / "f", b"abcdef")
    file = disk.open(home / "f")
    for _ in range(20):
        got = file.read_cached(3, 1)
        assert got is None or bytes(got) == b"bcd"
        assert file.read_cached(9, 1) is None
    file.close()


def test_opening_reports_what_is_wrong_with_the_name(disk: Disk, home: Path) -> None:
    disk.replace_file(home / "f", b"")
    with pytest.raises(FileExistsError):
        disk.open(home / "f", create=True)
    with pytest.raises(FileNotFoundError):
        disk.open(home / "none")
    with pytest.raises(FileNotFoundError):
        disk.read_file(home / "none")
    with pytest.raises(FileNotFoundError):
        disk.remove(home / "none")


def test_names_come_and_go(disk: Disk, home: Path) -> None:
    disk.replace_file(home / "b", b"1")
    disk.replace_file(home / "a", b"2")
    disk.replace_file(home / "a", b"3")
    assert disk.list(home) == ["a", "b"]
    disk.rename(home / "a", home / "b")
    disk.sync_directory(home)
    assert (disk.list(home), disk.read_file(home / "b")) == (["b"], b"3")
    disk.remove(home / "b")
    assert (disk.list(home), disk.exists(home / "b")) == ([], False)


def test_directories_are_distinguished_from_files(disk: Disk, home: Path) -> None:
    disk.replace_file(home / "f", b"")
    assert (disk.is_directory(home), disk.is_directory(home / "f")) == (True, False)
    assert (disk.exists(home), disk.exists(home / "none"), disk.is_writable(home)) == (True, False, True)


def test_a_tree_is_removed_whole(disk: Disk, home: Path) -> None:
    disk.make_directory(home / "x" / "y")
    disk.replace_file(home / "x" / "y" / "f", b"1")
    disk.replace_file(home / "x" / "g", b"2")
    disk.remove_tree(home / "x")
    assert disk.list(home) == []


def test_a_removed_file_can_be_read_while_it_is_open(disk: Disk, home: Path) -> None:
    """A trimmed segment stays readable until its last reader closes it."""
    disk.replace_file(home / "f", b"abc")
    file = disk.open(home / "f")
    disk.remove(home / "f")
    assert file.read_at(3, 0) == b"abc"
    file.close()


def test_a_lock_is_held_once(disk: Disk, home: Path) -> None:
    lock = disk.lock(home / "lock")
    with pytest.raises(BlockingIOError):
        disk.lock(home / "lock")
    lock.release()
    disk.lock(home / "lock").release()
    assert disk.exists(home / "lock")


def test_free_space_is_reported_for_an_existing_directory(disk: Disk, home: Path) -> None:
    assert disk.free_bytes(home) > 0
    disk.replace_file(home / "f", b"abc")
    assert disk.free_bytes(home / "f") > 0
    with pytest.raises(FileNotFoundError):
        disk.free_bytes(home / "none")


def test_an_open_file_that_was_deleted_or_replaced_stays_usable_without_its_name(
    disk: Disk, home: Path
) -> None:
    """As on Unix: the open file is written and read as before, and no longer found by name."""
    for name in ("deleted", "replaced"):
        disk.replace_file(home / name, b"abc")
        disk.replace_file(home / "other", b"old")
        file = disk.open(home / name)
        assert file.is_linked()
        if name == "deleted":
            disk.remove(home / name)
        else:
            disk.rename(home / "other", home / name)
        assert not file.is_linked()
        file.write_at([b"XY"], 1)
        file.sync()
        assert file.read_at(9, 0) == b"aXY"
        assert disk.exists(home / name) == (name == "replaced")
        file.close()
    assert disk.read_file(home / "replaced") == b"old"
