"""The journal of a metadata store: what was acknowledged is there, a torn end is not, and damage is told from a torn end."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from varlog.metarepo.store import journal as journals
from varlog.metarepo.store.base import Change, Delete, DeleteRange, Fenced, Put
from varlog.metarepo.store.journal import (
    JOURNAL_BYTES,
    RECORD_BYTES_MAX,
    Journal,
    JournalDamaged,
    claim,
    empty_journal,
    encode_record,
    journal_path,
    records_after,
)
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.errors import StartError
from varlog.runtime.disk import OsDisk
from varlog.runtime.doors import system_doors

GOLDEN = Path(__file__).parents[1] / "golden" / "metadata_journal_v1.bin"
HEADER_BYTES = 16
TERM = 3


def _journal(path: Path, applied: int = 0) -> Journal:
    return Journal(OsDisk(synced=False), path, TERM, applied, synced=True)


def _written(path: Path, count: int, applied: int = 0) -> bytearray:
    journal = _journal(path, applied)
    for number in range(count):
        assert journal.append([(f"cut/{number}", bytes(number))])
    journal.close()
    return bytearray(path.read_bytes())


def _numbers(found: list[journals.Puts]) -> list[str]:
    return [key for puts in found for key, _ in puts]


def test_commits_come_back_in_order_and_only_those_that_the_store_lacks(tmp_path: Path) -> None:
    content = bytes(_written(tmp_path / "journal", 5))
    assert records_after(content, 0) == [[(f"cut/{number}", bytes(number))] for number in range(5)]
    assert _numbers(records_after(content, 3)) == ["cut/3", "cut/4"]
    assert records_after(content, 5) == []


def test_the_file_keeps_its_size_whatever_is_written(tmp_path: Path) -> None:
    """What a sync has to log of a file that grows, or gets new blocks, is what the journal is there to avoid."""
    path = tmp_path / "journal"
    journal = _journal(path)
    blocks = os.stat(path).st_blocks
    while journal.append([("key", bytes(1000))]):
        pass
    journal.begin_lap()
    assert journal.append([("key", b"again")])
    journal.close()
    assert (path.stat().st_size, os.stat(path).st_blocks) == (JOURNAL_BYTES, blocks)


def test_what_is_left_of_an_older_lap_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = _journal(path)
    for number in range(10):
        journal.append([(f"old/{number}", bytes(number))])
    journal.begin_lap()
    journal.append([("new/0", bytes(3))])
    journal.append([("new/1", b"")])
    journal.close()
    assert _numbers(records_after(path.read_bytes(), 10)) == ["new/0", "new/1"]


def test_a_lap_that_has_just_begun_holds_nothing(tmp_path: Path) -> None:
    """The store took everything in, and the process was killed before the next commit."""
    assert records_after(bytes(_written(tmp_path / "journal", 10)), 10) == []


@pytest.mark.parametrize("torn", ["cut off", "zeros", "one bit"])
def test_a_torn_last_record_was_never_acknowledged(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "journal"
    whole = _written(path, 3)
    begin = whole.index(encode_record(3, [("cut/2", bytes(2))]))
    end = begin + len(encode_record(3, [("cut/2", bytes(2))]))
    if torn == "cut off":
        whole[end - 3 : end] = bytes(3)
        whole[end - 4] ^= 1
    elif torn == "zeros":
        whole[begin:end] = bytes(end - begin)
    else:
        whole[begin + 12] ^= 4
    assert _numbers(records_after(bytes(whole), 0)) == ["cut/0", "cut/1"]


def test_a_bad_record_before_a_good_one_is_damage(tmp_path: Path) -> None:
    """It was synced before the next one was written: going on without it would give its positions a second time (law 3)."""
    content = _written(tmp_path / "journal", 4)
    content[content.index(b"cut/1")] ^= 1
    with pytest.raises(JournalDamaged, match="commit 2 cannot be read, and commit 3 is there"):
        records_after(bytes(content), 0)


def test_a_journal_of_a_later_store_is_damage(tmp_path: Path) -> None:
    """An older copy of the database, with the journal that was written behind a newer one."""
    content = bytes(_written(tmp_path / "journal", 2, applied=7))
    with pytest.raises(JournalDamaged, match="it begins with commit 8, and the store ends with 5"):
        records_after(content, 5)


@pytest.mark.parametrize("content", [b"", b"VLMJ", bytes(100), b"a letter" * 100])
def test_another_file_is_refused(content: bytes) -> None:
    with pytest.raises(JournalDamaged, match="no journal"):
        records_after(content, 0)


def test_a_newer_format_is_refused() -> None:
    content = bytearray(empty_journal(TERM))
    content[4] = 2
    with pytest.raises(JournalDamaged, match="format version 2, this program knows version 1"):
        records_after(bytes(content), 0)


def test_a_commit_that_has_no_room_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = _journal(path)
    assert not journal.append([("large", bytes(RECORD_BYTES_MAX))])
    assert journal.append([("small", b"")])
    journal.close()
    assert _numbers(records_after(path.read_bytes(), 0)) == ["small"]


def test_its_owner_learns_that_somebody_else_has_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = _journal(path)
    journal.append([("a", b"")])
    before = journal.claimed
    claim(OsDisk(), path, TERM + 1)
    journal.append([("b", b"")])
    assert (before, journal.claimed) == (False, True)
    journal.close()
    assert _numbers(records_after(path.read_bytes(), 0)) == ["a", "b"]  # a claim touches no record


def test_what_is_no_journal_is_not_claimed(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_bytes(b"a letter" * 100)
    with pytest.raises(JournalDamaged, match="no journal"):
        claim(OsDisk(), path, TERM)
    assert path.read_bytes() == b"a letter" * 100


def test_the_format_is_the_one_that_was_written_once() -> None:
    puts = [("cut/00000000000000000001", b"\x92\x01\x90"), ("reader/0000000001/ü", b"")]
    content = empty_journal(0)[:HEADER_BYTES] + encode_record(1, puts) + encode_record(2, [("base", b"b")])
    assert content == GOLDEN.read_bytes()
    assert empty_journal(0x0102)[:HEADER_BYTES] == content[:8] + b"\x02\x01" + bytes(6)
    assert records_after(GOLDEN.read_bytes(), 0) == [puts, [("base", b"b")]]


# --- in its store ------------------------------------------------------------------------------------------------------------


class _Killed(SqliteStore):
    """Ends as a process that is killed: what was acknowledged is on the disk, and nothing is tidied up."""

    def _close_database(self, database: sqlite3.Connection, journal: Journal | None) -> None:
        database.close()


def _commit_and_die(path: Path, *commits: Sequence[Change]) -> None:
    async def body() -> None:
        store = _Killed(path, system_doors())
        await store.open()
        for changes in commits:
            await store.commit(changes)
        await store.close()

    asyncio.run(body())


def _items(path: Path, make: type[SqliteStore] = SqliteStore) -> dict[str, bytes]:
    async def body() -> dict[str, bytes]:
        store = make(path, system_doors())
        try:
            return (await store.open()).items
        finally:
            await store.close()

    return asyncio.run(body())


def test_a_cut_is_in_the_journal_alone_and_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    _commit_and_die(path, [Put("a", b"1")], [Put("b", b"2"), Put("a", b"3")])
    database = sqlite3.connect(path)
    assert database.execute("SELECT count(*) FROM items").fetchone() == (0,)
    database.close()
    assert _items(path, _Killed) == {"a": b"3", "b": b"2"}
    assert _items(path) == {"a": b"3", "b": b"2"}


def test_deletes_come_after_the_puts_before_them_and_before_those_behind(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    commits: list[list[Change]] = [
        [Put("cut/1", b""), Put("cut/2", b""), Put("x", b"")],
        [Put("base", b"2"), DeleteRange("cut/", "cut/2"), Delete("x")],
        [Put("cut/1", b"anew")],
    ]
    _commit_and_die(path, *commits)
    assert _items(path) == {"base": b"2", "cut/1": b"anew", "cut/2": b""}


def test_a_full_journal_goes_into_the_database_and_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    value = bytes(RECORD_BYTES_MAX // 2)
    count = 3 * JOURNAL_BYTES // len(value)
    _commit_and_die(path, *([Put(f"cut/{number}", value)] for number in range(count)))
    assert _items(path) == {f"cut/{number}": value for number in range(count)}


def test_after_a_clean_end_the_database_has_everything(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    _commit_and_die(path, [Put("a", b"1")])
    assert _items(path) == {"a": b"1"}  # ends cleanly
    journal_path(path).unlink()
    assert _items(path) == {"a": b"1"}


def test_a_journal_that_is_gone_is_a_loss_unless_the_end_was_clean(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    _commit_and_die(path, [Put("a", b"1")])
    journal_path(path).unlink()
    with pytest.raises(StartError, match=r"metadata\.db\.journal is missing"):
        _items(path)


def test_a_damaged_journal_is_told_at_the_start_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    _commit_and_die(path, *([Put(f"cut/{number}", b"")] for number in range(3)))
    content = bytearray(journal_path(path).read_bytes())
    content[content.index(b"cut/1")] ^= 1
    journal_path(path).write_bytes(content)
    for _ in range(2):
        with pytest.raises(StartError, match="commit 2 cannot be read"):
            _items(path)
    assert journal_path(path).read_bytes()[HEADER_BYTES:] == content[HEADER_BYTES:]


def test_a_commit_that_a_newer_opening_did_not_read_is_not_acknowledged(tmp_path: Path) -> None:
    """Law 7. The newer one has read the journal before this write, and no lock kept it out."""
    path = tmp_path / "metadata.db"

    async def body() -> dict[str, bytes]:
        older, newer = _Killed(path, system_doors()), SqliteStore(path, system_doors())
        await older.open()
        await older.commit([Put("a", b"1")])
        path.with_name("metadata.db.lock").unlink()
        items = (await newer.open()).items
        with pytest.raises(Fenced):
            await older.commit([Put("b", b"2")])
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
        store = SqliteStore(path, system_doors())
        opened = await store.open()
        await store.close()
        return opened.term, opened.items

    assert asyncio.run(body()) == (7, {"a": b"1"})
