"""MetadataSnapshot: a store read from its files without opening it.

The files may be open in another process: nothing is changed or locked, and only durable state is visible.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from varlog.metarepo import records
from varlog.metarepo.store.journal import JournalDamaged, apply_changes, journal_path, recover_journal
from varlog.model.cluster import ClusterView
from varlog.model.commit import CommitRow
from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID

# The process that has the store open may move commits from the journal to the database between the two reads.
_ATTEMPTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """Membership, and the commit rows that a replica may not have on disk yet."""

    view: ClusterView
    rows: dict[LogStreamID, list[CommitRow]]


def read_metadata(database: Path) -> MetadataSnapshot:
    """Raises Unavailable if the files are missing, or cannot be read as metadata."""
    try:
        items = _items(database)
        members = records.members_of(items)
        rows: dict[LogStreamID, list[CommitRow]] = {}
        for stream in records.base_of(items).streams:
            rows[stream.log_stream] = list(stream.rows)
        for cut in records.cuts_of(items):
            for topic in cut.topics:
                for log_stream, row in topic.rows:
                    rows.setdefault(log_stream, []).append(row)
    except (
        OSError,
        sqlite3.Error,
        JournalDamaged,
        KeyError,
        ValueError,
        msgspec.DecodeError,
    ) as error:
        raise Unavailable(
            f"{database} cannot be read as metadata of varlog ({error}): see `varlog dump`"
        ) from error
    return MetadataSnapshot(members.view, rows)


def _items(database: Path) -> dict[str, bytes]:
    """All items in the database and in the journal beside it."""
    for _ in range(_ATTEMPTS_MAX - 1):
        with suppress(JournalDamaged):
            return _items_now(database)
    return _items_now(database)


def _items_now(database: Path) -> dict[str, bytes]:
    items, applied = _database_items(database)
    journal = journal_path(database)
    if applied is not None and journal.exists():
        for changes in recover_journal(journal.read_bytes(), applied).commits:
            apply_changes(items, changes)
    return items


def _database_items(database: Path) -> tuple[dict[str, bytes], int | None]:
    """A database that no process has open is a plain file; otherwise its newest pages are in SQLite's write-ahead log."""
    log = database.with_name(database.name + "-wal")
    if not log.exists() or not log.stat().st_size:
        return _select(f"{database.absolute().as_uri()}?mode=ro&immutable=1")
    try:
        return _select(f"{database.absolute().as_uri()}?mode=ro")
    except sqlite3.OperationalError:
        # The log was left by a killed process in a read-only directory: SQLite reads it only with an index file beside it.
        with tempfile.TemporaryDirectory() as copy:
            for file in (database, log):
                shutil.copy(file, copy)
            return _select((Path(copy) / database.name).as_uri())


def _select(uri: str) -> tuple[dict[str, bytes], int | None]:
    """The items, and the newest journal commit in them; None: written by a version that had no journal."""
    with closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as opened:
        opened.execute("BEGIN")  # both queries see the same state
        items = dict(opened.execute("SELECT key, value FROM items ORDER BY key"))
        if opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'journal'").fetchone() is None:
            return items, None
        return items, opened.execute("SELECT applied FROM journal").fetchone()[0]
