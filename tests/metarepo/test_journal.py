"""The journal of a metadata store: keeps what was acknowledged, drops a torn end, and distinguishes damage from a torn end."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from varlog.metarepo.store import journal as journals
from varlog.metarepo.store.base import DeleteItem, DeleteItems, Fenced, PutItem, StoreChange
from varlog.metarepo.store.database import Database
from varlog.metarepo.store.journal import (
    JOURNAL_BYTES,
    RECORD_BYTES_MAX,
    SECTOR_BYTES,
    Header,
    Journal,
    JournalDamaged,
    claim,
    empty_journal,
    encode_body,
    encode_record,
    find_header,
    journal_path,
    recover_journal,
)
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.errors import StartupError
from varlog.runtime.disk import OsDisk
from varlog.runtime.environment import system_environment

GOLDEN = Path(__file__).parents[1] / "golden"
SALT = bytes(range(16))
TERM = 3


def _journal(path: Path, applied: int = 0) -> Journal:
    return Journal(OsDisk(synced=False), path, TERM, applied, synced=True, salt=SALT)


def _written(path: Path, count: int, applied: int = 0) -> bytearray:
    journal = _journal(path, applied)
    for number in range(count):
        assert journal.append([PutItem(f"cut/{number}", bytes(number))])
    journal.close()
    return bytearray(path.read_bytes())


def _keys(commits: list[list[StoreChange]]) -> list[str]:
    return [change.key for changes in commits for change in changes if isinstance(change, PutItem)]


def _read(content: bytes, applied: int = 0) -> list[str]:
    return _keys(recover_journal(content, applied).commits)


def _place(nth: int, copy: int) -> int:
    """Where the first sector of a copy of the nth record of one sector begins."""
    return (2 + 2 * nth + copy) * SECTOR_BYTES


def test_commits_come_back_in_order_and_only_those_that_the_store_lacks(tmp_path: Path) -> None:
    content = bytes(_written(tmp_path / "journal", 5))
    assert recover_journal(content, 0).commits == [
        [PutItem(f"cut/{number}", bytes(number))] for number in range(5)
    ]
    assert recover_journal(content, 0).complaints == []
    assert _read(content, 3) == ["cut/3", "cut/4"]
    assert recover_journal(content, 5).commits == []


def test_every_kind_of_change_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    changes: list[StoreChange] = [
        PutItem("a", b""),
        DeleteItem("b"),
        DeleteItems("c", "d"),
        PutItem("ü", b"\xff"),
    ]
    journal = _journal(path)
    assert journal.append(changes) and journal.append([])
    journal.close()
    assert recover_journal(path.read_bytes(), 0).commits == [changes, []]


def test_the_file_keeps_its_size_whatever_is_written(tmp_path: Path) -> None:
    """What a sync has to log of a file that grows, or gets new blocks, is what the journal is there to avoid."""
    path = tmp_path / "journal"
    journal = _journal(path)
    blocks = os.stat(path).st_blocks
    while journal.append([PutItem("key", bytes(10_000))]):
        pass
    journal.release(journal.newest)
    assert journal.append([PutItem("key", b"again")])
    journal.close()
    assert (path.stat().st_size, os.stat(path).st_blocks) == (JOURNAL_BYTES, blocks)


def test_records_share_no_sector_and_each_is_written_twice(tmp_path: Path) -> None:
    content = bytes(_written(tmp_path / "journal", 4))
    for number in range(4):
        first, second = (content.index(f"cut/{number}".encode(), _place(number, copy)) for copy in (0, 1))
        assert (first // SECTOR_BYTES, second // SECTOR_BYTES) == (2 + 2 * number, 3 + 2 * number)


def test_laps_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is a circle of three records here: what is left of an older lap is not read again."""
    monkeypatch.setattr(journals, "JOURNAL_BYTES", (2 + 6 + 1) * SECTOR_BYTES)
    path = tmp_path / "journal"
    journal = _journal(path)
    for number in range(20):
        if not journal.append([PutItem(f"cut/{number}", b"")]):
            journal.release(journal.newest)
            assert journal.append([PutItem(f"cut/{number}", b"")])
        newest = number + 1
        held = number % 3 + 1
        assert _read(path.read_bytes(), newest - held) == [f"cut/{n}" for n in range(newest - held, newest)]
        assert _read(path.read_bytes(), newest) == []
    journal.close()


def test_a_large_record_that_does_not_fit_at_the_end_begins_the_next_lap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "JOURNAL_BYTES", (2 + 7 + 1) * SECTOR_BYTES)
    path = tmp_path / "journal"
    journal = _journal(path)
    assert journal.append([PutItem("a", b"")]) and journal.append([PutItem("b", b"")])
    assert not journal.append([PutItem("c", bytes(5000))])  # four sectors, and three are left
    journal.release(journal.newest)
    assert journal.append([PutItem("c", bytes(5000))])
    assert not journal.append([PutItem("d", b"")])  # what was left free at the end counts
    journal.close()
    assert _read(path.read_bytes(), 2) == ["c"]


@pytest.mark.parametrize("torn", ["first half", "mixture", "one copy"])
def test_a_torn_last_record_was_never_acknowledged_unless_a_copy_is_whole(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "journal"
    whole = _written(path, 3)
    before = empty_journal(Header(SALT, TERM, 0, JOURNAL_BYTES, True))
    begin, second, end = _place(2, 0), _place(2, 1), _place(3, 0)
    if torn == "first half":
        whole[begin + 512 : end] = before[begin + 512 : end]
        whole[begin + 40] ^= 1
    elif torn == "mixture":
        for at in range(begin, end, 1024):
            whole[at : at + 64] = before[at : at + 64]
        whole[begin + 60] ^= 1
        whole[second : second + 64] = _written(tmp_path / "other", 3)[second : second + 64]
        whole[second + 60] ^= 1
    else:
        whole[begin:second] = before[begin:second]
    expected = ["cut/0", "cut/1"] + (["cut/2"] if torn == "one copy" else [])
    assert _read(bytes(whole)) == expected


def test_a_bad_record_before_a_good_one_is_damage(tmp_path: Path) -> None:
    """It was synced before the next one was written: continuing without it would assign its positions a second time (law 3)."""
    content = _written(tmp_path / "journal", 4)
    for copy in (0, 1):
        content[_place(1, copy) + 60] ^= 1
    with pytest.raises(JournalDamaged, match="commit 2 cannot be read, and commit 4 is there"):
        recover_journal(bytes(content), 0)


def test_a_torn_record_shows_that_the_one_before_it_was_synced(tmp_path: Path) -> None:
    """Of the newest record one sector of three is left. That is enough to know that the one before it was acknowledged."""
    path = tmp_path / "journal"
    journal = _journal(path)
    journal.append([PutItem("a", b"")])
    journal.append([PutItem("b", b"")])
    journal.append([PutItem("c", bytes(3 * SECTOR_BYTES))])
    journal.close()
    content = bytearray(path.read_bytes())
    before = empty_journal(Header(SALT, TERM, 0, JOURNAL_BYTES, True))
    content[_place(2, 1) : _place(6, 0)] = before[_place(2, 1) : _place(6, 0)]
    assert _read(bytes(content)) == ["a", "b"]
    for copy in (0, 1):
        content[_place(1, copy) + 60] ^= 1
    with pytest.raises(JournalDamaged, match="commit 2 cannot be read, and commit 2 was acknowledged"):
        recover_journal(bytes(content), 0)


def test_different_sectors_of_both_copies_may_be_bad(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = _journal(path)
    journal.append([PutItem("a", bytes(range(256)) * 30)])
    journal.close()
    content = bytearray(path.read_bytes())
    content[_place(0, 0) + 9] ^= 1
    content[_place(1, 1) + 9] ^= 1
    found = recover_journal(bytes(content), 0)
    assert found.commits == [[PutItem("a", bytes(range(256)) * 30)]]
    assert [line for line in found.complaints if "one copy of commit 1 is damaged (sectors [2, 5])" in line]


def test_a_sector_that_was_written_at_another_place_is_bad(tmp_path: Path) -> None:
    content = _written(tmp_path / "journal", 3)
    content[_place(0, 0) : _place(1, 0)] = content[_place(2, 0) : _place(3, 0)]
    with pytest.raises(JournalDamaged, match="commit 1 cannot be read"):
        recover_journal(bytes(content), 0)


def test_a_journal_of_a_later_store_is_damage(tmp_path: Path) -> None:
    """An older copy of the database, with the journal that was written behind a newer one."""
    content = bytes(_written(tmp_path / "journal", 2, applied=7))
    with pytest.raises(JournalDamaged, match="begun behind commit 7, and the database ends with commit 5"):
        recover_journal(content, 5)


def test_a_journal_that_lacks_what_the_store_took_from_it_is_an_older_copy(tmp_path: Path) -> None:
    content = bytes(_written(tmp_path / "journal", 2))
    assert recover_journal(content, 2, recorded=2).commits == []
    with pytest.raises(JournalDamaged, match="ends with commit 2, and the database has commit 3 from it"):
        recover_journal(content, 3, recorded=3)


@pytest.mark.parametrize("content", [b"", b"VLMJ", bytes(100), b"a letter" * 1000])
def test_another_file_is_refused(content: bytes) -> None:
    with pytest.raises(JournalDamaged, match="no journal"):
        recover_journal(content, 0)


def test_a_newer_format_is_refused() -> None:
    content = bytearray(empty_journal(Header(SALT, TERM, 0, 8 * SECTOR_BYTES, True)))
    content[4] = content[-SECTOR_BYTES + 4] = 3
    with pytest.raises(JournalDamaged, match="format version 3, this program knows version 2"):
        recover_journal(bytes(content), 0)


def test_a_commit_that_has_no_room_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = _journal(path)
    assert not journal.append([PutItem("large", bytes(RECORD_BYTES_MAX))])
    assert journal.append([PutItem("small", b"")])
    journal.close()
    assert _read(path.read_bytes()) == ["small"]


def test_its_owner_learns_that_the_store_was_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = _journal(path)
    journal.append([PutItem("a", b"")])
    before = journal.claimed
    claim(OsDisk(), path, TERM + 1)
    journal.append([PutItem("b", b"")])
    assert (before, journal.claimed) == (False, True)
    journal.close()
    assert _read(path.read_bytes()) == ["a", "b"]  # a claim touches no record
    assert recover_journal(path.read_bytes(), 0).complaints == []  # and no header


def test_what_is_no_journal_is_not_claimed(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_bytes(b"a letter" * 1000)
    with pytest.raises(JournalDamaged, match="no journal"):
        claim(OsDisk(), path, TERM)
    assert path.read_bytes() == b"a letter" * 1000


PUTS: list[StoreChange] = [
    PutItem("cut/00000000000000000001", b"\x92\x01\x90"),
    PutItem("reader/0000000001/ü", b""),
]
MORE: list[StoreChange] = [PutItem("base", b"b" * 5000), DeleteItem("x"), DeleteItems("cut/", "cut/2")]


def test_the_format_is_the_one_that_was_written_once() -> None:
    """A file of ten sectors: header, claim, a record of one sector and one of two, each twice, a blank one, header."""
    golden = (GOLDEN / "metadata_journal_v2.bin").read_bytes()
    header = Header(SALT, 0x0102, 0, 10 * SECTOR_BYTES, True)
    content = bytearray(empty_journal(header))
    for number, start, changes in ((1, 2, PUTS), (2, 4, MORE)):
        record = b"".join(encode_record(SALT, number, number - 1, start, 1, encode_body(changes)))
        content[start * SECTOR_BYTES : start * SECTOR_BYTES + len(record)] = record
    assert content == golden
    assert find_header(golden) == header
    assert recover_journal(golden, 0).commits == [PUTS, MORE]


# --- format 1 ------------------------------------------------------------------------------------------------------------------


def _v1() -> bytearray:
    """As a store has it: the golden file has its beginning alone."""
    return bytearray((GOLDEN / "metadata_journal_v1.bin").read_bytes().ljust(4096, b"\0"))


def test_a_journal_of_format_1_is_read() -> None:
    found = recover_journal(bytes(_v1()), 0)
    assert (found.commits, found.complaints) == ([PUTS, [PutItem("base", b"b")]], [])
    assert _read(bytes(_v1()), 1) == ["base"]


def test_a_bad_newest_record_of_format_1_counts_as_torn_and_is_reported() -> None:
    content = _v1()
    content[content.index(b"base")] ^= 1
    found = recover_journal(bytes(content), 0)
    assert found.commits == [PUTS]
    assert found.complaints and "commit 2, the newest, cannot be read" in found.complaints[0]


def test_a_bad_older_record_of_format_1_is_damage() -> None:
    content = _v1()
    content[content.index(b"cut/")] ^= 1
    with pytest.raises(JournalDamaged, match="commit 1 cannot be read, and commit 2 is there"):
        recover_journal(bytes(content), 0)


# --- in its store ------------------------------------------------------------------------------------------------------------


class _Killed(SqliteStore):
    """Ends as a process that is killed: what was acknowledged is on the disk, and nothing is tidied up."""

    def _close_database(self, database: Database, journal: Journal | None) -> None:
        database.close()


def _commit_and_die(path: Path, *commits: Sequence[StoreChange]) -> None:
    async def body() -> None:
        store = _Killed(path, system_environment())
        await store.open()
        for changes in commits:
            await store.commit(changes)
        await store.close()

    asyncio.run(body())


def _items(path: Path, make: type[SqliteStore] = SqliteStore) -> dict[str, bytes]:
    async def body() -> dict[str, bytes]:
        store = make(path, system_environment())
        try:
            return (await store.open()).items
        finally:
            await store.close()

    return asyncio.run(body())


def test_a_cut_is_in_the_journal_alone_and_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    _commit_and_die(path, [PutItem("a", b"1")], [PutItem("b", b"2"), PutItem("a", b"3")])
    database = sqlite3.connect(path)
    assert database.execute("SELECT count(*) FROM items").fetchone() == (0,)
    database.close()
    assert _items(path, _Killed) == {"a": b"3", "b": b"2"}
    assert _items(path) == {"a": b"3", "b": b"2"}


def test_deletes_come_after_the_puts_before_them_and_before_those_behind(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    commits: list[list[StoreChange]] = [
        [PutItem("cut/1", b""), PutItem("cut/2", b""), PutItem("x", b"")],
        [PutItem("base", b"2"), DeleteItems("cut/", "cut/2"), DeleteItem("x")],
        [PutItem("cut/1", b"again")],
    ]
    _commit_and_die(path, *commits)
    assert _items(path) == {"base": b"2", "cut/1": b"again", "cut/2": b""}


def test_a_full_journal_goes_into_the_database_and_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    value = bytes(RECORD_BYTES_MAX // 2)
    count = 3 * JOURNAL_BYTES // len(value)
    _commit_and_die(path, *([PutItem(f"cut/{number}", value)] for number in range(count)))
    assert _items(path) == {f"cut/{number}": value for number in range(count)}


def test_after_a_clean_end_the_database_has_everything(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    _commit_and_die(path, [PutItem("a", b"1")])
    assert _items(path) == {"a": b"1"}  # ends cleanly
    journal_path(path).unlink()
    assert _items(path) == {"a": b"1"}


def test_a_journal_that_is_gone_is_a_loss_unless_the_end_was_clean(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    _commit_and_die(path, [PutItem("a", b"1")])
    journal_path(path).unlink()
    with pytest.raises(
        StartupError, match=r"metadata\.db\.journal .*it is missing, and the newest commits were in it"
    ):
        _items(path)


def test_a_damaged_journal_is_reported_at_startup_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    _commit_and_die(path, *([PutItem(f"cut/{number}", b"")] for number in range(3)))
    content = bytearray(journal_path(path).read_bytes())
    for copy in (0, 1):
        content[content.index(b"cut/1", _place(1, copy))] ^= 1
    journal_path(path).write_bytes(content)
    for _ in range(2):
        with pytest.raises(StartupError, match="commit 2 cannot be read"):
            _items(path)
    assert journal_path(path).read_bytes()[2 * SECTOR_BYTES :] == content[2 * SECTOR_BYTES :]


def test_a_commit_that_a_newer_opening_did_not_read_is_not_acknowledged(tmp_path: Path) -> None:
    """Law 7. The newer one has read the journal before this write, and no lock kept it out."""
    path = tmp_path / "metadata.db"

    async def body() -> dict[str, bytes]:
        older, newer = _Killed(path, system_environment()), SqliteStore(path, system_environment())
        await older.open()
        await older.commit([PutItem("a", b"1")])
        path.with_name("metadata.db.lock").unlink()
        items = (await newer.open()).items
        with pytest.raises(Fenced):
            await older.commit([PutItem("b", b"2")])
        await older.close()
        await newer.close()
        return items

    assert asyncio.run(body()) == {"a": b"1"}
    assert _items(path) == {"a": b"1"}


def test_a_database_from_before_the_journal_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    old = sqlite3.connect(path)
    old.executescript(
        """
        CREATE TABLE items (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
        CREATE TABLE terms (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), term INTEGER NOT NULL);
        INSERT INTO terms VALUES (1, 6);
        INSERT INTO items VALUES ('a', x'31');
        PRAGMA application_id = 0x564c4d52;
        PRAGMA user_version = 1;
        """
    )
    old.close()

    async def body() -> tuple[int, dict[str, bytes]]:
        store = SqliteStore(path, system_environment())
        opened = await store.open()
        await store.close()
        return opened.term, opened.items

    assert asyncio.run(body()) == (7, {"a": b"1"})


GOLDEN_ITEMS = {
    "base": b"b",
    "cluster": b"members",
    "cut/2": b"2",
    "cut/3": b"3",
    "cut/4": b"4",
    "reader/ü": b"",
}


@pytest.mark.parametrize("version", [2, 3])
def test_the_files_of_a_killed_repository_of_each_format_are_taken_over(tmp_path: Path, version: int) -> None:
    """2: no checksums, and a journal of format 1, cut off behind its records. 3: as they are now."""
    for name in (f"metadata_v{version}.db", f"metadata_v{version}.db.journal"):
        shutil.copy(GOLDEN / name, tmp_path / name.replace(f"_v{version}", ""))
    path = tmp_path / "metadata.db"
    assert _items(path, _Killed) == GOLDEN_ITEMS
    assert find_header(journal_path(path).read_bytes()) is not None
    assert _items(path) == GOLDEN_ITEMS
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone() == (3,)
    database.close()
