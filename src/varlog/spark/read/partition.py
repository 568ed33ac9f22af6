"""LogPartition: what one task reads, and the rows that it yields."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from varlog.model.errors import NotWritten, Trimmed
from varlog.spark.columns import arrow_schema
from varlog.spark.connection import prepare_worker
from varlog.spark.options import LogLocation
from varlog.spark.read.origin import Origin, origin_at
from varlog.spark.read.planning_rules import ReadPiece
from varlog.spark.read.resolve_rules import Interval, MissingOffsets, TrimmedOffsets

if TYPE_CHECKING:
    import pyarrow as pa


class Partition(InputPartition):
    """Created by the driver, pickled, and read by a task; read again, in another process, if that one fails."""

    @abstractmethod
    def read(self) -> Iterator[pa.RecordBatch]:
        """Its rows, with exactly the columns of `columns.arrow_schema()`."""


class LogPartition(Partition):
    """A piece of a log stream. `time`: only rows whose time is in it. Without `fail_on_data_loss` what was trimmed is skipped."""

    def __init__(
        self,
        where: LogLocation,
        piece: ReadPiece,
        *,
        time: Interval | None = None,
        fail_on_data_loss: bool = True,
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
                    # Not by their number: junk positions have no row.
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
        """The first LLSN that was not trimmed, if data loss is allowed."""
        topic = self.piece.topic
        span = origin.span(topic)
        if self.fail_on_data_loss:
            raise TrimmedOffsets(topic, 0, span.oldest) from trimmed
        return origin.measure(topic, self.piece.log_stream, span.oldest, span.end, 0).begin


NAMES = 65_536


class RowMaker:
    """Record batches of a log stream as Spark's rows: with the topic's name, and only those of a time. The column of the name is a
    slice of one array, created once."""

    def __init__(self, topic: str, time: Interval | None = None) -> None:
        self._topic = topic
        self._time = time
        self._schema = arrow_schema()
        self._names = _constant(topic, NAMES)

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of `batch`, which has the columns of `log.connector.range`; None if none is left."""
        import pyarrow as pa

        if self._time is not None:
            batch = _within(batch, self._time)
        count = batch.num_rows
        if count > len(self._names):
            self._names = _constant(self._topic, count)
        if count:
            columns = [self._names.slice(0, count), *batch.columns]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _constant(text: str, count: int) -> pa.Array:
    """`text`, repeated `count` times."""
    import numpy as np
    import pyarrow as pa

    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data * count)]
    )


def _within(batch: pa.RecordBatch, time: Interval) -> pa.RecordBatch:
    """The rows whose time is in the interval; the batch itself if all are."""
    import numpy as np
    import pyarrow as pa

    column = batch.column("timestamp")
    times = np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)
    inside = (times >= time[0]) & (times < time[1])
    return batch if inside.all() else batch.filter(pa.array(inside))
