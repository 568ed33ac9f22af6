"""Database: SQLite's own I/O, or an image that goes through the Disk door.

In production the file is SQLite's. A disk that is not the operating system's, such as the simulator's, cannot be handed to SQLite:
over it the database is in memory, and each transaction ends with its image written in place of the file, atomically and durably.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from varlog.runtime.disk import Disk, OsDisk

DATABASE_BYTES_MIN: Final = 512
_TERM: Final = "SELECT term FROM terms"


class Database(Protocol):
    """An open database. Every change is inside of `transaction`, or followed by `save`."""

    sql: sqlite3.Connection

    def begin_writing(self) -> None:
        """Before the first change: until then the file stays as it is."""
        ...

    def save(self) -> None:
        """Make what was done outside of a transaction durable: a new database with its tables."""
        ...

    def close(self) -> None: ...


def open_database(disk: Disk, path: Path, *, synced: bool) -> Database:
    if isinstance(disk, OsDisk):
        return FileDatabase(disk, path, synced=synced)
    return ImageDatabase(disk, path)


@contextmanager
def transaction(database: Database) -> Iterator[sqlite3.Connection]:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK on an error. The end is what waits for the device."""
    sql = database.sql
    if isinstance(database, ImageDatabase):
        database.refresh()
    sql.execute("BEGIN IMMEDIATE")
    try:
        yield sql
        sql.execute("COMMIT")
    except BaseException:
        if sql.in_transaction:
            sql.execute("ROLLBACK")
        raise
    if isinstance(database, ImageDatabase):
        database.save()


class FileDatabase:
    """SQLite on its own file, with its write-ahead log beside it."""

    def __init__(self, disk: OsDisk, path: Path, *, synced: bool) -> None:
        self._disk = disk
        self._path = path
        if path.exists() and 0 < path.stat().st_size < DATABASE_BYTES_MIN:
            raise sqlite3.DatabaseError("file is not a database")  # SQLite would take it for an empty one
        if not path.exists():
            # With our mode, which SQLite gives to what it puts beside it.
            disk.open(path, create=True).close()
        # No implicit transactions: each BEGIN and COMMIT is written out where it happens.
        self.sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        self._synced = synced

    def save(self) -> None:
        self._disk.sync_directory(self._path.parent)

    def begin_writing(self) -> None:
        self.sql.execute("PRAGMA journal_mode = WAL")
        self.sql.execute(f"PRAGMA synchronous = {'FULL' if self._synced else 'OFF'}")

    def close(self) -> None:
        self.sql.close()


class ImageDatabase:
    """SQLite in memory, and its image in a file behind the Disk door."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._image = disk.read_file(path) if disk.exists(path) else b""
        if 0 < len(self._image) < DATABASE_BYTES_MIN:
            raise sqlite3.DatabaseError("file is not a database")
        self.sql = _loaded(self._image)

    def begin_writing(self) -> None:
        """The image is replaced whole."""

    def refresh(self) -> None:
        """See what another opening wrote, as SQLite would. A file that was harmed meanwhile is not looked at, but replaced."""
        image = self._disk.read_file(self._path) if self._disk.exists(self._path) else b""
        if image == self._image or not image:
            return
        newer = _loaded(image)
        try:
            if newer.execute(_TERM).fetchone() != self.sql.execute(_TERM).fetchone():
                self.sql.deserialize(image)
                self._image = image
        except sqlite3.Error:
            pass
        finally:
            newer.close()

    def save(self) -> None:
        image = self.sql.serialize()
        self._disk.replace_file(self._path, image)
        self._image = image

    def close(self) -> None:
        self.sql.close()


def _loaded(image: bytes) -> sqlite3.Connection:
    sql = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    if image:
        sql.deserialize(image)
    return sql
