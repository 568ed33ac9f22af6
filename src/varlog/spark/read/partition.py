"""Partition: what one task reads, and how. LogPartition: a piece of a log stream; other kinds know other places."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    import pyarrow as pa

from varlog.model.errors import NotWritten, Trimmed
from varlog.spark.options import Where
from varlog.spark.read.origin import Origin, origin_at
from varlog.spark.read.planning_rules import Piece
from varlog.spark.read.resolve_rules import MissingOffsets, TrimmedOffsets
from varlog.spark.read.rows import RowMaker
from varlog.spark.read.selection_rules import Interval
from varlog.spark.worker_process import prepare_worker


class Partition(InputPartition):
    """Made by the driver, pickled, read by a task; read again, in another process, if that one fails."""

    @abstractmethod
    def read(self) -> Iterator[pa.RecordBatch]:
        """Its rows, with exactly the columns of `columns.arrow_schema()`."""


class LogPartition(Partition):
    """A piece of a log stream. `time`: only rows whose time is in it. Without `fail_on_data_loss` what was trimmed is skipped."""

    def __init__(
        self, where: Where, piece: Piece, *, time: Interval | None = None, fail_on_data_loss: bool = True
    ) -> None:
        super().__init__(piece)
        self.where = where
        self.piece = piece
        self.time = time
        self.fail_on_data_loss = fail_on_data_loss

    def read(self) -> Iterator[pa.RecordBatch]:
        origin, piece, begin = origin_at(self.where), self.piece, self.piece.begin
        maker = RowMaker(piece.topic, self.time)
        prepare_worker()
        while begin < piece.end:
            try:
                for batch in origin.batches(piece.topic, piece.log_stream, begin, piece.end, piece.cuts):
                    # Not by their number: positions that were given up have no row.
                    begin = batch.column("llsn")[-1].as_py() + 1
                    yield from maker.rows(batch)
                return
            except Trimmed as trimmed:
                begin = max(begin, self._oldest(origin, trimmed))
            except NotWritten as missing:
                raise MissingOffsets(
                    piece.topic,
                    f"log stream {piece.log_stream} ends at LLSN {missing.newest}, and had entries up to LLSN {piece.end - 1} when "
                    f"the read was planned: entries are lost, or it is another log by now",
                ) from missing

    def _oldest(self, origin: Origin, trimmed: Trimmed) -> int:
        """The first LLSN that is left, if that is good enough."""
        topic = self.piece.topic
        span = origin.span(topic)
        if self.fail_on_data_loss:
            raise TrimmedOffsets(topic, 0, span.oldest) from trimmed
        return origin.measure(topic, self.piece.log_stream, span.oldest, span.end, 0).begin
