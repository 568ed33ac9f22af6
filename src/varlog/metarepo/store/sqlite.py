"""[A8] SqliteStore: the default metadata store. One database and a journal, one writer, every commit synced before it returns.

A commit that only puts keys, as a cut does, goes to the journal beside the database: one write and one sync, and none of the pages
and locks of an SQLite transaction. Every other commit, and one for which the journal has no room, is a transaction that also takes
in what the journal holds. So does a clean end: then the database has everything.

A lock file beside the database keeps a second repository out; terms fence it even where locks do not hold: a transaction looks
inside at the one in the database, a commit to the journal, behind its sync, at the one in the journal. Whoever opens takes a term,
writes it into the journal and reads that then: a commit that saw its own term still there is in what he reads. All of it runs in
one worker.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from varlog.metarepo.store.base import Change, Delete, DeleteRange, Fenced, Opened, Put, SoleStore
from varlog.metarepo.store.journal import Journal, JournalDamaged, Puts, claim, journal_path, records_after
from varlog.model.errors import StartError, Unavailable
from varlog.runtime.disk import Lock
from varlog.runtime.doors import Doors
from varlog.runtime.logs import get_logger, told
from varlog.runtime.worker import Worker

# "VLMR": tells our databases from all others; SQLite keeps both numbers in the file's header.
APPLICATION_ID: Final = int.from_bytes(b"VLMR", "big")
# 1: without a journal; taken over when it is opened. An older program must not: it would miss what is in the journal.
FORMAT_VERSION: Final = 2
DATABASE_BYTES_MIN: Final = 512

_log = get_logger("metarepo")

_SCHEMA: Final = """
    BEGIN IMMEDIATE;
    CREATE TABLE items (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE terms (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), term INTEGER NOT NULL);
    INSERT INTO terms VALUES (1, 0);
    PRAGMA application_id = {application_id};
    PRAGMA user_version = 1;
    COMMIT;
"""
# `applied`: the newest commit of the journal that the database holds. `in_use`: from the first commit that may be in the journal
# alone until a clean end; so long a journal that is not there is a loss.
_JOURNAL_SCHEMA: Final = """
    BEGIN IMMEDIATE;
    CREATE TABLE journal (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), applied INTEGER NOT NULL, in_use INTEGER NOT NULL);
    INSERT INTO journal VALUES (1, 0, 0);
    PRAGMA user_version = {format_version};
    COMMIT;
"""


class SqliteStore(SoleStore):
    """Metadata in one SQLite file. `synced=False` never waits for the device: a power loss may lose the newest commits."""

    def __init__(self, path: Path, doors: Doors, *, synced: bool = True) -> None:
        self._path = path
        self._doors = doors
        self._synced = synced
        self._worker: Worker | None = None
        self._database: sqlite3.Connection | None = None
        self._lock: Lock | None = None
        self._term = 0
        self._journal: Journal | None = None
        # What is in the journal and not in the database yet.
        self._pending: dict[str, bytes] = {}

    @property
    def place(self) -> str:
        return str(self._path)

    async def open(self, address: str = "") -> Opened:
        self._worker = self._doors.make_worker(f"metadata {self._path.name}")
        try:
            return await self._worker.run(self._open)
        except BaseException:
            await self.close()
            raise

    async def commit(self, changes: Sequence[Change]) -> None:
        if self._worker is None:
            raise Unavailable(f"{self._path} is not open")
        await self._worker.run(lambda: self._commit(changes), brief=_only_puts(changes) is not None)

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.run(self._close)
            await worker.close()

    # --- in the worker -------------------------------------------------------------------------------------------------

    def _open(self) -> Opened:
        try:
            self._lock = self._doors.disk.lock(self._path.with_name(self._path.name + ".lock"))
        except BlockingIOError:
            raise StartError(
                f"{self._path} is in use by another metadata repository: stop that one first, or name another file"
            ) from None
        except OSError as error:
            raise StartError(
                f"{self._path} cannot be used: {error.strerror}; its directory must exist and be writable"
            ) from error
        try:
            return self._open_database()
        except (sqlite3.Error, OSError, JournalDamaged) as error:
            raise StartError(
                f"{self._path} cannot be opened as metadata ({error}): if it is damaged, restore it from a copy; "
                "if it is another program's file, name another one"
            ) from error

    def _open_database(self) -> Opened:
        fresh = not self._path.exists()
        if not fresh and 0 < self._path.stat().st_size < DATABASE_BYTES_MIN:
            raise sqlite3.DatabaseError("file is not a database")  # SQLite would take it for an empty one
        # No implicit transactions: each BEGIN and COMMIT is written out where it happens.
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5.0)
        self._database = database
        self._check_identity(database)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {'FULL' if self._synced else 'OFF'}")
        if not _tables(database):
            database.executescript(_SCHEMA.format(application_id=APPLICATION_ID))
        if "journal" not in _tables(database):
            database.executescript(_JOURNAL_SCHEMA.format(format_version=FORMAT_VERSION))
        if fresh:
            self._doors.disk.sync_directory(self._path.parent)
        if (verdict := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(verdict)
        self._take_term(database)
        self._begin_journal(database)
        return Opened(self._term, dict(database.execute("SELECT key, value FROM items ORDER BY key")))

    def _check_identity(self, database: sqlite3.Connection) -> None:
        """Before anything is written: a file that is not ours stays as it is."""
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if not _tables(database) and application == 0:
            return  # empty: new, or a start that was cut off before its first transaction
        if application != APPLICATION_ID:
            raise StartError(f"{self._path} is a database of another program: name another file")
        if not 1 <= version <= FORMAT_VERSION:
            raise StartError(
                f"{self._path} has format version {version}, this program knows version {FORMAT_VERSION}: "
                "use the version of varlog that wrote it"
            )

    def _take_term(self, database: sqlite3.Connection) -> None:
        with _Transaction(database):
            database.execute("UPDATE terms SET term = term + 1")
            self._term = _term(database)

    def _begin_journal(self, database: sqlite3.Connection) -> None:
        """Take in what the last opening left in its journal, then begin our own. Each step may be the last one before a crash."""
        path, disk = journal_path(self._path), self._doors.disk
        applied, in_use = database.execute("SELECT applied, in_use FROM journal").fetchone()
        if disk.exists(path):
            claim(disk, path, self._term)
            left = records_after(disk.read_file(path), applied)
        elif in_use:
            raise JournalDamaged(f"{path} is missing, and the newest commits were in it")
        else:
            left = []
        for puts in left:
            self._pending.update(puts)
        if left:
            self._write_through(database, applied + len(left), [])
        self._journal = Journal(disk, path, self._term, applied + len(left), synced=self._synced)
        if not in_use:
            self._set_in_use(database, True)

    def _set_in_use(self, database: sqlite3.Connection, in_use: bool) -> None:
        with _Transaction(database):
            self._check_term(database)
            database.execute("UPDATE journal SET in_use = ?", (int(in_use),))

    def _commit(self, changes: Sequence[Change]) -> None:
        database, journal = self._database, self._journal
        if database is None or journal is None:
            raise Unavailable(f"{self._path} is closed")
        puts = _only_puts(changes)
        if puts is not None and journal.append(puts):
            # Behind the sync: who claimed the journal before this look may have read it before our write (law 7). In the journal,
            # not in the database: this is on the way of every append, and a query takes six times as long.
            if journal.claimed:
                raise Fenced(f"{self._path} was opened again: term {self._term} is over")
            self._pending.update(puts)
        else:
            self._write_through(database, journal.newest, changes)
            journal.begin_lap()

    def _write_through(self, database: sqlite3.Connection, applied: int, changes: Sequence[Change]) -> None:
        """What is pending, then `changes`, in one transaction; the journal is not needed any more up to `applied`."""
        pending = _without_deleted(self._pending, changes)
        with _Transaction(database):
            self._check_term(database)
            database.executemany("INSERT OR REPLACE INTO items VALUES (?, ?)", pending.items())
            for change in changes:
                if isinstance(change, Put):
                    database.execute("INSERT OR REPLACE INTO items VALUES (?, ?)", (change.key, change.value))
                elif isinstance(change, Delete):
                    database.execute("DELETE FROM items WHERE key = ?", (change.key,))
                else:
                    database.execute(
                        "DELETE FROM items WHERE key >= ? AND key < ?", (change.begin, change.end)
                    )
            database.execute("UPDATE journal SET applied = ?", (applied,))
        self._pending = {}

    def _check_term(self, database: sqlite3.Connection) -> None:
        if (term := _term(database)) != self._term:
            raise Fenced(f"{self._path} was opened again, in term {term}: term {self._term} is over")

    def _close(self) -> None:
        database, self._database = self._database, None
        journal, self._journal = self._journal, None
        lock, self._lock = self._lock, None
        try:
            if journal is not None:
                journal.close()
            if database is not None:
                self._close_database(database, journal)
        finally:
            if lock is not None:
                lock.release()

    def _close_database(self, database: sqlite3.Connection, journal: Journal | None) -> None:
        """With everything in the database. Where that fails the journal still has it, and the next opening takes it in."""
        try:
            if journal is not None:
                self._write_through(database, journal.newest, [])
                self._set_in_use(database, False)
        except (sqlite3.Error, Fenced) as error:
            _log.warning(told("the metadata stay in their journal", place=self._path, why=error))
        finally:
            database.close()


def _term(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT term FROM terms").fetchone()[0])


def _only_puts(changes: Sequence[Change]) -> Puts | None:
    """The changes as the journal takes them; None if it cannot."""
    puts = [(change.key, change.value) for change in changes if isinstance(change, Put)]
    return puts if len(puts) == len(changes) else None


def _without_deleted(pending: dict[str, bytes], changes: Sequence[Change]) -> dict[str, bytes]:
    """`pending` without the keys that `changes` delete: most cuts never reach the database, for a base comes in their place."""
    for change in changes:
        if isinstance(change, DeleteRange):
            begin, end = change.begin, change.end
            pending = {key: value for key, value in pending.items() if not begin <= key < end}
    return pending


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK on an error. The commit is what waits for the device."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._database.execute("COMMIT")
        elif self._database.in_transaction:
            self._database.execute("ROLLBACK")


def _tables(database: sqlite3.Connection) -> list[str]:
    return [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
