"""[A8] SqliteStore: the default metadata store. One file, one writer, every commit synced before it returns.

A lock file beside the database keeps a second repository out; the term in the database fences it in the same transaction
even where locks do not hold. All SQLite calls run in one worker: the event loop never waits for the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from varlog.metarepo.store.base import Change, Delete, Fenced, Opened, Put, SoleStore
from varlog.model.errors import StartError, Unavailable
from varlog.runtime.disk import Lock
from varlog.runtime.doors import Doors
from varlog.runtime.worker import Worker

# "VLMR": tells our databases from all others; SQLite keeps both numbers in the file's header.
APPLICATION_ID: Final = int.from_bytes(b"VLMR", "big")
FORMAT_VERSION: Final = 1
DATABASE_BYTES_MIN: Final = 512

_SCHEMA: Final = """
    BEGIN IMMEDIATE;
    CREATE TABLE items (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE terms (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), term INTEGER NOT NULL);
    INSERT INTO terms VALUES (1, 0);
    PRAGMA application_id = {application_id};
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
        await self._worker.run(lambda: self._commit(changes))

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
        except (sqlite3.Error, OSError) as error:
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
            database.executescript(
                _SCHEMA.format(application_id=APPLICATION_ID, format_version=FORMAT_VERSION)
            )
        if fresh:
            self._doors.disk.sync_directory(self._path.parent)
        if (verdict := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(verdict)
        return self._take_term(database)

    def _check_identity(self, database: sqlite3.Connection) -> None:
        """Before anything is written: a file that is not ours stays as it is."""
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if not _tables(database) and application == 0:
            return  # empty: new, or a start that was cut off before its first transaction
        if application != APPLICATION_ID:
            raise StartError(f"{self._path} is a database of another program: name another file")
        if version != FORMAT_VERSION:
            raise StartError(
                f"{self._path} has format version {version}, this program knows version {FORMAT_VERSION}: "
                "use the version of varlog that wrote it"
            )

    def _take_term(self, database: sqlite3.Connection) -> Opened:
        with _Transaction(database):
            database.execute("UPDATE terms SET term = term + 1")
            self._term = database.execute("SELECT term FROM terms").fetchone()[0]
            items = dict(database.execute("SELECT key, value FROM items ORDER BY key"))
        return Opened(self._term, items)

    def _commit(self, changes: Sequence[Change]) -> None:
        database = self._database
        if database is None:
            raise Unavailable(f"{self._path} is closed")
        with _Transaction(database):
            term = database.execute("SELECT term FROM terms").fetchone()[0]
            if term != self._term:
                raise Fenced(f"{self._path} was opened again, in term {term}: term {self._term} is over")
            for change in changes:
                if isinstance(change, Put):
                    database.execute("INSERT OR REPLACE INTO items VALUES (?, ?)", (change.key, change.value))
                elif isinstance(change, Delete):
                    database.execute("DELETE FROM items WHERE key = ?", (change.key,))
                else:
                    database.execute(
                        "DELETE FROM items WHERE key >= ? AND key < ?", (change.begin, change.end)
                    )

    def _close(self) -> None:
        database, self._database = self._database, None
        lock, self._lock = self._lock, None
        try:
            if database is not None:
                database.close()
        finally:
            if lock is not None:
                lock.release()


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
