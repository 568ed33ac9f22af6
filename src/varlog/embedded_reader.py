"""DirectoryReader: reads an embedded directory from its files, without opening it.

Only one process can open a directory (embedded.py), and an engine reads it with several at once: so none of them opens it. A
reader sees what is ordered and durable at the moment of its snapshot, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from varlog.client.chunk import Chunk
from varlog.metarepo.store.snapshot import MetadataSnapshot, read_metadata
from varlog.model.cluster import Topic
from varlog.model.entry import Position, StreamRange
from varlog.model.errors import (
    CorruptReplica,
    PreconditionFailed,
    StartupError,
    Trimmed,
    Unavailable,
    UnknownTopic,
)
from varlog.model.ids import ClusterID, LogStreamID, TopicID
from varlog.model.limits import MIB
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.committed.replica_files import ReplicaFiles
from varlog.storage.read_only import ReadOnlyDisk
from varlog.storage.volume import numbered

READ_BYTES: Final = 2 * MIB
# The process that has the directory open may remove or create a segment between two of our steps.
_ATTEMPTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class ReadableTopic:
    """Positions [oldest, end) of a topic can be read, from these log streams."""

    topic: TopicID
    oldest: GLSN
    end: GLSN
    streams: tuple[LogStreamID, ...]


class DirectoryReader:
    """One embedded directory. The snapshot is kept until `refresh`, or until a range ends beyond it."""

    def __init__(self, path: Path) -> None:
        """StartupError: this is no embedded directory."""
        if not (path / "varlog.json").is_file():
            raise StartupError(
                f"{path} is no embedded directory: it has no varlog.json. Name the one that was passed to varlog.open"
            )
        self._path = path
        self._disk = ReadOnlyDisk(OsDisk(read_only=True), whole_files=False)
        self._metadata: MetadataSnapshot | None = None
        self._replicas: dict[LogStreamID, ReplicaFiles] = {}

    def refresh(self) -> None:
        """Forget the snapshot: the next call reads the files again."""
        self._metadata = None
        self._replicas.clear()

    @property
    def cluster(self) -> ClusterID:
        return self._snapshot().view.cluster

    def topics(self) -> list[str]:
        return [topic.name for topic in self._snapshot().view.topics]

    def readable(self, topic: str) -> ReadableTopic:
        found = self._topic(topic)
        streams = tuple(stream.log_stream for stream in self._snapshot().view.streams_of(found.topic))
        oldest = max(found.first, found.trimmed + 1)
        end = _dense_end(oldest, [self._replica(log_stream) for log_stream in streams])
        return ReadableTopic(found.topic, GLSN(oldest), GLSN(end), streams)

    def measure(
        self, topic: str, log_stream: LogStreamID, begin: GLSN, end: GLSN, points_max: int
    ) -> StreamRange:
        """How the entries of a stream lie whose positions are in [begin, end). Trimmed if `begin` is."""
        trimmed = self._topic(topic).trimmed
        if begin <= trimmed:
            raise Trimmed(begin, trimmed + 1)
        replica = self._replica(log_stream)
        first, stop = replica.llsn_from(begin), replica.llsn_from(end)
        found = replica.measure(first, stop, points_max)
        return StreamRange(first, stop, found.bytes, found.points)

    def find_time(self, topic: str, log_stream: LogStreamID, time_us: int) -> Position:
        """The first entry of a stream that was appended at or after `time_us`."""
        replica = self._replica(log_stream)
        llsn = replica.find_time(time_us)
        if llsn < replica.committed_end:
            return Position(replica.glsn_of(llsn), llsn, log_stream)
        return Position(self.readable(topic).end, llsn, log_stream)

    def chunks(
        self, log_stream: LogStreamID, begin: LLSN, end: LLSN
    ) -> Iterator[tuple[Sequence[tuple[LLSN, GLSN, int]], Chunk]]:
        """LLSNs [begin, end) of a stream: commit rows and the chunk that holds their entries. Trimmed, NotWritten: they do not
        exist."""
        replica = self._replica(log_stream, end)
        while begin < end:
            chunk = Chunk(replica.read(begin, READ_BYTES).data)
            yield replica.rows_between(begin, LLSN(min(end, chunk.end_llsn))), chunk
            begin = chunk.end_llsn

    # --- files ------------------------------------------------------------------------------------------------------------

    def _snapshot(self) -> MetadataSnapshot:
        if self._metadata is None:
            self._metadata = read_metadata(self._path / "metadata.db")
        return self._metadata

    def _topic(self, name: str) -> Topic:
        found = self._snapshot().view.topic_named(name)
        if found is None:
            raise UnknownTopic(name)
        if found.sequenced:
            # Only the process that has it open can say which positions are holes, and fill them.
            raise PreconditionFailed(
                f"{name!r} is a sequenced topic, and those of a directory cannot be read from their files: open the directory "
                "with varlog.open, or run a cluster and connect to that"
            )
        return found

    def _replica(self, log_stream: LogStreamID, end: LLSN | None = None) -> ReplicaFiles:
        """The known snapshot of a replica, unless it ends before `end`."""
        known = self._replicas.get(log_stream)
        if known is not None and end is not None and known.committed_end < end:
            self._metadata = known = None
        if known is None:
            known = self._replicas[log_stream] = self._read_replica(log_stream)
        return known

    def _read_replica(self, log_stream: LogStreamID) -> ReplicaFiles:
        rows = self._snapshot().rows.get(log_stream, [])
        paths = [
            path
            for _, cluster in numbered(self._disk, self._path / "volume", "cid")
            for _, node in numbered(self._disk, cluster, "snid")
            for number, path in numbered(self._disk, node, "lsid")
            if number == log_stream
        ]
        if not paths:
            raise Unavailable(f"{self._path} has no files of log stream {log_stream}")
        for _ in range(_ATTEMPTS_MAX - 1):
            with suppress(FileNotFoundError, CorruptReplica):
                return ReplicaFiles(self._disk, paths[0], rows)
        return ReplicaFiles(self._disk, paths[0], rows)


def _dense_end(oldest: int, replicas: Sequence[ReplicaFiles]) -> int:
    """The first position from `oldest` on that no replica has ordered: replicas write their commit rows at different times."""
    import numpy as np

    runs = [row for replica in replicas for row in replica.runs]
    table = np.array(sorted((glsn, count) for _, glsn, count in runs if glsn + count > oldest), np.int64)
    if not len(table) or table[0, 0] > oldest:
        return oldest
    ends = table[:, 0] + table[:, 1]
    gaps = np.flatnonzero(table[1:, 0] != ends[:-1])
    return int(ends[gaps[0]] if len(gaps) else ends[-1])
