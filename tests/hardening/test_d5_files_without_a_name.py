"""D5: a file that is deleted or replaced while a process has it open.

Before, the process continued on a descriptor without a name, and everything written to it was gone with the next start.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.helpers import FailingDisk, commit_all, fill, new_store, read_all, reopen
from tests.storage.sequenced import test_page_store as units
from tests.storage.test_metadata_files import order
from varlog.metarepo.store.base import DeleteItem, DeleteItems, Fenced, PutItem
from varlog.metarepo.store.journal import journal_path
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.errors import StartupError
from varlog.model.ids import ClusterID, ClusterUUID, NodeID
from varlog.model.lsn import LLSN
from varlog.runtime.disk import OsDisk
from varlog.runtime.environment import system_environment
from varlog.storage.committed.log_store import LogStore
from varlog.storage.committed.row_file import ROWS_NAME
from varlog.storage.identity import IDENTITY_NAME
from varlog.storage.sequenced.sync_watermark import SYNCED_NAME, read_mark
from varlog.storage.volume import LOCK_NAME, NodeVolumes
from varlog.storage.witness_file import WITNESS_NAME, Witness, WitnessFile

WORDS = "was deleted or replaced while it was open"
UUID = ClusterUUID("5b1f4c3e-6a0d-4f6e-9d39-0123456789ab")


def delete(path: Path) -> None:
    path.unlink()


def replace_by_itself(path: Path) -> None:
    """What an editor or a copying tool does: the same bytes, another file."""
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    os.replace(copy, path)


def replace_by_nothing(path: Path) -> None:
    empty = path.with_name("empty")
    empty.touch()
    os.replace(empty, path)


HARMS = [delete, replace_by_itself, replace_by_nothing]
Harm = Callable[[Path], None]


def replica(directory: Path) -> LogStore:
    """Several segments, of which the newest and some closed ones are open."""
    store = new_store(directory, segment_bytes=400)
    for number in range(8):
        fill(store, [[b"entry %d" % number] * 2])
        commit_all(store)
        store.sync_rows()
    assert len(read_all(store)) == 16
    return store


def of_replica(store: LogStore, which: str) -> Path:
    segments = sorted(store.path.glob("*.seg"))
    return {"rows": store.path / ROWS_NAME, "newest": segments[-1], "closed": segments[1]}[which]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("which", ["rows", "newest", "closed"])
def test_a_file_of_a_running_replica_is_written_again(tmp_path: Path, which: str, harm: Harm) -> None:
    store = replica(tmp_path)
    path = of_replica(store, which)
    assert store.relink() == ""
    harm(path)
    fill(store, [[b"after"]])
    commit_all(store)
    store.sync_rows()
    reported = store.relink()
    assert WORDS in reported and str(path) in reported
    assert store.relink() == ""
    assert store.scrub_metadata() == ""
    fill(store, [[b"last"]])
    commit_all(store)
    store.sync_rows()
    before, found = order(store), read_all(store)
    assert len(found) == 18
    again = reopen(store)
    assert (order(again), read_all(again)) == (before, found)
    again.close()


def test_a_directory_that_was_deleted_gets_the_open_files_back(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, [[b"one"], [b"two"]])
    commit_all(store)
    store.sync_rows()
    shutil.rmtree(store.path)
    assert WORDS in store.relink()
    assert store.scrub_metadata() != ""  # the state
    again = reopen(store)
    assert read_all(again) == {1: b"one", 2: b"two"}
    again.close()


def test_a_copy_that_cannot_be_written_stops_the_replica_and_a_full_disk_does_not(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = new_store(tmp_path, disk=disk)
    fill(store, [[b"one"]])
    commit_all(store)
    store.sync_rows()
    (segment,) = store.path.glob("*.seg")
    segment.unlink()
    disk.fail_next, disk.fail_errno = "write", errno.ENOSPC
    with pytest.raises(OSError, match="write failed"):
        store.relink()
    assert store.failure is None
    assert not segment.exists()
    disk.fail_next, disk.fail_errno = "sync", errno.EIO
    for _ in range(2):  # the same error again: it is final
        with pytest.raises(OSError, match="sync failed"):
            store.relink()
    # It is opened again, which restores the file first.
    fresh = store.reopened()
    store.resume(fresh)
    assert read_all(store) == {1: b"one"}
    store.close()


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("which", ["mark", "newest", "closed"])
def test_a_file_of_a_running_log_unit_is_written_again(tmp_path: Path, which: str, harm: Harm) -> None:
    store = units.new_unit(tmp_path)
    for first in range(1, 40, 2):
        units.write(store, units.sized(first))
    segments = sorted(store.path.glob("*.seg"))
    assert len(segments) > 2
    _ = store.read(store.pages_from(LLSN(1), 100))
    path = {"mark": store.path / SYNCED_NAME, "newest": segments[-1], "closed": segments[-2]}[which]
    assert store.relink() == ""
    harm(path)
    units.write(store, units.sized(41))
    reported = store.relink()
    assert WORDS in reported and str(path) in reported
    assert (store.relink(), store.scrub_metadata()) == ("", "")
    units.write(store, units.sized(43))
    newest = read_mark(OsDisk(), store.path)
    assert newest is not None and newest.size == store._segments[-1].size
    again = units.reopen(store)
    assert (again.newest, again.dense_end) == (LLSN(44), LLSN(45))
    assert again.examine(again.pages_from(LLSN(1), 100)) == []
    again.close()


@pytest.mark.parametrize("harm", [delete, replace_by_nothing])
def test_the_index_of_a_closed_segment_of_a_log_unit_is_written_again(tmp_path: Path, harm: Harm) -> None:
    store = units.new_unit(tmp_path)
    for first in range(1, 40, 2):
        units.write(store, units.sized(first))
    path = min(store.path.glob("*.idx"))
    before = path.read_bytes()
    harm(path)
    assert str(path) in store.scrub_metadata()
    assert path.read_bytes() == before
    assert store.scrub_metadata() == ""
    # A file that differs from memory is not signed.
    harm(path)
    segment = path.with_suffix(".seg")
    content = segment.read_bytes()
    with segment.open("r+b") as file:
        file.write(units.sized(301))
    assert store.scrub_metadata() == ""
    with segment.open("r+b") as file:
        file.write(content)
    assert str(path) in store.scrub_metadata()
    store.close()


# --- the node's own files ---------------------------------------------------------------------------------------------


def volumes_in(directory: Path) -> NodeVolumes:
    return NodeVolumes.open(
        OsDisk(), random.Random(1), cluster=ClusterID(1), node=NodeID(1), volumes=[directory]
    )


@pytest.mark.parametrize("harm", [delete, replace_by_nothing])
def test_the_identity_of_a_running_node_is_written_again(tmp_path: Path, harm: Harm) -> None:
    volumes = volumes_in(tmp_path)
    volumes.bind(UUID, [])
    assert volumes.scrub_metadata() == []
    path = volumes.node_paths[0] / IDENTITY_NAME
    before = path.read_bytes()
    harm(path)
    assert str(path) in volumes.scrub_metadata()[0]
    assert path.read_bytes() == before
    assert volumes.scrub_metadata() == []
    volumes.release()


def test_a_lock_that_was_deleted_is_taken_again_or_its_new_holder_is_named(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    path = volumes.node_paths[0] / LOCK_NAME
    path.unlink()
    assert str(path) in volumes.scrub_metadata()[0]
    with pytest.raises(StartupError, match="is in use"):
        volumes_in(tmp_path)
    path.unlink()
    other = volumes_in(tmp_path)
    with pytest.raises(StartupError, match="is in use"):
        volumes.scrub_metadata()
    other.release()
    volumes.release()


def test_the_newest_term_is_written_again(tmp_path: Path) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
    file, seen = WitnessFile(OsDisk(), homes), Witness(7, 3)
    file.keep(Witness(6, 2))
    old = (homes[0] / WITNESS_NAME).read_bytes()
    file.keep(seen)
    assert file.scrub_metadata(seen) == ""
    (homes[0] / WITNESS_NAME).write_bytes(old)
    (homes[1] / WITNESS_NAME).unlink()
    assert file.scrub_metadata(seen).count(WITNESS_NAME) == 2
    assert WitnessFile(OsDisk(), homes).read() == seen


# --- the repository ---------------------------------------------------------------------------------------------------

DATABASE = "metadata.db"
FILES = ["db", "wal", "shm", "journal", "mirror"]


def of_repository(directory: Path, which: str) -> Path:
    home = directory / "home"
    journal = journal_path(home / DATABASE)
    return {
        "db": home / DATABASE,
        "wal": home / f"{DATABASE}-wal",
        "shm": home / f"{DATABASE}-shm",
        "journal": journal,
        "mirror": directory / "mirror" / journal.name,
        "lock": home / f"{DATABASE}.lock",
    }[which]


def repository(directory: Path) -> SqliteStore:
    for name in ("home", "mirror"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    return SqliteStore(directory / "home" / DATABASE, system_environment(), mirror=directory / "mirror")


async def check_files(store: SqliteStore) -> list[str]:
    """As the timer does it; returns the new complaints."""
    before = len(store.complaints)
    assert store._worker is not None
    await store._worker.run(store._tend)
    return store.complaints[before:]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("which", FILES)
def test_a_file_of_a_running_repository_is_written_again(tmp_path: Path, which: str, harm: Harm) -> None:
    """The copies are what a kill at that moment leaves. Killed before the check, a repository refuses to start, or has
    everything."""

    async def body() -> None:
        live, wanted = tmp_path / "live", {}
        store = repository(live)
        await store.open()
        for number in range(10):
            wanted[f"key/{number}"] = b"before"
            await store.commit([PutItem(f"key/{number}", b"before"), DeleteItems("x", "y")])
        assert await check_files(store) == []
        harm(of_repository(live, which))
        wanted["key/5"] = b"meanwhile"
        await store.commit([PutItem("key/5", b"meanwhile")])
        shutil.copytree(live, tmp_path / "too early")
        (complaint,) = await check_files(store)
        assert "was deleted" in complaint
        assert await check_files(store) == []
        wanted["key/6"] = b"after"
        await store.commit([PutItem("key/6", b"after")])
        shutil.copytree(live, tmp_path / "killed")
        await store.commit([DeleteItem("key/7")])
        await store.close()
        assert await _items(tmp_path / "killed") == wanted
        del wanted["key/7"]
        assert await _items(live) == wanted
        try:
            found = await _items(tmp_path / "too early")
        except StartupError:
            return
        assert found == wanted | {"key/6": b"before", "key/7": b"before"}

    asyncio.run(body())


async def _items(directory: Path) -> dict[str, bytes]:
    store = repository(directory)
    try:
        return (await store.open()).items
    finally:
        await store.close()


@pytest.mark.parametrize("which", FILES)
def test_a_repository_that_stops_restores_what_was_deleted_since_the_last_check(
    tmp_path: Path, which: str
) -> None:
    async def body() -> None:
        store = repository(tmp_path)
        await store.open()
        await store.commit([PutItem("key", b"1")])
        of_repository(tmp_path, which).unlink()
        await store.commit([PutItem("key", b"2")])
        await store.close()
        assert await _items(tmp_path) == {"key": b"2"}

    asyncio.run(body())


def test_a_repository_whose_lock_and_files_another_one_has_ends(tmp_path: Path) -> None:
    """Deleting the lock lets a second process in: the first one must not put its own files over those of the second."""

    async def body() -> None:
        first, second = repository(tmp_path), repository(tmp_path)
        await first.open()
        await first.commit([PutItem("key", b"first")])
        lock = of_repository(tmp_path, "lock")
        lock.unlink()
        assert await check_files(first) == []
        assert lock.exists()
        with pytest.raises(StartupError, match="is in use"):
            await second.open()
        lock.unlink()
        await second.open()
        await second.commit([PutItem("key", b"second")])
        with pytest.raises(Fenced, match="another repository has it"):
            await check_files(first)
        await first.close()
        await second.close()
        assert await _items(tmp_path) == {"key": b"second"}

    asyncio.run(body())


def test_a_database_of_a_newer_term_is_not_overwritten(tmp_path: Path) -> None:
    async def body() -> None:
        store = repository(tmp_path)
        await store.open()
        await store.commit([PutItem("key", b"1")])
        database = of_repository(tmp_path, "db")
        shutil.copytree(tmp_path, tmp_path / "elsewhere")
        for _ in range(2):
            assert await _items(tmp_path / "elsewhere") == {"key": b"1"}
        newer = of_repository(tmp_path / "elsewhere", "db").read_bytes()
        os.replace(of_repository(tmp_path / "elsewhere", "db"), database)
        with pytest.raises(Fenced, match="a newer term"):
            await check_files(store)
        assert database.read_bytes() == newer
        await store.close()

    asyncio.run(body())
