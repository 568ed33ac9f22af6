"""Database: SQLite on its own file, or an image written through Disk.

In production the file is SQLite's own. A Disk other than the operating system's, such as the simulator's, cannot be passed to
SQLite: there the database is in memory, and each transaction ends by replacing the file with its image, atomically and durably.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from varlog.runtime.disk import Disk, OsDisk

DATABASE_BYTES_MIN: Final = 512
# The files that SQLite keeps beside a database: its write-ahead log, and the index of it.
BESIDE: Final = ("-wal", "-shm")
_TERM: Final = "SELECT term FROM terms"


class Database(Protocol):
    """An open database. Every change is inside `transaction`, or followed by `save`."""

    sql: sqlite3.Connection

    def begin_writing(self) -> None:
        """Called before the first change: until then the file stays unchanged."""
        ...

    def save(self) -> None:
        """Make changes outside a transaction durable: a new database with its tables."""
        ...

    def is_linked(self) -> bool:
        """Whether its name, and the names of SQLite's files beside it, still refer to the open files."""
        ...

    def relink(self) -> None:
        """Write all of it under its name again, durably. No transaction may be open. Raises Superseded if the file of that name
        is of a newer term."""
        ...

    def close(self) -> None: ...


class Superseded(Exception):
    """Another process has opened the store in a newer term."""


def open_database(disk: Disk, path: Path, *, synced: bool) -> Database:
    if isinstance(disk, OsDisk):
        return FileDatabase(disk, path, synced=synced)
    return ImageDatabase(disk, path)


@contextmanager
def transaction(database: Database) -> Iterator[sqlite3.Connection]:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK on an error. The end waits for the device."""
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
            raise sqlite3.DatabaseError("file is not a database")  # SQLite would treat it as empty
        if not path.exists():
            # Create it with our file mode, which SQLite applies to the files beside it.
            disk.open(path, create=True).close()
        self._synced = synced
        self._connect()

    def _connect(self) -> None:
        # No implicit transactions: each BEGIN and COMMIT is explicit.
        self.sql = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5.0)
        # Device and inode of the files that SQLite has open, by path: it does not expose its descriptors.
        self._files = {self._path: _identity(self._path)}

    def save(self) -> None:
        self._disk.sync_directory(self._path.parent)

    def begin_writing(self) -> None:
        self.sql.execute("PRAGMA journal_mode = WAL")
        self.sql.execute(f"PRAGMA synchronous = {'FULL' if self._synced else 'OFF'}")

    def is_linked(self) -> bool:
        """The files beside it exist from the first transaction on: those seen then are SQLite's."""
        for suffix in BESIDE:
            beside = self._path.with_name(self._path.name + suffix)
            self._files.setdefault(beside, _identity(beside))
        return all(known is not None and _identity(path) == known for path, known in self._files.items())

    def relink(self) -> None:
        """Copy its pages. SQLite still has all files open, whatever their names refer to."""
        term = self.sql.execute(_TERM).fetchone()[0]
        if _term_in(self._path) > term:
            raise Superseded(f"{self._path} was replaced by one of a newer term than {term}")
        # Otherwise a log of older pages could be beside the copy when it gets its name.
        self.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.unlink(missing_ok=True)
        self._disk.open(fresh, create=True).close()
        copy = sqlite3.connect(fresh, isolation_level=None)
        try:
            self.sql.backup(copy)
        finally:
            copy.close()
        file = self._disk.open(fresh)
        try:
            file.sync()
        finally:
            file.close()
        for suffix in BESIDE:
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._disk.rename(fresh, self._path)
        self._disk.sync_directory(self._path.parent)
        self.sql.close()
        self._connect()
        self.begin_writing()
        _ = self.sql.execute(_TERM).fetchone()
        _ = self.is_linked()

    def close(self) -> None:
        self.sql.close()


class ImageDatabase:
    """SQLite in memory, and its image in a file of the Disk."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._image = disk.read_file(path) if disk.exists(path) else b""
        if 0 < len(self._image) < DATABASE_BYTES_MIN:
            raise sqlite3.DatabaseError("file is not a database")
        self.sql = _loaded(self._image)

    def begin_writing(self) -> None:
        """Does nothing: the image is replaced as a whole."""

    def refresh(self) -> None:
        """Load what another opening wrote, as SQLite would. A file that was damaged meanwhile is not read, but replaced."""
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

    def is_linked(self) -> bool:
        return self._disk.exists(self._path) and self._disk.read_file(self._path) == self._image

    def relink(self) -> None:
        term = self.sql.execute(_TERM).fetchone()
        self.refresh()
        if self.sql.execute(_TERM).fetchone() != term:
            raise Superseded(f"{self._path} was replaced by one of another term than {term[0]}")
        self.save()

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


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode, or None if the file does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _term_in(path: Path) -> int:
    """The term in a database, opened read-only; 0 if there is none."""
    if not path.exists():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as found:
            return int(found.execute(_TERM).fetchone()[0])
    except (sqlite3.Error, TypeError, ValueError):
        return 0
