"""RowMaker: record batches of a log stream as the rows that Spark wants: with the topic's name, and only those of a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

from varlog.spark.columns import arrow_schema
from varlog.spark.read.selection_rules import Interval

NAMES = 65_536


class RowMaker:
    """For one topic. The column of its name is a slice of one array that is made once."""

    def __init__(self, topic: str, time: Interval | None = None) -> None:
        self._topic = topic
        self._time = time
        self._schema = arrow_schema()
        self._names = _constant(topic, NAMES)

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of `batch`, which has the columns of `Log.range`; nothing if none is left."""
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
    """`text`, so many times."""
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
