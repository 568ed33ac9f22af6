"""The simulated disk: what was synced survives every crash, what was not may be lost, kept or torn."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.drive import Drive
from varlog.testing.sim.core.loop import Process, ProcessCrashed

HOME = Path("/v")
FILE = HOME / "f"


class Host:
    """A drive, its present process and the disk that it sees."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.drive = Drive()
        self.boot()
        self.disk.make_directory(HOME)

    def boot(self) -> None:
        self.process = Process("sn1")
        self.disk = SimDisk(self.drive, self.process, self.rng, self.crash)

    def crash(self) -> None:
        self.process.die()
        self.drive.crash(self.rng)

    def reboot(self) -> None:
        self.crash()
        self.boot()


def fates(play: Callable[[Host], bytes | None], seeds: int = 300) -> set[bytes | None]:
    """What can be left at FILE after `play` and a crash, over many seeds."""
    left: set[bytes | None] = set()
    for seed in range(seeds):
        host = Host(seed)
        try:
            play(host)
        except ProcessCrashed:
            host.boot()
        else:
            host.reboot()
        left.add(host.disk.read_file(FILE) if host.disk.exists(FILE) else None)
    return left


def test_what_was_synced_survives_every_crash() -> None:
    """Law 1 has a ground to stand on."""

    def play(host: Host) -> None:
        file = host.disk.open(FILE, create=True)
        file.write_at([b"abc", b"def"], 0)
        file.sync()
        host.disk.sync_directory(HOME)

    assert fates(play) == {b"abcdef"}


def test_unsynced_writes_are_lost_kept_or_torn_and_a_later_one_may_outlive_an_earlier() -> None:
    def play(host: Host) -> None:
        file = host.disk.open(FILE, create=True)
        host.disk.sync_directory(HOME)
        file.write_at([b"a" * 8], 0)
        file.write_at([b"b" * 8], 8)

    left = fates(play, 500)
    assert {b"", b"a" * 8, b"a" * 8 + b"b" * 8, bytes(8) + b"b" * 8} <= left

    def long(host: Host) -> None:
        file = host.disk.open(FILE, create=True)
        host.disk.sync_directory(HOME)
        file.write_at([b"x" * 2000], 0)

    torn = [one for one in fates(long) if one is not None and 0 < one.count(b"x") < 2000]
    assert torn


def test_a_new_name_is_durable_only_once_its_directory_is_synced() -> None:
    def play(host: Host) -> None:
        file = host.disk.open(FILE, create=True)
        file.write_at([b"abc"], 0)
        file.sync()

    assert fates(play) == {None, b"abc"}


def test_a_removed_name_may_come_back_until_its_directory_is_synced() -> None:
    def play(host: Host) -> None:
        host.disk.replace_file(FILE, b"abc")
        host.disk.remove(FILE)

    def synced(host: Host) -> None:
        play(host)
        host.disk.sync_directory(HOME)

    assert fates(play) == {None, b"abc"}
    assert fates(synced) == {None}


def test_a_truncation_may_be_undone_until_it_is_synced() -> None:
    def play(host: Host) -> None:
        host.disk.replace_file(FILE, b"abcdef")
        host.disk.open(FILE).truncate(3)

    def synced(host: Host) -> None:
        play(host)
        file = host.disk.open(FILE)
        file.sync()

    assert fates(play) == {b"abc", b"abcdef"}
    assert fates(synced) == {b"abc"}


def test_a_replaced_file_is_old_or_new_wherever_the_crash_falls() -> None:
    def play(host: Host) -> None:
        host.disk.replace_file(FILE, b"old")
        host.disk.crash_at = host.disk.operations + 1
        host.disk.replace_file(FILE, b"new")

    assert fates(play) == {b"old", b"new"}


def test_a_rename_never_loses_both_names() -> None:
    for seed in range(100):
        host = Host(seed)
        host.disk.replace_file(FILE, b"abc")
        host.disk.rename(FILE, HOME / "g")
        host.reboot()
        assert host.disk.list(HOME) in (["f"], ["g"])


def test_a_process_crashes_at_the_configured_operation() -> None:
    host = Host(1)
    file = host.disk.open(FILE, create=True)
    host.disk.crash_at = host.disk.operations + 3
    file.write_at([b"one"], 0)
    file.sync()
    with pytest.raises(ProcessCrashed):
        file.write_at([b"two"], 3)
    assert not host.process.alive


def test_handles_of_a_dead_process_do_nothing() -> None:
    host = Host(1)
    file = host.disk.open(FILE, create=True)
    host.crash()
    for attempt in (
        lambda: file.write_at([b"x"], 0),
        file.sync,
        lambda: file.read_at(1, 0),
        lambda: host.disk.remove(FILE),
        lambda: host.disk.list(HOME),
    ):
        with pytest.raises(ProcessCrashed):
            attempt()


def test_a_lock_is_held_by_one_process_and_goes_with_it() -> None:
    host = Host(1)
    lock = host.disk.lock(HOME / "lock")
    with pytest.raises(BlockingIOError):
        host.disk.lock(HOME / "lock")
    lock.release()
    host.disk.lock(HOME / "lock")
    host.reboot()
    assert host.disk.lock(HOME / "lock") is not None


def test_reserved_space_reads_as_zero_and_errors_are_those_of_the_operating_system() -> None:
    host = Host(1)
    file = host.disk.open(FILE, create=True)
    file.reserve(10)
    assert (file.size(), file.read_at(20, 0)) == (10, bytes(10))
    with pytest.raises(FileExistsError):
        host.disk.open(FILE, create=True)
    with pytest.raises(FileNotFoundError):
        host.disk.open(HOME / "none")
    with pytest.raises(NotADirectoryError):
        host.disk.list(FILE)
    host.disk.remove_tree(HOME)
    assert not host.disk.exists(HOME)


def test_a_cached_read_answers_sometimes_and_then_rightly() -> None:
    host = Host(1)
    host.disk.replace_file(FILE, b"abcdef")
    file = host.disk.open(FILE)
    returned = {None if (got := file.read_cached(3, 1)) is None else bytes(got) for _ in range(100)}
    assert returned == {None, b"bcd"}
    assert all(file.read_cached(10, 1) is None for _ in range(100))


def failed_sync(host: Host) -> None:
    """A file with a good sync, then a write whose sync fails."""
    file = host.disk.open(FILE, create=True)
    file.write_at([b"abc"], 0)
    file.sync()
    host.disk.sync_directory(HOME)
    file.write_at([b"def"], 3)
    host.drive.fail_syncs = 1
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    assert host.disk.read_file(FILE) == b"abcdef", "the page cache has it"
    file.sync()  # and says that all is well


def test_what_a_failed_sync_lost_can_be_read_and_does_not_survive() -> None:
    """What Linux does: the second sync succeeds without having written anything."""
    assert fates(failed_sync) == {b"abc", b"abcdef"}, (
        "a killed process only: its successor reads the page cache"
    )
    host = Host(1)
    failed_sync(host)
    while host.drive.crash(host.rng) == "kill":
        pass
    host.boot()
    assert host.disk.read_file(FILE) == b"abc"


def test_what_a_failed_sync_lost_survives_once_it_is_written_again_and_synced() -> None:
    def play(host: Host) -> None:
        failed_sync(host)
        file = host.disk.open(FILE)
        file.write_at([b"def"], 3)
        file.sync()

    assert fates(play) == {b"abcdef"}


def test_a_replacement_whose_sync_fails_is_not_put_in_place_and_one_of_its_names_is_only_late() -> None:
    host = Host(1)
    host.disk.replace_file(FILE, b"old")
    host.drive.fail_syncs = 1
    with pytest.raises(OSError, match="Input/output error"):
        host.disk.replace_file(FILE, b"new")
    assert host.disk.read_file(FILE) == b"old"

    def of_the_name(host: Host) -> None:
        host.disk.rename(HOME / "f.new", FILE)
        host.drive.fail_syncs = 1
        with pytest.raises(OSError, match="Input/output error"):
            host.disk.sync_directory(HOME)
        host.disk.sync_directory(HOME)

    def play(host: Host) -> None:
        host.disk.replace_file(FILE, b"old")
        host.disk.replace_file(HOME / "f.new", b"new")
        of_the_name(host)

    assert fates(play) == {b"new"}


def test_a_write_that_fails_may_have_written_a_part() -> None:
    left = set()
    for seed in range(30):
        host = Host(seed)
        file = host.disk.open(FILE, create=True)
        host.drive.fail_writes = 1
        with pytest.raises(OSError, match="Input/output error"):
            file.write_at([b"a", b"b"], 0)
        left.add(file.read_at(9, 0))
        file.write_at([b"xy"], 0)
        assert file.read_at(9, 0) == b"xy"
    assert left == {b"", b"a", b"ab"}


def test_a_full_drive_refuses_what_grows_until_something_goes() -> None:
    host = Host(1)
    host.drive.capacity_bytes = 10
    file = host.disk.open(FILE, create=True)
    file.reserve(8)
    file.write_at([b"12345678"], 0)  # what is reserved is there
    assert host.disk.free_bytes(HOME) == 2
    for grow in (
        lambda: file.write_at([b"ab", b"cd"], 8),
        lambda: file.reserve(11),
        lambda: host.disk.replace_file(HOME / "g", b"x"),
        lambda: host.disk.open(HOME / "h", create=True),
    ):
        with pytest.raises(OSError, match="No space left") as refused:
            grow()
        assert refused.value.errno == errno.ENOSPC
    assert file.read_at(20, 0) == b"12345678ab", "a short write: what fitted is there"
    file.truncate(3)
    assert host.disk.free_bytes(HOME) == 7
    host.disk.replace_file(HOME / "g", b"x")
    host.disk.remove(FILE)
    assert host.disk.free_bytes(HOME) == 9


def test_a_flipped_bit_stays_flipped() -> None:
    host = Host(1)
    host.disk.replace_file(FILE, b"abc")
    host.drive.file(FILE).flip(1, 0)
    assert host.disk.read_file(FILE) == b"acc"
    host.reboot()
    assert host.disk.read_file(FILE) == b"acc"
