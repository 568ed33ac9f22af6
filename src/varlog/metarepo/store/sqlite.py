"""[A8] SqliteStore: the default metadata store: one database and a journal.

One writer; every commit is synced before it returns.

A commit goes to the journal beside the database: one write and one sync, without the pages and locks of an SQLite transaction. A
transaction moves the content of the journal to the database when the journal is full, when a range of keys is deleted (then most
of it need not be written at all), and at a clean shutdown, after which the database has everything. A commit that is too large
for the journal is a transaction of its own.

SQLite does not verify what it reads: every item has a CRC32C, and so have the number of items and the row with the term. Database
and journal identify each other: the database stores the salt of its journal, and the number of the last commit moved from it. So
an older copy of either beside the newer other one is refused, or, if the journal still has everything that is missing, brought up
to date.

A lock file beside the database keeps a second repository out; terms fence it even where locks do not work: a transaction checks
the term in the database, a commit to the journal checks, after its sync, the term in the journal. Each opening begins a term,
writes it into the journal and then reads the journal: a commit that still saw its own term is in what is read. All of it runs in
one worker.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from varlog.metarepo.store.base import (
    DeleteItem,
    DeleteItems,
    Fenced,
    OpenedStore,
    PutItem,
    SoleStore,
    StoreChange,
)
from varlog.metarepo.store.database import Database, Superseded, open_database, transaction
from varlog.metarepo.store.journal import (
    SALT_BYTES,
    Journal,
    JournalDamaged,
    apply_changes,
    claim,
    journal_path,
    read_header,
    read_journal,
    recover_journal,
)
from varlog.model.batch import crc32c
from varlog.model.errors import StartupError, Unavailable
from varlog.model.lsn import LSN_MAX
from varlog.runtime.disk import FileLock
from varlog.runtime.environment import Environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.worker import Worker

# "VLMR": distinguishes our databases from all others; SQLite keeps both numbers in the file's header.
APPLICATION_ID: Final = int.from_bytes(b"VLMR", "big")
# 1: without a journal. 2: without checksums. Both are upgraded when they are opened. An older program must not open a newer one.
FORMAT_VERSION: Final = 3
# After this long without a commit, an empty one is written after the newest, which is then known to be durable.
IDLE_MARK_S: Final = 0.5
# How often the names of the files are checked.
NAMES_S: Final = 60.0
REMEDY: Final = "restore it from a `varlog backup`, or rebuild it from the storage nodes with `vmr recover`"

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
_JOURNAL_SCHEMA: Final = """
    BEGIN IMMEDIATE;
    CREATE TABLE journal (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), applied INTEGER NOT NULL, in_use INTEGER NOT NULL);
    INSERT INTO journal VALUES (1, 0, 0);
    PRAGMA user_version = 2;
    COMMIT;
"""
# The columns of table `journal` are those of _Link.
_CHECKED_SCHEMA: Final = (
    "ALTER TABLE items ADD COLUMN crc INTEGER NOT NULL DEFAULT 0",
    "UPDATE items SET crc = item_crc(key, value)",
    "ALTER TABLE journal ADD COLUMN recorded INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE journal ADD COLUMN salt BLOB NOT NULL DEFAULT x''",
    "ALTER TABLE journal ADD COLUMN next_salt BLOB NOT NULL DEFAULT x''",
    "ALTER TABLE journal ADD COLUMN items INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE journal ADD COLUMN digest INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE journal ADD COLUMN crc INTEGER NOT NULL DEFAULT 0",
    "UPDATE journal SET (items, digest) = (SELECT count(*), ifnull(sum(crc), 0) FROM items)",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)

_encode = msgspec.msgpack.Encoder().encode


class Corrupt(Exception):
    """The database has something that was never written to it, or lacks something that was."""


@dataclass(frozen=True, slots=True)
class _Link:
    """What the database knows of itself and of its journal: one row, with a CRC over all of it and the term."""

    applied: int  # the newest commit that the database holds
    in_use: int  # from the first commit that may be in the journal alone until a clean end: a missing journal is a loss
    recorded: int  # the newest commit up to `applied` that is also in the journal; a large one is in the database alone
    salt: bytes  # salt of the journal in use; empty: none, or one of format 1
    next_salt: bytes  # salt of the journal that replaces it: a crash may leave either
    items: int  # number of items
    digest: int  # sum of the CRCs of all items: reveals an old or missing page

    def crc(self, term: int) -> int:
        fields = (
            term,
            self.applied,
            self.in_use,
            self.recorded,
            self.salt,
            self.next_salt,
            self.items,
            self.digest,
        )
        return crc32c(_encode(fields))


@dataclass(slots=True)
class _Pending:
    """Changes in the journal that are not in the database yet: first the deletions, then the puts."""

    puts: dict[str, bytes] = field(default_factory=dict)
    deletes: set[str] = field(default_factory=set)
    ranges: dict[str, str] = field(default_factory=dict)  # end by begin

    def add(self, changes: Iterable[StoreChange]) -> None:
        for change in changes:
            if isinstance(change, PutItem):
                self.puts[change.key] = change.value
            elif isinstance(change, DeleteItem):
                self.puts.pop(change.key, None)
                self.deletes.add(change.key)
            else:
                apply_changes(self.puts, [change])
                self.ranges[change.begin] = max(change.end, self.ranges.get(change.begin, ""))


class SqliteStore(SoleStore):
    """Metadata in one SQLite file. `synced=False` never waits for the device: a power loss may lose the newest commits.

    `mirror`: a directory, on another volume, with a second copy of the journal.
    """

    def __init__(
        self, path: Path, environment: Environment, *, synced: bool = True, mirror: Path | None = None
    ) -> None:
        self.complaints: list[str] = []  # damage that the opening found and could repair: the disk is failing
        self._path = path
        self._environment = environment
        self._synced = synced
        self._mirror = mirror / journal_path(path).name if mirror is not None else None
        self._worker: Worker | None = None
        self._database: Database | None = None
        self._lock: FileLock | None = None
        self._term = 0
        self._link = _Link(0, 0, 0, b"", b"", 0, 0)
        self._journal: Journal | None = None
        self._pending = _Pending()
        self._committed_at_s = 0.0
        self._marked = 0  # the newest commit followed by an empty one
        self._mark_timer: asyncio.TimerHandle | None = None
        self._names_timer: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = (
            None  # of a background mark or check of the names: no caller waited for it
        )

    @property
    def place(self) -> str:
        return str(self._path)

    async def open(self, address: str = "") -> OpenedStore:
        self._worker = self._environment.make_worker(f"metadata {self._path.name}")
        try:
            opened = await self._worker.run(self._open)
        except BaseException:
            await self.close()
            raise
        self._look_later()
        return opened

    async def commit(self, changes: Sequence[StoreChange]) -> None:
        if self._worker is None:
            raise Unavailable(f"{self._path} is not open")
        if self._failure is not None:
            raise self._failure
        inline = _may_run_inline(changes)
        await self._worker.run(lambda: self._commit(changes, inline), inline=inline)
        self._mark_when_idle()

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        timer, self._mark_timer = self._mark_timer, None
        for waiting in (timer, self._names_timer):
            if waiting is not None:
                waiting.cancel()
        if worker is not None:
            await worker.run(self._close)
            await worker.close()

    # --- when idle ------------------------------------------------------------------------------------------------------

    def _mark_when_idle(self) -> None:
        """Start one timer at a time, however many commits there are."""
        loop = asyncio.get_running_loop()
        self._committed_at_s = loop.time()
        if self._mark_timer is None:
            self._mark_timer = loop.call_later(IDLE_MARK_S, self._mark)

    def _mark(self) -> None:
        self._mark_timer = None
        worker, journal = self._worker, self._journal
        if worker is None or journal is None or journal.newest == self._marked:
            return
        loop = asyncio.get_running_loop()
        due_s = self._committed_at_s + IDLE_MARK_S
        if loop.time() < due_s:
            self._mark_timer = loop.call_at(due_s, self._mark)
        else:
            worker.call(self._write_mark, self._mark_written)

    def _write_mark(self) -> None:
        if (journal := self._journal) is not None and journal.append([]):
            self._marked = journal.newest

    def _mark_written(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            _log.error(logfmt("the metadata journal cannot be written", place=self._path, why=error))
            self._failure = error

    def _look_later(self) -> None:
        self._names_timer = asyncio.get_running_loop().call_later(NAMES_S, self._look)

    def _look(self) -> None:
        if (worker := self._worker) is not None and self._failure is None:
            worker.call(self._tend, self._tended)

    def _tended(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._complain(f"the files cannot be maintained, and nothing more is committed: {error}")
            self._failure = error
        elif self._worker is not None:
            self._look_later()

    # --- in the worker -------------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        """Write files under their names again that were deleted or replaced while open. If that were noticed only at the next
        start, the newest commits, or all, would be lost."""
        database, journal = self._database, self._journal
        if database is None or journal is None:
            return
        try:
            self._lock_again()
            if not database.is_linked():
                database.relink()
                self._complain("the database was deleted or replaced while it was open, and is written again")
            linked = journal.is_linked()
        except Superseded as newer:
            raise Fenced(f"{newer}: term {self._term} is over") from newer
        except OSError as error:
            # The open files still have everything: a disk that is full now may have space for a copy at the next check.
            self._complain(f"the files cannot be checked, or written again: {error}")
            return
        if not linked:
            self._checkpoint(database, journal, journal.newest)
            # Until the new journal exists, none is needed: the database has everything.
            salt = self._environment.entropy.randbytes(SALT_BYTES)
            self._save_link(database, replace(self._link, in_use=0, next_salt=salt))
            journal.close()
            self._begin_journal(database)
            self._complain(
                "the journal was deleted, replaced or truncated while it was open, and is started again"
            )

    def _lock_again(self) -> None:
        lock = self._lock
        if lock is None or lock.is_linked():
            return
        try:
            self._lock = self._environment.disk.lock(self._lock_path)
        except BlockingIOError:
            raise Fenced(f"{self._lock_path} was deleted, and another repository has it now") from None
        lock.release()

    @property
    def _lock_path(self) -> Path:
        return self._path.with_name(self._path.name + ".lock")

    def _open(self) -> OpenedStore:
        try:
            self._lock = self._environment.disk.lock(self._lock_path)
        except BlockingIOError:
            raise StartupError(
                f"{self._path} is in use by another metadata repository: stop that one first, or name another file"
            ) from None
        except OSError as error:
            raise StartupError(
                f"{self._path} cannot be used: {error.strerror}; its directory must exist and be writable"
            ) from error
        try:
            return self._open_database()
        except JournalDamaged as error:
            raise StartupError(
                f"{journal_path(self._path)} does not go with {self._path}: {error}; {REMEDY}"
            ) from error
        except (sqlite3.Error, OSError, Corrupt, TypeError, ValueError) as error:
            # The last two: a flipped bit makes a text unreadable, or a row or a number disappear.
            raise StartupError(
                f"{self._path} cannot be opened as metadata ({error}): if it is damaged, {REMEDY}; "
                "if it is another program's file, name another one"
            ) from error

    def _open_database(self) -> OpenedStore:
        database = self._database = open_database(self._environment.disk, self._path, synced=self._synced)
        self._check_identity(database.sql)
        database.begin_writing()
        _make_schema(database)
        if (problem := database.sql.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(problem)
        self._link, self._term = _read_link(database.sql)
        items = _checked_items(database.sql, self._link)
        self._take_in_journal(database, items)
        self._begin_journal(database)
        _ = database.is_linked()  # records the identity of its files
        return OpenedStore(self._term, dict(sorted(items.items())))

    def _check_identity(self, sql: sqlite3.Connection) -> None:
        """Check before anything is written: a file that is not ours stays unchanged."""
        application = sql.execute("PRAGMA application_id").fetchone()[0]
        version = _version(sql)
        if not _tables(sql) and application == 0:
            # Empty: new, or a start that was interrupted before its first transaction. There was no journal before that.
            if any(map(self._environment.disk.exists, self._journals())):
                raise Corrupt("it is missing or empty, and its journal is there: the database is lost")
            return
        if application != APPLICATION_ID:
            raise StartupError(f"{self._path} is a database of another program: name another file")
        if not 1 <= version <= FORMAT_VERSION:
            raise StartupError(
                f"{self._path} has format version {version}, this program knows version {FORMAT_VERSION}: "
                "use the version of varlog that wrote it"
            )

    def _journals(self) -> list[Path]:
        return [journal_path(self._path), *([self._mirror] if self._mirror is not None else [])]

    def _take_in_journal(self, database: Database, items: dict[str, bytes]) -> None:
        """Begin a term, and apply what the last opening left in its journal. A crash may follow any step."""
        link = self._link
        harmed: list[tuple[Path, JournalDamaged]] = []
        left = self._left_journals(harmed)
        salt = next(iter(left.values()), b"")
        self._take_term(
            database, replace(link, salt=salt, next_salt=self._environment.entropy.randbytes(SALT_BYTES))
        )
        commits = self._recover(left, harmed)
        for changes in commits:
            self._pending.add(changes)
            apply_changes(items, changes)
        if commits:
            newest = link.applied + len(commits)
            self._write_through(database, newest, newest)

    def _left_journals(self, harmed: list[tuple[Path, JournalDamaged]]) -> dict[Path, bytes]:
        """The journals that the last opening left, with their salts."""
        disk, left = self._environment.disk, {}
        there = [path for path in self._journals() if disk.exists(path)]
        for path in there:
            try:
                header = read_header(disk, path)
                salt, term = (header.salt, header.term) if header is not None else (b"", 0)
                if self._goes_with(path, salt, term):
                    left[path] = salt
            except JournalDamaged as error:
                harmed.append((path, error))
        if not there and self._link.in_use:
            raise JournalDamaged("it is missing, and the newest commits were in it")
        if self._link.next_salt:
            for path in set(self._journals()) - set(there):
                self._complain(
                    f"{path} is missing: {'the other one was used' if there else 'nothing was lost with it'}"
                )
        return left

    def _recover(
        self, left: dict[Path, bytes], harmed: list[tuple[Path, JournalDamaged]]
    ) -> list[list[StoreChange]]:
        """The commits of the journal that has most. A commit that one of them knows and none has is a loss."""
        disk, link = self._environment.disk, self._link
        found: list[list[list[StoreChange]]] = []
        for path in left:
            try:
                claim(disk, path, self._term)
                recovered = recover_journal(read_journal(disk, path), link.applied, link.recorded)
            except JournalDamaged as error:
                harmed.append((path, error))
                continue
            found.append(recovered.commits)
            for complaint in recovered.complaints:
                self._complain(f"{path}: {complaint}")
        best: list[list[StoreChange]] = max(found, key=len, default=[])
        if found and len(best) > len(min(found, key=len)) + 1:  # a crash during a commit explains one
            self._complain("one of the journals lacks commits that the other one has")
        for path, damage in harmed:
            if not found or damage.known > link.applied + len(best):
                raise damage
            self._complain(f"{path}: {damage}; the other one was used")
        return best

    def _goes_with(self, path: Path, salt: bytes, term: int) -> bool:
        """Whether the journal found is that of the last opening. If no journal is needed any more, another one is harmless."""
        link = self._link
        if salt in (link.salt, link.next_salt):
            return True
        if term > self._term:
            raise JournalDamaged(
                f"it was made in term {term}, and the database ends with term {self._term}: the database is an older copy",
                known=LSN_MAX,
            )
        if link.in_use:
            raise JournalDamaged(
                f"it is not the one that was written last (it was made in term {term}, and the database ends with term "
                f"{self._term}): it is an older copy, or one of another store"
            )
        self._complain(
            "the journal is an older copy: the last shutdown was clean, so nothing was lost with it"
        )
        return False

    def _take_term(self, database: Database, link: _Link) -> None:
        with transaction(database) as sql:
            sql.execute("UPDATE terms SET term = term + 1")
            term = _term(sql)
            _write_link(sql, link, term)
        self._link, self._term = link, term

    def _begin_journal(self, database: Database) -> None:
        link = self._link
        self._journal = Journal(
            self._environment.disk,
            journal_path(self._path),
            self._term,
            link.applied,
            synced=self._synced,
            salt=link.next_salt,
            mirror=self._mirror,
        )
        self._marked = link.applied
        self._check_mirror(self._journal)
        # From now on the journal that was found is obsolete.
        self._save_link(database, replace(link, in_use=1, salt=link.next_salt))

    def _save_link(self, database: Database, link: _Link) -> None:
        with transaction(database) as sql:
            self._check_term(sql)
            _write_link(sql, link, self._term)
        self._link = link

    def _check_mirror(self, journal: Journal) -> None:
        """Drop a mirror that failed, and report that once."""
        failure, journal.mirror_failure = journal.mirror_failure, ""
        if failure:
            self._complain(f"the journal has no mirror any more: {failure}")

    def _complain(self, complaint: str) -> None:
        if complaint in self.complaints[-1:]:
            return
        self.complaints.append(complaint)
        _log.warning(logfmt("the metadata files are damaged", place=self._path, what=complaint))

    # --- commits ---------------------------------------------------------------------------------------------------------

    def _commit(self, changes: Sequence[StoreChange], inline: bool) -> None:
        database, journal = self._database, self._journal
        if database is None or journal is None:
            raise Unavailable(f"{self._path} is closed")
        if self._record(journal, changes):
            if not inline:
                self._checkpoint(database, journal, journal.newest)
            return
        self._checkpoint(database, journal, journal.newest)
        if not self._record(journal, changes):
            self._pending.add(changes)
            self._checkpoint(database, journal, journal.newest + 1)
            # So the journal records that a commit exists in the database alone: an older copy of the database is then noticed.
            self._write_mark()

    def _record(self, journal: Journal, changes: Sequence[StoreChange]) -> bool:
        if not journal.append(changes):
            return False
        if journal.mirror_failure:
            self._check_mirror(journal)
        # After the sync: a process that claimed the journal before this check may have read it before our write (law 7). In the
        # journal, not in the database: this is part of every append, and a query takes six times as long.
        if journal.claimed:
            raise Fenced(f"{self._path} was opened again: term {self._term} is over")
        self._pending.add(changes)
        return True

    def _checkpoint(self, database: Database, journal: Journal, newest: int) -> None:
        """Move everything up to commit `newest` to the database; the journal is then not needed any more."""
        self._write_through(database, newest, journal.recorded)
        journal.release(newest)

    def _write_through(self, database: Database, applied: int, recorded: int) -> None:
        pending = self._pending
        with transaction(database) as sql:
            self._check_term(sql)
            count, digest = self._link.items, self._link.digest
            for begin, end in pending.ranges.items():
                gone, crcs = sql.execute(
                    "SELECT count(*), ifnull(sum(crc), 0) FROM items WHERE key >= ? AND key < ?", (begin, end)
                ).fetchone()
                sql.execute("DELETE FROM items WHERE key >= ? AND key < ?", (begin, end))
                count, digest = count - gone, digest - crcs
            for key in (*pending.deletes, *pending.puts):
                for (crc,) in sql.execute("DELETE FROM items WHERE key = ? RETURNING crc", (key,)).fetchall():
                    count, digest = count - 1, digest - crc
            rows = [(key, value, _item_crc(key, value)) for key, value in pending.puts.items()]
            sql.executemany("INSERT INTO items (key, value, crc) VALUES (?, ?, ?)", rows)
            count, digest = count + len(rows), digest + sum(crc for _, _, crc in rows)
            link = replace(self._link, applied=applied, recorded=recorded, items=count, digest=digest)
            _write_link(sql, link, self._term)
        self._link = link
        self._pending = _Pending()

    def _check_term(self, sql: sqlite3.Connection) -> None:
        if (term := _term(sql)) != self._term:
            raise Fenced(f"{self._path} was opened again, in term {term}: term {self._term} is over")

    def _close(self) -> None:
        try:
            self._tend()  # a file without a name is lost with its descriptor
        except (sqlite3.Error, OSError, Fenced) as error:
            _log.warning(logfmt("the metadata files cannot be maintained", place=self._path, why=error))
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

    def _close_database(self, database: Database, journal: Journal | None) -> None:
        """Close with everything in the database. If that fails, the journal still has it, and the next opening applies it."""
        try:
            if journal is not None:
                self._write_through(database, journal.newest, journal.recorded)
                self._save_link(database, replace(self._link, in_use=0))
        except (sqlite3.Error, OSError, Fenced) as error:
            _log.warning(logfmt("the metadata stays in its journal", place=self._path, why=error))
        finally:
            database.close()


# --- tables ------------------------------------------------------------------------------------------------------------------


def _make_schema(database: Database) -> None:
    """Create the tables of a new database, or upgrade an older format. Each step is atomic."""
    sql = database.sql
    fresh = not _tables(sql)
    sql.create_function("item_crc", 2, _item_crc, deterministic=True)
    if fresh:
        sql.executescript(_SCHEMA.format(application_id=APPLICATION_ID))
    if _version(sql) == 1:
        sql.executescript(_JOURNAL_SCHEMA)
    if _version(sql) == 2:
        with transaction(database):
            for statement in _CHECKED_SCHEMA:
                sql.execute(statement)
            _write_link(sql, _select_link(sql)[0], _term(sql))
    if fresh:
        database.save()


def _version(sql: sqlite3.Connection) -> int:
    return int(sql.execute("PRAGMA user_version").fetchone()[0])


def _item_crc(key: str, value: bytes) -> int:
    return crc32c(b"%b\0%b" % (key.encode(), value))


def _checked_items(sql: sqlite3.Connection, link: _Link) -> dict[str, bytes]:
    items, digest = {}, 0
    for key, value, crc in sql.execute("SELECT key, value, crc FROM items ORDER BY key"):
        if not isinstance(key, str) or not isinstance(value, bytes) or crc != _item_crc(key, value):
            raise Corrupt(f"the value of key {key!r} is damaged")
        items[key] = value
        digest += crc
    if (len(items), digest) != (link.items, link.digest):
        raise Corrupt(
            f"it has {len(items)} items that are not the {link.items} that were written: a part of it is lost or old"
        )
    return items


def _select_link(sql: sqlite3.Connection) -> tuple[_Link, int]:
    *fields, crc = sql.execute(
        "SELECT applied, in_use, recorded, salt, next_salt, items, digest, crc FROM journal"
    ).fetchone()
    return _Link(*fields), crc


def _read_link(sql: sqlite3.Connection) -> tuple[_Link, int]:
    link, crc = _select_link(sql)
    term = _term(sql)
    if crc != link.crc(term):
        raise Corrupt("its term, or what it knows of its journal, is damaged")
    return link, term


def _write_link(sql: sqlite3.Connection, link: _Link, term: int) -> None:
    sql.execute(
        "UPDATE journal SET applied = ?, in_use = ?, recorded = ?, salt = ?, next_salt = ?, items = ?, digest = ?, crc = ?",
        (
            link.applied,
            link.in_use,
            link.recorded,
            link.salt,
            link.next_salt,
            link.items,
            link.digest,
            link.crc(term),
        ),
    )


def _term(sql: sqlite3.Connection) -> int:
    return int(sql.execute("SELECT term FROM terms").fetchone()[0])


def _may_run_inline(changes: Sequence[StoreChange]) -> bool:
    """Whether the changes stay in the journal. After the deletion of a range, little is left to be written to the database."""
    return DeleteItems not in map(type, changes)


def _tables(sql: sqlite3.Connection) -> list[str]:
    return [name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
