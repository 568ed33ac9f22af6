"""DirectoryOrigin: an embedded directory, read from its files by any number of processes, whether it is open elsewhere or not.

Only one process can open a directory, and the tasks of a read are several: so none of them does. What is ordered and durable when
it is looked at is seen, and nothing is changed.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

from varlog.client.arrow import RangeBuilder
from varlog.client.chunk import Chunk
from varlog.client.committed.range_reader import Cut
from varlog.metarepo import records
from varlog.metarepo.store.journal import JournalDamaged, apply_changes, journal_path, recover
from varlog.model.cluster import ClusterView, Topic
from varlog.model.commit import CommitRow
from varlog.model.errors import CorruptReplica, Trimmed, Unavailable, UnknownTopic
from varlog.model.ids import LogStreamID
from varlog.model.limits import MIB
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import FindTimeReply, MeasureRangeReply
from varlog.runtime.disk import File, OsDisk
from varlog.spark.options import OptionError
from varlog.spark.read.resolve_rules import TopicSpan
from varlog.storage.committed.replica_files import ReplicaFiles
from varlog.storage.read_only import ReadOnlyDisk, ReadOnlyFile
from varlog.storage.volume import numbered

READ_BYTES = 2 * MIB
# A look at files that somebody trims or rolls at the same moment is repeated so often.
LOOKS = 5


@dataclass(frozen=True, slots=True)
class _Metadata:
    """What the metadata repository of a directory knew when it was looked at."""

    view: ClusterView
    rows: dict[LogStreamID, list[CommitRow]]  # those that a replica may not have written down yet


class DirectoryOrigin:
    """One embedded directory."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._disk = _FileDisk()
        self._metadata: _Metadata | None = None
        self._replicas: dict[LogStreamID, ReplicaFiles] = {}
        if not (self._path / "varlog.json").is_file():
            raise OptionError(
                f"option 'path': {path} is no embedded directory: it has no varlog.json. Name the one that varlog.open was given"
            )

    def cluster(self) -> int:
        return self._looked().view.cluster

    def topics(self) -> list[str]:
        self._forget()
        return [topic.name for topic in self._looked().view.topics]

    def span(self, topic: str) -> TopicSpan:
        self._forget()
        return self._span(topic)

    def _span(self, topic: str) -> TopicSpan:
        found = self._topic(topic)
        streams = [stream.log_stream for stream in self._looked().view.streams_of(found.topic)]
        oldest = max(found.first, found.trimmed + 1)
        end = _dense_end(oldest, [self._replica(log_stream) for log_stream in streams])
        return TopicSpan(topic, found.topic, oldest, end, tuple(map(int, streams)))

    def measure(
        self, topic: str, log_stream: int, begin: int, end: int, points_max: int
    ) -> MeasureRangeReply:
        trimmed = self._topic(topic).trimmed
        if begin <= trimmed:
            raise Trimmed(begin, trimmed + 1)
        replica = self._replica(LogStreamID(log_stream))
        first, stop = replica.llsn_from(GLSN(begin)), replica.llsn_from(GLSN(end))
        found = replica.measure(first, stop, points_max)
        return MeasureRangeReply(first, stop, found.bytes, found.points, complete=True)

    def find_time(self, topic: str, log_stream: int, time_us: int) -> FindTimeReply:
        replica = self._replica(LogStreamID(log_stream))
        llsn = replica.find_time(time_us)
        if llsn < replica.committed_end:
            return FindTimeReply(llsn, replica.glsn_of(llsn))
        return FindTimeReply(llsn, GLSN(self._span(topic).end))

    def batches(
        self, topic: str, log_stream: int, begin: int, end: int, cuts: Sequence[Cut] = ()
    ) -> Iterator[pa.RecordBatch]:
        replica = self._replica(LogStreamID(log_stream), LLSN(end))
        builder, llsn = RangeBuilder(log_stream), LLSN(begin)
        while llsn < end:
            chunk = Chunk(replica.read(llsn, READ_BYTES).data)
            rows = replica.rows_between(llsn, LLSN(min(end, chunk.end_llsn)))
            yield from builder.build(rows, chunk)
            llsn = chunk.end_llsn

    # --- files ----------------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """The next look is a fresh one."""
        self._metadata = None
        self._replicas.clear()

    def _looked(self) -> _Metadata:
        if self._metadata is None:
            self._metadata = _look(self._path / "metadata.db")
        return self._metadata

    def _topic(self, name: str) -> Topic:
        found = self._looked().view.topic_named(name)
        if found is None:
            raise UnknownTopic(name)
        if found.sequenced:
            # Which of its positions are holes, only who has it open can say, and settle.
            raise OptionError(
                f"option 'topic': {name!r} is a sequenced topic, and those of a directory cannot be read from their files: open "
                "the directory with varlog.open, or run a cluster and name it with option 'address'"
            )
        return found

    def _replica(self, log_stream: LogStreamID, end: LLSN | None = None) -> ReplicaFiles:
        """A look at a replica; the last one again if it reaches `end`."""
        known = self._replicas.get(log_stream)
        if known is not None and end is not None and known.committed_end < end:
            self._metadata = known = None
        if known is None:
            known = self._replicas[log_stream] = self._look_at(log_stream)
        return known

    def _look_at(self, log_stream: LogStreamID) -> ReplicaFiles:
        rows = self._looked().rows.get(log_stream, [])
        places = [
            path
            for _, cluster in numbered(self._disk, self._path / "volume", "cid")
            for _, node in numbered(self._disk, cluster, "snid")
            for number, path in numbered(self._disk, node, "lsid")
            if number == log_stream
        ]
        if not places:
            raise Unavailable(f"{self._path} has no files of log stream {log_stream}")
        for _ in range(LOOKS - 1):
            # Somebody who has it open may remove or make a segment between two of our steps.
            with suppress(FileNotFoundError, CorruptReplica):
                return ReplicaFiles(self._disk, places[0], rows)
        return ReplicaFiles(self._disk, places[0], rows)


def directory_at(path: str) -> DirectoryOrigin:
    """The directory as this process knows it, kept between its tasks: a look at a large one takes a while."""
    found = _directories.get(path)
    if found is None:
        found = _directories[path] = DirectoryOrigin(path)
    return found


_directories: dict[str, DirectoryOrigin] = {}


def _dense_end(oldest: int, replicas: Sequence[ReplicaFiles]) -> int:
    """The first position from `oldest` on that no replica has ordered: rows of different streams are written down at different
    times."""
    import numpy as np

    runs = [row for replica in replicas for row in replica.runs]
    table = np.array(sorted((glsn, count) for _, glsn, count in runs if glsn + count > oldest), np.int64)
    if not len(table) or table[0, 0] > oldest:
        return oldest
    ends = table[:, 0] + table[:, 1]
    gaps = np.flatnonzero(table[1:, 0] != ends[:-1])
    return int(ends[gaps[0]] if len(gaps) else ends[-1])


# --- the metadata ---------------------------------------------------------------------------------------------------------


def _look(database: Path) -> _Metadata:
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
            f"option 'path': {database} cannot be read as metadata of varlog ({error}): see `varlog dump`"
        ) from error
    return _Metadata(members.view, rows)


def _items(database: Path) -> dict[str, bytes]:
    """Everything in the database and in the journal beside it. Who has them open may move commits from one to the other between
    our two looks: then we look again."""
    for _ in range(LOOKS - 1):
        with suppress(JournalDamaged):
            return _items_now(database)
    return _items_now(database)


def _items_now(database: Path) -> dict[str, bytes]:
    items, applied = _database_items(database)
    journal = journal_path(database)
    if applied is not None and journal.exists():
        for changes in recover(journal.read_bytes(), applied).commits:
            apply_changes(items, changes)
    return items


def _database_items(database: Path) -> tuple[dict[str, bytes], int | None]:
    """A database that nobody has open is a plain file; else what was written last is in its log."""
    log = database.with_name(database.name + "-wal")
    if not log.exists() or not log.stat().st_size:
        return _select(f"{database.absolute().as_uri()}?mode=ro&immutable=1")
    try:
        return _select(f"{database.absolute().as_uri()}?mode=ro")
    except sqlite3.OperationalError:
        # Left by a process that was killed, where we may not write: SQLite reads its log only with a file of its own beside it.
        with tempfile.TemporaryDirectory() as copy:
            for file in (database, log):
                shutil.copy(file, copy)
            return _select((Path(copy) / database.name).as_uri())


def _select(uri: str) -> tuple[dict[str, bytes], int | None]:
    """The items, and up to which commit of the journal they go; None: it was written by a version that had no journal."""
    with closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as opened:
        opened.execute("BEGIN")  # both of one moment
        items = dict(opened.execute("SELECT key, value FROM items ORDER BY key"))
        if opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'journal'").fetchone() is None:
            return items, None
        return items, opened.execute("SELECT applied FROM journal").fetchone()[0]


# --- the disk -------------------------------------------------------------------------------------------------------------


class _FileDisk(ReadOnlyDisk):
    """A disk that is only looked at, and whose files are read piece by piece: a segment need not fit into memory."""

    def __init__(self) -> None:
        super().__init__(OsDisk())

    def open(self, path: Path, *, create: bool = False) -> File:
        return super().open(path, create=True) if create else _LookedAt(path)


class _LookedAt(ReadOnlyFile):
    """One open file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, b"")
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_at(self, size: int, offset: int) -> bytes:
        parts = []
        while size > 0 and (part := os.pread(self._fd, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
