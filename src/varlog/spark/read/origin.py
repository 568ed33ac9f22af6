"""Origin: where rows come from: a cluster, or the files of an embedded directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from varlog.client.arrow import RangeBuilder
from varlog.client.chunk import FetchPoint
from varlog.client.log import Log
from varlog.embedded_reader import DirectoryReader
from varlog.model.commit import TopicMark
from varlog.model.entry import Position, StreamRange
from varlog.model.errors import (
    JunkPosition,
    NotWritten,
    PreconditionFailed,
    StartupError,
    Trimmed,
    Unavailable,
)
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN
from varlog.spark.connection import SparkConnection, connection_to
from varlog.spark.options import LogLocation, OptionError
from varlog.spark.read.resolve_rules import TopicSpan

if TYPE_CHECKING:
    import pyarrow as pa


class Origin(Protocol):
    """A log that is read, by any process of Spark. Positions are GLSNs, ranges half-open."""

    def cluster(self) -> int:
        """Its number."""
        ...

    def topics(self) -> list[str]:
        """The names of all topics."""
        ...

    def span(self, topic: str) -> TopicSpan:
        """What can be read of a topic now. UnknownTopic if there is none."""
        ...

    def measure(self, topic: str, log_stream: int, begin: int, end: int, points_max: int) -> StreamRange:
        """How the entries of a stream lie whose positions are in [begin, end). Trimmed if `begin` is."""
        ...

    def find_time(self, topic: str, log_stream: int, time_us: int) -> Position:
        """The first entry of a stream from a time on."""
        ...

    def batches(
        self, topic: str, log_stream: int, begin: int, end: int, cuts: Sequence[FetchPoint] = ()
    ) -> Iterator[pa.RecordBatch]:
        """LLSNs [begin, end) of a stream, as `log.connector.range` returns them. Trimmed, NotWritten: they do not exist."""
        ...


def origin_at(where: LogLocation) -> Origin:
    return _directory_at(where.path) if where.path else ClusterOrigin(connection_to(where))


class ClusterOrigin:
    """A cluster, over the connection of this process."""

    def __init__(self, connection: SparkConnection) -> None:
        self._connection = connection

    def cluster(self) -> int:
        return self._connection.admin().cluster

    def topics(self) -> list[str]:
        return [topic.name for topic in self._connection.run(self._connection.admin().topics())]

    def span(self, topic: str) -> TopicSpan:
        log = self._connection.fresh_log(topic)
        mark, found = self._connection.run(settled_mark(log)), log.topic
        oldest = max(found.first, mark.trimmed + 1)
        streams = tuple(int(stream.log_stream) for stream in log.streams)
        return TopicSpan(topic, found.topic, oldest, max(oldest, mark.high_watermark + 1), streams)

    def measure(self, topic: str, log_stream: int, begin: int, end: int, points_max: int) -> StreamRange:
        return self._connection.run(
            self._connection.log(topic).connector.measure(log_stream, begin, end, points_max)
        )

    def find_time(self, topic: str, log_stream: int, time_us: int) -> Position:
        return self._connection.run(self._connection.log(topic).connector.find_time(log_stream, time_us))

    def batches(
        self, topic: str, log_stream: int, begin: int, end: int, cuts: Sequence[FetchPoint] = ()
    ) -> Iterator[pa.RecordBatch]:
        # Fetched in the loop's thread, converted to columns in the task's: both work at the same time.
        builder = RangeBuilder(log_stream)
        for rows, chunk in self._connection.items(
            self._connection.log(topic).connector.chunks(log_stream, begin, end, cuts=cuts)
        ):
            yield from builder.build(rows, chunk)


class DirectoryOrigin:
    """An embedded directory, read from its files, whether another process has it open or not."""

    def __init__(self, path: str) -> None:
        try:
            self._reader = DirectoryReader(Path(path))
        except StartupError as error:
            raise OptionError(f"option 'path': {error}") from error

    def cluster(self) -> int:
        return self._reader.cluster

    def topics(self) -> list[str]:
        self._reader.refresh()
        return self._reader.topics()

    def span(self, topic: str) -> TopicSpan:
        self._reader.refresh()
        try:
            found = self._reader.readable(topic)
        except PreconditionFailed as error:
            raise OptionError(f"option 'topic': {error}, with option 'address'") from error
        return TopicSpan(topic, found.topic, found.oldest, found.end, tuple(map(int, found.streams)))

    def measure(self, topic: str, log_stream: int, begin: int, end: int, points_max: int) -> StreamRange:
        return self._reader.measure(topic, LogStreamID(log_stream), GLSN(begin), GLSN(end), points_max)

    def find_time(self, topic: str, log_stream: int, time_us: int) -> Position:
        return self._reader.find_time(topic, LogStreamID(log_stream), time_us)

    def batches(
        self, topic: str, log_stream: int, begin: int, end: int, cuts: Sequence[FetchPoint] = ()
    ) -> Iterator[pa.RecordBatch]:
        builder = RangeBuilder(log_stream)
        for rows, chunk in self._reader.chunks(LogStreamID(log_stream), LLSN(begin), LLSN(end)):
            yield from builder.build(rows, chunk)


@cache
def _directory_at(path: str) -> DirectoryOrigin:
    """Kept between the tasks of this process: the first read of a large directory takes a while."""
    return DirectoryOrigin(path)


# --- the end of a topic -------------------------------------------------------------------------------------------------

# Attempts to read a tail that falls back in the meantime.
_ATTEMPTS_MAX = 5


async def settled_mark(log: Log) -> TopicMark:
    """As `log.connector.mark()`, with an end that never falls back: the newest position is written, or junk.

    A position that is kept elsewhere (a checkpoint, a plan) must never be beyond the log's own end. The tail of a sequenced topic
    counts positions that were assigned and not written yet; if their appenders and the sequencer are lost together, it falls back
    over them. Reading a position decides it: it is written, or junk, and the tail stays above it.
    """
    for _ in range(_ATTEMPTS_MAX):
        mark = await log.connector.mark()
        if not log.topic.sequenced or mark.high_watermark <= max(mark.trimmed, log.topic.first - 1):
            return mark
        try:
            await log.read(mark.high_watermark)
        except (JunkPosition, Trimmed):
            return mark
        except NotWritten:
            continue
        return mark
    raise Unavailable(f"the end of topic {log.topic.name!r} keeps changing: try again")
