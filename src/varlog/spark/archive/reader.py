"""ArchivedResolver: reads with option archive=PATH, each position once.

What the archive has is read from its files, the rest from the log.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

from varlog.model.errors import PreconditionFailed, VarlogError
from varlog.spark.archive.archive_rules import (
    Contents,
    Slice,
    check_same_topic,
    range_text,
    slice_groups,
    slices,
    split_read,
)
from varlog.spark.archive.files import ArrowFiles
from varlog.spark.archive.manifest import more_contents
from varlog.spark.archive.rows import rows_of
from varlog.spark.options import OptionError, ReadOptions
from varlog.spark.read.origin import Origin
from varlog.spark.read.partition import Partition, RowMaker
from varlog.spark.read.planning_rules import PIECE_BYTES_MAX, PIECE_BYTES_MIN, PIECES, MeasuredRange
from varlog.spark.read.resolve import TRIES, Resolver
from varlog.spark.read.resolve_rules import Interval, Selection, TopicRange, TopicSpan, TrimmedOffsets


class NotArchived(VarlogError):
    """Positions that are in neither: trimmed from the log, and not in the archive."""

    def __init__(self, topic: str, begin: int, end: int, path: str) -> None:
        super().__init__(topic, begin, end, path)
        self.topic = topic
        self.begin = begin
        self.end = end
        self.path = path

    def message(self) -> str:
        return (
            f"{range_text(self.begin, self.end)} of topic {self.topic!r} are missing: trimmed from the log, and not in the archive "
            f"{self.path}; set failOnDataLoss=false to read what is there"
        )


class ArchivedResolver(Resolver):
    """Resolves a read as if the log had never been trimmed; then splits off what is in files (`archived`)."""

    def __init__(self, origin: Origin, options: ReadOptions, selection: Selection) -> None:
        super().__init__(origin, options, selection)
        self._files = _opened(options.archive)
        self._contents: dict[str, Contents] = {}

    def _range(self, span: TopicSpan) -> TopicRange:
        """By the options, over archive and log together."""
        contents = self._contents_of(span)
        oldest = min(contents.begin, span.oldest) if contents else span.oldest
        return super()._range(TopicSpan(span.name, span.topic, oldest, span.end, span.streams))

    def _measured(self, topic: TopicRange) -> list[MeasuredRange]:
        """A concurrent trim follows an archive, so trimmed entries are searched there."""
        for _ in range(TRIES):
            span = self._origin.span(topic.span.name)
            contents = self._contents_of(span)  # after the span: it has what was trimmed before
            parts = split_read(topic.begin, topic.end, contents, span.oldest)
            for gap in parts.missing:
                self._complain(span.name, *gap)
            try:
                live = super()._measured(TopicRange(span, *parts.live))
            except TrimmedOffsets:
                continue
            self.archived += self._partitions(span.name, contents, *parts.archived)
            return live
        raise TrimmedOffsets(topic.span.name, topic.begin, self._origin.span(topic.span.name).oldest)

    def _contents_of(self, span: TopicSpan) -> Contents:
        """The archive of a topic; refuses one of another log."""
        known = self._contents.get(span.name, Contents())
        try:
            found = self._contents[span.name] = more_contents(self._files, span.name, known)
            check_same_topic(found, self._origin.cluster(), span.topic, span.name)
            _check_not_ahead(found, span)
        except PreconditionFailed as refused:
            raise OptionError(f"option 'archive' is {self._files.path!r}: {refused}") from refused
        except OSError as error:
            raise OptionError(
                f"option 'archive' is {self._files.path!r}: it cannot be read: {error}"
            ) from error
        if not found and self._options.fail_on_data_loss:
            raise OptionError(
                f"option 'archive' is {self._files.path!r}: there is no archive of topic {span.name!r}; with "
                "failOnDataLoss=false the log is read alone"
            )
        return found

    def _complain(self, topic: str, begin: int, end: int) -> None:
        """Only about what is to be read."""
        for low, high in self._selection.within(begin, end):
            missing = NotArchived(topic, low, high, self._files.path)
            if self._options.fail_on_data_loss:
                raise missing
            warnings.warn(str(missing), stacklevel=2)

    def _partitions(self, topic: str, contents: Contents, begin: int, end: int) -> Iterator[Partition]:
        options = self._options
        wanted = [
            found
            for low, high in self._selection.within(begin, end)
            for found in slices(contents.files, low, high, self.time)
        ]
        size = sum(part.bytes for part in wanted) // PIECES
        for piece in slice_groups(
            wanted,
            min(PIECE_BYTES_MAX, max(PIECE_BYTES_MIN, size)),
            partitions_min=options.partitions_min,
            records_max=options.partition_records_max,
        ):
            yield ArchivePartition(self._files.path, topic, piece, self._selection.log_streams, self.time)


def _opened(path: str) -> ArrowFiles:
    try:
        return ArrowFiles(path)
    except PreconditionFailed as refused:
        raise OptionError(f"option 'archive' is {path!r}: {refused}") from refused


def _check_not_ahead(contents: Contents, span: TopicSpan) -> None:
    if contents and contents.end > span.end:
        raise PreconditionFailed(
            f"it goes up to position {contents.end - 1}, and topic {span.name!r} only to {span.end - 1}: it is of another log"
        )


class ArchivePartition(Partition):
    """Parts of files of an archive, one after the other."""

    def __init__(
        self,
        path: str,
        topic: str,
        piece: tuple[Slice, ...],
        log_streams: frozenset[object] | None,
        time: Interval | None,
    ) -> None:
        super().__init__(piece)
        self.path = path
        self.topic = topic
        self.piece = piece
        self.log_streams = log_streams
        self.time = time

    def read(self) -> Iterator[pa.RecordBatch]:
        files, maker = ArrowFiles(self.path), RowMaker(self.topic, self.time)
        for part in self.piece:
            for batch in rows_of(files, part.file, part.begin, part.end):
                yield from maker.rows(self._of_streams(batch))

    def _of_streams(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.log_streams is None:
            return batch
        import pyarrow as pa
        import pyarrow.compute as pc

        allowed = pa.array(sorted(map(int, map(str, self.log_streams))), pa.int32())
        return batch.filter(pc.is_in(batch.column("log_stream"), value_set=allowed))
